"""One line per label over steps, named at its right end. For what changes while a run trains."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from analysis.charts._style import INK, chart, colours, config, drawn, right_edge

if TYPE_CHECKING:
    import altair as alt

    from analysis.charts import Row, Styles

_MOST_POINTS, _FEWEST = 20_000, 20  # of a figure's solid lines, and of one line
_MOST_RUNS, _COARSE, _FINE = 1_250, 32, 256  # beyond so many runs, lines are of the coarse curves
# Common table expressions: `points`, a study's curves with the place `bin` of each on a line of at most $most
# points; fewer in a study of so many groups that a page could not hold them. A bin's width is a multiple of
# the curves' widths, so that nothing lies in two bins.
POINTS = f"""\
size AS (
  SELECT CASE WHEN count(*) > {_MOST_RUNS} THEN {_COARSE} ELSE {_FINE} END AS most,
    greatest({_FEWEST}, least($most, {_MOST_POINTS} // count(DISTINCT label))) AS points
  FROM runs WHERE study = $study
), bins AS (
  SELECT most, (ceil(max(step) / any_value(points) / max(width)) * max(width))::BIGINT AS width
  FROM curves JOIN size USING (most) WHERE study = $study AND $wanted GROUP BY most
), points AS (
  SELECT c.*, (step - 1) // b.width AS bin
  FROM curves c JOIN bins b USING (most) WHERE study = $study AND $wanted
)"""
_HEIGHT = 360
_CROSS = "M-1,-1L1,1M1,-1L-1,1"
_LABEL_HEIGHT = 15  # of a line of text


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
        rule: height of a horizontal line; None for none.
        zero: whether the vertical axis starts at zero.
        least: how far the vertical axis reaches at least on either side of zero, so that rounding looks flat.
        band: shade so far on either side of zero; None for no shading.
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


def plot(lines: Lines, styles: Styles) -> dict[str, Any]:
    """Draw the lines as Vega-Lite, with no more data than is drawn."""
    lines = replace(lines, rows=_only(lines.rows, "label"), faint=_only(lines.faint, "label", "run_id"))

    layers = [_lines(lines, styles), *_names(lines, styles)]
    if lines.faint:
        layers.insert(0, _faint(lines, styles))
    if lines.ends:
        layers.append(_ends(lines, styles))
    if lines.rule is not None:
        layers.insert(0, chart([{"at": lines.rule}]).mark_rule(strokeOpacity=0.6).encode(y="at:Q"))
    if lines.band:
        layers.insert(0, _band(lines.band))
    if lines.warmup_steps:
        layers.insert(0, _warmup(lines.warmup_steps))
    spec = drawn(layers, _HEIGHT)
    fit = {"type": "fit-x", "contains": "padding"}
    padding = {"left": 2, "top": 6, "right": 2, "bottom": 4}
    return spec | {"config": config(), "autosize": fit, "padding": padding}


def limit(most: int, rows: list[Row], runs: int) -> int:
    """How many points a line has at most, as `points` has it."""
    held = max(_FEWEST, min(most, _MOST_POINTS // len({row["label"] for row in rows})))
    return min(held, _COARSE) if runs > _MOST_RUNS else held


def points(most: int, wanted: str = "true") -> str:
    """The expressions `POINTS` for lines of at most so many points, of the points that are wanted."""
    return POINTS.replace("$most", str(most)).replace("$wanted", wanted)


def smoothing(rows: list[Row]) -> str:
    """How the lines were smoothed, for the caption: a short run is shown as it is."""
    points = max(row["points"] for row in rows)
    return f"smoothed over {points} points" if points > 1 else "not smoothed"


def _only(rows: list[Row], *names: str) -> list[Row]:
    return [{name: row[name] for name in (*names, "step", "value")} for row in rows]


def _x() -> alt.X:
    import altair as alt

    return alt.X("step:Q", title="step", axis=alt.Axis(grid=False, tickCount=6), scale=alt.Scale(nice=False))


def _y(lines: Lines, field: str = "value") -> alt.Y:
    import altair as alt

    low, high = _domain(lines)
    scale = alt.Scale(zero=lines.zero, domain=[low, high], nice=False)
    return alt.Y(f"{field}:Q", title=lines.title, scale=scale, axis=alt.Axis(tickCount=6))


def _domain(lines: Lines) -> tuple[float, float]:
    values = [row["value"] for row in (*lines.rows, *lines.faint) if row["value"] is not None]
    values += [end for reach in (lines.least, lines.band) if reach for end in (-reach, reach)]
    low, high = (0.0 if lines.zero else min(values)), max(values)
    room = 0.04 * ((high - low) or abs(high) or 1)
    return (low if lines.zero else low - room), high + room


def _lines(lines: Lines, styles: Styles) -> alt.Chart:
    import altair as alt

    tips = [
        alt.Tooltip("label:N", title="group"),
        alt.Tooltip("step:Q"),
        alt.Tooltip("value:Q", title=lines.title, format=lines.number),
    ]
    mark: alt.Chart = chart(lines.rows).mark_line(strokeWidth=1.8, clip=True)
    return mark.encode(x=_x(), y=_y(lines), color=colours(styles), strokeDash=_dash(styles), tooltip=tips)


def _faint(lines: Lines, styles: Styles) -> alt.Chart:
    mark: alt.Chart = chart(lines.faint).mark_line(strokeWidth=0.8, opacity=0.28, clip=True)
    return mark.encode(x=_x(), y=_y(lines), color=colours(styles), detail="run_id:N")


def _names(lines: Lines, styles: Styles) -> list[alt.Chart]:
    """Each label in the text colour, which is always legible, after a sample of its line."""
    base = chart(_apart(lines)).encode(y=_y(lines, "at"))
    sample = base.mark_rule(strokeWidth=1.8, xOffset=6, x2Offset=26)
    sample = sample.encode(x=right_edge(), x2=right_edge(2), color=colours(styles), strokeDash=_dash(styles))
    return [sample, base.mark_text(align="left", dx=32, color=INK).encode(x=right_edge(), text="label:N")]


def _dash(styles: Styles) -> alt.StrokeDash:
    import altair as alt

    scale = alt.Scale(domain=list(styles), range=[list(style.dash) for style in styles.values()])
    return alt.StrokeDash("label:N", scale=scale, legend=None)


def _apart(lines: Lines) -> list[Row]:
    """The last point of every label, moved up or down so that no two names overlap."""
    low, high = _domain(lines)
    room = (high - low) * _LABEL_HEIGHT / _HEIGHT
    last = {row["label"]: row["value"] for row in lines.rows if row["value"] is not None}
    names = sorted(last, key=lambda label: last[label])
    places: list[float] = []
    for label in names:
        places.append(max(last[label], places[-1] + room) if places else last[label])
    # Whatever was pushed above the top is pushed back down, from the top.
    for index in reversed(range(len(places))):
        ceiling = high if index == len(places) - 1 else places[index + 1] - room
        places[index] = min(places[index], ceiling)
    return [{"label": label, "at": at} for label, at in zip(names, places, strict=True)]


def _ends(lines: Lines, styles: Styles) -> alt.Chart:
    import altair as alt

    tips = [alt.Tooltip("label:N", title="group"), alt.Tooltip("outcome:N"), alt.Tooltip("step:Q")]
    mark: alt.Chart = chart(lines.ends).mark_point(shape=_CROSS, size=90, strokeWidth=2)
    return mark.encode(x=_x(), y=_y(lines), color=colours(styles), tooltip=tips)


def _band(reach: float) -> alt.Chart:
    import altair as alt

    mark: alt.Chart = chart([{"from": -reach, "to": reach}]).mark_rect(color=INK, opacity=0.08)
    return mark.encode(y=alt.Y("from:Q"), y2="to:Q")


def _warmup(steps: int) -> alt.Chart:
    import altair as alt

    mark: alt.Chart = chart([{"from": 0, "to": steps}]).mark_rect(color=INK, opacity=0.08)
    return mark.encode(x=alt.X("from:Q", title="step"), x2="to:Q")
