"""A gate for a run that decodes looks at the calls with one query too, forward alone, and tells wrong ones apart."""

from dataclasses import replace

import pytest
import torch

from model import attention
from model.attention import Backend, Case, Supports
from model.attention.verify import accuracy as verify
from model.attention.verify import cases, data, reference
from model.attention.verify.certificate import case_fields, describe, key
from model.attention.verify.reference import STEPS, Inputs
from model.training.certify import certify_case
from tests.model.attention.verify import planted

CASE = Case("cpu", "float32", batch=2, sequence_length=160, heads=4, kv_heads=2, head_dim=32, new_tokens=5)
CACHED = Supports(devices=("cpu",), cached=True)


def of(attend):
    """A backend that is right for prompts, and for decoded tokens does this."""

    def attend_any(q, k, v, causal):
        return planted.right(q, k, v, causal) if q.shape[1] == k.shape[1] else attend(q, k, v)

    return Backend("planted", lambda case: [], attend_any, planted.BY_SOFTMAX, CACHED)


def right(q, k, v):
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2).transpose(1, 2) for x in (k, v))
    scores = torch.matmul(q.transpose(1, 2), k.mT) * q.shape[-1] ** -0.5
    return torch.matmul(scores.softmax(-1), v).transpose(1, 2)


def without_the_newest(q, k, v):
    return right(q, k[:, :-1], v[:, :-1])


def reads_on_in_the_cache(q, k, v):
    B, S, K, D = k.shape
    return right(q, *(x.as_strided((B, S + 1, K, D), x.stride()) for x in (k, v)))


def causal_from_the_first_key(q, k, v):
    return right(q, k[:, :1], v[:, :1])


def takes_the_cache_for_dense(q, k, v):
    B, S, K, D = k.shape
    return right(q, *(x.as_strided((B, S, K, D), (S * K * D, K * D, D, 1)) for x in (k, v)))


def mixes_up_the_groups(q, k, v):
    return right(q, k.flip(2), v)


CACHE = {}


def of_the_first_token(q, k, v):
    return CACHE.setdefault(k.data_ptr(), right(q, k, v)).clone()


def writes_into_the_cache(q, k, v):
    o = right(q, k, v)
    k[:, -1] = 0
    return o


WRONG = (
    without_the_newest, reads_on_in_the_cache, causal_from_the_first_key, takes_the_cache_for_dense,
    mixes_up_the_groups, of_the_first_token, writes_into_the_cache,
)  # fmt: skip


def in_half_precision(q, k, v):
    return right(q, k, v.bfloat16().float())


@pytest.mark.parametrize("name", ["math", "flash", "tiled"])
@pytest.mark.parametrize("shape", [(1024, 8, 2, 64), (4096, 4, 1, 64)], ids=str)
def test_sums_over_many_keys_in_another_order_are_right_in_float32(name, shape):
    length, heads, kv_heads, head_dim = shape
    case = Case("cpu", "float32", 1, length, heads, kv_heads, head_dim, new_tokens=64)
    checks = [
        check for variant in cases.decoding(case) for check in verify.check(attention.load(name), variant)
    ]
    assert checks and all(check.passed for check in checks), [check for check in checks if not check.passed]


@pytest.mark.parametrize("attend", [without_the_newest, mixes_up_the_groups, in_half_precision])
def test_wrong_ones_are_told_apart_after_many_keys(attend):
    case = replace(CASE, sequence_length=4096, new_tokens=64)
    checks = [check for variant in cases.decoding(case) for check in verify.check(of(attend), variant)]
    assert any(check.name == "right" and not check.passed for check in checks)


@pytest.mark.parametrize("keys", [1, 5])
def test_plain_results_of_a_single_query_have_the_gradients_of_shared_keys(keys):
    rng = torch.Generator().manual_seed(0)
    heads = {"q": (1, 6), "k": (keys, 2), "v": (keys, 2), "do": (1, 6)}
    inputs = Inputs(**{name: torch.randn(2, *size, 16, generator=rng) for name, size in heads.items()})
    exact, plain = reference.exact(inputs, False), reference.same_precision(inputs, False)
    for step in STEPS:
        assert plain[step].shape == exact.values[step].shape
        assert torch.allclose(plain[step].double(), exact.values[step], atol=1e-5)


