"""What stands between the seam and the Hopper kernel: copies, masks, gradients, torch.compile.

The kernel itself needs a Hopper GPU (test_on_gpu.py). Here a plain PyTorch one stands in for it, with the kernel's
own contract: dense, aligned rows of any strides, keys that may be more than queries, dK and dV per key head.
"""

import sys
import types
from dataclasses import replace

import pytest
import torch

import model.attention.kernels
from model import attention
from model.attention.kernels.dense import fits
from model.attention.verify import data, reference
from model.attention.verify.reference import Inputs
from model.record.case import Case
from tests.model.attention.calls import drawn, run

CASE = Case("cuda", "bfloat16", batch=2, sequence_length=256, heads=8, kv_heads=2, head_dim=128)


def _probabilities(q_BHTD, k_BHUD, causal, query_offset):
    s = q_BHTD @ k_BHUD.mT / q_BHTD.shape[-1] ** 0.5
    if causal:
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1 + query_offset), -torch.inf)
    return s.softmax(-1), torch.stack([s.amax(-1), (s - s.amax(-1, keepdim=True)).logsumexp(-1)]).float()


def _heads_first(q_BTHD, *others_BUKD):
    group = q_BTHD.shape[2] // others_BUKD[0].shape[2]
    return q_BTHD.transpose(1, 2), *(x.repeat_interleave(group, 2).transpose(1, 2) for x in others_BUKD)


def _forward(q_BTHD, k_BUKD, v_BUKD, causal, query_offset):
    assert all(fits(x) for x in (q_BTHD, k_BUKD, v_BUKD))
    _forward.seen = [x.data_ptr() for x in (q_BTHD, k_BUKD, v_BUKD)]
    q, k, v = _heads_first(q_BTHD, k_BUKD, v_BUKD)
    p, stats_2BHT = _probabilities(q, k, causal, query_offset)
    padding = -stats_2BHT.shape[-1] % 4
    return (p @ v).transpose(1, 2).contiguous(), torch.nn.functional.pad(stats_2BHT, (0, padding))


