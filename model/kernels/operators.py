"""Functions as operators of PyTorch, which torch.compile keeps whole in its graph.

`torch.library.custom_op` does the same, and also looks at each call for outputs that are inputs: a third of what
an eager call of attention costs the CPU (docs/kernel-log.md, "custom", 16).
"""

from collections.abc import Callable
from typing import Any

import torch

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


def differentiate(
    forward: Any, backward: Any, gradient: Callable[..., Any], save: Callable[..., None]
) -> None:
    """Give an operator its gradient, which the operator `backward` computes; that one has none of its own.

    Raises:
        NotImplementedError: in a backward of the backward. PyTorch would take its gradients for zero.
    """
    torch.library.register_autograd(forward, gradient, setup_context=save, lib=_LIBRARY)
    torch.library.register_autograd(backward, _no_second_gradient, lib=_LIBRARY)


def _no_second_gradient(ctx: Any, *_: Any) -> None:
    raise NotImplementedError("this attention kernel has no second derivative; the backend math has one")
