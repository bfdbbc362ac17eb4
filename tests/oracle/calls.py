"""What is true of calls of attention alone, case by case, from the raw records."""

from __future__ import annotations

from functools import cache
from math import comb
from statistics import median as plain_median
from typing import Any, NamedTuple

from tests.oracle.truth import Run, Study, Value, median, over_records

FP8 = "float8_e4m3fn"
PRODUCT = 700  # TFLOP/s that a large product reached in every study


class Case(NamedTuple):
    """What a call is made with."""

    batch: int
    length: int
    heads: int
    dim: int
    causal: bool
    dtype: str
    dropout: float
    tile: tuple[int, int] | None

    @property
    def whole(self) -> str:
        """The direction that stands for all of a call."""
        return "forward" if self.dtype == FP8 else "both"

    @property
    def mask(self) -> str:
        """Its word."""
        return "causal" if self.causal else "no mask"

    @property
    def size(self) -> int:
        """By which the larger of two cases is chosen."""
        return self.batch * self.heads * self.length**2 * self.dim

    def flop(self, direction: str) -> float:
        """4 B H T^2 D forward, half of it under the causal mask; 2.5 times that backward."""
        forward = 4 * self.size / (2 if self.causal else 1)
        return forward * {"forward": 1.0, "backward": 2.5, "both": 3.5}[direction]

    @property
    def said(self) -> str:
        """As sentences write it."""
        tiles = f", tiles of {self.tile[0]} x {self.tile[1]}" if self.tile else ""
        drops = f", dropout {self.dropout}" if self.dropout else ""
        shape = f"batch {self.batch}, sequence length {self.length}, heads {self.heads}, head dim {self.dim}"
        return f"{shape}{tiles}{drops}, {self.mask}, {self.dtype}"

    def written(self, with_dtype: bool) -> str:
        """As tables write it."""
        tiles = f", tiles of {self.tile[0]} x {self.tile[1]}" if self.tile else ""
        drops = f", dropout {self.dropout}" if self.dropout else ""
        shape = f"B{self.batch} T{self.length} H{self.heads} D{self.dim}"
        return f"{shape}, {self.mask}{drops}{tiles}{f', {self.dtype}' if with_dtype else ''}"


def case_of(run: Run) -> Case:
    """Of a run's configuration."""
    call = run.config["call"]
    tile = tuple(map(int, call["tile"].split("x"))) if call.get("tile") else None
    dtype, dropout = call.get("dtype", "bfloat16"), call.get("dropout", 0.0)
    return Case(*run.sizes, call.get("causal", True), dtype, dropout, tile)  # type: ignore[arg-type]


@cache
def cases(study: Study) -> list[Case]:
    """Those with a row, each once."""
    return list(dict.fromkeys(case_of(run) for run in study.runs if run.kernels))


def written(study: Study, case: Case) -> str:
    """As a study's tables write a case: with its precision where others have another."""
    return case.written(len({other_case.dtype for other_case in cases(study)}) > 1)


def backends(study: Study) -> list[str]:
    """All that were called."""
    return sorted({row["attention"] for run in study.runs for row in run.kernels})


def rows(study: Study, case: Case, name: str, mode: str = "graph") -> list[dict[str, Any]]:
    """Of a backend at a case."""
    return [
        row | {"run": run.id}
        for run in study.runs
        if case_of(run) == case
        for row in run.kernels
        if (row["attention"], row["mode"]) == (name, mode)
    ]


@cache
def seconds(study: Study, case: Case, name: str, direction: str, mode: str = "graph") -> list[float]:
    """Of each round; none without a time; both: of a forward and its backward."""
    rounds = {
        row["direction"]: row["seconds"]
        for row in rows(study, case, name, mode)
        if row["outcome"] == "completed"
    }
    if direction == "both":
        forward, backward = rounds.get("forward", []), rounds.get("backward", [])
        return [sum(pair) for pair in zip(forward, backward, strict=True)] if backward else []
    return list(rounds.get(direction, []))


def timed(study: Study, case: Case, mode: str = "graph") -> list[str]:
    """The backends with times."""
    return [name for name in backends(study) if seconds(study, case, name, "forward", mode)]


