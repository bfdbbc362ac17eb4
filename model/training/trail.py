"""Loss and gradient norms of the steps between two records, to find what went wrong first."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Trail:
    """Keeps each step's loss and norms on the device, and looks at them only when asked.

    Args:
        names: of the parameters, in the order of the model.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._steps: list[tuple[int, Tensor, Tensor]] = []

    def add(self, step: int, loss: Tensor, norms: Tensor) -> None:
        """Keep a step's loss, and the norm of each parameter's gradient, (P,)."""
        self._steps.append((step, loss.detach(), norms))

    def clear(self) -> None:
        """Forget them: all were finite."""
        self._steps.clear()

    def first(self) -> str:
        """The first thing that is not finite: the loss, or a gradient, in the order of the computation."""
        for step, loss, norms in self._steps:
            if not loss.isfinite():
                return f"loss {loss.item()} at step {step}{self._before(step)}"
            bad = (~norms.isfinite()).nonzero().flatten().tolist()
            if bad:  # the backward pass comes to the last layers first
                others = f" (not finite in all: {len(bad)})" if len(bad) > 1 else ""
                first = f"the gradient of {self._names[bad[-1]]} has norm {norms[bad[-1]].item()}"
                return f"{first}{others}, at step {step}; the loss was {loss.item():.4g}"
            if not (norm := torch.linalg.vector_norm(norms)).isfinite():
                return f"gradient norm {norm.item()} at step {step}; the loss was {loss.item():.4g}"
        return "a loss or a gradient is not finite"

    def _before(self, step: int) -> str:
        earlier = [known for known, _, _ in self._steps if known < step]
        return f"; all gradients of step {earlier[-1]} were finite" if earlier else ""
