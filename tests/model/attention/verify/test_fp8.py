"""Numbers of 8 bits: how they are made, what certificates hold them to, and that no backward is made up."""

from __future__ import annotations

import sys
import types
from dataclasses import replace

import pytest
import torch

from model import attention
from model.attention import Backend, Fp8, Kernels, Launches, Supports, _fp8
from model.attention.timing import measure as bench
from model.attention.verify import accuracy, cases, data
from model.attention.verify.cases import Variant
from model.record.case import FP8, Case
from model.record.config import RunConfig
from model.record.errors import Unsupported
from model.record.kernels import NO_BACKWARD
from model.training import certify
from tests.model.attention.calls import CUDA

CASE = Case("cpu", FP8, batch=2, sequence_length=300, heads=4, kv_heads=2, head_dim=64)


def plain(
    q_BTHD, k_BTKD, v_BTKD, causal, scales_3BK, *, lift: float = 256.0, cut_keys: int = 0, mixed: bool = False
):
    """Attention to numbers of 8 bits as a kernel computes it, and with faults that kernels have had.

    Args:
        lift: what weights are multiplied by before they are rounded.
        cut_keys: after how many keys a sum is cut to 14 bits, as tensor cores do; 0: never.
        mixed: whether the scale of another head is taken.
    """
    if mixed:
        scales_3BK = scales_3BK.roll(1, 2)
    q, k, v = (
        _fp8.dequantised(x, scale_BK, torch.float32)
        for x, scale_BK in zip((q_BTHD, k_BTKD, v_BTKD), scales_3BK, strict=True)
    )
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    s_BHTU = torch.einsum("bthd,buhd->bhtu", q, k) * q.shape[3] ** -0.5
    if causal:
        s_BHTU = s_BHTU.masked_fill(
            torch.ones_like(s_BHTU[0, 0], dtype=torch.bool).triu(1 + s_BHTU.shape[3] - s_BHTU.shape[2]),
            -torch.inf,
        )
    p_BHTU = (s_BHTU - s_BHTU.amax(-1, keepdim=True)).exp()
    narrow = (p_BHTU * lift).to(_fp8.DTYPE).float() / lift
    o, chunk = torch.zeros_like(q), cut_keys or narrow.shape[-1]
    for weights, rows in zip(narrow.split(chunk, -1), v.split(chunk, 1), strict=True):
        o = o + torch.einsum("bhtu,buhd->bthd", weights, rows)
        if cut_keys:
            fraction, exponent = torch.frexp(o)
            o = torch.ldexp((fraction * 2**14).trunc() / 2**14, exponent)
    return (o / p_BHTU.sum(-1)[..., None].transpose(1, 2)).to(torch.bfloat16)


def backend(**faults: object) -> Backend:
    """A stand-in that takes 8 bits on a CPU, where none of the project's backends does."""

    def attend(q, k, v, causal, scales_3BK):
        return plain(q, k, v, causal, scales_3BK, **faults)

    return Backend(
        summary="",
        unsupported_reasons=lambda case: [],
        attend=attention.load("math").attend,
        launches=Launches(cpu=Kernels(forward="^aten::einsum$", backward="^aten::bmm$")),
        supports=Supports(cached=True, offset=True),
        fp8=Fp8(attend=attend, offset=True, keys_summed=128),
    )


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch):
    """Puts a stand-in in the place of `math`, and shortens what a CPU would take minutes for."""

    def install(substitute: Backend) -> None:
        load = attention.load
        monkeypatch.setattr(
            certify.attention, "load", lambda name: substitute if name == "math" else load(name)
        )
        monkeypatch.setattr(cases, "LONGEST", 8192)

    return install


@pytest.mark.parametrize("one_scale", [False, True])
def test_each_key_head_has_the_scale_of_its_largest_number(one_scale) -> None:
    q, k, v = (torch.randn(2, 5, heads, 16) * 7 for heads in (4, 2, 2))
    k[1, :, 1] = 0
    quantised = _fp8.quantised(q, k, v, one_scale)
    assert quantised.q_BTHD.dtype == _fp8.DTYPE and quantised.scales_3BK.shape == (3, 2, 2)
    largest = q.view(2, 5, 2, 2, 16).abs().amax((1, 3, 4))
    expected = largest.max().expand(2, 2) if one_scale else largest
    torch.testing.assert_close(quantised.scales_3BK[0], expected / 448)
    error = (_fp8.dequantised(quantised.q_BTHD, quantised.scales_3BK[0], torch.float64) - q).abs()
    smallest = quantised.scales_3BK[0].max() * 2**-10
    assert bool((error <= 2**-4 * q.abs() + smallest).all())
    assert not quantised.k_BTKD[1, :, 1].float().any()  # a head of zeros stays one


@pytest.mark.parametrize(
    "kind", ["plain", "needle", "large logits", "huge logits", "offset", "ones", "outliers"]
)
@pytest.mark.parametrize("causal", [True, False])
def test_an_honest_kernel_passes(kind, causal) -> None:
    candidate = backend()
    variant = Variant(replace(CASE, causal=causal), kind, fp8=candidate.fp8)
    checks = accuracy.check(candidate, variant)
    assert [check.reason for check in checks if not check.passed] == []


