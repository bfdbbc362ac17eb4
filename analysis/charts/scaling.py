"""A quantity over the number of processes, a line a curve, against the line of ideal scaling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from analysis.charts import Chart, Figure, Row, Table
from analysis.charts._lines import name_marks, name_places
from analysis.charts._style import INK, colours, dashes, inline, shapes, styles, vega_lite
from analysis.charts._values import interval
from analysis.query.statements import MEASURED_RUNS
from analysis.stats import grouped
from analysis.verdicts.scaling import HELD_UP, Curve, Kind, ScalingPoint, curves, parts_of
from analysis.wording import UNKNOWN, range_word

if TYPE_CHECKING:
    import altair as alt

_HEIGHT = 320
_NAMED = 3  # curves that a title names
_MARKS: dict[str, dict[str, Any]] = {
    "finding": {"filled": True, "size": 65},
    "observed": {"filled": False, "size": 65, "strokeWidth": 2},
    "withheld": {"shape": "cross", "filled": True, "size": 65},
}
STEADY = "how steady these two runs were, not what others give"
DrawnValue = Callable[[ScalingPoint, float], float]  # a point and its ratio -> what is drawn


def process_noun(rows: Sequence[Row], many: bool = True) -> str:
    """What runs are counted in: GPUs, or processes where not all of them ran on GPUs."""
    singular = "GPU" if all(row["gpus"] for row in rows) else "process"
    return f"{singular}{('s' if singular == 'GPU' else 'es') if many else ''}"


def curves_by_name(of_kind: Sequence[Curve]) -> dict[str, Curve]:
    """The curves by their names, with what is constant, and the first group, where several would be alike."""
    ways = Counter(curve.way for curve in of_kind)
    base_names = [
        curve.way if ways[curve.way] == 1 else f"{curve.way}, {curve.constant}" for curve in of_kind
    ]
    several = Counter(base_names)
    return {
        name if several[name] == 1 else f"{name} ({curve.base})": curve
        for name, curve in zip(base_names, of_kind, strict=True)
    }


def scaling_figure(
    rows: list[Row], kind: Kind, title: str, value: DrawnValue, form: str, what_is_drawn: str
) -> Figure | None:
    """Draw the curves of one kind; None if there are none.

    Args:
        rows: the answer to MEASURED_RUNS.
        title: of the vertical axis.
        value: what is drawn of a point.
        form: d3 format of a value.
        what_is_drawn: what is drawn, as the caption starts.
    """
    named_curves = curves_by_name([curve for curve in curves(rows) if curve.kind == kind])
    if not named_curves:
        return None
    what = process_noun(rows)
    points = [point for curve in named_curves.values() for point in curve.points]

    caption = f"{what_is_drawn} {marks_caption(named_curves)}"
    if any(point.parts for point in points):
        caption += " Lines join processes that take their samples in different numbers of parts."
    elif kind == "weak" and any(parts_of(row) > 1 for row in rows):
        caption += " A line joins processes that take their samples in the same number of parts."
    late = {name: curve.base_processes for name, curve in named_curves.items() if curve.base_processes > 1}
    if late:
        where = ", ".join(f"{name} at {many}" for name, many in late.items())
        caption += f" Lines that start at more than one of the {what} are taken as ideal there: {where}."
    for name, curve in named_curves.items():
        if any(point.scale == 1 for point in curve.points):
            caption += (
                f" Of the groups of {curve.base_processes} {what} on {name}, the first mark is {curve.base}."
            )
    if not all(row["gpus"] for row in rows):
        caption += " On a CPU, processes share the machine's cores."

    values = {
        name: ", ".join(f"{value(p, p.ratio.ratio):{form}} at {p.processes}" for p in curve.points)
        for name, curve in named_curves.items()
    }
    return Figure(
        spec=_plot(named_curves, title, value, form, what),
        caption=caption,
        description=f"Line plot of {title} over the number of {what}. "
        + "; ".join(f"{name}: {listed}" for name, listed in values.items())
        + ".",
        interval="; ".join(dict.fromkeys(f"{point.ratio.level}: {point.ratio.method}" for point in points)),
        used=frozenset(run for point in points for run in point.runs),
        finding=efficiency_sentence(named_curves, what),
        table=_table(named_curves, what),
    )


def efficiency_sentence(named_curves: dict[str, Curve], what: str) -> str:
    """The efficiency at the most processes of each curve, in a sentence; of many, the ends alone."""
    last = {name: curve.points[-1] for name, curve in named_curves.items()}
    many = len(last) > _NAMED and not any(point.why_withheld for point in last.values())
    if many:
        ordered = sorted(last, key=lambda name: last[name].efficiency[0])
        last = {name: last[name] for name in (ordered[-1], ordered[0])}
    places = {}
    for name, point in last.items():
        base = named_curves[name].base_processes
        places[name] = f"{point.processes} {what}{f' over {base}' if base > 1 else ''}"
    together = len(set(places.values())) == 1
    clauses = []
    for name, point in last.items():
        value, low, high = point.efficiency
        ends = ""
        if low is not None and high is not None:
            ends = f" ({range_word(point.ratio.is_range)}{100 * low:.1f} to {100 * high:.1f})"
        text = (
            "not comparable"
            if point.why_withheld
            else f"{100 * value:.1f} %{'' if last.keys() - {name} else ends}"
        )
        where = [*([name] if len(last) > 1 else []), *([] if together else [f"on {places[name]}"])]
        clauses.append(f"{text}{' ' if where else ''}{' '.join(where)}")
    if many:
        clauses = [f"most {clauses[0]}", f"least {clauses[1]}"]
    kind = next(iter(named_curves.values())).kind.capitalize()
    at = f" on {next(iter(places.values()))}" if together else ""
    once = " (one run each)" if any(evidence_kind(point) == "observed" for point in last.values()) else ""
    return f"{kind} scaling{at}, of the ideal rate: {'; '.join(clauses)}{once}"


def evidence_kind(point: ScalingPoint) -> str:
    """Whether its ratio is a finding over runs, was observed in single runs, or may not be given."""
    return "withheld" if point.why_withheld else "observed" if point.observed else "finding"


def marks_caption(named_curves: dict[str, Curve]) -> str:
    """What the marks of the curves are."""
    points = [point for curve in named_curves.values() for point in curve.points]
    kinds = grouped(points, evidence_kind)
    has_interval = {
        kind: any(point.ratio.low is not None for point in alike) for kind, alike in kinds.items()
    }
    sentences = []
    if "finding" in kinds:
        over = "; lines: intervals over runs" if has_interval["finding"] else ""
        sentences.append(f"Filled marks: several runs{over}.")
    if "observed" in kinds:
        how = f"; lines: {STEADY}" if has_interval["observed"] else ""
        sentences.append(f"Open marks: single runs{how}.")
    if "withheld" in kinds:
        sentences.append("Crosses: runs that are not comparable; the table says why.")
    if any(point.beyond_ideal for point in points):
        sentences.append(f"{HELD_UP}: Methods says what load was recorded.")
    if any(point.besides for point in points):
        sentences.append("The table names what else differs.")
    return " ".join(sentences)


def _table(named_curves: dict[str, Curve], what: str) -> Table:
    heads = (
        "scaling", what, "group", "tokens per second", "ratio to the first", "95 % interval", "efficiency, %",
        "n", "what it is",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = []
    for name, curve in named_curves.items():
        first = f"{curve.base_tokens_per_second:,.0f}"
        rows.append(
            (name, str(curve.base_processes), curve.base, first, "1", UNKNOWN, "100", UNKNOWN, "the first")
        )
        for point in curve.points:
            observed = f" {point.observed}" if point.observed else ""
            what_it_is = point.why_withheld or evidence_kind(point) + observed
            what_it_is += "." if point.besides and not what_it_is.endswith(".") else ""
            ratio = point.ratio
            rows.append((
                name,
                str(point.processes),
                point.label,
                f"{point.tokens_per_second:,.0f}",
                f"{ratio.ratio:.3f}",
                UNKNOWN if point.why_withheld else interval(ratio, ".3f"),
                f"{100 * point.efficiency[0]:.1f}",
                str(ratio.n),
                " ".join([what_it_is, *point.besides]),
            ))  # fmt: skip
    return Table(heads, tuple(rows))


def _plot(
    named_curves: dict[str, Curve], title: str, value: DrawnValue, form: str, what: str
) -> dict[str, Any]:
    import altair as alt

    looks = styles(list(named_curves))
    marks = [mark for name, curve in named_curves.items() for mark in _curve_marks(name, curve, value)]
    numbers = sorted({mark["processes"] for mark in marks})
    ends = [
        _ideal(curve, many) for curve in named_curves.values() for many in (curve.base_processes, numbers[-1])
    ]
    ideal = [{"processes": point.processes, "value": value(point, float(point.scale))} for point in ends]
    top = 1.06 * max([*(mark["high"] or mark["value"] for mark in marks), *(row["value"] for row in ideal)])
    x = alt.X(
        "processes:Q",
        title=what,
        scale=alt.Scale(domain=[numbers[0], numbers[-1]], nice=False, zero=False, padding=14),
        axis=alt.Axis(values=numbers, format="d", grid=False, labelOverlap="greedy"),
    )

    def y(field: str) -> alt.Y:
        scale, axis = alt.Scale(domain=[0, top], nice=False), alt.Axis(tickCount=6)
        return alt.Y(f"{field}:Q", title=title, scale=scale, axis=axis)

    dashed = inline(ideal).mark_line(stroke=INK, strokeWidth=1.2, strokeDash=[4, 4], opacity=0.7)
    line = inline([{name: mark[name] for name in ("label", "processes", "value")} for mark in marks])
    layers = [
        dashed.encode(x=x, y=y("value")),
        line.mark_line(strokeWidth=1.8).encode(
            x=x, y=y("value"), color=colours(looks), strokeDash=dashes(looks)
        ),
    ]
    if with_interval := [mark for mark in marks if mark["low"] is not None]:
        rule = inline(with_interval).mark_rule(strokeWidth=2)
        layers.append(rule.encode(x=x, y=y("low"), y2="high:Q", color=colours(looks)))
    tips = [
        alt.Tooltip("label:N", title="scaling"),
        alt.Tooltip("group:N"),
        alt.Tooltip("processes:Q", title=what),
        alt.Tooltip("value:Q", format=form),
        alt.Tooltip("kind:N", title="what it is"),
        alt.Tooltip("n:N"),
    ]
    for kind, how in _MARKS.items():
        if rows := [mark for mark in marks if mark["kind"] == kind]:
            point = inline(rows).mark_point(opacity=1, **how)
            shape = {} if "shape" in how else {"shape": shapes(looks)}
            layers.append(point.encode(x=x, y=y("value"), color=colours(looks), tooltip=tips, **shape))
    if len(named_curves) > 1:
        last = {name: curve.points[-1] for name, curve in named_curves.items()}
        at = {name: value(point, point.ratio.ratio) for name, point in last.items()}
        layers += name_marks(name_places(at, 0.0, top, _HEIGHT), looks, y("end"), y("at"))
    return vega_lite(layers, _HEIGHT, top=8)


def _curve_marks(name: str, curve: Curve, value: DrawnValue) -> list[Row]:
    """The marks of a curve, its first one too, by their processes."""
    first = value(_ideal(curve, curve.base_processes), 1.0)
    base = {"label": name, "group": curve.base, "processes": curve.base_processes, "kind": "finding"}
    marks = [base | {"value": first, "low": None, "high": None, "n": ""}]
    for point in curve.points:
        low, high = (None, None) if point.why_withheld else (point.ratio.low, point.ratio.high)
        marks.append({
            "label": name,
            "group": point.label,
            "processes": point.processes,
            "kind": evidence_kind(point),
            "value": value(point, point.ratio.ratio),
            "low": None if low is None else value(point, low),
            "high": None if high is None else value(point, high),
            "n": str(point.ratio.n),
        })  # fmt: skip
    if all(point.observed for point in curve.points):
        marks[0]["kind"] = "observed"
    return marks


def _ideal(curve: Curve, many: int) -> ScalingPoint:
    """The curve at so many processes, if it scaled ideally."""
    return replace(curve.points[0], processes=many, scale=Fraction(many, curve.base_processes))


def _scaling_chart(
    kind: Kind, order: int, question: str, title: str, value: DrawnValue, form: str, what_is_drawn: str
) -> Chart:
    """The chart of the curves of one kind; the other arguments are those of `scaling_figure`."""
    return Chart(
        title="Scaling",
        page="scaling",
        order=order,
        question=question,
        sql=MEASURED_RUNS,
        build=lambda rows, _styles: scaling_figure(rows, kind, title, value, form, what_is_drawn),
        absent=f"on no line of {kind} scaling",
        applies=lambda rows: any(curve.kind == kind for curve in curves(rows)),
    )


charts = {
    "scaling_strong": _scaling_chart(
        "strong",
        order=2,
        question="How much faster is a step at a constant batch on more processes?",
        title="speedup",
        # Against one process; a curve that starts at several starts as ideal.
        value=lambda point, ratio: ratio * point.processes / float(point.scale),
        form=".2f",
        what_is_drawn=(
            "Tokens/s of all processes over those of a line's first mark, at the same batch. Dashed: ideal."
        ),
    ),
    "scaling_weak": _scaling_chart(
        "weak",
        order=3,
        question="How much of its rate does a process keep when every added process brings its own batch?",
        title="efficiency, percent",
        value=lambda point, ratio: 100 * ratio / float(point.scale),
        form=".1f",
        what_is_drawn=(
            "Tokens/s of a process over those of a line's first mark; the batch grows with the processes. "
            "Dashed: ideal."
        ),
    ),
}
