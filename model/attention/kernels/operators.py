"""Functions as operators of PyTorch, which torch.compile keeps whole in its graph.

`torch.library.custom_op` does the same, and also looks at each call for outputs that are inputs, which costs an eager
call CPU time (docs/kernel-log.md, "custom", 16).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("assay", "FRAGMENT")


def operator(shapes: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Make a function the operator assay::NAME, with its annotations as the schema.

    The function changes none of its inputs and returns new tensors.

    Args:
        shapes: takes what the function takes, and returns empty tensors like its results.
    """

    def define(function: Callable[..., Any]) -> Any:
        name = function.__name__
        schema = torch.library.infer_schema(function, mutates_args=())
        _LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        # Where a graph breaks, Dynamo compiles what Python calls next, and that can be this function.
        _LIBRARY.impl(name, torch.compiler.disable(function), "CompositeExplicitAutograd")
        torch.library.register_fake(f"assay::{name}", shapes, lib=_LIBRARY)
        return getattr(torch.ops.assay, name).default

    return define


def shapes_of_gradients(
    _do: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients are contiguous, whatever the strides of the inputs."""
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def differentiate(forward: Any, backward: Any, also: Callable[[], tuple[Any, ...]] = tuple) -> None:
    """Give an operator that takes tensors and then options its gradient, which another operator computes.

    Args:
        forward: options may be tensors too, without a gradient, after the first that is none. Only its first result has a gradient; the others are for the backward.
        backward: takes that gradient, the tensors and results of the forward, its options, and what `also` says when
            it runs. It has no gradient itself.

    Raises:
        NotImplementedError: in a backward of the backward. PyTorch would take its gradients for zero.
    """

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        first, *others = output
        ctx.mark_non_differentiable(*others)
        ctx.set_materialize_grads(False)  # PyTorch would fill tensors with zeros for the others
        count = next(place for place, x in enumerate(inputs) if not isinstance(x, Tensor))
        ctx.options = [None if isinstance(x, Tensor) else x for x in inputs[count:]]
        chosen = [x if isinstance(x, Tensor) else None for x in inputs[count:]]
        ctx.save_for_backward(*inputs[:count], first, *others, *chosen)

    def gradient(ctx: Any, dfirst: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if dfirst is None:  # what follows in the graph has no gradient
            return (None,) * len(ctx.needs_input_grad)
        saved = ctx.saved_tensors  # once: recomputed activations are handed out a single time
        count = len(saved) - len(ctx.options)
        chosen = saved[count:]
        options = (x if tensor is None else tensor for x, tensor in zip(ctx.options, chosen, strict=True))
        gradients = backward(dfirst, *saved[:count], *options, *also())
        return *gradients, *(None for _ in ctx.options)

    def second_gradient(ctx: Any, *_: Any) -> None:
        raise NotImplementedError("this attention kernel has no second derivative; the backend math has one")

    torch.library.register_autograd(forward, gradient, setup_context=save, lib=_LIBRARY)
    torch.library.register_autograd(backward, second_gradient, lib=_LIBRARY)
