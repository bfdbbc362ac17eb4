"""The training loop: one run, from its configuration to its last step."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from model import attention, checkpoint, data, optim
from model.config import RunConfig
from model.errors import Diverged, Interrupted
from model.llama import Llama
from model.loss import cross_entropy
from model.machine import peak_memory_bytes
from model.record import StepRecord, finite, now

Report = Callable[[StepRecord], None]


@dataclass(frozen=True)
class Checkpoints:
    """Where and when a run saves its state.

    Attributes:
        folder: the attempt's; the checkpoint is `folder`/checkpoint.
        every_seconds: between periodic checkpoints; None: only when asked to stop.
        should_stop: asked after every step, so it has to be cheap.
        resume_from: an earlier attempt's folder, whose checkpoint to go on from.
    """

    folder: Path
    every_seconds: float | None
    should_stop: Callable[[], bool]
    resume_from: Path | None


def train(
    config: RunConfig, source: data.Source, report: Report, checkpoints: Checkpoints | None = None
) -> None:
    """Train one run to its last step.

    Args:
        report: called with a StepRecord after step 1, every `log_every` steps, at the last step, and before
            each checkpoint: the steps of the records up to a checkpoint are those that it stands for.

    Raises:
        Unsupported: the backend, device or precision cannot run here. Nothing else takes its place.
        Diverged: the loss or gradient norm of a reported step is not finite; the record is reported first.
        Interrupted: asked to stop before the last step; the state is saved.
        Unreadable: there is no whole checkpoint in `resume_from`.
        UserError: the checkpoint in `resume_from` is of another configuration or other data.
        OSError: asked to stop, and the state cannot be saved.
    """
    device = torch.device(config.device)
    backend = attention.require(config.attention, config.attention_case)
    model = build_model(config, backend)
    optimizer = optim.AdamW(model.parameters(), config.train.weight_decay)
    state = checkpoint.State(config, data.fingerprint(source, config.data.text_column), model, optimizer)
    keeper = Keeper(checkpoints, state)
    done, position = keeper.start()
    stream = data.Batches(config, source, position)
    meter = Meter(device)
    for step in range(done + 1, config.train.steps + 1):
        # Timed region: from here until record() has synchronised the device, data included.
        inputs_BT, labels_BT = meter.count(next(stream), device)
        rate = optim.learning_rate(config.train, step)
        loss = cross_entropy(model(inputs_BT), labels_BT)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        norm = nn.utils.clip_grad_norm_(model.parameters(), config.train.clip_norm)
        optimizer.step(rate)
        optimizer.zero_grad()
        keep = keeper.due(step)
        if keep or step == 1 or step % config.train.log_every == 0 or step == config.train.steps:
            record = meter.record(step, loss, norm, rate)
            report(record)
            if record.loss is None or record.grad_norm is None:
                raise Diverged(f"loss {loss.item()} and gradient norm {norm.item()} at step {step}")
            if keep:
                keeper.keep(step, stream.position)
            meter.restart()


def build_model(config: RunConfig, backend: attention.Backend) -> nn.Module:
    """The run's llama on its device in its precision, its weights drawn from the run's seed."""
    torch.manual_seed(config.seed)
    attend = partial(attention.attend, backend, config.attention_case)
    torch.set_default_dtype(getattr(torch, config.train.dtype))
    try:
        with torch.device(config.device):
            model: nn.Module = Llama(config.model, config.train.sequence_length, attend)
    finally:
        torch.set_default_dtype(torch.float32)
    if config.train.compile:
        model.compile()
    return model


@dataclass
class Keeper:
    """Says where a run starts, after which steps its state is saved, and saves it."""

    checkpoints: Checkpoints | None
    state: checkpoint.State
    saved: float = 0.0  # by time.monotonic(), which no one can turn back
    stopping: bool = False

    def start(self) -> tuple[int, data.Position]:
        """Load what there is to resume; give the last step done and where the batches of the next one start.

        Raises:
            Unreadable, UserError: as `checkpoint.load`.
        """
        earlier = self.checkpoints and self.checkpoints.resume_from
        found = checkpoint.load(earlier / "checkpoint", self.state) if earlier else (0, data.START)
        self.saved = time.monotonic()
        return found

    def due(self, step: int) -> bool:
        """Whether to save after this step; after the last one there is nothing left to go on with."""
        if self.checkpoints is None or step == self.state.config.train.steps:
            return False
        self.stopping = self.checkpoints.should_stop()
        every = self.checkpoints.every_seconds
        return self.stopping or (every is not None and time.monotonic() - self.saved >= every)

    def keep(self, step: int, position: data.Position) -> None:
        """Save, and stop the run if that was asked. A periodic checkpoint that fails is said on stderr.

        Raises:
            Interrupted: asked to stop, and saved.
            OSError: asked to stop, and not saved.
        """
        assert self.checkpoints
        try:
            checkpoint.save(self.checkpoints.folder / "checkpoint", self.state, step, position)
        except OSError as error:
            if self.stopping:
                raise
            sys.stderr.write(f"no checkpoint of step {step}, and the training goes on: {error}\n")
        self.saved = time.monotonic()
        if self.stopping:
            raise Interrupted(step)


@dataclass
class Meter:
    """Counts tokens and seconds between two records; only record() waits for the device."""

    device: torch.device
    started: float = field(default_factory=time.perf_counter)
    steps: int = 0
    tokens: int = 0
    training_tokens: int = 0

    def count(self, batch: data.Batch, device: torch.device) -> Iterator[Tensor]:
        """Note a batch, and give its inputs and labels, (B, T) each, on the device."""
        self.steps += 1
        self.tokens += batch.inputs_BT.size
        self.training_tokens += batch.training_tokens
        return (torch.from_numpy(array).to(device) for array in (batch.inputs_BT, batch.labels_BT))

    def record(self, step: int, loss: Tensor, norm: Tensor, rate: float) -> StepRecord:
        """Wait for the device, stop the clock, and give the record of the steps since the last one."""
        loss_value, norm_value = loss.item(), norm.item()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - self.started
        return StepRecord(
            step=step,
            steps=self.steps,
            time=now(),
            loss=finite(loss_value),
            learning_rate=rate,
            grad_norm=finite(norm_value),
            step_seconds=seconds / self.steps,
            tokens=self.tokens,
            training_tokens=self.training_tokens,
            memory_bytes=peak_memory_bytes(self.device.type),
        )

    def restart(self) -> None:
        """Start the next interval; writing the record and a checkpoint has not counted."""
        self.steps = self.tokens = self.training_tokens = 0
        self.started = time.perf_counter()
