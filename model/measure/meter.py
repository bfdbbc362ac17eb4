"""What a training step costs: its tokens and seconds, from one record to the next."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from model.data import Batch, Tokens
from model.disk.record import StepRecord, finite, now
from model.measure.machine import peak_memory_bytes


@dataclass
class Meter:
    """Counts tokens and seconds between two records. Only record() waits for the device."""

    device: torch.device
    started: float = field(default_factory=time.perf_counter)
    steps: int = 0
    tokens: int = 0
    training_tokens: int = 0

    def count(self, batch: Batch) -> Iterator[Tensor]:
        """Count a batch, and give its inputs and labels, (B, T) each, on the device."""
        self.steps += 1
        self.tokens += batch.inputs_BT.size
        self.training_tokens += batch.training_tokens
        return map(self._to_device, (batch.inputs_BT, batch.labels_BT))

    def _to_device(self, array: Tokens) -> Tensor:
        tensor = torch.from_numpy(array)
        if self.device.type == "cpu":
            return tensor
        # From pageable memory a copy would wait for all that the device still has to do.
        return tensor.pin_memory().to(self.device, non_blocking=True)

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
        """Start the next interval: the time to write the record and a checkpoint does not count."""
        self.steps = self.tokens = self.training_tokens = 0
        self.started = time.perf_counter()
