"""The record of a frontier: every probe, in its order. See `runner.job.tasks.frontier`."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Self

from pydantic import Field, model_validator

from model.record.config import Frozen
from model.record.outcome import Outcome
from model.record.tasks.frontier import Quantity

ProbeOutcome = Literal["fits", "edge", "oom_gpu", "oom_host", "unsupported", "timeout", "failed"]


class Probe(Frozen):
    """Three steps of training with one value, in a process of their own."""

    value: int = Field(ge=1, description="Of what is sought.")
    purpose: Literal["search", "above"] = Field(
        description="`above`: beyond a value that does not fit, since fitting is not monotone."
    )
    outcome: ProbeOutcome = Field(
        description="`edge`: the steps were done, but the allocator had to free its cache to go on, or with "
        "what CUDA uses beside it they need more than the card has."
    )
    reason: str | None = Field(None, description="Why it does not fit; None if it does.")
    forecast_bytes: int = Field(description="Its peak by its configuration.")
    peak_bytes: int | None = Field(
        None,
        description="Most that was allocated until it ended: on a GPU by PyTorch, on a CPU by the process in "
        "pages of no file. None if it hung or died.",
    )
    reserved_bytes: int | None = Field(None, description="Most that PyTorch's allocator held of the GPU.")
    retries: int | None = Field(None, description="How often that freed its cache to go on.")
    outside_bytes: int | None = Field(
        None, description="Used of the GPU at the end beside what the allocator held, by whatever process."
    )
    seconds: float = Field(ge=0, description="From the start of its process to its end.")

    @property
    def is_known(self) -> bool:
        """Whether it shows that its value fits, or does not: one that hung or died shows nothing."""
        return self.outcome in ("fits", "edge") or Outcome(self.outcome).is_early

    @model_validator(mode="after")
    def _is_right(self) -> Self:
        if (self.outcome == "fits") != (self.reason is None):
            raise ValueError(f"the probe of {self.value} {self.outcome} with reason {self.reason!r}")
        if not self.is_known and self.peak_bytes is not None:
            raise ValueError(f"the probe of {self.value} ended as {self.outcome}, and yet it has a peak")
        if self.outcome == "fits" and (self.peak_bytes is None or self.retries):
            raise ValueError(f"the probe of {self.value} fits, though it has no peak, or retries")
        return self


class Frontier(Frozen):
    """`frontier.json`: the largest value that fits, as far as probes show it."""

    schema_version: Literal[1] = 1
    run_id: str
    attempt: int
    find: Quantity
    multiple: int = Field(ge=1, description="Of which all values are multiples.")
    most: int = Field(ge=1, description="Largest value that may be tried.")
    card_bytes: int = Field(description="Memory that a probe may use, CUDA's own included.")
    memory_fraction: float = Field(gt=0, le=1, description="Of the device's; below 1, a card is emulated.")
    foreseen: int = Field(ge=0, description="Largest value that fits by the forecast; 0: none does.")
    probes: list[Probe] = Field(min_length=1)
    measured_at: datetime

    @model_validator(mode="after")
    def _has_each_once(self) -> Self:
        values = [probe.value for probe in self.probes]
        if len(set(values)) < len(values) or any(value % self.multiple for value in values):
            raise ValueError(f"a value is there twice, or is no multiple of {self.multiple}")
        if max([*values, self.foreseen]) > self.most:
            raise ValueError(f"a value is above {self.most}, the largest that may be tried")
        return self

    @property
    def largest(self) -> Probe | None:
        """The probe of the largest value that fits; None if none does."""
        fitting = (probe for probe in self.probes if probe.outcome == "fits")
        return max(fitting, key=lambda probe: probe.value, default=None)
