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
    leads = [fastest for at_shape in grouped(timed, place).values() if (fastest := _fastest(at_shape))]
    if len(leads) > 1:
        yield _at_each(leads, how)


def _fastest(at_shape: Sequence[Point]) -> _Fastest | None:
    """The one that gains most over the next; None of a single backend.

    Where two were called apart, only one that is clearly ahead of each of the others.
    """
    leads = [(point, ahead) for point in at_shape if (ahead := lead(point, at_shape))]
    best = max(leads, key=lambda lead: lead[1].ratio.ratio, default=None)
    return best if best and (best[1].clear or len(leads) == len(at_shape)) else None


def _at_each(leads: Sequence[_Fastest], how: str) -> Sentence:
    """Where the interval of a ratio reaches 1, no backend is said to be the fastest."""
    clear = [(point, ahead) for point, ahead in leads if ahead.clear]
    won = grouped(clear, lambda lead: lead[0].attention)
    ordered = sorted(won.items(), key=lambda wins: -len(wins[1]))
    named = [f"{group_name(backend)} at {len(wins):,d} ({_gains(wins)})" for backend, wins in ordered]
    fastest = f"the fastest backend of {_BOTH} at {counted(len(leads), 'shape')}"
    of = f"Observed ({how}): paired by round, each shape by itself, {fastest}"
    text = f"{of} is {listed(named)}." if named else f"{of} is at none of them told apart from the next."
    if named and (unclear := len(leads) - len(clear)):
        text += f" At {unclear:,d}, none is faster than all others by the 95 % interval of their ratio."
    numbers = (
        Number(f"shapes at which {backend} is the fastest", len(wins), None, None, "shapes")
        for backend, wins in ordered
    )
    return Sentence(text, tuple(numbers))


def _gains(wins: Sequence[_Fastest]) -> str:
    """By how much it is faster than the next: at one shape, or from the least to the most."""
    gains = sorted(ahead.ratio.ratio - 1 for _, ahead in wins)
    ends = " to ".join(dict.fromkeys(map(percent, (gains[0], gains[-1]))))
    return f"{ends} % over the next"


def _at_one_shape(at_shape: Sequence[Point], how: str) -> Sentence:
    first = _fastest(at_shape)
    ordered = sorted(at_shape, key=lambda point: (not first or point is not first[0], _milliseconds(point)))
    ends = [ordered[0], ordered[-1]] if len(ordered) > 1 else ordered
    times = [f"{_took(_milliseconds(point))} with {group_name(point.attention)}" for point in ends]
    if len(ordered) > 2:
        times[1] += f", the slowest of {len(ordered)} backends"
    text = f"Observed at {said(at_shape[0])} ({how}): {_BOTH} take {listed(times)}."
    numbers = [
        Number(f"milliseconds of {_BOTH} by {point.attention}", _milliseconds(point), None, None, "ms")
        for point in ends
    ]
    if first:
        text += f" {_compared(first)}"
        numbers.append(_number(first))
    return Sentence(text, tuple(numbers))


def _compared(fastest: _Fastest) -> str:
    first, ahead = fastest
    names, ratio = (group_name(first.attention), group_name(ahead.over.attention)), ahead.ratio
    if ratio.low is None or ratio.high is None:
        gain = f"{percent(ratio.ratio - 1)} %, without an interval"
    else:
        gain = in_parentheses(ratio.ratio - 1, ratio.low - 1, ratio.high - 1)
    if ahead.clear:
        return f"Paired by round, {names[0]} is the fastest: by {gain} over {names[1]}, the next."
    return f"Paired by round, {names[0]} is not told apart from {names[1]}: {gain}."


def _number(fastest: _Fastest) -> Number:
    first, ahead = fastest
    ratio, over = ahead.ratio, f"speed of {first.attention} over {ahead.over.attention}, change"
    value, low, high = (None if x is None else 100 * (x - 1) for x in (ratio.ratio, ratio.low, ratio.high))
    return Number(over, value or 0.0, low, high, "percent")


def _milliseconds(point: Point) -> float:
    estimate = point.timed("both")
    assert estimate
    return estimate.median


def _took(milliseconds: float) -> str:
    """With three digits: in seconds from a second on."""
    seconds = milliseconds >= 999.5  # which has a power of ten in three digits
    return f"{readable(milliseconds / 1e3, ',.3g')} s" if seconds else f"{milliseconds:.3g} ms"