def time(study: Study, case: Case, name: str, direction: str, mode: str = "graph") -> Value | None:
    """Milliseconds: the median of calls, and the order statistics that hold it with 95 % or more."""
    ordered = sorted(1e3 * duration for duration in seconds(study, case, name, direction, mode))
    return Value(plain_median(ordered), statistics(ordered)) if ordered else None


def statistics(ordered: list[float]) -> tuple[float, float]:
    """The innermost pair of order statistics that holds the median with 95 %: of eight the outermost."""
    count = len(ordered)
    rank = max(
        rank
        for rank in range(1, count // 2 + 1)
        if 1 - 2 * sum(comb(count, i) for i in range(rank)) / 2**count >= 0.95
    )
    return ordered[rank - 1], ordered[count - rank]


def rate(study: Study, case: Case, name: str, direction: str) -> Value | None:
    """TFLOP/s in that time."""
    milliseconds = time(study, case, name, direction)
    if not milliseconds or not milliseconds.ends:
        return None
    flop = case.flop(direction) / 1e9
    return Value(flop / milliseconds.middle, (flop / milliseconds.ends[1], flop / milliseconds.ends[0]))


def memory(study: Study, case: Case, name: str) -> int | None:
    """Bytes of all of a call, counted in one from Python."""
    sizes = [row["memory_bytes"] for row in rows(study, case, name, "eager") if row.get("memory_bytes")]
    return max(sizes, default=None)


def ratio(
    study: Study, case: Case, name: str, other: str, direction: str = "", mode: str = "graph"
) -> Value | None:
    """How many times as fast one is, paired by round: the median with its interval; None of two processes."""
    runs = [{row["run"] for row in rows(study, case, backend, mode)} for backend in (name, other)]
    if runs[0] != runs[1]:
        return None
    own, theirs = (seconds(study, case, backend, direction or case.whole, mode) for backend in (name, other))
    ratios = [other_time / own_time for own_time, other_time in zip(own, theirs, strict=True)]
    return Value(median(ratios), over_records(ratios) or statistics(sorted(ratios)))


class Lead(NamedTuple):
    """The fastest other, the ratio over it, whether it is faster than every other, and the first that is in doubt."""

    over: str
    ratio: Value
    clear: bool
    doubt: tuple[str, Value] | None


def lead(study: Study, case: Case, name: str, direction: str = "", mode: str = "graph") -> Lead | None:
    """How it stands beside the others; None without any, and where one was called in another process."""
    others = [other for other in timed(study, case, mode) if other != name]
    ratios = {other: ratio(study, case, name, other, direction, mode) for other in others}
    intervals = {other: value for other, value in ratios.items() if value and value.ends}
    if not intervals or len(intervals) < len(others):
        return None
    ordered = sorted(intervals, key=lambda other: intervals[other].middle)
    doubts = [
        (other, intervals[other]) for other in ordered if (ends := intervals[other].ends) and ends[0] <= 1
    ]
    return Lead(ordered[0], intervals[ordered[0]], not doubts, doubts[0] if doubts else None)


def fastest(study: Study, case: Case) -> tuple[str, Lead] | None:
    """The backend that gains most over the next."""
    leads = {name: ahead for name in timed(study, case) if (ahead := lead(study, case, name))}
    if not leads:
        return None
    best = max(leads, key=lambda name: leads[name].ratio.middle)
    return best, leads[best]


@cache
def main(study: Study) -> Case:
    """The case at which most backends were timed; of several the causal, the largest, the fastest tile's, the first."""

    def shortest_time(case: Case) -> float:
        names = timed(study, case) if case.tile else []
        return min((median(seconds(study, case, name, case.whole)) for name in names), default=0.0)

    ordered = sorted(
        cases(study),
        key=lambda entry: (
            entry.length,
            entry.batch,
            not entry.causal,
            entry.dtype,
            entry.dropout,
            entry.tile or (0, 0),
        ),
    )
    return max(
        ordered, key=lambda case: (len(timed(study, case)), case.causal, case.size, -shortest_time(case))
    )


def at_main(study: Study) -> list[str]:
    """Backends that were timed there."""
    return timed(study, main(study))
