"""What 8 bits gain and cost: the forward's speed over the same backend in bfloat16, beside both errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.charts import Chart, Figure, Row, Styles, Table
from analysis.charts._kernels import OTHER_SHAPE, Point, backend_names, how_called, in_letters, points
from analysis.charts._rows import TOP, interval_lines, number_column, rows_height, y_of
from analysis.charts._style import COLOURS, axis_ends, inline, vega_lite
from analysis.charts._values import interval
from analysis.stats import Estimate
from analysis.stats.paired import ratio_of_medians
from analysis.wording import number
from model.record.case import FP8

if TYPE_CHECKING:
    import altair as alt

NARROW = "bfloat16"
# Errors of a certificate: the kernel's share of what is allowed, at worst; its relative error on the numbers
# that it was given; and on those from before they were rounded, with bfloat16's.
_SQL = """\
WITH errors AS (
  SELECT certificate,
    max(measured / tolerance) FILTER (name = 'right') AS allowed,
    max(relative_error) FILTER (name = 'right' AND variant = 'plain') AS own,
    max(measured) FILTER (name = 'quantisation' AND what = 'o' AND variant = 'plain') AS whole,
    max(measured) FILTER (name = 'quantisation' AND what <> 'o' AND variant = 'plain') AS narrow,
    max(measured) FILTER (name = 'quantisation' AND what = 'o' AND variant <> 'plain') AS whole_outliers,
    max(measured) FILTER (name = 'quantisation' AND what <> 'o' AND variant <> 'plain') AS narrow_outliers
  FROM verifications GROUP BY certificate
)
SELECT k.* EXCLUDE (study, attempt, measured_at, reason),
  e.allowed, e.own, e.whole, e.narrow, e.whole_outliers, e.narrow_outliers
