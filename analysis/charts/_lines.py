"""One line per label over steps, named at its right end. For what changes while a run trains."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any

from analysis.charts import Row, Styles, Table
from analysis.charts._labels import MOST, OUTERMOST, named, names, places, room_of
from analysis.charts._style import INK, QUIET, chart, colours, dashes, drawn, packed, right_edge
from analysis.charts._style import styles as styles_of
from analysis.charts._values import brief, number

if TYPE_CHECKING:
    import altair as alt

_HEIGHT = 360
_CROSS = "M-1,-1L1,1M1,-1L-1,1"
_COLUMNS = 5  # steps that a table shows
_COINCIDE = 0.02  # of the axis: lines that stay as close look like one


@dataclass(frozen=True)
class Lines:
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

    @cached_property  # asked for by every point of a figure
    def last(self) -> dict[str, Row]:
        """The last point of each line that has a value, by label."""
        return {row["label"]: row for row in self.rows if row["value"] is not None}

    @cached_property
    def named(self) -> set[str]:
        """Labels of the lines with a name and a colour; of many lines, the others are grey."""
        return set(named({label: row["value"] for label, row in self.last.items()}))

    @cached_property
    def crowded(self) -> bool:
        """Whether there are more lines than can be told apart."""
        return len(self.last) > MOST

    @property
    def height(self) -> int:
        """In pixels: higher where more names would not fit."""
        return max(_HEIGHT, room_of(self.named) * len(self.named))


def plot(lines: Lines, styles: Styles) -> dict[str, Any]:
    """Draw the lines as Vega-Lite, with no more data than is drawn."""
    lines = replace(lines, rows=_only(lines.rows, "label"), faint=_only(lines.faint, "label", "run_id"))
    styles = {label: style for label, style in styles.items() if label in _labels(lines)}
    layers = _behind(lines)
    if lines.crowded:
        named = lines.named
        layers.append(_quiet(lines, [row for row in lines.rows if row["label"] not in named]))
        styles = styles_of([label for label in styles if label in named])
    layers += [*_faint(lines, styles), _lines(lines, styles), *_names(lines, styles), *_ends(lines, styles)]
    return drawn(layers, lines.height, top=6)


def table(lines: Lines, styles: Styles) -> Table:
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


def crowd(lines: Lines) -> str:
    """What a reader must know where lines hide each other, or are too many to name; empty if neither."""
    said = ""
    if lines.crowded:
        said += (
            f" Of the {len(lines.last)} lines, the {OUTERMOST} that end highest and the {OUTERMOST} that end "
            "lowest have a colour and a name. The others are grey, and darker where several overlap: "
            "pointer and arrow keys name each, and the table has all."
        )
    by_step: dict[int, list[float]] = {}
    for row in lines.rows:
        if row["value"] is not None:
            by_step.setdefault(row["step"], []).append(row["value"])
    gaps = [max(values) - min(values) for values in by_step.values() if len(values) > 1]
    low, high = _domain(lines)
    if gaps and max(gaps) < _COINCIDE * (high - low):
        said += (
            f" The {len(lines.last)} lines overlap, at most {brief(max(gaps))} apart: the leaders at "
            "the right show where each ends. A figure against a baseline shows such differences."
        )
    return said


def _labels(lines: Lines) -> set[str]:
    return {row["label"] for row in (*lines.rows, *lines.faint, *lines.ends)}


def _only(rows: list[Row], *columns: str) -> list[Row]:
    return [{name: row[name] for name in (*columns, "step", "value")} for row in rows]


def _x(lines: Lines) -> alt.X:
    import altair as alt

    scale = alt.Scale(nice=False) if lines.over == "step" else alt.Scale(nice=False, zero=False)
    return alt.X("step:Q", title=lines.over, axis=alt.Axis(grid=False, tickCount=6), scale=scale)


def _y(lines: Lines, field: str = "value") -> alt.Y:
    import altair as alt

    scale = alt.Scale(zero=lines.zero, domain=list(_domain(lines)), nice=False)
    return alt.Y(f"{field}:Q", title=lines.title, scale=scale, axis=alt.Axis(tickCount=6))


def _domain(lines: Lines) -> tuple[float, float]:
    values = [row["value"] for row in (*lines.rows, *lines.faint) if row["value"] is not None]
    middle = lines.rule or 0.0
    values += [middle + end for reach in (lines.least, lines.band) if reach for end in (-reach, reach)]
    known = [value for value in values if isfinite(value)] or [0.0, 1.0]
    low, high = (0.0 if lines.zero else min(known)), max(known)
    room = 0.04 * ((high - low) or abs(high) or 1)
    return (low if lines.zero else low - room), high + room


def _behind(lines: Lines) -> list[alt.Chart]:
    """The shades and the rule that the lines are read against."""
    import altair as alt

    found, middle = [], lines.rule or 0.0
    if lines.warmup_steps:
        shade = chart([{"from": 0, "to": lines.warmup_steps}]).mark_rect(color=INK, opacity=0.08)
        found.append(shade.encode(x=alt.X("from:Q", title="step"), x2="to:Q"))
    if lines.band:
        shade = chart([{"from": middle - lines.band, "to": middle + lines.band}]).mark_rect(
            color=INK, opacity=0.08
        )
        found.append(shade.encode(y=_y(lines, "from"), y2="to:Q"))
    if lines.rule is not None:
        found.append(chart([{"at": lines.rule}]).mark_rule(strokeOpacity=0.6).encode(y=_y(lines, "at")))
    return found


def _lines(lines: Lines, styles: Styles) -> alt.Chart:
    """The lines in colour."""
    rows = [row for row in lines.rows if row["label"] in styles]
    mark: alt.Chart = chart(rows).mark_line(strokeWidth=1.8, clip=True)
    return mark.encode(
        x=_x(lines), y=_y(lines), color=colours(styles), strokeDash=dashes(styles), tooltip=_tips(lines)
    )


def _quiet(lines: Lines, rows: list[Row]) -> alt.Chart:
    """The others in grey."""
    mark: alt.Chart = packed(rows, "label").mark_line(
        strokeWidth=1, stroke=INK, strokeOpacity=QUIET, clip=True
    )
    return mark.encode(x=_x(lines), y=_y(lines), detail="label:N", tooltip=_tips(lines))


def _tips(lines: Lines) -> list[alt.Tooltip]:
    import altair as alt

    return [
        alt.Tooltip("label:N", title="group"),
        alt.Tooltip("step:Q") if lines.over == "step" else alt.Tooltip("step:Q", title=lines.over),
        alt.Tooltip("value:Q", title=lines.title, format=lines.number),
    ]


def _faint(lines: Lines, styles: Styles) -> list[alt.Chart]:
    rows = [row for row in lines.faint if row["label"] in styles]
    if not any(row["value"] is not None for row in rows):
        return []
    mark: alt.Chart = packed(rows, "label", "run_id").mark_line(strokeWidth=0.8, opacity=0.28, clip=True)
    return [mark.encode(x=_x(lines), y=_y(lines), color=colours(styles), detail="run_id:N")]


def _names(lines: Lines, styles: Styles) -> list[alt.Chart]:
    ends, longest = lines.last, max((row["step"] for row in lines.rows), default=0)
    at = {label: row["value"] for label, row in ends.items()}
    rows = places(at, *_domain(lines), lines.height)
    found = names(rows, styles, _y(lines, "end"), _y(lines, "at"))
    early = [ends[label] for label in named(at) if ends[label]["step"] < longest]
    if early:
        lead = chart(early).mark_rule(strokeWidth=0.8, opacity=0.5, aria=False)
        found.append(lead.encode(x=_x(lines), x2=right_edge(2), y=_y(lines), color=colours(styles)))
    return found


def _ends(lines: Lines, styles: Styles) -> list[alt.Chart]:
    import altair as alt

    tips = [alt.Tooltip("label:N", title="group"), alt.Tooltip("outcome:N"), alt.Tooltip("step:Q")]
    found = []
    for ends, how in (
        ([row for row in lines.ends if row["label"] in styles], {"color": colours(styles)}),
        ([row for row in lines.ends if row["label"] not in styles], {"color": alt.value(INK)}),
    ):
        if ends:
            mark: alt.Chart = chart(ends).mark_point(shape=_CROSS, size=90, strokeWidth=2)
            found.append(mark.encode(x=_x(lines), y=_y(lines), tooltip=tips, **how))
    return found
