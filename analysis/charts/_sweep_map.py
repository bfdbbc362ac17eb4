"""A quantity over two numeric axes: heat maps with the value in each cell, one for each group of the rest."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import TYPE_CHECKING, Any

from analysis.charts import Figure
from analysis.charts._quantities import CellQuantity, with_decimals
from analysis.charts._style import INK, inline, vega_lite
from analysis.charts._sweep import (
    Sweep,
    SweepAxis,
    SweepCell,
    abbreviations,
    interval_ends,
    interval_methods,
    range_description,
    sort_into_cells,
    sweep_axes,
    sweep_notes,
    sweep_table,
)
from analysis.wording import capital, readable

if TYPE_CHECKING:
    import altair as alt

    from analysis.charts import Row

MOST_MAPS = 12  # heat maps in a figure
_WIDEST = 8  # values of the axis with more of them, from which it goes down and not across
_ROW = 26  # pixels
_SPREAD = 20  # of values, from which their shades are logarithmic
# From light to dark, of one hue: lightness alone orders them, on paper and for every eye. The darkest has 3:1
# against the dark theme's paper; a thin edge parts the lightest from the light one's.
_SHADES = ((0xEA, 0xF2, 0xFB), (0xA6, 0xCB, 0xEA), (0x5E, 0x9F, 0xD4), (0x21, 0x66, 0xAC))


def maps_figure(rows: list[Row], quantity: CellQuantity, note: str = "") -> Figure | None:
    """Draw a quantity over the two axes with the most values; None if no run has it, or there are no two.

    Args:
        rows: the answer to SWEEP_RUNS.
        note: what to say first.
    """
    if len(sweep_axes(rows)) < 2:
        return None
    return maps_over(sort_into_cells(rows, quantity.estimates), quantity, note)


def maps_over(swept: Sweep, quantity: CellQuantity, note: str = "") -> Figure | None:
    """Draw heat maps over the first two axes of a sweep; None if no cell has a value."""
    first, second = swept.axes[:2]
    across, down = (second, first) if len(first.values) > _WIDEST else (first, second)
    every = swept.by([across, down])
    panels = dict(list(every.items())[:MOST_MAPS])
    cells = [cell for panel in panels.values() for cell in panel]
    if not any(cell.estimate for cell in cells):
        return None
    brief = quantity.number
    quantity = with_decimals(quantity, (cell.estimate for cell in swept.cells if cell.estimate))
    over = f"{across.title} and {down.title}"

    scale = ", on one scale for all heat maps" if len(panels) > 1 else ""
    sentences = [quantity.what, f"Numbers: {quantity.numbers}; darker is more{scale}."]
    if _logarithmic(_values(cells)):
        sentences.append("Shades are logarithmic.")
    if any(cell.missing and not cell.estimate for cell in cells):
        sentences.append("A cell with a dashed edge has no value, and says how its runs ended.")
    return Figure(
        spec=_spec(panels, across, down, quantity, brief),
        caption=" ".join([*sentences, *abbreviations(cells)]),
        description=f"Heat map by {over}: {range_description(cells, swept.axes, quantity)}",
        interval=f"in the table: {interval_methods(cells)}",
        used=frozenset(run for cell in cells if cell.estimate for run in cell.shown),
        title=f"{capital(quantity.name)} by {over}",
        note=" ".join([note, *sweep_notes(swept, every, MOST_MAPS, "heat maps")]).strip() or None,
        finding=_finding(cells, swept.axes[:2], quantity),
        table=sweep_table(swept, quantity),
    )


def _finding(cells: list[SweepCell], axes: tuple[SweepAxis, ...], quantity: CellQuantity) -> str:
    """The largest and the smallest value, with where they are."""
    valued = sorted(
        ((cell.estimate.median, cell) for cell in cells if cell.estimate), key=lambda one: -one[0]
    )
    several = len({cell.rest for cell in cells}) > 1
    ends = []
    for value, cell in (valued[0], valued[-1]):
        where = [*([cell.rest] if several else []), *(f"{axis.title} {axis.of(cell)}" for axis in axes)]
        ends.append(f"{readable(value, '#,.3g')}{quantity.suffix} ({', '.join(where)})")
    return f"{capital(quantity.name)}: highest {ends[0]}, lowest {ends[1]}"


def _values(cells: list[SweepCell]) -> list[float]:
    return [cell.estimate.median for cell in cells if cell.estimate]


def _logarithmic(values: list[float]) -> bool:
    return min(values) > 0 and max(values) > _SPREAD * min(values)


def _spec(
    panels: dict[str, list[SweepCell]], across: SweepAxis, down: SweepAxis, quantity: CellQuantity, brief: str
) -> dict[str, Any]:
    """The figure as Vega-Lite.

    Args:
        brief: format of the number in a cell, which has more digits only where it is small.
    """
    import altair as alt

    shade = shades(_values([cell for panel in panels.values() for cell in panel]))
    bands: list[str] = []  # from the top: each heat map's name, and its rows
    marks = []
    for place, (name, panel) in enumerate(panels.items()):
        used = {cell.at[down.name] for cell in panel}
        bands += [_band(place), *(_band(place, down.text(at)) for at in reversed(down.values) if at in used)]
        for cell in panel:
            mark: dict[str, Any] = {"across": across.of(cell), "ended": cell.word or "none"}
            if estimate := cell.estimate:
                value, fill = estimate.median, shade(estimate.median)
                mark |= {
                    # In thousands beyond 100,000: a cell has room for no more.
                    "text": f"{value / 1000:,.0f}k" if value >= 100_000 else readable(value, brief),
                    "fill": fill,
                    "ink": ink_on(fill),
                    "value": value,
                    "interval": interval_ends(estimate, quantity.number),
                    "n": estimate.n,
                }
            else:
                mark["text"] = cell.word
            at = down.of(cell)
            marks.append(mark | {"band": _band(place, at), "group": name, "down": at})
    # The expression is the same whatever the values are called.
    axis = alt.Axis(labelExpr="split(datum.label, '|')[1]", domain=False, ticks=False, labelPadding=6)
    y = alt.Y("band:N", sort=None, title=down.title, axis=axis, scale=alt.Scale(domain=bands, padding=0.04))
    left: Any = alt.XValue
    names = inline([{"band": _band(place), "label": name} for place, name in enumerate(panels)]).mark_text(
        align="left", baseline="middle", fontWeight=600, color=INK, dx=2, dy=3
    )
    layers = [
        *_cells(marks, (across, down), quantity, y),
        names.encode(x=left(0), y=y, text="label:N").properties(name="above"),
    ]
    return vega_lite(layers, _ROW * len(bands), top=6)


def _band(panel: int, value: str = "") -> str:
    return f"{panel}|{value}"


def shades(values: list[float]) -> Callable[[float], str]:
    """From the smallest to the largest value."""
    scale: Callable[[float], float] = log if _logarithmic(values) else float
    low, high = scale(min(values)), scale(max(values))

    def shade(value: float) -> str:
        place = (scale(value) - low) / (high - low) * (len(_SHADES) - 1) if high > low else 1.0
        below = min(int(place), len(_SHADES) - 2)
        mixed = (a + (b - a) * (place - below) for a, b in zip(*_SHADES[below : below + 2], strict=True))
        return "#" + "".join(f"{round(part):02x}" for part in mixed)

    return shade


def ink_on(fill: str) -> str:
    """Black or white, whichever stands out more: at least 4.5:1 from any colour."""
    red, green, blue = (int(fill[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (red, green, blue)
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "#ffffff"


def _cells(
    marks: list[dict[str, Any]], over: tuple[SweepAxis, SweepAxis], quantity: CellQuantity, y: alt.Y
) -> list[alt.Chart]:
    import altair as alt

    across, down = over
    used = {mark["across"] for mark in marks}
    order = [text for text in map(across.text, across.values) if text in used]
    axis = alt.Axis(orient="top", labelAngle=0, domain=False, ticks=False, labelOverlap=False)
    x = alt.X(
        "across:N", sort=None, title=across.title, axis=axis, scale=alt.Scale(domain=order, padding=0.02)
    )
    where = [
        alt.Tooltip("group:N"),
        alt.Tooltip("across:N", title=across.title),
        alt.Tooltip("down:N", title=down.title),
    ]
    valued, empty = [mark for mark in marks if "fill" in mark], [mark for mark in marks if "fill" not in mark]
    tips = [
        *where,
        alt.Tooltip("value:Q", title=quantity.title, format=quantity.number),
        alt.Tooltip("interval:N"),
        alt.Tooltip("n:N", title="runs"),
        alt.Tooltip("ended:N", title="not completed"),
    ]
    base = inline(valued).encode(x=x, y=y, tooltip=tips)
    layers = [
        base.mark_rect(stroke=INK, strokeOpacity=0.35, strokeWidth=0.7).encode(
            color=alt.Color("fill:N", scale=None)
        ),
        base.mark_text(fontSize=12).encode(text="text:N", color=alt.Color("ink:N", scale=None)),
    ]
    if empty:
        base = inline(empty).encode(x=x, y=y, tooltip=[*where, alt.Tooltip("ended:N", title="not completed")])
        layers.append(base.mark_rect(filled=False, stroke=INK, strokeDash=[3, 3], strokeOpacity=0.6))
        layers.append(base.mark_text(fontSize=12, color=INK).encode(text="text:N"))
    return layers
