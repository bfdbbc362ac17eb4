"""A certificate for processes that share a sample's tokens: their calls, joined, are held to the rule of one call."""

from dataclasses import replace

import pytest
import torch

from model import attention
from model.attention import Backend, Case, Supports
from model.attention.verify import cases
from model.attention.verify.certificate import case_fields, describe, key
from model.training.certify import certify_case
from tests.model.attention.verify import planted
from tests.model.attention.verify.test_decoding import faults

ALONE = Case("cpu", "float32", batch=2, sequence_length=160, heads=4, kv_heads=2, head_dim=32)
CASE = replace(ALONE, context=2)
OFFSET = Supports(devices=("cpu",), offset=True)


def right(q, k, v, later=0):
    """The last query stands at the last key, or later."""
    offset = k.shape[1] - q.shape[1] + later
    return planted.right(q, k, v, False, hidden=lambda query, key: key > query + offset)


def of(attend):
    """A backend that is right where there are as many queries as keys, and for parts of sequences does this."""

    def attend_any(q, k, v, causal):
        square = q.shape[1] == k.shape[1]
        return planted.right(q, k, v, causal) if square or not causal else attend(q, k, v)

    return Backend("planted", lambda case: [], attend_any, planted.BY_SOFTMAX, OFFSET)


def the_first_query_at_the_first_key(q, k, v):
    return planted.right(q, k, v, True)


def one_key_too_many(q, k, v):
    return right(q, k, v, later=1)


def one_key_too_few(q, k, v):
    return right(q, k, v, later=-1)


def without_the_first_tile(q, k, v):
    return right(q, k[:, 16:], v[:, 16:])


def one_dk_too_large(q, k, v):
    return right(q, planted.backward(k, lambda d: d * 1.001), v)


def no_gradient_for_earlier_keys(q, k, v):
    earlier = k.shape[1] - q.shape[1]
    return right(q, k, planted.backward(v, lambda d: torch.cat((0 * d[:, :earlier], d[:, earlier:]), 1)))


CACHE = {}


def of_the_first_call(q, k, v):
    return CACHE.setdefault(k.shape, right(q, k, v).detach()) + 0 * right(q, k, v)


WRONG = (
    the_first_query_at_the_first_key, one_key_too_many, one_key_too_few, without_the_first_tile, one_dk_too_large,
    no_gradient_for_earlier_keys, of_the_first_call,
)  # fmt: skip


def test_one_that_is_right_is_certified_for_the_run() -> None:
    certificate = certify_case("tiled", CASE)
    assert (certificate.verdict, certificate.case) == ("right", CASE), certificate.reasons
    shapes = {check.case for check in certificate.checks if check.name == "right"}
    assert describe(CASE) in shapes and all("over 2 processes" in shape for shape in shapes)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("context", [2, 4])
def test_math_is_certified_in_the_precisions_of_runs(dtype, context) -> None:
    """In bfloat16 the sum of the parts' gradients holds the tolerance only because it is kept in float32."""
    certificate = certify_case("math", replace(CASE, dtype=dtype, context=context))
    assert not faults(certificate), certificate.reasons


@pytest.mark.parametrize("tokens", [32, 128])
def test_flash_is_certified_for_parts_of_a_short_sequence(tokens) -> None:
    """PyTorch's CPU kernel hides a NaN from calls that are shorter than its vectors, as first parts may be."""
    certificate = certify_case("flash", replace(CASE, sequence_length=tokens))
    assert certificate.verdict == "right", certificate.reasons
    assert any(check.name == "NaN comes out" for check in certificate.checks) == (tokens == 128)


@pytest.mark.parametrize("attend", WRONG, ids=lambda function: function.__name__)
def test_one_that_is_wrong_for_parts_alone_is_refused(attend, plant) -> None:
    plant("wrong", of(attend))
    assert not faults(certify_case("wrong", ALONE))
    failures = faults(certify_case("wrong", CASE))
    assert failures and all("over 2 processes" in check.case for check in failures)


def test_one_that_does_not_say_that_it_takes_parts_is_unsupported(plant) -> None:
    plant("silent", replace(of(right), supports=None))
    certificate = certify_case("silent", CASE)
    assert (certificate.verdict, certificate.reasons) == ("unsupported", [attention.NOT_OFFSET])


@pytest.mark.parametrize("context", [1, 2, 3, 4])
def test_every_length_looked_at_has_as_many_parts(context) -> None:
    long_case = replace(CASE, context=context, sequence_length=4800)
    variants = cases.around(long_case, compiled=False) + [
        cases.Variant(entry) for entry in cases.elsewhere("float32", [], long_case)
    ]
    parts = 2 * context if context > 1 else 1
    rows = {entry.case.sequence_length / parts for entry in variants}
    assert all(n == int(n) for n in rows)
    assert any(n % 2 for n in rows)  # and one is no multiple of any tile
    assert {entry.case.context for entry in variants} == {context}


def test_a_case_that_no_processes_share_has_the_key_that_it_always_had() -> None:
    assert "context" not in case_fields(ALONE) and case_fields(CASE)["context"] == 2
    assert key("math", "code", ALONE, None, {}) == (
        "1a0069247e5977f9ce6e071053ce15d9011a2f4c13dd4d13dda776f26095cb0c"
    )


def test_what_a_backend_supports_is_looked_at_with_parts(plant) -> None:
    offset = [variant.case for variant in cases.covering("cpu", compiled=False) if variant.case.offset]
    assert offset and all(not attention.refusals(attention.load("math"), case) for case in offset)
    assert any(variant.case.parts for variant in cases.covering("cpu", compiled=False))
    assert any(variant.case.offset for variant in cases.covering("cuda", compiled=True))
