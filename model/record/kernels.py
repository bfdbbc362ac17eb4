"""The record of attention alone, timed for several backends side by side. See `model.attention.timing`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from math import comb
from statistics import median
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from model.record.case import Case
from model.record.config import Frozen

CONFIDENCE = 0.95
Direction = Literal["forward", "backward", "both"]
Mode = Literal["eager", "graph"]
Ending = Literal["completed", "unsupported", "wrong", "oom_gpu", "oom_host", "failed"]
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")  # these are timed; `both` is their sum
NO_BACKWARD = "attention to numbers of 8 bits has no backward here: choose call.dtype=bfloat16 to time one"
MODES: dict[str, tuple[Mode, ...]] = {"cuda": ("eager", "graph"), "cpu": ("eager",)}


# No call takes less or more, and nothing overflows that is computed from them.
Seconds = Annotated[float, Field(gt=1e-12, lt=1e9, allow_inf_nan=False)]


def directions(case: Case) -> tuple[Direction, ...]:
    """Those in which the calls of a case are made: of 8 bits there is a forward alone."""
    return DIRECTIONS[:1] if case.fp8 else DIRECTIONS


class KernelCheck(Frozen):
    """What was held to float64, by the rule of certificates, of one backend's timed forward and backward.

    Of one sample all rows of the query heads that share one key head, output and gradients; and all heads of
    some single rows, output and dQ. Rounds count from 1, the rest from 0.
    """

    round: int = Field(ge=1)
    sample: int
    first_head: int
    heads: int
    rows: list[tuple[int, int]] = Field(description="Sample and row of each single row.")
    error: float | None = Field(
        description="The largest, as a share of what is allowed; None if something is not finite."
    )


class Counted(Frozen):
    """Bytes that the GPU's counters saw in one call, each kernel alone and on empty caches."""

    kernels: int = Field(ge=1, description="Kernels of the call, over which the rest is summed.")
    dram_read_bytes: int = Field(ge=0)
    dram_write_bytes: int = Field(ge=0, description="Without what stays in the L2 cache.")
    l2_read_bytes: int = Field(ge=0, description="By whoever reads through the L2 cache.")
    l2_write_bytes: int = Field(ge=0, description="With additions in memory, once each.")


class Traffic(Frozen):
    """Bytes that one call of a backend in one direction moves."""

    formula_bytes: int | None = Field(None, description="`model.record.traffic`; None where none is known.")
    counted: Counted | None = Field(None, description="None where nothing was counted.")
    reason: str | None = Field(None, description="Why nothing was counted; None if it was.")

    @model_validator(mode="after")
    def _is_counted_or_not(self) -> Self:
        if (self.counted is None) == (self.reason is None):
            raise ValueError("traffic is counted, or there is a reason why not")
        return self