def _backward(do_BTHD, q_BTHD, k_BUKD, v_BUKD, o_BTHD, stats_2BHS, causal, query_offset, deterministic):
    """Written out: an operator's own code runs below autograd."""
    assert all(fits(x) for x in (do_BTHD, q_BTHD, k_BUKD, v_BUKD, o_BTHD))
    _backward.deterministic = deterministic
    q, k, v = _heads_first(q_BTHD, k_BUKD, v_BUKD)
    do, o = do_BTHD.transpose(1, 2), o_BTHD.transpose(1, 2)
    p, recomputed_stats = _probabilities(q, k, causal, query_offset)
    assert torch.equal(recomputed_stats, stats_2BHS[..., : q.shape[2]]) and torch.equal(p @ v, o)
    ds = p * (do @ v.mT - (do * o).sum(-1, keepdim=True)) / q.shape[-1] ** 0.5
    dq, dk, dv = (x.transpose(1, 2) for x in (ds @ k, ds.mT @ q, p.mT @ do))
    return dq.contiguous(), *(x.unflatten(2, (k_BUKD.shape[2], -1)).sum(3) for x in (dk, dv))


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the stand-in where the operators import the kernel from."""
    module = types.ModuleType("model.attention.kernels.hopper")
    module.forward, module.backward = _forward, _backward  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "model.attention.kernels.hopper", module)
    monkeypatch.setattr(model.attention.kernels, "hopper", module, raising=False)


def _inputs(kv_heads: int) -> Inputs:
    return drawn(Case("cpu", "float64", 2, 24, heads=4, kv_heads=kv_heads, head_dim=16))


def _assert_exact(attend, inputs: Inputs, causal: bool = True) -> None:
    torch.testing.assert_close(run(attend, inputs, causal), reference.exact(inputs, causal=causal).values)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_the_mask_and_the_groups_reach_the_kernel(stand_in, kv_heads: int, causal: bool) -> None:
    _assert_exact(attention.load("custom").attend, _inputs(kv_heads), causal)


def test_strided_rows_are_copied_for_the_kernel(stand_in) -> None:
    _assert_exact(attention.load("custom").attend, data.LAYOUTS["head dim strided"](_inputs(2)))


def test_dense_rows_are_not_copied_whatever_their_strides(stand_in) -> None:
    inputs = data.LAYOUTS["fused qkv"](_inputs(2))
    assert not inputs.q.is_contiguous()
    _assert_exact(attention.load("custom").attend, inputs)
    attention.load("custom").attend(inputs.q, inputs.k, inputs.v, True)
    assert _forward.seen == [tensor.data_ptr() for tensor in (inputs.q, inputs.k, inputs.v)]


def test_the_last_queries_alone_give_the_last_rows(stand_in) -> None:
    from model.attention.kernels import op

    inputs = _inputs(2)
    whole, part = (
        op.attend(inputs.q, inputs.k, inputs.v),
        op.attend(inputs.q[:, 20:], inputs.k, inputs.v, query_offset=20),
    )
    torch.testing.assert_close(part, whole[:, 20:])


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_backward_is_deterministic_when_pytorch_is_told_to_be(stand_in, deterministic: bool) -> None:
    previous = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(deterministic)
    try:
        _assert_exact(attention.load("custom").attend, _inputs(2))
    finally:
        torch.use_deterministic_algorithms(previous)
    assert _backward.deterministic is deterministic


def test_torch_compile_takes_it_in_one_graph(stand_in) -> None:
    attend = attention.for_compile(attention.load("custom")).attend
    _assert_exact(torch.compile(attend, fullgraph=True, backend="aot_eager"), _inputs(2))


def test_a_compiled_backward_follows_a_change_of_determinism(stand_in) -> None:
    attend = torch.compile(attention.load("custom").attend, fullgraph=True, backend="aot_eager")
    previous = torch.are_deterministic_algorithms_enabled()
    try:
        for deterministic in (False, True, False):
            torch.use_deterministic_algorithms(deterministic)
            run(attend, _inputs(2), True)
            assert _backward.deterministic is deterministic
    finally:
        torch.use_deterministic_algorithms(previous)


def test_the_operators_tell_the_truth_about_their_shapes(stand_in) -> None:
    from model.attention.kernels import op

    x = drawn(Case("cpu", "float64", 2, 23, heads=4, kv_heads=2, head_dim=16))
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(op.hopper_attention, (x.q.requires_grad_(), x.k, x.v, True, 0), test_utils=checks)
    inputs = (x.q.detach(), x.k, x.v)
    saved = op.hopper_attention(*inputs, True, 0)
    torch.library.opcheck(
        op.hopper_attention_backward, (x.do, *inputs, *saved, True, 0, False), test_utils=checks
    )


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (replace(CASE, device="cpu"), "--set device=cuda"),
        (replace(CASE, dtype="float32"), "would round to TF32: use --set train.dtype=bfloat16"),
        (replace(CASE, head_dim=32), "takes head dims from 64 up to 256 that are multiples of 64, not 32"),
        (replace(CASE, head_dim=192), "takes head dims 64, 128 and 256, not 192"),
        (replace(CASE, head_dim=512), "not 512"),
        (replace(CASE, batch=1024, heads=64, sequence_length=16384), "32 bits"),
        (replace(CASE, batch=70_000, sequence_length=128), "65535"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_each_limit_of_the_kernel_is_a_reason(case: Case, reason: str) -> None:
    assert any(reason in text for text in attention.load("custom").unsupported_reasons(case))


def test_masks_lengths_precisions_and_head_dims_of_the_kernel_are_no_reasons() -> None:
    changes = {"causal": False, "sequence_length": 201, "dtype": "float16", "head_dim": 256}
    default_reasons = attention.load("custom").unsupported_reasons(CASE)
    for name, value in changes.items():
        assert attention.load("custom").unsupported_reasons(replace(CASE, **{name: value})) == default_reasons


@pytest.mark.parametrize(("version", "refused"), [("3.5.1", True), ("3.6.0", False), ("3.9.0", True)])
def test_a_triton_that_it_is_not_written_for_is_a_reason(monkeypatch, version: str, refused: bool) -> None:
    name = "triton.experimental.gluon.language.nvidia.hopper"
    for module in ("triton", name):
        monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
    sys.modules[name].tma = None
    monkeypatch.setattr("model.record.versions.version", lambda _: version)
    reasons = attention.load("custom").unsupported_reasons(CASE)
    assert any(f"needs triton 3.6 to 3.8, not {version}" in text for text in reasons) is refused
