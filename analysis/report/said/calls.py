"""What is said of attention alone: who is the fastest, at one shape and at how many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from analysis.charts._kernels import HOW, Point, main_shape, mode_of, place, points, said, speed_over
from analysis.report.said.sentence import Number, Sentence, listed
from analysis.stats import grouped
from analysis.stats.paired import Ratio
from analysis.stats.verdict import enclosed, name, percent
from model.units import counted

if TYPE_CHECKING:
    from analysis.report.facts import Facts

_BOTH = "a forward and its backward"


class _Fastest(NamedTuple):
    """The backend of a shape that is the fastest round by round.

    Attributes:
        next: the one over which it gains least.
        ratio: how many times as fast as that one it is.
        clear: whether it is faster than each of the others, by the interval of its ratio over that one.
    """

    first: Point
    next: Point
    ratio: Ratio
    clear: bool


def sentences(facts: Facts) -> Iterator[Sentence]:
    """Observed, not found: calls in single processes."""
    timed = [point for point in points(facts.kernels) if point.timed("both")]
    if not timed:
        return
    how = HOW[mode_of(facts.kernels)]
    how = f"{how[:1].lower()}{how[1:]}"
    yield _at_one_shape(main_shape(timed), how)
    found = [each for mine in grouped(timed, place).values() if (each := _fastest(mine))]
    if len(found) > 1:
        yield _at_each(found, how)


def _fastest(mine: Sequence[Point]) -> _Fastest | None:
    """None of a single backend, and where no process called two of them."""
    found = []
    for point in mine:
        over = [(speed_over(point, other), other) for other in mine if other is not point]
        known = [(ratio, other) for ratio, other in over if ratio]
        if not known or len(known) < len(over):
            return None
        ratio, other = min(known, key=lambda each: each[0].ratio)
        clear = all(each.low is not None and each.low > 1 for each, _ in known)
        found.append(_Fastest(point, other, ratio, clear))
    return max(found, key=lambda each: each.ratio.ratio)


def _at_each(found: Sequence[_Fastest], how: str) -> Sentence:
    """Where the interval of a ratio reaches 1, no backend is said to be the fastest."""
    won = grouped((each for each in found if each.clear), lambda each: each.first.attention)
    ordered = sorted(won.items(), key=lambda each: -len(each[1]))
    named = [f"{name(backend)} at {len(mine):,d} ({_gains(mine)})" for backend, mine in ordered]
    of = (
        f"Observed ({how}): paired by round, the fastest backend of {_BOTH} at {counted(len(found), 'shape')}"
    )
    text = f"{of} is {listed(named)}." if named else f"{of} is at none of them told apart from the next."
    if named and (unclear := len(found) - sum(map(len, won.values()))):
        text += f" At {unclear:,d}, none is faster than all others by the 95 % interval of their ratio."
    numbers = (
        Number(f"shapes at which {backend} is the fastest", len(mine), None, None, "shapes")
        for backend, mine in ordered
    )
    return Sentence(text, tuple(numbers), "observed", "calls of one process each", "")


def _gains(mine: Sequence[_Fastest]) -> str:
    """By how much it is faster than the next: at one shape, or from the least to the most."""
    gains = sorted(each.ratio.ratio - 1 for each in mine)
    ends = " to ".join(dict.fromkeys(map(percent, (gains[0], gains[-1]))))
    return f"{ends} % over the next"


def _at_one_shape(mine: Sequence[Point], how: str) -> Sentence:
    first = _fastest(mine)
    ordered = sorted(mine, key=lambda point: (not first or point is not first.first, _milliseconds(point)))
    ends = [ordered[0], ordered[-1]] if len(ordered) > 1 else ordered
    each = [f"{_took(_milliseconds(point))} with {name(point.attention)}" for point in ends]
    if len(ordered) > 2:
        each[1] += f", the slowest of {len(ordered)} backends"
    text = f"Observed at {said(mine[0])} ({how}): {_BOTH} take {listed(each)}."
    numbers = [
        Number(f"milliseconds of {_BOTH} by {point.attention}", _milliseconds(point), None, None, "ms")
        for point in ends
    ]
    if first:
        text += f" {_compared(first)}"
        numbers.append(_number(first))
    return Sentence(text, tuple(numbers), "observed", "calls of one process", "")


def _compared(found: _Fastest) -> str:
    names, it = (name(found.first.attention), name(found.next.attention)), found.ratio
    if it.low is None or it.high is None:
        gain = f"{percent(it.ratio - 1)} %, without an interval"
    else:
        gain = enclosed(it.ratio - 1, it.low - 1, it.high - 1)
    if found.clear:
        return f"Paired by round, {names[0]} is the fastest: by {gain} over {names[1]}, the next."
    return f"Paired by round, {names[0]} is not told apart from {names[1]}: {gain}."


def _number(found: _Fastest) -> Number:
    it, over = found.ratio, f"speed of {found.first.attention} over {found.next.attention}, change"
    value, low, high = (None if x is None else 100 * (x - 1) for x in (it.ratio, it.low, it.high))
    return Number(over, value or 0.0, low, high, "percent")


def _milliseconds(point: Point) -> float:
    found = point.timed("both")
    assert found
    return found.median


def _took(milliseconds: float) -> str:
    """With three digits: in seconds from a second on."""
    return f"{milliseconds / 1e3:,.3g} s" if milliseconds >= 1e3 else f"{milliseconds:.3g} ms"
