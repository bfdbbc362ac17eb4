"""Operators of PyTorch that this project defines: their gradients, and what PyTorch may take for granted of them."""

# No `from __future__ import annotations`: the operator's schema is read from the annotations.
import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from model.attention.kernels.operators import differentiate, operator


@operator(lambda x, factor: (torch.empty_like(x), torch.empty_like(x)))
def squared_for_a_test(x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """And a second result, for the backward alone."""
    return factor * x * x, 2 * x


@operator(lambda dy, x, y, slope, factor, sign: (torch.empty_like(x),))
def squared_for_a_test_backward(
    dy: Tensor, x: Tensor, y: Tensor, slope: Tensor, factor: float, sign: int
) -> list[Tensor]:
    return [sign * factor * slope * dy]


differentiate(squared_for_a_test, squared_for_a_test_backward, lambda: (-1,))


def squared(x: Tensor) -> Tensor:
    return squared_for_a_test(x, 3.0)[0]


def test_an_operator_has_its_gradient_eager_and_compiled() -> None:
    """Here with the sign that is asked for when the backward runs."""
    for call in (squared, torch.compile(squared, fullgraph=True, backend="aot_eager")):
        x = torch.arange(3.0, requires_grad=True)
        call(x).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [0, -6, -12]


def test_an_operator_has_its_gradient_where_activations_are_recomputed() -> None:
    """Each recomputed tensor is handed out a single time."""
    x = torch.arange(3.0, requires_grad=True)
    checkpoint(squared, x, use_reentrant=False).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, -6, -12]


class Cut(torch.autograd.Function):
    """Gives its input no gradient."""

    @staticmethod
    def forward(_, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(*_) -> None:
        return None


def test_what_has_no_gradient_gives_none_to_what_comes_before_it() -> None:
    x = torch.arange(3.0, requires_grad=True)
    Cut.apply(squared(x)).sum().backward()
    assert x.grad is None


def test_a_result_for_the_backward_alone_has_no_gradient_and_none_is_made_for_it() -> None:
    """It would be a tensor of zeros, which takes memory and a kernel each time."""
    x = torch.arange(3.0, requires_grad=True)
    y, slope = squared_for_a_test(x, 3.0)
    assert (y.requires_grad, slope.requires_grad) == (True, False)
    with torch.profiler.profile(acc_events=True) as profile:
        y.backward(torch.ones(3))
    assert not [event.key for event in profile.key_averages() if "zero" in event.key]


def test_pytorch_finds_an_operator_in_order() -> None:
    checks = ("test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_dynamic")
    x = torch.arange(3.0, requires_grad=True)
    torch.library.opcheck(squared_for_a_test, (x, 3.0), test_utils=checks)


def test_a_second_derivative_is_refused_and_not_taken_for_zero() -> None:
    x = torch.arange(3.0, requires_grad=True)
    (dx,) = torch.autograd.grad(squared(x).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative; the backend math has one"):
        dx.sum().backward()


class Breaks:
    """Dynamo cannot compile a block that begins so: it runs in Python, and Dynamo looks at all that is called there."""

    def __enter__(self) -> None:
        torch._dynamo.graph_break()

    def __exit__(self, *_: object) -> None:
        torch._dynamo.graph_break()


def test_dynamo_does_not_look_into_an_operator() -> None:
    targets = []

    def backend(graph, _inputs):
        targets.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph

    def broken(x: Tensor) -> Tensor:
        with Breaks():
            return squared_for_a_test(x, 3.0)[0]

    assert torch.compile(broken, backend=backend)(torch.arange(3.0)).tolist() == [0, 3, 12]
    assert targets == []