class KernelTime(Frozen):
    """One backend's calls in one direction; without times, why there are none."""

    attention: str
    direction: Direction
    mode: Mode = Field(description="`graph`: replayed from a CUDA graph, which costs the host nothing.")
    outcome: Ending
    reason: str | None = Field(None, description="Why it did not complete; None if it did.")
    seconds: list[Seconds] = Field(default=[], description="Of each call, in the order of the rounds.")
    host_seconds: list[Seconds] = Field(
        default=[],
        description="By the host's clock, until each call returned; none on a CPU, where `seconds` are that.",
    )
    kernel_seconds: Seconds | None = Field(
        None,
        description="Of the GPU's kernels alone, without gaps between them, in one more call under the "
        "profiler; None on a CPU and in CUDA graphs.",
    )
    memory_bytes: int | None = Field(
        None,
        description="Most that PyTorch allocated at a time beyond the inputs: by a forward, or one and its "
        "backward.",
    )
    sm_mhz: list[float] = Field(default=[], description="The GPU's clock after each call; none on a CPU.")
    throttle_reasons: list[str] = Field(default=[], description="Each different word of NVML on them.")
    certificate: str | None = Field(None, description="Key of the one that it was timed under.")
    checked: KernelCheck | None = Field(
        None,
        description="Of the forward and the backward in this mode; None without times, and with dropout.",
    )
    traffic: Traffic | None = Field(
        None, description="Of a call from Python; None in CUDA graphs, without times, and if nobody asked."
    )

    @model_validator(mode="after")
    def _is_right(self) -> Self:
        if (
            self.outcome == "completed"
            and self.checked
            and (self.checked.error is None or self.checked.error > 1)
        ):
            raise ValueError(
                f"{self.attention} completed, although its check found more error than is allowed"
            )
        return self

    @property
    def median_seconds(self) -> float | None:
        """Median time of a call; None if none was timed."""
        return median(self.seconds) if self.seconds else None

    @property
    def median_host_seconds(self) -> float | None:
        """Median time until a call returned on the host; None on a CPU, and if none was timed."""
        return median(self.host_seconds) if self.host_seconds else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the median in seconds."""
        return order_statistic_interval(self.seconds)


class KernelTimes(Frozen):
    """`kernels.json`: every backend on one shape, in one process."""

    schema_version: Literal[1] = 1
    run_id: str
    attempt: int
    case: Case
    rounds: int = Field(ge=1, description="In each, every backend was called once, in a random order.")
    cache_bytes: int = Field(description="That were written before each call, to empty the caches.")
    product_flop: int = Field(description="Of the matrix product that was timed between the backends.")
    product_seconds: list[Seconds] = Field(description="Of each of its calls; none if no backend was timed.")
    times: list[KernelTime]
    measured_at: datetime

    @model_validator(mode="after")
    def _has_rounds(self) -> Self:
        counts = {(time.outcome == "completed", len(time.seconds)) for time in self.times}
        if counts - {(True, self.rounds), (False, 0)}:
            raise ValueError(f"a backend has other calls than one in each of the {self.rounds} rounds")
        if {len(time.host_seconds) for time in self.times} - {0, self.rounds}:
            raise ValueError(f"the host timed other calls than one in each of the {self.rounds} rounds")
        return self

    @model_validator(mode="after")
    def _has_each_once(self) -> Self:
        ways = [(time.attention, time.mode, time.direction) for time in self.times]
        if len(set(ways)) < len(ways) or any(direction == "both" for *_, direction in ways):
            raise ValueError("a backend is there twice in one mode and direction, or in both at once")
        return self

    @model_validator(mode="after")
    def _ends_both_directions_alike(self) -> Self:
        ends: dict[tuple[str, Mode], set[tuple[int, int]]] = {}
        for time in self.times:
            if self.case.fp8 and time.direction == "backward":  # which it has not
                if time.outcome == "completed":
                    raise ValueError(f"{time.attention} has a backward of {self.case.dtype}, which has none")
                continue
            counts = len(time.seconds), len(time.host_seconds)
            ends.setdefault((time.attention, time.mode), set()).add(counts)
        if uneven := [f"{name} ({mode})" for (name, mode), both in ends.items() if len(both) > 1]:
            raise ValueError(f"a forward or a backward alone was timed: {', '.join(uneven)}")
        return self

    @property
    def sums(self) -> list[KernelTime]:
        """Each forward with the backward after it, as `both`: the sum of their seconds in each round."""
        ways = {(time.attention, time.mode, time.direction): time for time in self.times}
        return [
            backward.model_copy(
                update={
                    "direction": "both",
                    "seconds": [a + b for a, b in zip(forward.seconds, backward.seconds, strict=True)],
                    "host_seconds": [
                        a + b for a, b in zip(forward.host_seconds, backward.host_seconds, strict=True)
                    ],
                    "kernel_seconds": forward.kernel_seconds
                    and backward.kernel_seconds
                    and forward.kernel_seconds + backward.kernel_seconds,
                    "traffic": _summed(forward.traffic, backward.traffic),
                    "sm_mhz": [*forward.sm_mhz, *backward.sm_mhz],
                    "throttle_reasons": sorted({*forward.throttle_reasons, *backward.throttle_reasons}),
                }
            )
            for (name, mode, direction), backward in ways.items()
            if direction == "backward"
            and (forward := ways.get((name, mode, "forward")))
            and not self.case.fp8
        ]

    @property
    def ceiling_flops(self) -> float | None:
        """Rate of the product in FLOP/s, by its median time; None if it was not timed."""
        return self.product_flop / median(self.product_seconds) if self.product_seconds else None


def _summed(forward: Traffic | None, backward: Traffic | None) -> Traffic | None:
    if not forward or not backward:
        return None
    formulas = forward.formula_bytes, backward.formula_bytes
    formula = None if None in formulas else sum(bytes_ or 0 for bytes_ in formulas)
    if not forward.counted or not backward.counted:
        reasons = dict.fromkeys(reason for reason in (forward.reason, backward.reason) if reason)
        return Traffic(formula_bytes=formula, reason="; ".join(reasons))
    pairs = zip(forward.counted, backward.counted, strict=True)
    return Traffic(formula_bytes=formula, counted=Counted(**{name: a + b for (name, a), (_, b) in pairs}))


def order_statistic_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The interval of the median of independent values that ends at two of them; None if they are too few.

    It assumes no distribution: how many of n values lie below the median is binomial (n, 1/2). Its confidence
    is at least 95 %.
    """
    n, rank = len(values), _rank(len(values))
    ordered = sorted(values)
    return (ordered[rank - 1], ordered[n - rank]) if rank else None


@cache
def _rank(n: int) -> int:
    """Rank of the interval's lower end, counted from 1; 0 if n values are too few."""
    below, rank = 0.0, 0
    for k in range(n // 2):
        below += comb(n, k) / 2**n
        if 2 * below > 1 - CONFIDENCE:
            break
        rank = k + 1
    return rank