FROM kernels k JOIN deciding_attempts d USING (study, run_id, attempt) LEFT JOIN errors e USING (certificate)
WHERE k.study = $study AND k.direction = 'forward'
ORDER BY k.sequence_length, k.batch, k.heads, k.kv_heads, k.head_dim, k.causal DESC, k.dtype,
  k.attention, k.mode, k.run_id"""
_ERRORS = {
    "own": "error of the kernel, %",
    "whole": "error with the rounding of Q, K and V, %",
    "narrow": "error of bfloat16, %",
    "whole_outliers": "the same with outliers, %",
    "narrow_outliers": "of bfloat16 with outliers, %",
}


@dataclass(frozen=True)
class Gain:
    """A backend at a shape in both precisions.

    Attributes:
        label: the backend, and the shape where there are several.
        ratio: how many times as fast 8 bits are, by the medians.
    """

    label: str
    fp8: Point
    narrow: Point
    ratio: Estimate

    def error(self, column: str) -> float | None:
        """Of its certificate; None where it has none."""
        return self.fp8.median(column, "forward", self.fp8.mode)


def gains(rows: list[Row]) -> list[Gain]:
    """Each backend at each shape at which it was timed in both precisions."""
    every = points(rows)
    others = {
        (point.attention, _without_dtype(point)): point for point in every if point.shape["dtype"] == NARROW
    }
    pairs = [
        (point, other)
        for point in every
        if point.shape["dtype"] == FP8 and (other := others.get((point.attention, _without_dtype(point))))
    ]
    several = len({_without_dtype(point) for point, _ in pairs}) > 1
    ratios = []
    for point, other in pairs:
        own, theirs = point.time("forward"), other.time("forward")
        if own and theirs:
            mask = "causal" if point.shape["causal"] else "no mask"
            shape = f"{in_letters(point.shape)} {mask}"  # without a comma, at which names are broken
            label = f"{point.attention}, {shape}" if several else point.attention
            ratios.append(Gain(label, point, other, ratio_of_medians(theirs, own)))
    return ratios


def _without_dtype(point: Point) -> tuple[Any, ...]:
    return tuple(value for name, value in point.shape.items() if name != "dtype")


def _build(rows: list[Row], _styles: Styles) -> Figure | None:
    every = gains(rows)
    if not every:
        return None
    best = max(every, key=lambda gain: gain.ratio.median)
    told = f"{number(best.ratio.median, '.2f')} times as fast as in {NARROW} ({best.label})"
    cells = []
    for gain in every:
        own, theirs = gain.fp8.time("forward"), gain.narrow.time("forward")
        rate, allowed = gain.fp8.rate("forward"), gain.error("allowed")
        cells.append((
            gain.label,
            number(gain.ratio.median, ".3f"),
            interval(gain.ratio, ".3f"),
            number(own.median if own else None, "#,.3g"),
            number(theirs.median if theirs else None, "#,.3g"),
            number(rate.median if rate else None, ",.0f"),
            number(allowed, ".2f"),
            *(number(None if (x := gain.error(name)) is None else 100 * x, ".2f") for name in _ERRORS),
        ))  # fmt: skip
    heads = (
        *("backend", f"speed over {NARROW}", "95 % interval", "8 bits, ms", f"{NARROW}, ms"),
        *("kernel TFLOP/s of 8 bits", "error over the allowed", *_ERRORS.values()),
    )
    return Figure(
        spec=_plot(every, backend_names([gain.fp8 for gain in every])),
        caption=(
            "Of a forward, in runs of the two precisions at the same shape. Q, K and V are rounded to 8 bits "
            "outside of the call. Errors are relative, of the certificates' own normal numbers; outliers: "
            f"one number of a thousand is ten times as large. {how_called(rows)}."
        ),
        description=f"Dot plot of the forward's speed in 8 bits over {NARROW}: "
        + "; ".join(f"{gain.label} {number(gain.ratio.median, '.3f')}" for gain in every)
        + ".",
        interval="; ".join([*dict.fromkeys(gain.ratio.method for gain in every), "the runs are not paired"]),
        used=frozenset(run for gain in every for run in (*gain.fp8.runs, *gain.narrow.runs)),
        finding=f"Attention to 8 bits is up to {told}"
        if len(every) > 1
        else f"Attention to 8 bits is {told}",
        table=Table(heads, tuple(cells)),
    )


def _plot(every: list[Gain], backends: list[str]) -> dict[str, Any]:
    import altair as alt

    marks: list[Row] = [
        {"label": gain.label, "backend": gain.fp8.attention, "ratio": gain.ratio.median,
         "low": gain.ratio.low, "high": gain.ratio.high, "one": 1}
        for gain in every
    ]  # fmt: skip
    y = y_of([gain.label for gain in every])
    ends = [end for mark in marks for end in (mark["low"], mark["ratio"], mark["high"]) if end is not None]
    scale = alt.Scale(domain=list(axis_ends([*ends, 1.0], zero=False)), nice=False)
    title = f"forward in 8 bits, times as fast as in {NARROW}"

    def x(field: str) -> alt.X:
        return alt.X(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(grid=False, tickCount=5))

    palette = [COLOURS[place % len(COLOURS)] for place in range(len(backends))]
    colour = alt.Color("backend:N", scale=alt.Scale(domain=backends, range=palette), legend=None)
    tips = [
        alt.Tooltip("label:N", title="backend"),
        alt.Tooltip("ratio:Q", title="times as fast", format=".3f"),
    ]
    layers = [inline([{"one": 1}]).mark_rule(strokeWidth=1.5).encode(x=x("one"))]
    layers += interval_lines(marks, x("low"), y=y, color=colour, tooltip=tips)
    point = inline(marks).mark_point(filled=True, size=75, opacity=1)
    layers.append(point.encode(x=x("ratio"), y=y, color=colour, tooltip=tips))
    layers += number_column(marks, y, "times", "ratio", ".2f")
    return vega_lite(layers, rows_height([gain.label for gain in every]), TOP)


chart = Chart(
    title="Attention to numbers of 8 bits",
    page="kernels",
    order=72,
    question="What do 8 bits gain over bfloat16, and what do they cost?",
    sql=_SQL,
    build=_build,
    applies=lambda rows: any(row["dtype"] == FP8 for row in rows),
    empty="No backend was timed in 8 bits and in bfloat16 at the same shape.",
    absent=OTHER_SHAPE,
    warmup=None,
    tasks=("attention",),
)
