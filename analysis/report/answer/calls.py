"""What is said of attention alone: who is the fastest, at one shape and at how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from analysis.charts._kernels import (
    SHAPE,
    Lead,
    Point,
    lead,
    main_shape,
    points,
    shape_in_words,
    shape_key,
    shapes_or_cases,
)
from analysis.charts._values import interval
from analysis.charts.kernel_fp8 import NARROW, Gain, gains
from analysis.charts.kernel_tile import of_tiles
from analysis.report.answer.statement import Number, Sentence
from analysis.stats import Estimate, grouped
from analysis.stats.paired import Ratio, ratio_of_medians
from analysis.wording import capital, decimals, group_name, in_parentheses, listed, percent, readable
from model.record.case import FP8
from model.record.units import counted

if TYPE_CHECKING:
    from analysis.report.facts import Facts

_NAMED = 3  # backends that a sentence about an axis names
_Fastest = tuple[Point, Lead]


def sentences(facts: Facts) -> Iterator[Sentence]:
    """Observed, not found: calls in single processes."""
    timed = [point for point in points(facts.kernels) if point.time()]
    if not timed:
        return
    yield from _in_8_bits(facts)
    yield from _by_tile(timed)
    yield from _by_dropout(timed)
    main, at_shapes = main_shape(timed), grouped(timed, shape_key).values()
    yield _at_one_shape(main)
    yield from _otherwise(main, at_shapes)
    leads = [fastest for at_shape in at_shapes if (fastest := _fastest(at_shape))]
    if len(leads) > 1:
        yield _at_each(leads)


def _in_8_bits(facts: Facts) -> Iterator[Sentence]:
    """What 8 bits gain over bfloat16, who is wrong in them, and how far outputs are from float64."""
    by_backend = grouped(gains(facts.eight_bits), lambda gain: gain.fp8.attention)
    texts, numbers = [], []
    for name, own in sorted(by_backend.items(), key=lambda item: -max(gain.ratio.median for gain in item[1])):
        ratios = sorted(gain.ratio.median for gain in own)
        times = " to ".join(dict.fromkeys(f"{ratio:.2f}" for ratio in (ratios[0], ratios[-1])))
        many = counted(len(own), shapes_or_cases([gain.fp8 for gain in own]))
        at, first = (f" at {many}" if len(own) > 1 else ""), own[0].ratio
        ends = "" if at or first.low is None else f" ({interval(first, '.2f')})"
        texts.append(f"{times} times{ends} as fast as in {NARROW} with {group_name(name)}{at}")
        numbers += [_times(f"forward in 8 bits over {NARROW}, {gain.label}", gain.ratio) for gain in own]
    if not texts:
        return
    wrong = {row["attention"] for row in facts.kernels if (row["dtype"], row["outcome"]) == (FP8, "wrong")}
    wrong -= by_backend.keys()
    aside = ""
    if wrong:
        names, are = listed([group_name(name) for name in sorted(wrong)]), "is" if len(wrong) == 1 else "are"
        aside = f"; {names} {are} wrong in 8 bits and {'has' if len(wrong) == 1 else 'have'} no time"
    yield Sentence(f"In 8 bits a forward is {listed(texts)}{aside}.", tuple(numbers))
    yield from (sentence for own in by_backend.values() if (sentence := _errors(own[0])))


def _errors(gain: Gain) -> Sentence | None:
    """How far an output in 8 bits is from float64, by its certificate; None without one."""
    parts = {"whole": "in 8 bits", "narrow": f"in {NARROW}", "own": "of the kernel alone"}
    shares = {part: 100 * error for part in parts if (error := gain.error(part)) is not None}
    if len(shares) < len(parts):
        return None
    name = gain.fp8.attention
    whole, narrow, own = (readable(share, ".2f") for share in shares.values())
    text = (
        f"The output of {group_name(name)} in 8 bits is {whole} % off float64, by its certificate, and in "
        f"{NARROW} {narrow} %; {own} % is the kernel's own error, on the numbers as they were rounded."
    )
    numbers = (Number(f"error of {name} {words}", "percent", shares[part]) for part, words in parts.items())
    return Sentence(text, tuple(numbers))


def _by_tile(timed: list[Point]) -> Iterator[Sentence]:
    """Each backend's fastest tile and its slowest, at the shape that the figure of tiles shows."""
    shape = next(iter(of_tiles(timed)), None)
    by_backend = grouped(shape.points if shape else [], lambda point: point.attention)
    several = [sorted(own, key=_milliseconds) for own in by_backend.values() if len(own) > 1]
    if not shape or not several:
        return
    texts, numbers = [], []
    for own in sorted(several, key=lambda own: _milliseconds(own[0])):
        first, last, name = own[0], own[-1], own[0].attention
        gain = _over(last, first)
        slowest = f", the slowest of {len(own)}" if len(own) > 2 else ""
        texts.append(
            f"{group_name(name)} has its shortest time, {_in_words(_milliseconds(first))}, in {first.tile}, "
            f"{_in_times(gain)} as fast as in {last.tile}{slowest}"
        )
        numbers.append(_times(f"speed of {name} in {first.tile} over {last.tile}", gain))
    what = f"{capital(_call(shape.points[0]))} over tiles of queries x keys"
    where = f"{what}, at {shape.fixed}{_in_graphs(shape.points[0])}"
    yield Sentence(f"{where}: {_of_few(texts)}.", tuple(numbers[:_NAMED]))


