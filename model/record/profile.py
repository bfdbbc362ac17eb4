"""The record of where the time of a step goes. `model.training.profile` makes it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from model.record.config import Frozen
from model.record.node import Phase

FILE = "profile.json"  # in an attempt's folder
ProfilePart = Literal[
    "products", "attention", "loss", "optimizer", "elementwise", "copies", "communication", "idle"
]


class PartTime(Frozen):
    """One part of a step, or of a decoded token."""

    phase: Phase = "step"
    part: ProfilePart
    seconds: float = Field(ge=0, description="Of a step, mean over the profiled ones.")
    hidden_seconds: float | None = Field(
        None,
        ge=0,
        description="More of the same, beside other work; None in older records, and of other parts.",
    )


class StepProfile(Frozen):
    """`profile.json`: where the time of a step goes, by steps after the last one that was timed."""

    schema_version: Literal[1] = 1
    run_id: str
    attempt: int
    steps: int = Field(ge=0, description="That were profiled, and kept nowhere; 0: none could be.")
    step_seconds: float | None = Field(
        None, description="Mean of as many; on a GPU of others without the profiler, which slows the host."
    )
    parts: list[PartTime] = Field(default=[], description="Of each phase, they add up to the whole.")
    reason: str | None = Field(None, description="Why there is no profile; None if there is one.")
