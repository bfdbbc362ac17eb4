"""What figures of one row per label share: the rows, their names, and a column of numbers at the right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis.charts import Row
from analysis.charts._style import INK, chart, right_edge

if TYPE_CHECKING:
    import altair as alt

TOP = 22  # pixels above the rows, for the head of the column
_LINE = 14  # pixels of a line of a row's name
_LONGEST = 230  # pixels of a name, beyond which it is cut: pages write a number there, and the names below
_LONG = 20  # characters, beyond which a name is broken at its commas
_MANY, _TALL, _LOW = 24, 30, 18  # rows, beyond which they are lower; pixels of a row


def height(labels: Sequence[str]) -> int:
    """Pixels of all rows."""
    lines = max((len(label.split(", ")) for label in labels), default=1) if _broken(labels) else 1
    return len(labels) * max(_LOW if len(labels) > _MANY else _TALL, _LINE * lines + 6)


def y_of(labels: Sequence[str], field: str = "label", grid: bool = True) -> alt.Y:
    """The rows, from the top in the order of the labels."""
    import altair as alt

    how = _on_lines(labels) if _broken(labels) else {}
    axis = alt.Axis(labelLimit=_LONGEST, labelPadding=8, grid=grid, **how)
    # The order is a domain: as a sort it would become an expression that contains the labels' text.
    scale = alt.Scale(domain=list(labels))
    return alt.Y(f"{field}:N", scale=scale, sort=None, title=None, axis=axis)


def _on_lines(labels: Sequence[str]) -> dict[str, Any]:
    """Names broken at their commas, around the middle of their row: Vega puts the first line there."""
    lines = sorted({len(label.split(", ")) for label in labels} - {1})
    up = [
        {"test": f"length(split(datum.label, ', ')) === {many}", "value": -_LINE * (many - 1) / 2}
        for many in lines
    ]
    raised = {"labelOffset": {"condition": up, "value": 0}} if up else {}
    return {"labelExpr": "split(datum.label, ', ')"} | raised


def column(rows: list[Row], y: alt.Y, head: str, field: str, number: str) -> list[alt.Chart]:
    """A column of numbers to the right of the plot, with a head.

    Args:
        y: of `y_of`.
        number: d3 format.
    """
    import altair as alt

    top: Any = alt.YValue
    text = _at_right(rows).encode(x=right_edge(), y=y, text=alt.Text(f"{field}:Q", format=number))
    above = _at_right([{"text": head}], opacity=0.8)
    return [text, above.encode(x=right_edge(), y=top(-12), text="text:N")]


def _at_right(rows: list[Row], **how: Any) -> alt.Chart:
    mark: alt.Chart = chart(rows).mark_text(align="right", dx=56, color=INK, **how)
    return mark


def _broken(labels: Sequence[str]) -> bool:
    return any(len(label) > _LONG for label in labels) and len(labels) <= _MANY
