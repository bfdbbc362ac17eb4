"""What others report of a figure's groups, as hollow marks: no query, test or ranking reads them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from analysis.charts import Row
from analysis.charts._style import inline

if TYPE_CHECKING:
    import altair as alt

REPORTED = "reported_by_others"  # where a figure's row has, by quantity, the marks of its group


class ReportedMark(NamedTuple):
    """A number of others.

    Attributes:
        value: in the unit of the page's table.
        text: with the digits that were printed.
        origin: hardware and source.
    """

    value: float
    text: str
    origin: str


def marks_of(rows: Iterable[Row], quantity: str) -> dict[str, tuple[ReportedMark, ...]]:
    """The marks of a quantity by label, of the groups that have any."""
    of_groups = {row["label"]: row.get(REPORTED, {}).get(quantity, ()) for row in rows}
    return {label: marks for label, marks in of_groups.items() if marks}


def mark_rows(marks: dict[str, tuple[ReportedMark, ...]]) -> list[Row]:
    """A row for each mark, to be drawn."""
    return [{"label": label, **mark._asdict()} for label, own in marks.items() for mark in own]


def hollow(rows: list[Row]) -> alt.Chart:
    """The marks as hollow diamonds, larger than those of runs, which stay visible in them."""
    drawn: alt.Chart = inline(rows).mark_point(
        shape="diamond", filled=False, size=130, strokeWidth=1.8, opacity=1
    )
    return drawn


def hollow_tips(what: str) -> list[alt.Tooltip]:
    """What pointer and keyboard say of a mark."""
    import altair as alt

    titles: dict[str, Any] = {"label": "group", "text": f"{what}, as reported", "origin": "by"}
    return [alt.Tooltip(f"{name}:N", title=title) for name, title in titles.items()]


def hollow_caption(marks: dict[str, tuple[ReportedMark, ...]]) -> str:
    """What a caption says of the marks; empty without any."""
    return " Hollow diamonds: reported by others, in no comparison." if marks else ""


def hollow_description(marks: dict[str, tuple[ReportedMark, ...]]) -> str:
    """The same for readers who cannot see them."""
    texts = [f"{label} {', '.join(mark.text for mark in own)}" for label, own in marks.items()]
    return f" Reported by others: {'; '.join(texts)}." if texts else ""
