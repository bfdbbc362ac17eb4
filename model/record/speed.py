"""The records of what a device can do, of the least time of a step there, and of where its time goes."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from pydantic import Field

from model.record.config import Frozen, Positive
from model.record.files import dumps
from model.record.units import counted

CEILINGS_FOLDER = ".nodes"  # in a study's folder; no run can have such a name
CEILINGS_KEY = re.compile(r"[0-9a-f]{64}")
Pass = Literal["forward", "input", "weight"]
PASSES: tuple[Pass, ...] = ("forward", "input", "weight")
# Upper over lower quartile of a measurement's repeats, from which its median says little. Those of published
# studies, of devices that did nothing else, are at most 1.11.
MOST_SPREAD = 1.5


class Timing(Frozen):
    """How long something took, of several repeats after a warm-up."""

    seconds: float = Field(gt=0, description="Median.")
    seconds_25: float = Field(description="Lower quartile.")
    seconds_75: float = Field(description="Upper quartile.")
    repeats: int = Field(ge=1)

    @property
    def spread(self) -> float:
        """Upper over lower quartile."""
        return self.seconds_75 / self.seconds_25 if self.seconds_25 else math.inf


class ProductTiming(Frozen):
    """A product of the model: (tokens, inputs) by a weight (outputs, inputs), or one of its backward pass."""

    step: Pass = Field(description="`input`: the gradient by the input; `weight`: by the weight.")
    inputs: Positive
    outputs: Positive
    tokens: Positive = Field(description="At once, or as many as can be measured in a moment.")
    columns: Positive = Field(description="Of the outputs, those that were computed: all on a GPU.")
    timing: Timing

    @property
    def flops(self) -> float:
        """Rate in FLOP/s: 2 x tokens x inputs x columns FLOP in the median time."""
        return 2 * self.tokens * self.inputs * self.columns / self.timing.seconds


class LoadClocks(Frozen):
    """A GPU's clocks while it computes; None where the driver does not report it."""

    graphics_mhz: float | None
    memory_mhz: float | None
    power_limit_watts: float | None


class Ceilings(Frozen):
    """What was measured on one device."""

    products: list[ProductTiming]
    traffic_bytes: int = Field(gt=0, lt=2**63, description="What each repeat of `traffic` reads and writes.")
    traffic: Timing = Field(description="c = a + b, of arrays in float32 that are larger than caches.")
    launch: Timing = Field(description="From one smallest operation to the next, PyTorch's share included.")
    clocks: LoadClocks | None = Field(None, description="None on a CPU, and where nvidia-smi does not tell.")

    @property
    def bandwidth(self) -> float:
        """Bytes a second, read and written."""
        return self.traffic_bytes / self.traffic.seconds

    @property
    def unsure(self) -> str | None:
        """Which rates no floor is stated from, because their repeats spread widely; None: all are sure."""
        wide = [product.timing.spread for product in self.products if product.timing.spread > MOST_SPREAD]
        named = [f"{len(wide)} of {counted(len(self.products), 'matrix product')}"] if wide else []
        if self.traffic.spread > MOST_SPREAD:
            named.append("the memory bandwidth")
            wide.append(self.traffic.spread)
        if not named:
            return None
        return (
            f"the repeats of {' and '.join(named)} spread widely (upper over lower quartile up to "
            f"{max(wide):.3g}, {MOST_SPREAD:g} is allowed), as happens when other work slows the machine"
        )


class NodeRecord(Frozen):
    """`STUDY/.nodes/KEY.json`: the ceilings of one device of a node, for the shapes of one model."""

    schema_version: Literal[1] = 1
    key: str
    node: str
    device_name: str
    gpu_uuid: str | None
    dtype: str = Field(description="Precision of the products.")
    software: dict[str, str]
    measured: Ceilings
    seconds: float = Field(description="That it took to measure, with the process that did.")
    measured_at: datetime


# What is counted and profiled: an optimizer step or a prefill; and a decoded token of each sample.
Phase = Literal["step", "decode"]


class FloorPart(Frozen):
    """One part of the least time of a step, or of a decoded token, by `model.measure.floor`."""

    phase: Phase = "step"
    part: Literal["products", "attention", "loss", "optimizer", "elementwise"]
    flop: int | None = Field(None, description="FLOP of a step; None for a part that is traffic.")
    bytes: int | None = Field(None, description="Bytes read and written in a step; None for FLOP.")
    seconds: float = Field(description="At the measured rates; of a part with both, the longer of the two.")


def ceilings_key(
    node: str,
    device: tuple[str, str | None],
    software: Mapping[str, str],
    dtype: str,
    shapes: list[tuple[int, int]],
    tokens: int,
) -> str:
    """What a record is for: SHA-256, hexadecimal. An attempt with the same key measures nothing.

    Args:
        device: its name and UUID.
        shapes: inputs and outputs of the products.
        tokens: that go through the model at once.
    """
    identity = [node, *device, dict(software), dtype, sorted({tuple(shape) for shape in shapes}), tokens]
    return hashlib.sha256(dumps(identity).encode()).hexdigest()


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
        description="More of the same, beside other work; None of other parts.",
    )
    by_name: bool | None = Field(
        None,
        description="Whether attention's kernels were told by their names alone, so that what else a backend "
        "launched counts as other parts; None in older records.",
    )


class StepProfile(Frozen):
    """`profile.json`: where the time of a step goes, by steps after the last one that was timed."""

    schema_version: Literal[1] = 1
    run_id: str
    attempt: int
    steps: int = Field(ge=0, description="That were profiled, and kept nowhere; 0: none could be.")
    step_seconds: float | None = Field(
        None,
        description="Their mean; on a GPU the median of others without the profiler, which slows the host.",
    )
    parts: list[PartTime] = Field(default=[], description="Of each phase, they add up to the whole.")
    reason: str | None = Field(None, description="Why there is no profile; None if there is one.")