WRONG = {
    "weights are rounded too near E4M3's lower end": ({"lift": 1 / 8}, "plain", 16384),
    "the scales of another head": ({"mixed": True}, "needle", 300),
    "sums in the tensor cores alone": ({"cut_keys": 32}, "offset", 16384),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_kernel_that_loses_more_than_its_arithmetic_allows_is_wrong(fault) -> None:
    faults, kind, keys = WRONG[fault]
    candidate = backend(**faults)
    case = replace(CASE, batch=1, sequence_length=keys, queries=16 if keys > 300 else None, causal=False)
    (right,) = [
        check
        for check in accuracy.check(candidate, Variant(case, kind, fp8=candidate.fp8))
        if check.name == "right"
    ]
    assert not right.passed and "roundings, where" in str(right.reason)


def test_a_backend_whose_sums_stay_in_the_tensor_cores_is_judged_by_that() -> None:
    candidate = backend(cut_keys=32)
    candidate = replace(candidate, fp8=replace(candidate.fp8, keys_summed=None))
    case = replace(CASE, batch=1, sequence_length=16384, queries=16, causal=False)
    (right,) = [
        check
        for check in accuracy.check(candidate, Variant(case, "offset", fp8=candidate.fp8))
        if check.name == "right"
    ]
    assert right.passed and right.measured > 0.2 * right.tolerance


def test_what_8_bits_cost_is_shown_beside_bfloat16_without_a_tolerance() -> None:
    candidate = backend()
    checks = accuracy.check(candidate, Variant(CASE, "outliers", fp8=candidate.fp8))
    shown = {check.what: check for check in checks if check.name == "quantisation"}
    assert 0.03 < shown["o"].measured < 0.1 and 0.002 < shown["o of bfloat16"].measured < 0.006
    assert all(check.passed and check.tolerance is None for check in shown.values())


def test_a_certificate_of_8_bits_is_made_forward_only(named) -> None:
    named(backend())
    certificate = certify.certify_case("math", CASE)
    assert (certificate.verdict, certificate.reasons) == ("right", [])
    assert set(certificate.kernels) == {"forward"} and certificate.deterministic
    assert {check.what for check in certificate.checks if check.name == "right"} == {"o"}
    assert {"ones", "needle", "outliers, heads first", "New data in the same tensors"} <= {
        check.variant for check in certificate.checks
    }


def test_a_wrong_kernel_of_8_bits_gets_no_certificate(named) -> None:
    named(backend(mixed=True))
    certificate = certify.certify_case("math", CASE)
    assert certificate.verdict == "wrong" and "is off by" in certificate.reasons[0]


def test_of_8_bits_the_forward_alone_is_timed_and_checked(monkeypatch) -> None:
    monkeypatch.setattr(bench, "_product", lambda case: None)  # which CPUs have not
    times = bench.measure({"math": backend()}, CASE, 0, 3).times
    forward, backward = times
    assert forward.outcome == "completed" and len(forward.seconds) == 3
    assert forward.checked and 0 < forward.checked.error < 1
    assert (backward.outcome, backward.seconds, backward.reason) == ("unsupported", [], NO_BACKWARD)


def test_a_wrong_call_of_8_bits_gets_no_time(monkeypatch) -> None:
    monkeypatch.setattr(bench, "_product", lambda case: None)
    times = bench.measure({"math": backend(mixed=True)}, CASE, 0, 3).times
    assert {time.outcome for time in times} == {"wrong"} and "is off by" in str(times[0].reason)


@pytest.mark.parametrize("name", ["math", "flash", "portable", "tiled"])
def test_others_refuse_8_bits_and_name_those_that_take_them(name) -> None:
    with pytest.raises(Unsupported, match="choose cudnn, custom or flash3"):
        attention.require(name, replace(CUDA, dtype=FP8))


@pytest.mark.parametrize(
    ("name", "head_dim", "reason"), [("custom", 256, "up to 128"), ("cudnn", 72, "multiples of 16")]
)
def test_head_dims_of_8_bits_are_fewer(name, head_dim, reason) -> None:
    reasons = attention.load(name).unsupported_reasons(replace(CUDA, dtype=FP8, head_dim=head_dim))
    assert any(reason in text for text in reasons)


def test_flash3_gets_the_scales_by_its_own_names(monkeypatch) -> None:
    arguments = {}

    def flash_attn_func(q, k, v, **options):
        arguments.update(options)
        return q.to(torch.bfloat16)

    module = types.SimpleNamespace(flash_attn_func=flash_attn_func)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", module)
    flash3 = attention.load("flash3")
    inputs = data.drawn(Variant(CASE, fp8=flash3.fp8))
    o_BTHD = attention.attend(flash3, CASE, inputs.q, inputs.k, inputs.v, inputs.scales_3BK)
    assert o_BTHD.dtype == torch.bfloat16 and arguments.pop("causal") is True
    assert set(arguments) == {"q_descale", "k_descale", "v_descale"}
    for index, name in enumerate(("q_descale", "k_descale", "v_descale")):
        assert torch.equal(arguments[name], inputs.scales_3BK[index])


def test_a_run_of_8_bits_has_their_peak_and_no_dropout() -> None:
    run = {"task": "attention", "device": "cuda", "call": {"dtype": FP8}}
    assert RunConfig.model_validate(run).section.precision == "float8"
    with pytest.raises(ValueError, match="dropout does not go with dtype float8_e4m3fn"):
        RunConfig.model_validate({**run, "call": {"dtype": FP8, "dropout": 0.125}})