def faults(certificate):
    """Failed checks but one, which a busy machine can fail: whether softmax took most of the time."""
    return [check for check in certificate.checks if not check.passed and check.name != "kernels do the work"]


def test_one_that_is_right_is_certified_for_the_run_that_decodes(plant):
    plant("right", of(right))
    certificate = certify_case("right", CASE)
    assert (faults(certificate), certificate.case) == ([], CASE)
    shapes = {
        check.case
        for check in certificate.checks
        if check.variant.startswith("decoding") or "Q1" in check.case
    }
    assert {describe(CASE.decoding(161)), describe(CASE.decoding(165))} <= shapes
    assert certificate.kernels["decoding"]


@pytest.mark.parametrize("attend", WRONG, ids=lambda function: function.__name__)
def test_one_that_decodes_wrong_is_refused_though_it_trains_right(attend, plant):
    plant("wrong", of(attend))
    assert not faults(certify_case("wrong", replace(CASE, new_tokens=0)))
    failures = faults(certify_case("wrong", CASE))
    assert failures and all("Q1" in check.case for check in failures)


def test_decoding_is_looked_at_without_gradients(plant):
    modes = []

    def record_mode(q, k, v):
        modes.append(torch.is_grad_enabled() and q.requires_grad)
        return right(q, k, v)

    plant("seen", of(record_mode))
    certify_case("seen", CASE)
    assert modes and not any(modes)


def test_one_that_does_not_say_that_it_decodes_is_unsupported(plant):
    plant("silent", replace(of(right), supports=None))
    certificate = certify_case("silent", CASE)
    assert (certificate.verdict, certificate.reasons) == ("unsupported", [attention.NOT_CACHED])


def test_the_lengths_looked_at_are_those_of_the_run():
    lengths = {variant.case.sequence_length for variant in cases.decoding(replace(CASE, new_tokens=200))}
    assert lengths == {161, 162, 256, 257, 360}
    assert {variant.case.sequence_length for variant in cases.decoding(replace(CASE, new_tokens=1))} == {161}
    assert not cases.decoding(replace(CASE, new_tokens=0))


def test_the_reference_for_fewer_queries_than_keys_is_attention_as_autograd_has_it():
    tensors = [
        torch.randn(2, length, n, 8, dtype=torch.float64) for length, n in ((3, 4), (70, 2), (70, 2), (3, 4))
    ]
    q, k, v = (tensor.clone().requires_grad_() for tensor in tensors[:3])
    o = right(q, k, v)
    o.backward(tensors[3])
    exact = reference.exact(Inputs(*tensors), causal=False, elements={"cpu": 500})
    for step, expected in zip(STEPS, (o, q.grad, k.grad, v.grad), strict=True):
        torch.testing.assert_close(exact.values[step], expected, rtol=1e-10, atol=1e-12)


def test_a_cache_holds_nan_where_nothing_was_kept():
    inputs = data.laid_out(cases.Variant(CASE.decoding(161), layout="cached"))
    assert inputs.k.shape == (2, 161, 2, 32)
    assert not inputs.k.isnan().any()
    assert inputs.k.as_strided((1,), (1,), inputs.k.storage_offset() + 161 * 2 * 32).isnan().all()


def test_a_case_without_decoding_has_the_key_that_it_had_before_there_was_any():
    plain = replace(CASE, new_tokens=0)
    assert set(case_fields(plain)) == {
        "device", "dtype", "batch", "sequence_length", "heads", "kv_heads", "head_dim", "causal", "compile",
    }  # fmt: skip
    assert (
        key("math", "code", plain, None, {})
        == "1a0069247e5977f9ce6e071053ce15d9011a2f4c13dd4d13dda776f26095cb0c"
    )
    assert (
        key("math", "code", CASE, None, {})
        != "1a0069247e5977f9ce6e071053ce15d9011a2f4c13dd4d13dda776f26095cb0c"
    )
