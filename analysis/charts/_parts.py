"""The parts of a whole as stacked bars, one row per label, and those of a profiled step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from analysis.charts import Row
from analysis.charts._reported import hollow, hollow_tips
from analysis.charts._rows import TOP, number_column, rows_height, y_of
from analysis.charts._style import COLOURS, INK, axis_ends, inline, vega_lite

if TYPE_CHECKING:
    import altair as alt

Look = tuple[str, float]  # colour and opacity of a part
_OPACITIES = (0.35, 1.0, 0.6, 0.15)  # so that neighbours differ in print without colours too
_BAR = 14  # pixels of its height
_LEGEND = 18  # pixels above the head of the column, for the row of each part


def middle_run(of: str, sizes: Iterable[int]) -> str:
    """Which run of each group the bars show, for a caption.

    Args:
        of: what its own is the median of.
        sizes: how many runs each group has.
    """
    of_two = "" if all(size % 2 for size in sizes) else " (of two, the shorter)"
    return f"Bars: the run of the median {of}{of_two}. Marks: runs."


def pieces(label: str, parts: Mapping[str, float | None]) -> list[Row]:
    """A row's bar: its parts that are known and not zero, one after the other."""
    rows, start = [], 0.0
    for part, value in parts.items():
        if value:
            place = {"start": start, "end": start + value}
            rows.append({"label": label, "part": part, "value": value} | place)
            start += value
    return rows


def default_looks(parts: Sequence[str]) -> dict[str, Look]:
    """Looks of parts that a figure always has."""
    return dict(zip(parts, zip(COLOURS, cycle(_OPACITIES), strict=False), strict=False))


def stacked_bars(
    bars: list[Row],
    wholes: list[Row],
    labels: Sequence[str],
    parts: Mapping[str, Look],
    unit: str,
    theirs: Sequence[Row] = (),
) -> Any:
    """Draw the bars as Vega-Lite.

    Args:
        bars: their `pieces`, in the unit.
        wholes: label, run and value, one per run.
        labels: of the rows, from the top.
        parts: in their order from the left, and how each looks.
        unit: of the axis's title.
        theirs: label, value, text and origin of what others report, in the unit.
    """
    import altair as alt

    values = [row["value"] for row in (*wholes, *theirs)]
    span = axis_ends([*(row["end"] for row in bars), *values], zero=True)
    y = y_of(labels, grid=False)

    def x(field: str) -> alt.X:
        scale = alt.Scale(domain=list(span), nice=False)
        return alt.X(f"{field}:Q", title=unit, scale=scale, axis=alt.Axis(grid=False, tickCount=5))

    def tips(column: str) -> list[alt.Tooltip]:
        group, value = (
            alt.Tooltip("label:N", title="group"),
            alt.Tooltip("value:Q", title=unit, format=",.2f"),
        )
        return [group, alt.Tooltip(f"{column}:N"), value]

    legend = alt.Legend(
        orient="none", columns=1, legendX=0, legendY=-TOP - _LEGEND * len(parts), title=None,
        labelColor=INK, labelFontSize=12, labelLimit=0,
        symbolType="square", symbolStrokeColor=INK, symbolStrokeWidth=0.8,
    )  # fmt: skip
    # Vega-Lite would make a ramp of opacities, from the first to the last, if their scale were not ordinal.
    colours, opacities = (
        alt.Scale(type="ordinal", domain=list(parts), range=[look[place] for look in parts.values()])
        for place in (0, 1)
    )
    filled = inline(bars).mark_bar(height=_BAR)
    edge = inline(bars).mark_bar(height=_BAR, fillOpacity=0, stroke=INK, strokeWidth=0.8)
    whole = inline(wholes).mark_point(color=INK, size=30, strokeWidth=1.2, opacity=1)
    ended = {row["label"]: row["end"] for row in bars}  # the last part of each
    totals = [{"label": label, "total": ended[label]} for label in labels]
    layers = [
        filled.encode(
            x=x("start"),
            x2="end:Q",
            y=y,
            color=alt.Color("part:N", scale=colours, sort=list(parts), legend=legend),
            # Without a sort, Vega-Lite warns on the page's console. Legends show opacity, not fillOpacity.
            opacity=alt.Opacity("part:N", scale=opacities, sort=list(parts), legend=legend),
            tooltip=tips("part"),
        ),
        edge.encode(x=x("start"), x2="end:Q", y=y),
        whole.encode(x=x("value"), y=y, tooltip=tips("run")),
        *number_column(totals, y, "whole", "total", ",.2f"),
    ]
    if theirs:
        mark = hollow([*theirs]).encode(x=x("value"), y=y, color=alt.value(INK))
        layers.append(mark.encode(tooltip=hollow_tips(unit)))
    return vega_lite(layers, rows_height(labels), TOP + _LEGEND * len(parts))


PART_NAMES = {
    "products": "matrix products",
    "attention": "attention",
    "loss": "loss",
    "optimizer": "optimizer",
    "elementwise": "norms and elementwise",
    "copies": "copies",
    "communication": "communication",
    "idle": "idle",
}
# One look in all figures, whichever parts a study has. Those that do not compute are light blue or grey.
_LOOKS: dict[str, Look] = {
    "products": (COLOURS[0], 0.35),
    "attention": (COLOURS[1], 1.0),
    "loss": (COLOURS[2], 0.6),
    "optimizer": (COLOURS[3], 0.15),
    "elementwise": (COLOURS[4], 0.35),
    "copies": (COLOURS[6], 0.6),
    "communication": (COLOURS[5], 1.0),
    "idle": (COLOURS[6], 0.15),
}
FORWARD_PARTS = ("products", "attention", "elementwise", "copies", "idle")  # those of inference


def part_columns() -> str:
    """SQL that makes a row of a step's parts: seconds by part, and `hidden` of the communication."""
    seconds = ", ".join(f"sum(seconds) FILTER (part = '{part}') AS {part}" for part in PART_NAMES)
    return f"{seconds}, sum(hidden_seconds) FILTER (part = 'communication') AS hidden"


def part_looks(rows: Iterable[Row]) -> dict[str, Look]:
    """The looks of the parts that any row has, by name, in their order."""
    rows = list(rows)
    return {name: _LOOKS[part] for part, name in PART_NAMES.items() if any(row[part] for row in rows)}


def whole_seconds(row: Row) -> float:
    """Seconds of the step: all parts. What other work hides is none."""
    return sum(row[part] or 0.0 for part in PART_NAMES)
