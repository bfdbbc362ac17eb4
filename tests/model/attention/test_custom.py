"""What stands between the seam and the Hopper kernel: folding, groups, gradients, torch.compile.

The kernel itself needs a Hopper GPU (test_on_gpu.py). Here a plain PyTorch one stands in for it,
with the kernel's own contract: (heads, T, D), the batch folded in, dK and dV per query head.
"""

import sys
import types
from dataclasses import replace

import pytest
import torch

import model.kernels
from model import attention
from model.attention import Case
from model.verify import data, reference
from model.verify.reference import Inputs
from tests.model.attention.calls import drawn, run

CASE = Case("cuda", "bfloat16", batch=2, sequence_length=256, heads=8, kv_heads=2, head_dim=128)


def _probabilities(q_HTD, k_HTD):
    s = q_HTD @ k_HTD.mT / q_HTD.shape[-1] ** 0.5
    s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return s.softmax(-1), s.logsumexp(-1).float()


def _per_query_head(q_HTD, *others_KTD):
    return (x.repeat_interleave(q_HTD.shape[0] // x.shape[0], 0) for x in others_KTD)


def _forward(q_HTD, k_KTD, v_KTD):
    assert all(x.is_contiguous() for x in (q_HTD, k_KTD, v_KTD))
    k_HTD, v_HTD = _per_query_head(q_HTD, k_KTD, v_KTD)
    p, lse_HT = _probabilities(q_HTD, k_HTD)
    return p @ v_HTD, lse_HT


def _backward(do_HTD, q_HTD, k_KTD, v_KTD, o_HTD, lse_HT):
    """Written out: an operator's own code runs below autograd."""
    assert all(x.is_contiguous() for x in (do_HTD, q_HTD, k_KTD, v_KTD, o_HTD, lse_HT))
    k_HTD, v_HTD = _per_query_head(q_HTD, k_KTD, v_KTD)
    p, lse_again = _probabilities(q_HTD, k_HTD)
    assert torch.equal(lse_again, lse_HT) and torch.equal(p @ v_HTD, o_HTD)
    ds = p * (do_HTD @ v_HTD.mT - (do_HTD * o_HTD).sum(-1, keepdim=True)) / q_HTD.shape[-1] ** 0.5
    return ds @ k_HTD, ds.mT @ q_HTD, p.mT @ do_HTD


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the stand-in where the operators import the kernel from."""
    module = types.ModuleType("model.kernels.hopper")
    module.forward, module.backward = _forward, _backward  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "model.kernels.hopper", module)
    monkeypatch.setattr(model.kernels, "hopper", module, raising=False)


def _inputs(kv_heads: int) -> Inputs:
    return drawn(Case("cpu", "float64", 2, 24, heads=4, kv_heads=kv_heads, head_dim=16))


def _assert_exact(attend, inputs: Inputs) -> None:
    torch.testing.assert_close(run(attend, inputs, True), reference.exact(inputs, causal=True).values)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_batches_and_groups_are_folded_and_unfolded_right(stand_in, kv_heads: int) -> None:
    _assert_exact(attention.load("custom").attend, _inputs(kv_heads))


def test_strided_inputs_and_gradients_reach_the_kernel_contiguous(stand_in) -> None:
    _assert_exact(attention.load("custom").attend, data.LAYOUTS["head dim strided"](_inputs(2)))


def test_torch_compile_takes_it_in_one_graph(stand_in) -> None:
    attend = attention.for_compile(attention.load("custom")).attend
    _assert_exact(torch.compile(attend, fullgraph=True, backend="aot_eager"), _inputs(2))


def test_the_operators_tell_the_truth_about_their_shapes(stand_in) -> None:
    from model.kernels import op

    x = _inputs(2)
    q, k, v, do = (y.transpose(1, 2).contiguous() for y in (x.q, x.k, x.v, x.do))
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(op.hopper_attention, (q.requires_grad_(), k, v), test_utils=checks)
    o, lse = op.hopper_attention(q.detach(), k, v)
    backward = (do, q.detach(), k, v, o, lse)
    torch.library.opcheck(op.hopper_attention_backward, backward, test_utils=checks)


def test_without_a_mask_it_refuses_rather_than_masks() -> None:
    q = torch.randn(1, 128, 1, 128)
    with pytest.raises(ValueError, match="causal only"):
        attention.load("custom").attend(q, q, q, False)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (replace(CASE, device="cpu"), "--set device=cuda"),
        (replace(CASE, dtype="float16"), "--set train.dtype=bfloat16"),
        (replace(CASE, head_dim=64), "head dim 128, not 64"),
        (replace(CASE, sequence_length=200), "multiples of 128, not 200"),
        (replace(CASE, causal=False), "causal only"),
        (replace(CASE, batch=16, heads=64, sequence_length=16384), "32-bit"),
        (replace(CASE, batch=10_000, sequence_length=128), "65535"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_each_limit_of_the_kernel_is_a_reason(case: Case, reason: str) -> None:
    assert any(reason in text for text in attention.load("custom").unsupported_reasons(case))


@pytest.mark.parametrize(("version", "refused"), [("3.5.1", True), ("3.6.0", False), ("3.9.0", True)])
def test_a_triton_that_it_is_not_written_for_is_a_reason(monkeypatch, version: str, refused: bool) -> None:
    name = "triton.experimental.gluon.language.nvidia.hopper"
    for module in ("triton", name):
        monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
    sys.modules["triton"].__version__ = version
    sys.modules[name].tma = None
    reasons = attention.load("custom").unsupported_reasons(CASE)
    assert any(f"triton 3.6 to 3.8, and {version} is installed" in text for text in reasons) is refused