def _by_dropout(timed: list[Point]) -> Iterator[Sentence]:
    """How many times as long a call takes with dropout, of the backends that were called without it, too."""

    def but_dropout(point: Point) -> tuple[Any, ...]:
        return point.attention, *(value for name, value in point.shape.items() if name != "dropout")

    without = {but_dropout(point): point for point in timed if not point.shape["dropout"]}
    both = [point for point in timed if point.shape["dropout"] and but_dropout(point) in without]
    at_shape = main_shape(both)
    if not at_shape:
        return
    costs = {point.attention: _over(point, without[but_dropout(point)]) for point in at_shape}
    ordered = sorted(costs, key=lambda name: costs[name].median)
    texts = [f"{_in_times(costs[name])} that without with {group_name(name)}" for name in ordered]
    numbers = [_times(f"time of {name} with dropout over without", costs[name]) for name in ordered]
    where, what = f"At {shape_in_words(at_shape[0])}{_in_graphs(at_shape[0])}", _call(at_shape[0])
    yield Sentence(f"{where}, the time of {what} is {_of_few(texts)}.", tuple(numbers[:_NAMED]))


def _over(point: Point, other: Point) -> Estimate:
    own, theirs = point.time(), other.time()
    assert own and theirs
    return ratio_of_medians(own, theirs)


def _times(name: str, ratio: Estimate) -> Number:
    return Number(name, "times", ratio.median, ratio.low, ratio.high, is_range=ratio.is_range)


