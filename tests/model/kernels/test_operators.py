"""Operators of PyTorch that this project defines: their gradients, and what PyTorch may take for granted of them."""

# No `from __future__ import annotations`: the operator's schema is read from the annotations.
import pytest
import torch
from torch import Tensor

from model.kernels.operators import differentiate, operator


@operator(torch.empty_like)
def squared_for_a_test(x: Tensor) -> Tensor:
    return x * x


@operator(lambda dy, x: torch.empty_like(x))
def squared_for_a_test_backward(dy: Tensor, x: Tensor) -> Tensor:
    return 2 * x * dy


differentiate(
    squared_for_a_test,
    squared_for_a_test_backward,
    lambda ctx, dy: squared_for_a_test_backward(dy, *ctx.saved_tensors),
    lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def test_an_operator_has_its_gradient_eager_and_compiled() -> None:
    for call in (squared_for_a_test, torch.compile(squared_for_a_test, fullgraph=True, backend="aot_eager")):
        x = torch.arange(3.0, requires_grad=True)
        call(x).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [0, 2, 4]
    torch.library.opcheck(squared_for_a_test, (torch.arange(3.0, requires_grad=True),))


def test_a_second_derivative_is_refused_and_not_taken_for_zero() -> None:
    x = torch.arange(3.0, requires_grad=True)
    (dx,) = torch.autograd.grad(squared_for_a_test(x).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative; the backend math has one"):
        dx.sum().backward()


class Breaks:
    """Dynamo cannot compile a block that begins so: it runs in Python, and Dynamo looks at all that is called there."""

    def __enter__(self) -> None:
        torch._dynamo.graph_break()

    def __exit__(self, *_: object) -> None:
        torch._dynamo.graph_break()


def test_dynamo_does_not_look_into_an_operator() -> None:
    seen = []

    def backend(graph, _inputs):
        seen.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph

    def broken(x: Tensor) -> Tensor:
        with Breaks():
            return squared_for_a_test(x)

    assert torch.compile(broken, backend=backend)(torch.arange(3.0)).tolist() == [0, 1, 4]
    assert seen == []
