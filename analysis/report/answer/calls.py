"""What is said of attention alone: who is the fastest, at one shape and at how many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from analysis.charts._kernels import HOW, Lead, Point, lead, main_shape, mode_of, place, points, said
from analysis.report.answer.statement import Number, Sentence
from analysis.stats import grouped
from analysis.wording import group_name, in_parentheses, listed, percent, readable
from model.record.units import counted

if TYPE_CHECKING:
    from analysis.report.facts import Facts

_BOTH = "a forward and its backward"


_Fastest = tuple[Point, Lead]


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
    """The one that gains most over the next; None of a single backend.

    Where two were called apart, only one that is clearly ahead of each of the others.
    """
    found = [(point, ahead) for point in mine if (ahead := lead(point, mine))]
    best = max(found, key=lambda each: each[1].ratio.ratio, default=None)
    return best if best and (best[1].clear or len(found) == len(mine)) else None


def _at_each(found: Sequence[_Fastest], how: str) -> Sentence:
    """Where the interval of a ratio reaches 1, no backend is said to be the fastest."""
    won = grouped((each for each in found if each[1].clear), lambda each: each[0].attention)
    ordered = sorted(won.items(), key=lambda each: -len(each[1]))
    named = [f"{group_name(backend)} at {len(mine):,d} ({_gains(mine)})" for backend, mine in ordered]
    fastest = f"the fastest backend of {_BOTH} at {counted(len(found), 'shape')}"
    of = f"Observed ({how}): paired by round, each shape by itself, {fastest}"
    text = f"{of} is {listed(named)}." if named else f"{of} is at none of them told apart from the next."
    if named and (unclear := len(found) - sum(map(len, won.values()))):
        text += f" At {unclear:,d}, none is faster than all others by the 95 % interval of their ratio."
    numbers = (
        Number(f"shapes at which {backend} is the fastest", len(mine), None, None, "shapes")
        for backend, mine in ordered
    )
    return Sentence(text, tuple(numbers))


def _gains(mine: Sequence[_Fastest]) -> str:
    """By how much it is faster than the next: at one shape, or from the least to the most."""
    gains = sorted(ahead.ratio.ratio - 1 for _, ahead in mine)
    ends = " to ".join(dict.fromkeys(map(percent, (gains[0], gains[-1]))))
    return f"{ends} % over the next"


def _at_one_shape(mine: Sequence[Point], how: str) -> Sentence:
    first = _fastest(mine)
    ordered = sorted(mine, key=lambda point: (not first or point is not first[0], _milliseconds(point)))
    ends = [ordered[0], ordered[-1]] if len(ordered) > 1 else ordered
    each = [f"{_took(_milliseconds(point))} with {group_name(point.attention)}" for point in ends]
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
    return Sentence(text, tuple(numbers))


def _compared(found: _Fastest) -> str:
    first, ahead = found
    names, it = (group_name(first.attention), group_name(ahead.over.attention)), ahead.ratio
    if it.low is None or it.high is None:
        gain = f"{percent(it.ratio - 1)} %, without an interval"
    else:
        gain = in_parentheses(it.ratio - 1, it.low - 1, it.high - 1)
    if ahead.clear:
        return f"Paired by round, {names[0]} is the fastest: by {gain} over {names[1]}, the next."
    return f"Paired by round, {names[0]} is not told apart from {names[1]}: {gain}."


def _number(found: _Fastest) -> Number:
    first, ahead = found
    it, over = ahead.ratio, f"speed of {first.attention} over {ahead.over.attention}, change"
    value, low, high = (None if x is None else 100 * (x - 1) for x in (it.ratio, it.low, it.high))
    return Number(over, value or 0.0, low, high, "percent")


def _milliseconds(point: Point) -> float:
    found = point.timed("both")
    assert found
    return found.median


def _took(milliseconds: float) -> str:
    """With three digits: in seconds from a second on."""
    seconds = milliseconds >= 999.5  # which has a power of ten in three digits
    return f"{readable(milliseconds / 1e3, ',.3g')} s" if seconds else f"{milliseconds:.3g} ms"
