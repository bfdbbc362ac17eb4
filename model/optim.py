"""AdamW and its schedule."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from model.config import TrainConfig


class AdamW:
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101): PyTorch's fused function, and the states it moves.

    To the bit what `torch.optim.AdamW(fused=True)` gives. That class imports `torch._dynamo` when it is made,
    compiled or not: one to two and a half seconds of every job.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], weight_decay: float) -> None:
        """States in the parameters' precision and place, all zero."""
        self.parameters = list(parameters)
        self.weight_decay = weight_decay
        self.steps = [torch.zeros((), device=each.device) for each in self.parameters]
        self.means, self.squares = ([torch.zeros_like(each) for each in self.parameters] for _ in range(2))

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Move every parameter by its gradient, which has to be there."""
        adamw(
            list[Tensor](self.parameters),
            [each.grad for each in self.parameters if each.grad is not None],
            self.means,
            self.squares,
            [],
            self.steps,
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=rate,
            weight_decay=self.weight_decay,
            eps=1e-8,
            maximize=False,
        )

    def zero_grad(self) -> None:
        """Give the gradients' memory back."""
        for each in self.parameters:
            each.grad = None

    def state(self) -> dict[str, Tensor]:
        """Its tensors by name: what a checkpoint holds of it, and loads into."""
        lists = {"step": self.steps, "exp_avg": self.means, "exp_avg_sq": self.squares}
        return {
            f"{index}.{name}": tensors[index]
            for index in range(len(self.parameters))
            for name, tensors in lists.items()
        }


def learning_rate(config: TrainConfig, step: int) -> float:
    """The rate of a step, counted from 1: a line up to the full rate after the warm-up, then constant."""
    return config.learning_rate * min(1.0, step / (config.warmup_steps + 1))
