"""One line per label over steps, named at its right end. For what changes while a run trains.

Lines that coincide are one line with all their names. Values far beyond the others leave the axis, so that
they do not flatten it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any

from analysis.charts import Row, Styles, Table
from analysis.charts._reported import hollow, hollow_tips
from analysis.charts._style import (
    INK,
    LONGEST_NAME,
    QUIET,
    colours,
    dashes,
    inline,
    packed,
    right_edge,
    styles_for,
    vega_lite,
)
from analysis.charts._style import styles as styles_of
from analysis.charts._values import brief, d3, shortened
from analysis.wording import number

if TYPE_CHECKING:
    import altair as alt

_HEIGHT = 360
_CROSS = "M-1,-1L1,1M1,-1L-1,1"
_COLUMNS = 5  # steps that a table shows
_COINCIDE, _ON_AVERAGE = 0.02, 0.003  # of the axis: lines that stay as close are one, as is their mean gap
_FAR = 4  # times the span of nine tenths of the values, beyond which a value leaves the axis
_UP, _DOWN = "triangle-up", "triangle-down"


@dataclass(frozen=True)
class StepLines:
    """What to draw.

    Attributes:
        title: of the vertical axis, with its unit.
        number: d3 format of a value.
        rows: label, step and value; one line per label.
        faint: the same with run_id, drawn behind them; one line per run.
        ends: label, step, value and outcome of runs that stopped early.
        warmup_steps: shade up to this step; None for no shading.
        rule: height of a horizontal line, around which the axis reaches; None for none.
        zero: whether the vertical axis starts at zero.
        least: how far the vertical axis reaches at least on either side of the rule, so that rounding looks
            flat.
        band: shade so far on either side of the rule; None for no shading.
        over: what the horizontal axis counts, in the column `step`; one of steps starts at zero.
        theirs: label, step, value, text and origin of what others report.
    """

    title: str
    number: str
    rows: list[Row]
    faint: list[Row]
    ends: list[Row]
    warmup_steps: int | None = None
    rule: float | None = None
    zero: bool = False
    least: float | None = None
    band: float | None = None
    over: str = "step"
    theirs: tuple[Row, ...] = ()

    @cached_property  # asked for by every point of a figure
    def last(self) -> dict[str, Row]:
        """The last point of each line that has a value, by label."""
        return {row["label"]: row for row in self.rows if row["value"] is not None}

    @cached_property
    def joined(self) -> dict[str, str]:
        """By label the name of the line that is drawn for it: its own, or a list where several coincide."""
        if self.crowded:
            return {label: label for label in self.last}
        low, high = self.domain
        values = {label: dict[int, float]() for label in self.last}
        for row in self.rows:
            if row["value"] is not None:
                values[row["label"]][row["step"]] = row["value"]
        alike: dict[str, list[str]] = {}
        for label, own in values.items():
            for first, labels in alike.items():
                gaps = [abs(own[step] - value) for step, value in values[first].items() if step in own]
                if (
                    len(gaps) == len(own) == len(values[first])
                    and max(gaps) < _COINCIDE * (high - low)
                    and sum(gaps) < _ON_AVERAGE * (high - low) * len(gaps)
                ):
                    labels.append(label)
                    break
            else:
                alike[label] = [label]
        short = shortened(self.last)
        names: dict[str, str] = {}
        for labels in alike.values():
            between = "; " if any("," in label for label in labels) else ", "
            name = between.join(short[label] for label in labels) if labels[1:] else labels[0]
            names |= dict.fromkeys(labels, name)
        return names

    @cached_property
    def domain(self) -> tuple[float, float]:
        """The ends of the vertical axis."""
        values = [row["value"] for row in (*self.rows, *self.faint) if row["value"] is not None]
        middle = self.rule or 0.0
        around = [middle + end for reach in (self.least, self.band) if reach for end in (-reach, reach)]
        around += [row["value"] for row in self.theirs]
        finite = sorted(value for value in values if isfinite(value)) or [0.0, 1.0]
        room = (len(finite) - 1) // 20
        usual = [finite[room], finite[len(finite) - 1 - room], *around, *([0.0] if self.zero else [])]
        low, high = min(usual), max(usual)
        span = _FAR * ((high - low) or abs(high) or 1.0)
        ends = (finite[0], finite[-1])
        lowest = min(low, ends[0]) if low - ends[0] <= span else low - 0.1 * span / _FAR
        highest = max(high, ends[1]) if ends[1] - high <= span else high + 0.1 * span / _FAR
        room_around = 0.04 * ((highest - lowest) or abs(highest) or 1)
        return (0.0 if self.zero else lowest - room_around), highest + room_around

    @cached_property
    def beyond(self) -> list[Row]:
        """The farthest value of each line beyond either end of the axis, with that end and its arrow."""
        low, high = self.domain
        farthest: dict[tuple[str, str], Row] = {}
        for row in self.rows:
            value = row["value"]
            if value is None or low <= value <= high:
                continue
            arrow, end = (_UP, high) if value > high else (_DOWN, low)
            mark = {"label": row["label"], "step": row["step"], "value": value, "arrow": arrow, "at": end}
            key = (row["label"], arrow)
            if key not in farthest or abs(value - end) > abs(farthest[key]["value"] - end):
                farthest[key] = mark
        return list(farthest.values())

    @cached_property
    def named(self) -> set[str]:
        """Labels with a name and a colour; of many lines, the others are grey."""
        return set(labels_to_name({label: row["value"] for label, row in self.last.items()}))

    @cached_property
    def crowded(self) -> bool:
        """Whether there are more lines than can be told apart."""
        return len(self.last) > MOST_NAMED

    @property
    def height(self) -> int:
        """In pixels: higher where more names would not fit."""
        names = {self.joined[label] for label in self.named}
        return max(_HEIGHT, name_height(names) * len(names))


def line_plot(lines: StepLines, styles: Styles) -> dict[str, Any]:
    """Draw the lines as Vega-Lite, with no more data than is drawn."""
    import altair as alt

    lines = replace(lines, rows=_only(lines.rows, "label"), faint=_only(lines.faint, "label", "run_id"))
    labels = {row["label"] for row in (*lines.rows, *lines.faint, *lines.ends)}
    styles = styles_for(labels, styles)
    # Of lines that coincide the first, under the names of all.
    heads = {name: label for label, name in reversed(lines.joined.items())}
    solid_rows = [
        row | {"label": lines.joined.get(row["label"], row["label"])}
        for row in lines.rows
        if heads.get(lines.joined.get(row["label"], ""), row["label"]) == row["label"]
    ]
    styles |= {name: styles[label] for name, label in heads.items() if label in styles}
    scale = alt.Scale(nice=False) if lines.over == "step" else alt.Scale(nice=False, zero=False)
    x = alt.X("step:Q", title=lines.over, axis=alt.Axis(grid=False, tickCount=6), scale=scale)
    y = _y(lines)
    tips = [
        alt.Tooltip("label:N", title="group"),
        alt.Tooltip("step:Q") if lines.over == "step" else alt.Tooltip("step:Q", title=lines.over),
        alt.Tooltip("value:Q", title=lines.title, format=d3(lines.number)),
    ]
    layers = _behind(lines)

    # The lines: of many, some in grey; behind each group its runs.
    if lines.crowded:
        named = lines.named
        rows = [row for row in lines.rows if row["label"] not in named]
        grey = packed(rows, "label").mark_line(strokeWidth=1, stroke=INK, strokeOpacity=QUIET, clip=True)
        layers.append(grey.encode(x=x, y=y, detail="label:N", tooltip=tips))
        styles = styles_of([label for label in styles if label in named])
    colour = colours(styles)
    rows = [row for row in lines.faint if row["label"] in styles]
    if any(row["value"] is not None for row in rows):
        faint = packed(rows, "label", "run_id").mark_line(strokeWidth=0.8, opacity=0.28, clip=True)
        layers.append(faint.encode(x=x, y=y, color=colour, detail="run_id:N"))
    rows = [row for row in solid_rows if row["label"] in styles]
    solid = inline(rows).mark_line(strokeWidth=1.8, clip=True)
    layers.append(solid.encode(x=x, y=y, color=colour, strokeDash=dashes(styles), tooltip=tips))

    # The names, with leaders from the ends of their lines.
    ends = {name: lines.last[label] for name, label in heads.items()}
    low, high = lines.domain
    at = {name: min(max(row["value"], low), high) for name, row in ends.items()}
    places = name_places(at, low, high, lines.height)
    layers += name_marks(places, styles, _y(lines, "end"), _y(lines, "at"))
    longest = max((row["step"] for row in lines.rows), default=0)
    early = [ends[name] for name in labels_to_name(at) if ends[name]["step"] < longest]
    if early:  # dotted and grey: it is no part of the line
        lead = inline(early).mark_rule(
            strokeWidth=0.8, strokeDash=[1, 4], opacity=QUIET, stroke=INK, aria=False, clip=True
        )
        layers.append(lead.encode(x=x, x2=right_edge(2), y=y))
    for arrow in (_UP, _DOWN):
        if rows := [row for row in lines.beyond if row["arrow"] == arrow]:
            mark = inline(rows).mark_point(shape=arrow, filled=True, size=70, opacity=1, color=INK)
            layers.append(mark.encode(x=x, y=_y(lines, "at"), tooltip=tips))

    # A cross where a run stopped early, and what others report: both in the colour of their line.
    def crosses(rows: list[Row]) -> alt.Chart:
        made: alt.Chart = inline(rows).mark_point(shape=_CROSS, size=90, strokeWidth=2)
        return made

    ended = [alt.Tooltip("label:N", title="group"), alt.Tooltip("outcome:N"), alt.Tooltip("step:Q")]
    for every, drawing, tips in (
        (lines.ends, crosses, ended),
        (lines.theirs, hollow, hollow_tips(lines.title)),
    ):
        for is_coloured, ink in ((True, colour), (False, alt.value(INK))):
            if rows := [row for row in every if (row["label"] in styles) is is_coloured]:
                layers.append(drawing(rows).encode(x=x, y=y, tooltip=tips, color=ink))
    return vega_lite(layers, lines.height, top=6)


def line_table(lines: StepLines, styles: Styles) -> Table:
    """The values of each line at a few steps, the first and the last included: the CSV has all."""
    steps = sorted({row["step"] for row in lines.rows})
    shown = [steps[round(place * (len(steps) - 1) / (_COLUMNS - 1))] for place in range(_COLUMNS)]
    shown = list(dict.fromkeys(shown))
    values = {(row["label"], row["step"]): row["value"] for row in lines.rows}
    labels = [label for label in styles if label in {row["label"] for row in lines.rows}]
    rows = [(label, *(number(values.get((label, step)), lines.number) for step in shown)) for label in labels]
    thinned = f"at {len(shown)} of the {len(steps):,} {lines.over}s of the lines; the CSV has all"
    heads = ("group", *(f"{lines.over} {step:,}" for step in shown))
    return Table(heads, tuple(rows), thinned if len(shown) < len(steps) else "")


def crowd_caption(lines: StepLines, unit: str = "") -> str:
    """What a reader must know where lines hide each other, or are too many to name; empty if neither.

    Args:
        unit: of the lines' values, after a space; empty if they have none.
    """
    sentences = ""
    if lines.crowded:
        sentences += (
            f" Of the {len(lines.last)} lines, the {OUTERMOST} that end highest and the {OUTERMOST} that end "
            "lowest have a colour and a name; pointer and arrow keys name the others."
        )
    if len(set(lines.joined.values())) < len(lines.joined):
        by_place: dict[tuple[str, int], list[float]] = {}
        for row in lines.rows:
            if row["value"] is not None:
                by_place.setdefault((lines.joined[row["label"]], row["step"]), []).append(row["value"])
        apart = max(max(values) - min(values) for values in by_place.values())
        sentences += f" Several names on a line: groups within {brief(apart)}{unit} of each other."
    if lines.beyond:
        far = max(lines.beyond, key=lambda row: abs(row["value"] - row["at"]))
        which = "solid lines" if lines.faint else "lines"
        sentences += (
            f" Arrows: {which} beyond the axis, up to {number(far['value'], '.3g')} ({far['label']}, "
            f"{lines.over} {far['step']:,})."
        )
    return sentences


def _only(rows: list[Row], *columns: str) -> list[Row]:
    return [{name: row[name] for name in (*columns, "step", "value")} for row in rows]


def _y(lines: StepLines, field: str = "value") -> alt.Y:
    import altair as alt

    scale = alt.Scale(zero=lines.zero, domain=list(lines.domain), nice=False)
    return alt.Y(f"{field}:Q", title=lines.title, scale=scale, axis=alt.Axis(tickCount=6))


def _behind(lines: StepLines) -> list[alt.Chart]:
    """The shades and the rule that the lines are read against."""
    import altair as alt

    layers, middle = [], lines.rule or 0.0
    if lines.warmup_steps:
        shade = inline([{"from": 0, "to": lines.warmup_steps}]).mark_rect(color=INK, opacity=0.08)
        layers.append(shade.encode(x=alt.X("from:Q", title="step"), x2="to:Q"))
    if lines.band:
        shade = inline([{"from": middle - lines.band, "to": middle + lines.band}]).mark_rect(
            color=INK, opacity=0.08
        )
        layers.append(shade.encode(y=_y(lines, "from"), y2="to:Q"))
    if lines.rule is not None:
        layers.append(inline([{"at": lines.rule}]).mark_rule(strokeOpacity=0.6).encode(y=_y(lines, "at")))
    return layers


MOST_NAMED = 12  # lines that are told apart by their looks; of more, the outermost
OUTERMOST = 5  # of more lines, how many of the highest and of the lowest have a name
NAME_HEIGHT = 15  # pixels of a line of a name
_LONG, _WIDE = 30, 34  # characters, beyond which a name is broken at commas, and of a line of it


def labels_to_name(ends: dict[str, float]) -> list[str]:
    """The labels that get a name, from the lowest line to the highest: of too many, the outermost."""
    order = sorted(ends, key=lambda label: ends[label])
    return order if len(order) <= MOST_NAMED else [*order[:OUTERMOST], *order[-OUTERMOST:]]


def on_lines(label: str) -> str:
    """A long name on several lines, broken at commas; a list of names with commas, at its semicolons."""
    if "; " in label:
        return label.replace("; ", "\n")
    if len(label) <= _LONG:
        return label
    lines = [""]
    for part in label.replace(", ", ",\n").split("\n"):
        if lines[-1] and len(lines[-1]) + 1 + len(part) > _WIDE:
            lines.append(part)
        else:
            lines[-1] = f"{lines[-1]} {part}".strip()
    return "\n".join(lines)


def name_height(labels: Iterable[str]) -> int:
    """Pixels that each of these names is given."""
    return NAME_HEIGHT * max((1 + on_lines(label).count("\n") for label in labels), default=1)


def name_places(ends: dict[str, float], low: float, high: float, height: int) -> list[Row]:
    """Where each name stands, moved up or down so that no two overlap.

    Args:
        ends: height of each line's end by label, on the axis.
        low, high: ends of the axis.
        height: of the plot in pixels.
    """
    labels = labels_to_name(ends)
    room = (high - low) * name_height(labels) / height
    blocks: list[list[float]] = []  # names that would overlap, around the middle of their ends
    for label in labels:
        blocks.append([ends[label]])
        while len(blocks) > 1 and _start(blocks[-1], room) < _start(blocks[-2], room) + room * len(
            blocks[-2]
        ):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    at = [_start(block, room) + room * turn for block in blocks for turn in range(len(block))]

    # Off the two ends of the axis, and then off each other.
    for turn in range(len(at)):
        at[turn] = max(at[turn], low if turn == 0 else at[turn - 1] + room)
    for turn in reversed(range(len(at))):
        at[turn] = min(at[turn], high if turn == len(at) - 1 else at[turn + 1] - room)
    return [
        {"label": label, "said": on_lines(label), "end": ends[label], "at": y}
        for label, y in zip(labels, at, strict=True)
    ]


def _start(block: list[float], room: float) -> float:
    """Where the lowest name of a block stands."""
    return sum(block) / len(block) - room * (len(block) - 1) / 2


def name_marks(rows: list[Row], styles: Styles, end: alt.Y, at: alt.Y) -> list[alt.Chart]:
    """Each label in the text colour, which is always legible, beside a sample of its line; grey leads there.

    Args:
        rows: of `name_places`.
        styles: by label.
        end, at: the encodings of the two columns.
    """
    base = inline(rows)
    leader = base.mark_rule(
        strokeWidth=0.7, stroke=INK, opacity=QUIET, xOffset=3, x2Offset=13, aria=False
    ).encode(x=right_edge(), x2=right_edge(2), y=end, y2="at:Q")
    sample = base.mark_rule(strokeWidth=2.2, xOffset=14, x2Offset=34, aria=False).encode(
        x=right_edge(), x2=right_edge(2), y=at, color=colours(styles), strokeDash=dashes(styles)
    )
    text = base.mark_text(
        align="left",
        baseline="middle",
        dx=39,
        color=INK,
        limit=LONGEST_NAME,
        lineBreak="\n",
        lineHeight=NAME_HEIGHT - 2,
    )
    return [leader, sample, text.encode(x=right_edge(), y=at, text="said:N").properties(name="beside")]
