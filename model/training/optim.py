"""AdamW and its schedule."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from model.record.config import TrainConfig
from model.record.errors import UserError
from model.training.parallel import held
from model.training.parallel.world import ALONE, World

BETAS = (0.9, 0.999)
EPSILON = 1e-8


class AdamW:
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101): PyTorch's fused function, and its states.

    Its results equal those of `torch.optim.AdamW(fused=True)` to the bit. That class imports `torch._dynamo`
    when it is made, even in a run that is not compiled, which would cost every job seconds.
    """

    def __init__(
        self, named: Iterable[tuple[str, nn.Parameter]], weight_decay: float, world: World = ALONE
    ) -> None:
        """The states are zero, in the parameters' precision and on their device, and split as they are."""
        pairs = list(named)
        self.names, self.parameters = [name for name, _ in pairs], [parameter for _, parameter in pairs]
        self.weight_decay = weight_decay
        self._world, self._holders = world, _holders(self.parameters, world)
        self.steps = [torch.zeros((), device=parameter.device) for parameter in self.parameters]
        self.means, self.squares = ([torch.zeros_like(x) for x in self.parameters] for _ in range(2))
        self._own = [held.local(tensors) for tensors in (self.parameters, self.means, self.squares)]

    def gradient_norms(self) -> Tensor:
        """The norm of each parameter's gradient, (P,), in float32 also where they are in bfloat16.

        The norm is that of the whole gradient; if several processes hold pieces of it, all must call this.

        Raises:
            UserError: a parameter has no gradient.
        """
        norms = self._norms(self._gradients())
        if self._holders is None:
            return norms
        return self._world.total(norms.square(), self._holders).sqrt()

    def _norms(self, gradients: list[Tensor]) -> Tensor:
        """The norm of each gradient's part in this process, (P,)."""
        return torch.stack(torch._foreach_norm(gradients, 2, dtype=torch.float32))

    @torch.no_grad()
    def step(self, rate: float, divisor: Tensor | None = None) -> None:
        """Update every parameter.

        Args:
            divisor: of the gradients, in float32. The update itself divides them before it rounds anything:
                a separate pass would take longer.

        Raises:
            UserError: a parameter has no gradient.
        """
        adamw(
            self._own[0],
            self._gradients(),
            self._own[1],
            self._own[2],
            [],
            self.steps,
            fused=True,
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=rate,
            weight_decay=self.weight_decay,
            eps=EPSILON,
            maximize=False,
            grad_scale=divisor,
        )

    def clipped_step(self, rate: float, largest: float) -> tuple[Tensor, Tensor]:
        """Clip the gradients to a norm of all together, update every parameter, and free the gradients.

        Returns:
            The norm of each gradient before clipping, (P,), and of all together.

        Raises:
            UserError: a parameter has no gradient.
        """
        norms = self.gradient_norms()
        norm = torch.linalg.vector_norm(norms)
        self.step(rate, clip_divisor(norm, largest))
        self.zero_grad()
        return norms, norm

    def _gradients(self) -> list[Tensor]:
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if len(gradients) < len(self.parameters):
            pairs = zip(self.names, self.parameters, strict=True)
            first, *others = [name for name, parameter in pairs if parameter.grad is None]
            more = f" and {len(others)} more parameters" if others else ""
            raise UserError(f"no gradient reaches {first}{more}: can autograd differentiate the attention?")
        return gradients if self._holders is None else held.local(gradients)

    def zero_grad(self) -> None:
        """Free the gradients' memory."""
        for parameter in self.parameters:
            parameter.grad = None

    def state(self) -> dict[str, Tensor]:
        """Its tensors by name, which a checkpoint saves, and loads into."""
        lists = {"step": self.steps, "exp_avg": self.means, "exp_avg_sq": self.squares}
        return {
            f"{index}.{name}": tensors[index]
            for index in range(len(self.parameters))
            for name, tensors in lists.items()
        }


class OnePassAdamW(AdamW):
    """AdamW by this project's kernels, at the speed of memory where PyTorch's function takes twice as long.

    It computes the same in float32, in another order: after rounding, some results differ by a unit in the
    last place.
    """

    def __init__(
        self, named: Iterable[tuple[str, nn.Parameter]], weight_decay: float, world: World = ALONE
    ) -> None:
        """Begin as AdamW does, but count steps on the host, where reading them costs nothing."""
        super().__init__(named, weight_decay, world)
        self.steps = [torch.zeros(()) for _ in self.parameters]

    def _norms(self, gradients: list[Tensor]) -> Tensor:
        from model.training.kernels import adamw

        return adamw.norms([gradient.contiguous() for gradient in gradients])

    @torch.no_grad()
    def step(self, rate: float, divisor: Tensor | None = None) -> None:
        """Update every parameter, as AdamW.step does.

        Raises:
            UserError: a parameter has no gradient.
        """
        from model.training.kernels import adamw

        if divisor is None:
            divisor = torch.ones((), device=self.parameters[0].device)
        gradients = self._gradients()
        torch._foreach_add_(self.steps, 1)
        for index, (parameter, mean, square) in enumerate(zip(*self._own, strict=True)):
            adamw.step(
                parameter,
                gradients[index].contiguous(),
                mean,
                square,
                divisor,
                rate=rate,
                decay=self.weight_decay,
                betas=BETAS,
                epsilon=EPSILON,
                count=int(self.steps[index]),
            )


def _holders(parameters: list[nn.Parameter], world: World) -> Tensor | None:
    """Number of processes that hold the same piece of each parameter, (P,); None where each holds all."""
    if not any(map(held.is_cut, parameters)):
        return None
    holders = [float(held.holders(parameter, world.place.size)) for parameter in parameters]
    return torch.tensor(holders, device=parameters[0].device)


OPTIMIZERS = {"adamw": AdamW, "adamw_one_pass": OnePassAdamW}


def clip_divisor(norm: Tensor, largest: float) -> Tensor:
    """The divisor of gradients of this norm, so that it is at most `largest`."""
    return (norm / largest).clamp(min=1)


def learning_rate(config: TrainConfig, step: int) -> float:
    """The rate of a step, counted from 1: a linear warm-up to the full rate, then constant."""
    return config.learning_rate * min(1.0, step / (config.warmup_steps + 1))
