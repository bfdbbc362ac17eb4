"""The numbers of every backend that runs on a CPU, held to model.attention.verify's rule: compiled, masked, in 16 bits."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from model import attention
from model.attention import Backend, Case
from model.attention.verify import data
from model.attention.verify.call import Subject, call
from model.attention.verify.cases import Variant
from model.attention.verify.reference import STEPS
from tests.model.attention.calls import CPU, RUN_HERE, drawn, off

# Every length with every grouping of heads; every two values of any two of the four meet in some shape.
SHAPES = [
    (length, heads, (16, 64)[place % 2], (1, 2)[place // 2 % 2])
    for place, (length, heads) in enumerate(product((1, 7, 64, 129, 300), ((4, 4), (4, 2), (8, 1))))
]


def assert_right(backend: Backend, variant: Variant) -> dict[str, Tensor]:
    """O, dQ, dK and dV, over the whole and in every head, tile, row and column."""
    subject, solution = Subject(backend, variant.case, str(variant)), data.solved_call(variant)
    results = call(subject, solution.inputs)
    subject.numbers("right", results, solution.exact, solution.plain)
    assert {check.what for check in subject.checks if check.name == "right"} == set(STEPS)
    assert not [check.reason for check in subject.checks if not check.passed]
    return results


def assert_right_in_float32(backend: Backend, variant: Variant) -> None:
    """As above, and the relative error of each whole result is at most 1e-6, eight roundings of float32.

    One token attends to itself alone: its dQ and dK are zero, and have no relative error.
    """
    results, solution = assert_right(backend, variant), data.solved_call(variant)
    for step, exact in solution.exact.values.items():
        if exact.norm() < 1e-12:
            assert results[step].norm() < 1e-5, step
        else:
            assert off(results[step], exact) <= 1e-6, step


@pytest.mark.parametrize("name", RUN_HERE)
@pytest.mark.parametrize("layout", ["contiguous", "head dim strided"])
@pytest.mark.parametrize(("length", "heads", "dim", "batch"), SHAPES, ids=str)
def test_a_cpu_backend_is_as_exact_as_float32_allows(name, layout, length, heads, dim, batch) -> None:
    case = Case("cpu", "float32", batch, length, *heads, dim)
    assert_right_in_float32(attention.require(name, case), Variant(case, layout=layout))


@pytest.mark.parametrize("name", RUN_HERE)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_cpu_backend_in_16_bits_is_as_exact_as_the_rounding(name, dtype) -> None:
    case = replace(CPU, dtype=dtype, sequence_length=300)
    if reasons := attention.load(name).unsupported_reasons(case):
        assert ["sums dK and dV" in reason for reason in reasons] == [True]
        return
    assert_right(attention.require(name, case), Variant(case))


@pytest.mark.parametrize("name", RUN_HERE)
def test_a_cpu_backend_attends_without_a_mask_too(name: str) -> None:
    assert_right_in_float32(attention.load(name), Variant(replace(CPU, causal=False, sequence_length=129)))


@pytest.mark.parametrize("name", RUN_HERE)
def test_a_token_never_sees_its_future(name: str) -> None:
    inputs = drawn(CPU)
    q, k, v = inputs.q, inputs.k, inputs.v
    attend = attention.load(name).attend
    output = attend(q, k, v, True)
    k[:, 40:], v[:, 40:] = 1e4, -1e4
    assert torch.equal(attend(q, k, v, True)[:, :40], output[:, :40])


# Dynamo instantiates every autograd.Function that it traces, which PyTorch itself deprecates.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("name", sorted(set(RUN_HERE) - {"math"}))
def test_a_cpu_backend_goes_through_torch_compile_in_one_graph(name: str) -> None:
    inputs = drawn(CPU)
    q, k, v = (x.requires_grad_() for x in (inputs.q, inputs.k, inputs.v))
    attend = attention.for_compile(attention.load(name)).attend
    compiled = torch.compile(lambda q, k, v: attend(q, k, v, True), fullgraph=True, backend="aot_eager")
    o = compiled(q, k, v)
    o.sum().backward()
    torch.testing.assert_close(o, attend(q, k, v, True))
    assert all(x.grad is not None for x in (q, k, v))


def test_math_stays_out_of_compiled_graphs_where_inductor_would_replace_it() -> None:
    """Inductor turns a graph's plain attention into FlashAttention: the pin on MATH would not hold."""
    graphs = []

    def collect(graph, _example_inputs):
        graphs.append(graph)
        return graph

    inputs = drawn(replace(CPU, kv_heads=CPU.heads))
    q, k, v = inputs.q, inputs.k, inputs.v
    attend = attention.for_compile(attention.load("math")).attend
    compiled = torch.compile(lambda q, k, v: attend(q * 2, k, v, True) + 1, backend=collect)
    torch.testing.assert_close(compiled(q, k, v), attend(q * 2, k, v, True) + 1)
    calls = " ".join(str(node.target) for graph in graphs for node in graph.graph.nodes)
    assert graphs
    assert "attention" not in calls and "softmax" not in calls
