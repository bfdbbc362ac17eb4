"""Processes that share a sample's tokens compute what one process computes with all of them."""

import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from model import attention
from model.attention.verify import data, reference
from model.attention.verify.cases import Variant
from model.attention.verify.reference import Inputs
from model.record import backends
from model.record.case import Case
from model.record.config import RunConfig
from model.training.parallel import context
from model.training.parallel.world import ALONE
from tests.model.attention.calls import off, run
from tests.model.training.parallel.processes import together

CASE = Case("cpu", "float32", batch=2, sequence_length=48, heads=4, kv_heads=2, head_dim=16)
BACKENDS = ["flash", "math", "tiled"]
# float32 rounds 6e-8 of a number; sums of 48 terms in another order differ by a few of these.
TOLERANCE = 2e-6


def numbers(case: Case) -> Inputs:
    return data.drawn(Variant(case, seed=3))


def of_one_process(name: str, case: Case) -> dict[str, torch.Tensor]:
    return run(partial(attention.attend, attention.load(name), case), numbers(case))


def of_each(world, name: str, case: Case) -> dict[str, Any]:
    """What a process that has its share of all tensors gets; its output and gradients."""
    shared = context.Shared(attention.load(name), replace(case, context=world.parallel.context), world)
    inputs = numbers(case)
    return sent(
        run(
            shared,
            Inputs(*(context.mine(tensor, world) for tensor in (inputs.q, inputs.k, inputs.v, inputs.do))),
        )
    )


def sent(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """As a pipe can carry it."""
    return {step: tensor.float().cpu().numpy() for step, tensor in tensors.items()}


def gathered(answers: list[dict[str, Any]], step: str) -> torch.Tensor:
    """The shares of all processes in the order of positions."""
    size = len(answers)
    order = {
        place: (rank, half) for rank in range(size) for half, place in enumerate(context.places(rank, size))
    }
    shares = [torch.from_numpy(answer[step]).chunk(2, 1) for answer in answers]
    return torch.cat([shares[rank][half] for rank, half in map(order.get, range(2 * size))], 1)


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("name", BACKENDS)
def test_output_and_gradients_are_those_of_one_process(name, processes) -> None:
    answers = together(of_each, name, CASE, context=processes)
    for step, expected in of_one_process(name, CASE).items():
        assert off(gathered(answers, step), expected) < TOLERANCE, step


@pytest.mark.parametrize("processes", [pytest.param(count, marks=pytest.mark.gpu(count)) for count in (2, 4)])
@pytest.mark.parametrize("name", backends.names())
def test_on_gpus_they_keep_to_what_one_call_may_be_off_by(name, processes) -> None:
    case = replace(CASE, device="cuda", dtype="bfloat16", sequence_length=2048, heads=8, head_dim=128)
    if reasons := attention.refusals(attention.load(name), replace(case, context=processes)):
        pytest.skip("; ".join(reasons))
    answers = together(of_each, name, case, device="cuda", context=processes)
    inputs = numbers(case)
    exact, plain = reference.exact(inputs, True), reference.same_precision(inputs, True)
    for step, allowed in plain.items():
        tensor, expected = gathered(answers, step), exact.values[step].cpu()
        assert off(tensor, expected) < 2 * off(allowed.cpu(), expected), step


def test_groups_of_processes_share_the_tokens_of_samples_of_their_own() -> None:
    answers = together(of_each, "math", CASE, shard=2, context=2)
    for step, expected in of_one_process("math", CASE).items():
        for group in (answers[:2], answers[2:]):
            assert off(gathered(group, step), expected) < TOLERANCE, step


def test_gradients_are_added_in_float32() -> None:
    """Eight parts' gradients in bfloat16: rounded once at the end, they are as near as those of one call."""
    case = replace(CASE, dtype="bfloat16", sequence_length=256, batch=1)
    answers = together(of_each, "math", case, context=4)
    exact, plain = reference.exact(numbers(case), True), reference.same_precision(numbers(case), True)
    for step in ("dk", "dv"):
        assert off(gathered(answers, step), exact.values[step]) < 1.2 * off(
            plain[step], exact.values[step]
        ), step


def test_in_one_process_the_joined_parts_are_the_whole() -> None:
    for name in BACKENDS:
        whole, joined = (of_one_process(name, replace(CASE, context=count)) for count in (1, 3))
        for step, tensor in whole.items():
            assert off(joined[step], tensor) < TOLERANCE, (name, step)


def test_each_process_has_an_early_and_a_late_part() -> None:
    assert [context.places(rank, 4) for rank in range(4)] == [(0, 7), (1, 6), (2, 5), (3, 4)]
    parts = replace(CASE, context=2).parts
    assert [(part.queries, part.sequence_length, part.offset) for part in parts] == [
        (None, 12, 0), (12, 24, 12), (12, 36, 24), (12, 48, 36),
    ]  # fmt: skip
    assert {part.context for part in parts} == {1}
    assert CASE.parts == []


def test_a_process_that_is_alone_has_all_tokens() -> None:
    tokens = torch.arange(8)[None]
    assert context.mine(tokens, ALONE) is tokens


def test_all_tokens_come_back_to_where_they_were() -> None:
    tokens = torch.randn(2, 3, 24, 2, 4)
    assert torch.equal(context._in_order(context._by_process(tokens, 3)), tokens)


def of_compiled(world, case: Case) -> dict[str, Any]:
    case = replace(case, context=world.parallel.context)
    shared = context.Shared(attention.load("math"), case, world, outside_graphs=True)
    block = torch.compile(lambda q, k, v: shared(q + 0, k + 0, v + 0) * 1, backend="aot_eager")
    inputs = numbers(case)
    with warnings.catch_warnings(action="ignore"):  # Dynamo looks at `.grad` of what its graph goes on from
        return sent(
            run(
                block,
                Inputs(
                    *(context.mine(tensor, world) for tensor in (inputs.q, inputs.k, inputs.v, inputs.do))
                ),
            )
        )


def test_a_compiled_block_leaves_it_out_of_its_graph() -> None:
    answers = together(of_compiled, CASE, context=2)
    for step, expected in of_one_process("math", CASE).items():
        assert off(gathered(answers, step), expected) < TOLERANCE, step


def test_a_run_asks_its_backend_for_the_calls_of_one_process() -> None:
    config = RunConfig.model_validate({
        "data": {"path": "x.parquet"}, "train": {"batch_size": 8, "accumulate": 2, "compile": True},
        "parallel": {"replicate": 2, "shard": 2, "context": 4, "tensor": 2},
    })  # fmt: skip
    case = config.attention_case
    assert (case.batch, case.heads, case.kv_heads, case.context, case.compile) == (1, 16, 4, 4, False)
    assert [call.sequence_length for call in case.calls] == [512 * n for n in range(1, 9)]
    assert not any(call.compile for call in case.calls)
    (reason,) = attention.refusals(replace(attention.load("math"), supports=None), replace(CASE, context=2))
    assert reason == attention.NOT_OFFSET
