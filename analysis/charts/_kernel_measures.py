"""What figures of attention alone can show about a backend at a shape."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from analysis.charts._kernel_lines import Gone, Measure, Value, has, quantity
from analysis.charts._kernels import (
    SEQUENCE,
    UNMASKED,
    Point,
    beside,
    both_masks,
    mode_of,
    place,
    points,
    slices,
)
from analysis.stats import Estimate, over_runs

if TYPE_CHECKING:
    from analysis.charts import Row

REFERENCE = "math"  # attention by PyTorch's own operators, which every device has
_BOTH = "a forward and its backward together"
_RATIO = "the ratio of two medians of a shape's calls"
_NO_INTERVAL = "no interval: a ratio of two medians"
_COUNTED = "no interval: counted, not sampled"
_RATE = (
    "Kernel TFLOP/s: {}4 B H S^2 D FLOP in the median time of a call. A causal mask halves the FLOP. Not "
    "comparable with MFU or a model's TFLOP/s, which discount nothing."
)


def masked(rows: list[Row]) -> bool:
    """Whether shapes were measured both with a mask and without, at several sequence lengths."""
    return bool(slices(both_masks(points(rows)), SEQUENCE))


def replayed(rows: list[Row]) -> bool:
    """Whether anything was timed in CUDA graphs, at several sequence lengths."""
    return mode_of(rows) == "graph" and has(SEQUENCE)(rows)


def compared(rows: list[Row]) -> bool:
    """Whether the reference was called, at several sequence lengths."""
    return any(row["attention"] == REFERENCE for row in rows) and has(SEQUENCE)(rows)


def _ratio(over: Estimate | None, under: Estimate | None) -> Estimate | None:
    if not over or not under:
        return None
    return Estimate(over.median / under.median, None, None, min(over.n, under.n), _NO_INTERVAL)


def _within(over: list[Row], under: list[Row], column: str = "milliseconds") -> Estimate | None:
    """The ratio of two numbers from the same process; with several processes, the median of their ratios."""
    known = {row["run_id"]: row[column] for row in over if row[column] is not None}
    pairs = [(known[row["run_id"]], row[column]) for row in under if row[column] and row["run_id"] in known]
    if not pairs:
        return None
    found = over_runs([a / b for a, b in pairs])
    method = _COUNTED if column == "memory_bytes" else _NO_INTERVAL
    return replace(found, method=method) if found.n == 1 else found


def _memory(point: Point) -> Estimate | None:
    found = point.of("memory_bytes", "both", "eager")
    if found is None:
        return None
    return Estimate(found / 2**20, None, None, len(point.runs), _COUNTED)


def _speedup(found: list[Point]) -> Value:
    reference = beside(found, REFERENCE)

    def of(point: Point) -> Estimate | None:
        slow = reference.get(place(point))
        return _within(slow.rows("both"), point.rows("both")) if slow else None

    return of


def _saved(found: list[Point]) -> Value:
    reference = beside(found, REFERENCE)

    def of(point: Point) -> Estimate | None:
        other = reference.get(place(point))
        mine = point.rows("both", "eager")
        share = _within(mine, other.rows("both", "eager"), "memory_bytes") if other else None
        return share.map(lambda part: 100 * (1 - part)) if share else None

    return of


def _mask(point: Point) -> Estimate | None:
    return _ratio(point.timed("both"), point.timed(UNMASKED))


def _mask_gone(point: Point) -> dict[str, int]:
    return point.gone() or point.gone(direction=UNMASKED)


def _eagerly(_found: list[Point]) -> Gone:
    return lambda point: point.gone("eager")


TIME = Measure(
    quantity("time", "ms", ",.2f", f"Milliseconds of {_BOTH}, with cold caches and new numbers."),
    lambda _points: lambda point: point.timed("both"),
)
FORWARD = Measure(
    quantity("forward TFLOP/s", "", ",.0f", _RATE.format("of a forward, ")),
    lambda _points: lambda point: point.rate("forward"),
    highest=True,
)
BACKWARD = Measure(
    quantity("backward TFLOP/s", "", ",.0f", _RATE.format("of a backward, 2.5 times ")),
    lambda _points: lambda point: point.rate("backward"),
    highest=True,
)
RATE = Measure(
    quantity("kernel TFLOP/s", "", ",.0f", _RATE.format(f"of {_BOTH}, 3.5 times ")),
    lambda _points: lambda point: point.rate("both"),
    highest=True,
)
MEMORY = Measure(
    quantity(
        "peak memory",
        "MiB",
        ",.1f",
        f"The most that PyTorch allocates at any time in {_BOTH}, beyond Q, K, V and the gradient of the "
        "output: device memory on a GPU, host memory on a CPU.",
        "the peak at a shape",
    ),
    lambda _points: _memory,
    gone=_eagerly,
    how="Counted in calls from Python",
)
SPEEDUP = Measure(
    quantity(
        f"speedup over {REFERENCE}",
        "",
        ",.2f",
        f"How many times as fast {_BOTH} are as by {REFERENCE}, PyTorch's own operators, in the same "
        f"process. There is no value where {REFERENCE} has no time.",
        _RATIO,
    ),
    _speedup,
    highest=True,
    against=REFERENCE,
)
SAVED = Measure(
    quantity(
        f"memory saved against {REFERENCE}",
        "percent",
        ".1f",
        f"By how many percent less memory {_BOTH} need than by {REFERENCE}, PyTorch's own operators. "
        f"There is no value where {REFERENCE} has none.",
        "what is saved at a shape",
    ),
    _saved,
    highest=True,
    against=REFERENCE,
    gone=_eagerly,
    how="Counted in calls from Python",
)
MASK = Measure(
    quantity(
        "time with a causal mask over time without",
        "",
        ".2f",
        f"A causal mask hides half of the scores: a backend that skips all of them takes half of the "
        f"time. Of {_BOTH}.",
        _RATIO,
    ),
    lambda _points: _mask,
    among=both_masks,
    gone=lambda _points: _mask_gone,
)
PASSES = Measure(
    quantity(
        "backward over forward",
        "",
        ".2f",
        "How many times as long a backward takes as its forward. By FLOP count it would be 2.5.",
        _RATIO,
    ),
    lambda _points: lambda point: _within(point.rows("backward"), point.rows("forward")),
)
HOST = Measure(
    quantity(
        "eager over CUDA graph",
        "",
        ".2f",
        f"How many times as long {_BOTH} take called from Python as replayed from a CUDA graph. What is "
        "above 1 is the host's share, which large shapes hide.",
        _RATIO,
    ),
    lambda _points: lambda point: _within(point.rows("both", "eager"), point.rows("both", "graph")),
    how="The same along the axis",
)
