"""What is said of attention alone: who is the fastest, at one shape and at how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from analysis.charts._kernels import HOW, Point, main_shape, mode_of, place, points, said
from analysis.report.said.sentence import Number, Sentence, listed
from analysis.stats import grouped
from analysis.stats.verdict import name
from model.units import counted

if TYPE_CHECKING:
    from analysis.report.facts import Facts

_BOTH = "a forward and its backward"


class _Time(NamedTuple):
    """Milliseconds of a call of one backend, with the ends of their interval."""

    milliseconds: float
    backend: str
    low: float | None
    high: float | None


_Times = list[_Time]  # the fastest first


def sentences(facts: Facts) -> Iterator[Sentence]:
    """Observed, not found: medians of calls in single processes."""
    found = points(facts.kernels)
    shown = main_shape(found)
    if not (times := _times(shown)):
        return
    how = HOW[mode_of(facts.kernels)]
    yield _at_one_shape(times, shown[0], how)
    ordered = [mine for each in grouped(found, place).values() if len(mine := _times(each)) > 1]
    if len(ordered) > 1:
        yield _at_each(ordered, how)


def _at_each(ordered: list[_Times], how: str) -> Sentence:
    """Of two whose intervals overlap, neither is said to be the fastest."""
    clear = [times for times in ordered if not any(_tied(times[0], other) for other in times[1:])]
    at = Counter(times[0].backend for times in clear)
    said = [f"{name(backend)} at {count:,d}" for backend, count in at.most_common()]
    numbers = (
        Number(f"shapes at which {backend} is the fastest", count, None, None, "shapes")
        for backend, count in at.items()
    )
    observed = f"Observed ({how[:1].lower()}{how[1:]})"
    if not said:
        shapes = counted(len(ordered), "shape")
        text = f"{observed}: at none of {shapes} is one backend the fastest of {_BOTH}. Intervals overlap."
        return Sentence(text, (), "observed", "calls of one process each", "")
    text = (
        f"{observed}: of {counted(len(ordered), 'shape')}, the fastest backend of {_BOTH} is {listed(said)}."
    )
    if overlap := len(ordered) - len(clear):
        text += f" At {overlap:,d}, the intervals of the fastest overlap."
    return Sentence(text, tuple(numbers), "observed", "calls of one process each", "")


def _tied(first: _Time, second: _Time) -> bool:
    """Whether their intervals overlap; equal medians where one has none."""
    if first.high is None or second.low is None:
        return first.milliseconds == second.milliseconds
    return first.high >= second.low


def _at_one_shape(times: _Times, point: Point, how: str) -> Sentence:
    ends = [times[0], times[-1]] if len(times) > 1 else times
    each = [f"{_took(milliseconds)} with {name(backend)}" for milliseconds, backend, *_ in ends]
    if len(times) > 2:
        each = [f"{each[0]}, the fastest of {len(times)} backends,", f"{each[1]}, the slowest"]
    text = f"Observed at {said(point)} ({how[:1].lower()}{how[1:]}): {_BOTH} take {listed(each)}."
    numbers = (
        Number(f"milliseconds of {_BOTH} by {backend}", milliseconds, None, None, "ms")
        for milliseconds, backend, *_ in ends
    )
    return Sentence(text, tuple(numbers), "observed", "calls of one process", "")


def _took(milliseconds: float) -> str:
    """With three digits: in seconds from a second on."""
    return f"{milliseconds / 1e3:,.3g} s" if milliseconds >= 1e3 else f"{milliseconds:.3g} ms"


def _times(found: list[Point]) -> _Times:
    times = ((point.timed("both"), point.attention) for point in found)
    return sorted(_Time(it.median, backend, it.low, it.high) for it, backend in times if it)
