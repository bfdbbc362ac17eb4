"""AdamW and its schedule."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from model.config import TrainConfig


class AdamW:
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101): PyTorch's fused function, and its states.

    Its results equal those of `torch.optim.AdamW(fused=True)` to the bit. That class imports `torch._dynamo`
    when it is made, even in a run that is not compiled, which would cost every job seconds.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], weight_decay: float) -> None:
        """The states are zero, in the parameters' precision and on their device."""
        self.parameters = list(parameters)
        self.weight_decay = weight_decay
        self.steps = [torch.zeros((), device=each.device) for each in self.parameters]
        self.means, self.squares = ([torch.zeros_like(each) for each in self.parameters] for _ in range(2))

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Update every parameter, each of which must have a gradient."""
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
        """Free the gradients' memory."""
        for each in self.parameters:
            each.grad = None

    def state(self) -> dict[str, Tensor]:
        """Its tensors by name, which a checkpoint saves, and loads into."""
        lists = {"step": self.steps, "exp_avg": self.means, "exp_avg_sq": self.squares}
        return {
            f"{index}.{name}": tensors[index]
            for index in range(len(self.parameters))
            for name, tensors in lists.items()
        }


def learning_rate(config: TrainConfig, step: int) -> float:
    """The rate of a step, counted from 1: a linear warm-up to the full rate, then constant."""
    return config.learning_rate * min(1.0, step / (config.warmup_steps + 1))
