"""Names at the right ends of lines, with leaders, so that lines that end together can be told apart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from analysis.charts import Row, Styles
from analysis.charts._style import INK, chart, colours, dashes, right_edge

if TYPE_CHECKING:
    import altair as alt

MOST = 12  # lines that are told apart by their looks; of more, the outermost
OUTERMOST = 5  # of more lines, how many of the highest and of the lowest have a name
LINE = 15  # pixels of a line of a name
_LONG = 30  # characters, beyond which a name is broken at a comma
LONGEST = 230  # pixels, beyond which a line of it is cut: pages write a number there, and the names below


def named(ends: dict[str, float]) -> list[str]:
    """The labels that get a name, from the lowest line to the highest: of too many, the outermost."""
    order = sorted(ends, key=lambda label: ends[label])
    return order if len(order) <= MOST else [*order[:OUTERMOST], *order[-OUTERMOST:]]


def broken(label: str) -> str:
    """A long name on two lines, broken at the comma that is nearest to its middle."""
    commas = [place + 1 for place in range(len(label) - 1) if label[place : place + 2] == ", "]
    if len(label) <= _LONG or not commas:
        return label
    at = min(commas, key=lambda place: abs(place - len(label) / 2))
    return f"{label[:at]}\n{label[at + 1 :]}"


def room_of(labels: Iterable[str]) -> int:
    """Pixels that each of these names is given."""
    return LINE * max((1 + broken(label).count("\n") for label in labels), default=1)


def places(ends: dict[str, float], low: float, high: float, height: int) -> list[Row]:
    """Where each name stands, moved up or down so that no two overlap.

    Args:
        ends: height of each line's end by label, on the axis.
        low, high: ends of the axis.
        height: of the plot in pixels.
    """
    labels = named(ends)
    room = (high - low) * room_of(labels) / height
    blocks: list[list[float]] = []  # names that would overlap, around the middle of their ends
    for label in labels:
        blocks.append([ends[label]])
        while len(blocks) > 1 and _start(blocks[-1], room) < _start(blocks[-2], room) + room * len(
            blocks[-2]
        ):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    at = [_start(block, room) + room * turn for block in blocks for turn in range(len(block))]
    inside = _inside(at, low, high, room)
    return [
        {"label": label, "said": broken(label), "end": ends[label], "at": y}
        for label, y in zip(labels, inside, strict=True)
    ]


def _start(block: list[float], room: float, above: bool = False) -> float:
    """Where the lowest name of a block stands, or the one above it."""
    lowest = sum(block) / len(block) - room * (len(block) - 1) / 2
    return lowest + room * len(block) if above else lowest


def _inside(at: list[float], low: float, high: float, room: float) -> list[float]:
    """The places, pushed off the two ends of the axis and then off each other."""
    for turn in range(len(at)):
        at[turn] = max(at[turn], low if turn == 0 else at[turn - 1] + room)
    for turn in reversed(range(len(at))):
        at[turn] = min(at[turn], high if turn == len(at) - 1 else at[turn + 1] - room)
    return at


def names(rows: list[Row], styles: Styles, end: alt.Y, at: alt.Y) -> list[alt.Chart]:
    """Each label in the text colour, which is always legible, led to by a piece of its line.

    Args:
        rows: of `places`.
        styles: by label.
        end, at: the encodings of the two columns.
    """
    base = chart(rows)
    leader = base.mark_rule(strokeWidth=1.8, xOffset=4, x2Offset=32, aria=False)
    leader = leader.encode(
        x=right_edge(), x2=right_edge(2), y=end, y2="at:Q", color=colours(styles), strokeDash=dashes(styles)
    )
    text = base.mark_text(
        align="left", baseline="middle", dx=37, color=INK, limit=LONGEST, lineBreak="\n", lineHeight=LINE - 2
    )
    return [leader, text.encode(x=right_edge(), y=at, text="said:N").properties(name="beside")]
