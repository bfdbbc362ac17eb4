"""The training step, written once: the trainer's loop, the profile after it and the benchmarks call it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from model.record.config import RunConfig
from model.training import optim
from model.training.feed import MicroBatch, Ready
from model.training.llama import Llama
from model.training.loss import LOSSES, Loss
from model.training.parallel.world import ALONE, World


class Update(NamedTuple):
    """The loss, rate and norms of one step.

    Attributes:
        loss: mean over the labels of the whole batch, ().
        rate: the learning rate.
        norms: of each parameter's gradient, (P,), before clipping.
        norm: of all gradients, ().
    """

    loss: Tensor
    rate: float
    norms: Tensor
    norm: Tensor


class TrainingStep:
    """A forward and a backward pass over a batch, and an update of all weights."""

    def __init__(self, config: RunConfig, model: Llama, world: World = ALONE) -> None:
        self._train, self._device, self._world = config.train, torch.device(config.device), world
        self._objective = Objective(config, model, world)
        named, decay = model.named_parameters(), config.train.weight_decay
        self.optimizer = optim.OPTIMIZERS[config.train.optimizer](named, decay, world)

    def __call__(
        self, batch: Ready, step: int, mark: Callable[[str], AbstractContextManager[object]] = nullcontext
    ) -> Update:
        """Do a step with a batch.

        Args:
            step: its number, from 1, which decides the learning rate.
            mark: returns what surrounds a part of the step, given its name.
        """
        rate = optim.learning_rate(self._train, step)
        loss = torch.zeros((), device=self._device)
        for part in batch.parts(self._train.accumulate):
            with mark("forward"):
                share = self._objective.share(part, batch.training_tokens)
            with mark("backward"):
                self._objective.backward(share)
            loss += share.detach()
        self._world.total(loss, self._world.parallel.tensor)
        with mark("optimizer"):
            norms, norm = self.optimizer.clipped_step(rate, self._train.clip_norm)
        return Update(loss, rate, norms, norm)


class Objective:
    """The function to minimise: the share of the loss that this process computes, and its gradients."""

    def __init__(self, config: RunConfig, model: Llama, world: World) -> None:
        self._loss, self._model = LOSSES[config.train.loss], model
        self._split: nn.Module | None = None
        self._own = world.own
        self._gradient: Tensor | None = None
        if world.mesh is None:
            return
        from model.training.parallel import split

        self._wait_for_last = partial(split.wait_for_last, keep=not world.parallel.reshard)
        split.end([model.norm, model.head], config.train, world)
        self._split = split.root(_Whole(model, self._loss), config.train, world)
        # Gradients are averaged over these processes, where the batch's is the sum of theirs.
        self._gradient = torch.tensor(float(world.parts), device=model.cos_TD.device)
        model.embedding.register_forward_hook(self._until_its_gradient)

    def share(self, part: MicroBatch, count: int) -> Tensor:
        """The contribution of these labels to the batch's mean loss.

        Args:
            count: labels that count, of the whole batch on all processes.
        """
        self._own.resume()
        if self._split is None:
            return self._loss(self._model, part.inputs_BT, part.labels_BT, count)
        self._wait_for_last(self._split, part.last)
        share: Tensor = self._split(part.inputs_BT, part.labels_BT, count)
        return share

    def backward(self, share: Tensor) -> None:
        """Add a share's gradients to the parameters'."""
        share.backward(self._gradient)  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        self._own.resume()

    def _until_its_gradient(self, _module: nn.Module, _given: object, x_BTC: Tensor) -> None:
        """Stop counting own time once the blocks' backward pass ends: then processes sum up gradients."""
        if x_BTC.requires_grad:
            x_BTC.register_hook(lambda _gradient: self._own.pause())  # type: ignore[no-untyped-call]


class _Whole(nn.Module):
    """Llama and loss in one: PyTorch gathers the parameters of the outermost module when that is called."""

    def __init__(self, model: Llama, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *given: Any) -> Tensor:
        return self.loss(self.model, *given)
