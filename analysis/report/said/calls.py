"""What is said of attention alone: who is the fastest, at one shape and at how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from analysis.charts._kernels import HOW, Point, main_shape, mode_of, place, points, said
from analysis.report.said.sentence import Number, Sentence, listed
from analysis.stats import grouped
from analysis.stats.verdict import name
from model.units import counted

if TYPE_CHECKING:
    from analysis.report.facts import Facts

_BOTH = "a forward and its backward"
_Times = list[tuple[float, str]]  # milliseconds, backend; the fastest first


def sentences(facts: Facts) -> Iterator[Sentence]:
    """Observed, not found: medians of calls in single processes."""
    found = points(facts.kernels)
    shown = main_shape(found)
    if not (times := _times(shown)):
        return
    how = HOW[mode_of(facts.kernels)]
    yield _at_one_shape(times, shown[0], how)
    if (at := _fastest(found)).total() > 1:
        counts = listed([f"{name(backend)} at {count:,d}" for backend, count in at.most_common()])
        text = f"Observed: of {counted(at.total(), 'shape')}, the fastest backend of {_BOTH} is {counts}."
        numbers = (
            Number(f"shapes at which {backend} is the fastest", count, None, None, "shapes")
            for backend, count in at.items()
        )
        yield Sentence(text, tuple(numbers), "observed", "calls of one process each", "")


def _at_one_shape(times: _Times, point: Point, how: str) -> Sentence:
    ends = [times[0], times[-1]] if len(times) > 1 else times
    each = [f"{milliseconds:,.3g} ms with {name(backend)}" for milliseconds, backend in ends]
    if len(times) > 2:
        each = [f"{each[0]}, the fastest of {len(times)} backends,", f"{each[1]}, the slowest"]
    text = f"Observed at {said(point)} ({how[:1].lower()}{how[1:]}): {_BOTH} take {listed(each)}."
    numbers = (
        Number(f"milliseconds of {_BOTH} by {backend}", milliseconds, None, None, "ms")
        for milliseconds, backend in ends
    )
    return Sentence(text, tuple(numbers), "observed", "calls of one process", "")


def _times(found: list[Point]) -> _Times:
    return sorted((time.median, point.attention) for point in found if (time := point.timed("both")))


def _fastest(found: list[Point]) -> Counter[str]:
    """At how many shapes each backend is the fastest of several."""
    ordered = [times for mine in grouped(found, place).values() if len(times := _times(mine)) > 1]
    return Counter(times[0][1] for times in ordered)
