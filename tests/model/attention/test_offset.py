"""Part of a sequence attends to all keys up to its end: fewer queries than keys, the last query at the last key."""

from dataclasses import replace

import pytest
import torch

from model import attention
from model.attention import NOT_OFFSET, Backend, Launches, Supports, _sdpa
from model.attention.verify import reference
from model.attention.verify.reference import Inputs
from model.record import backends
from tests.model.attention.calls import CPU, CUDA, RUN_HERE, drawn, off, run

PARTS = [(1, 64), (16, 64), (48, 64), (64, 64), (37, 101), (100, 300)]
TAKE = [name for name in RUN_HERE if attention.load(name).supports.offset]


def case(queries, keys, **changes):
    return replace(CPU, batch=2, queries=queries, sequence_length=keys, **changes)


def last_rows(inputs: Inputs) -> dict[str, torch.Tensor]:
    """The same from attention of whole sequences, whose earlier rows have no gradient."""
    rows, earlier = inputs.q.shape[1], inputs.k.shape[1] - inputs.q.shape[1]
    q, do = (
        torch.cat((torch.zeros_like(tensor[:, :1]).repeat(1, earlier, 1, 1), tensor), 1)
        for tensor in (inputs.q, inputs.do)
    )
    values = reference.exact(Inputs(q, inputs.k, inputs.v, do), causal=True).values
    return {step: tensor[:, -rows:] if step in ("o", "dq") else tensor for step, tensor in values.items()}


@pytest.mark.parametrize(("queries", "keys"), PARTS, ids=str)
def test_the_reference_gives_the_last_rows_of_the_whole(queries, keys) -> None:
    inputs = drawn(case(queries, keys))
    values, expected = reference.exact(inputs, True, elements={"cpu": 3000}).values, last_rows(inputs)
    for step, exact in expected.items():
        torch.testing.assert_close(values[step], exact, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", TAKE)
@pytest.mark.parametrize(("queries", "keys"), PARTS, ids=str)
def test_the_last_query_stands_at_the_last_key(name, queries, keys) -> None:
    partial_case = case(queries, keys)
    assert not attention.refusals(attention.load(name), partial_case)
    inputs = drawn(partial_case)
    results = run(lambda *qkv: attention.attend(attention.load(name), partial_case, *qkv), inputs)
    for step, exact in last_rows(inputs).items():
        assert off(results[step], exact) < 1e-6, step


def test_a_query_at_the_first_key_is_far_off() -> None:
    """What `is_causal` of PyTorch means. The tests above could not tell if this were near."""
    inputs = drawn(case(16, 64))
    q, k, v = (
        tensor.transpose(1, 2)
        for tensor in (inputs.q, inputs.k.repeat_interleave(2, 2), inputs.v.repeat_interleave(2, 2))
    )
    upper_left = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    assert off(upper_left, last_rows(inputs)["o"]) > 0.5


def test_these_backends_take_parts_of_sequences() -> None:
    shipped = set(backends.names()) - set(backends.foreign())
    assert {name for name in shipped if not attention.load(name).supports.offset} == {"cudnn"}
    assert set(TAKE) == {"auto", "flash", "math", "tiled"}


@pytest.mark.parametrize("supports", [None, Supports(devices=("cpu",))])
def test_one_that_does_not_say_that_it_takes_them_is_refused(supports) -> None:
    silent = Backend("silent", lambda _: [], lambda q, _k, _v, _causal: q, Launches(), supports=supports)
    assert attention.refusals(silent, case(16, 64)) == [NOT_OFFSET]
    assert not attention.refusals(silent, case(64, 64))
    assert "parallel.context=1" in NOT_OFFSET


def test_cudnn_would_put_the_first_query_at_the_first_key_and_raises() -> None:
    q, k = torch.randn(1, 8, 2, 16), torch.randn(1, 16, 2, 16)
    with pytest.raises(ValueError, match="fewer queries than keys"):
        _sdpa.pinned(_sdpa.CUDNN, q, k, k, True)


def test_pytorch_is_asked_about_the_kernel_without_a_mask() -> None:
    """With `is_causal` it refuses flash for fewer queries than keys, though it takes them with its own bias."""
    params = _sdpa._params(case(16, 64), copies_heads=False)
    assert (params.is_causal, params.query.shape[2], params.key.shape[2]) == (False, 16, 64)
    assert params.query.requires_grad
    assert _sdpa._params(case(None, 64), copies_heads=False).is_causal


@pytest.mark.gpu
@pytest.mark.filterwarnings(
    "default:The .grad attribute of a Tensor that is not a leaf"
)  # dynamo hides its own
@pytest.mark.parametrize("name", backends.names())
def test_on_a_gpu_the_last_query_stands_at_the_last_key(name) -> None:
    """Twice the error of plain attention in the same precision, as the certificate allows."""
    backend = attention.load(name)
    for queries, keys in ((128, 256), (256, 1024), (300, 1000)):
        partial_case = replace(CUDA, queries=queries, sequence_length=keys)
        if reasons := attention.refusals(backend, partial_case):
            pytest.skip("; ".join(reasons))
        inputs = drawn(partial_case)
        results = run(
            lambda *qkv, partial_case=partial_case: attention.attend(backend, partial_case, *qkv), inputs
        )
        plain = reference.same_precision(inputs, True)
        for step, exact in last_rows(inputs).items():
            assert off(results[step], exact) < 2 * off(plain[step], exact), (step, queries, keys)