def _in_times(ratio: Estimate) -> str:
    """`1.83 times (1.82 to 1.84)`; of an interval that has 1 in it, that nothing is told apart."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.median:.2f} times"
    digits = decimals((ratio.low - 1, ratio.high - 1), None, 2)
    unclear = ": not told apart" if ratio.low <= 1 <= ratio.high else ""
    return f"{ratio.median:.{digits}f} times ({interval(ratio, f'.{digits}f')}{unclear})"


def _of_few(texts: Sequence[str]) -> str:
    """The first ones, and how many backends there are beyond these."""
    more = len(texts) - _NAMED
    return "; ".join(
        [*texts[:_NAMED], *([f"the tables have {counted(more, 'more backend')}"] if more > 0 else [])]
    )


def _otherwise(main: Sequence[Point], at_shapes: Iterable[Sequence[Point]]) -> Iterator[Sentence]:
    """Which other backend is the fastest at the same sizes in another precision, or with another mask."""
    best, texts, numbers = _fastest(main), [], []
    first = best[0].attention if best and best[1].clear else None
    for at_shape in at_shapes:
        fastest, shape = _fastest(at_shape), at_shape[0].shape
        differ = [name for name in SHAPE if shape[name] != main[0].shape[name]]
        same_call = at_shape[0].main_direction == main[0].main_direction
        comparable = differ and {"dtype", "causal"}.issuperset(differ) and same_call
        if not comparable or not fastest or not fastest[1].clear or fastest[0].attention == first:
            continue
        point, ahead = fastest
        how = {
            "dtype": f" in {shape['dtype']}",
            "causal": f" {'with' if shape['causal'] else 'without'} a mask",
        }
        where = "".join(how[name] for name in sorted(differ, reverse=True))
        name, over = group_name(point.attention), group_name(ahead.next_best.attention)
        texts.append(f"{name} is the fastest{where}, by {_gain(ahead.ratio)} over {over}")
        numbers.append(_speed(point, ahead.next_best, ahead.ratio, where))
    if texts:
        yield Sentence(f"At the same sizes, {'; '.join(texts)}.", tuple(numbers))


def _fastest(at_shape: Sequence[Point]) -> _Fastest | None:
    """The one that gains most over the next; None of a single backend.

    Where two were called apart, only one that is clearly ahead of each of the others.
    """
    leads = [(point, ahead) for point in at_shape if (ahead := lead(point, at_shape))]
    best = max(leads, key=lambda lead: lead[1].ratio.ratio, default=None)
    return best if best and (best[1].clear or len(leads) == len(at_shape)) else None


def _at_each(leads: Sequence[_Fastest]) -> Sentence:
    """Where the interval of a ratio reaches 1, no backend is said to be the fastest."""
    clear = [(point, ahead) for point, ahead in leads if ahead.clear]
    won = grouped(clear, lambda lead: lead[0].attention)
    ordered = sorted(won.items(), key=lambda wins: -len(wins[1]))
    precisions = sorted({point.shape["dtype"] for point, _ in leads})
    named = []
    for backend, wins in ordered:
        gains = sorted(ahead.ratio.ratio - 1 for _, ahead in wins)
        ends = " to ".join(dict.fromkeys(map(percent, (gains[0], gains[-1]))))
        by_precision = Counter(point.shape["dtype"] for point, _ in wins) if len(precisions) > 1 else {}
        where = "".join(f"{by_precision[name]} in {name}, " for name in precisions if name in by_precision)
        named.append(f"{group_name(backend)} at {len(wins):,d} ({where}{ends} % over the next)")
    what = shapes_or_cases([point for point, _ in leads])
    text = f"Over {counted(len(leads), what)}, the fastest is {listed(named)}"
    if not named:
        text = f"At none of {counted(len(leads), what)} is one backend told from the next"
    elif unclear := len(leads) - len(clear):
        text += f"; at {unclear:,d}, none is told from the next"
    numbers = (
        Number(f"shapes at which {backend} is the fastest", "shapes", len(wins)) for backend, wins in ordered
    )
    return Sentence(f"{text}.", tuple(numbers))


def _at_one_shape(at_shape: Sequence[Point]) -> Sentence:
    fastest, what = _fastest(at_shape), _call(at_shape[0])
    take = "takes" if at_shape[0].main_direction == "forward" else "take"
    ordered = sorted(
        at_shape, key=lambda point: (not fastest or point is not fastest[0], _milliseconds(point))
    )
    times, numbers = [], []
    for point in [ordered[0], ordered[-1]] if len(ordered) > 1 else ordered:
        took = _milliseconds(point)
        times.append(f"{_in_words(took)} with {group_name(point.attention)}")
        numbers.append(Number(f"milliseconds of {what} by {point.attention}", "ms", took))
    if len(ordered) > 2:
        times[1] += f", the slowest of {len(ordered)} backends"
    where = f"At {shape_in_words(at_shape[0])}{_in_graphs(at_shape[0])}"
    if not fastest:
        return Sentence(f"{where}, {what} {take} {listed(times)}.", tuple(numbers))

    first, ahead = fastest
    other, ratio = ahead.doubt or (ahead.next_best, ahead.ratio)
    name, over = group_name(first.attention), group_name(other.attention)
    gain = _gain(ratio)
    if ahead.clear:
        text = f"{name} is the fastest, by {gain} over {over}: {what} {take} {listed(times)}"
    else:
        text = f"{what} {take} {listed(times)}; {name} is not told from {over}: {gain}"
    return Sentence(f"{where}, {text}.", (*numbers, _speed(first, other, ratio)))


def _gain(ratio: Ratio) -> str:
    """`+0.50 % (+0.48 to +0.52 %)`: how much faster the first is than the second."""
    if ratio.low is None or ratio.high is None:
        return f"{percent(ratio.ratio - 1)} %, without an interval"
    gain = in_parentheses(ratio.ratio - 1, ratio.low - 1, ratio.high - 1)
    return gain.replace("(", "(range ") if ratio.is_range else gain


def _speed(point: Point, other: Point, ratio: Ratio, where: str = "") -> Number:
    value, low, high = (None if x is None else 100 * (x - 1) for x in (ratio.ratio, ratio.low, ratio.high))
    speed = f"speed of {point.attention} over {other.attention}{where}, change"
    return Number(speed, "percent", value or 0.0, low, high, is_range=ratio.is_range)


def _call(point: Point) -> str:
    return "a forward" if point.main_direction == "forward" else "a forward and its backward"


def _in_graphs(point: Point) -> str:
    return ", in CUDA graphs" if point.mode == "graph" else ""


def _in_words(milliseconds: float) -> str:
    """In ms, and in s where three digits of ms would have a power of ten."""
    if milliseconds >= 999.5:
        return f"{readable(milliseconds / 1e3, ',.3g')} s"
    return f"{readable(milliseconds, '#.3g')} ms"


def _milliseconds(point: Point) -> float:
    estimate = point.time()
    assert estimate
    return estimate.median
