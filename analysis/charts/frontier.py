"""The largest sequence, batch or depth that fits into memory, beside the forecast, and its probes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

from analysis.charts import Chart, Figure, Row, Styles, Table
from analysis.charts._rows import TOP, number_column, rows_height, run_name, y_of
from analysis.charts._style import INK, axis_ends, colours, inline, styles_for, vega_lite
from analysis.charts._values import fitting, names, shortened
from analysis.query.statements import FRONTIERS, PROBES
from analysis.stats import grouped
from analysis.wording import UNKNOWN, number
from model.record.outcome import Outcome

if TYPE_CHECKING:
    import altair as alt

UNITS = {
    "sequence_length": "tokens per sample",
    "batch_size": "samples per step",
    "layers": "layers",
}
_GIB = 1024.0**3
_DONE = {"fits": "circle", "edge": "diamond"}  # the marks of probes that did their steps


def cards(rows: Sequence[Row]) -> str:
    """Which memory the values are of, and that it is an emulation where it is one."""
    return "; ".join(dict.fromkeys(map(card, rows)))


def card(row: Row) -> str:
    """`24.0 GiB, emulated by 17.2 % of the memory of NVIDIA H100`."""
    device, size = row["device"] or "an unnamed device", f"{number(row['card_bytes'] / _GIB, ',.2f')} GiB"
    whole = "the run's limit on" if device.startswith("CPU") else "the memory of"
    share = f"emulated by {100 * row['memory_fraction']:.3g} % of " if row["memory_fraction"] < 1 else ""
    return f"{size}, {share}{whole} {device}"


def largest(row: Row) -> str:
    """The largest value that fits, as far as it is known: `4,096 to 4,224`, `at least 4,096`."""
    if row["largest"] is None and row["is_bounded"]:
        return "none" if row["bound"] == row["multiple"] else f"below {row['bound']:,d}"
    if row["largest"] is None:
        return "not known"
    if row["is_bounded"] and (most := row["bound"] - row["multiple"]) > row["largest"]:
        return f"{row['largest']:,d} to {most:,d}"
    return f"{'' if row['is_bounded'] else 'at least '}{row['largest']:,d}"


def is_coarse(row: Row) -> bool:
    """Whether the search left a wider gap above the largest value than its resolution asks."""
    if not row["is_bounded"] or row["largest"] is None:
        return False
    steps = ceil(row["resolution"] * row["largest"] / row["multiple"])
    return bool(row["bound"] - row["largest"] > steps * row["multiple"])


def by_value(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Each frontier as a text, the largest first, with all groups that have it."""
    alike = grouped(sorted(rows, key=lambda row: -row["largest"]), largest)
    return {text: [*dict.fromkeys(row["label"] for row in same)] for text, same in alike.items()}


def outermost(rows: Sequence[Row]) -> dict[str, list[str]]:
    """The largest of these and the smallest."""
    texts = by_value(rows)
    return {text: texts[text] for text in ([*texts][:1] + [*texts][-1:])}


def _found(rows: list[Row], styles: Styles, find: str) -> Figure | None:
    rows = [row for row in rows if row["find"] == find]
    if not rows:
        return None
    known = [row for row in rows if row["largest"] is not None]
    short = shortened({row["label"] for row in rows})
    told = " to ".join(
        f"{text} ({names([short[label] for label in labels])})"
        for text, labels in reversed(outermost(known).items())
    )
    cells = [
        (
            row["label"],
            run_name(row),
            f"{row['foreseen']:,d}",
            largest(row),
            UNKNOWN if row["bound"] is None else f"{row['bound']:,d} ({row['bound_outcome']})",
            UNKNOWN if is_coarse(row) else number(row["foreseen_error_percentage"], "+.1f"),
            f"{row['searched']} + {row['probes'] - row['searched']}",
        )
        for row in rows
    ]
    head = (
        *("group", "run", "forecast", "largest that fits", "next that does not"),
        *("forecast's error, %", "probes: search + above"),
    )
    return Figure(
        spec=_found_plot(rows, styles, UNITS[find]),
        caption=(
            "Filled: the largest value that trained three steps. Open: the largest that fits by the "
            "forecast. The line ends at the smallest value above that did not fit, or whose probe hung or "
            "died. "
            f"Memory: {cards(rows)}."
        ),
        description=f"Dot plot of the largest {UNITS[find]} that fit, by group{f': {told}' if told else ''}.",
        interval="none: single searches",
        used=frozenset(row["run_id"] for row in rows),
        finding=f"Largest that fits, in {UNITS[find]}: {told}" if told else "No value that was tried fits",
        table=Table(head, tuple(cells)),
    )


def _found_plot(rows: list[Row], styles: Styles, unit: str) -> dict[str, Any]:
    import altair as alt

    styles = styles_for({row["label"] for row in rows}, styles)
    y, colour = y_of(list(styles)), colours(styles)
    marks: list[Row] = [
        {"label": row["label"], "kind": kind, "value": row[field], "bound": row["bound"]}
        for row in rows
        for kind, field in (("largest that fits", "largest"), ("forecast", "foreseen"))
        if row[field]
    ]
    values = [end for mark in marks for end in (mark["value"], mark["bound"]) if end]
    log = bool(values) and max(values) > 20 * min(values)
    span = (min(values) / 1.3, max(values) * 1.3) if log else axis_ends(values or [0, 1], zero=True)

    def x(field: str) -> alt.X:
        scale = alt.Scale(type="log" if log else "linear", domain=list(span), nice=False)
        ticks = alt.Axis(grid=False, tickCount=5, tickMinStep=1, format=",~r" if log else ",.0f")
        return alt.X(f"{field}:Q", title=unit + (" (logarithmic)" if log else ""), scale=scale, axis=ticks)

    tips = [
        alt.Tooltip("label:N", title="group"),
        alt.Tooltip("kind:N", title="what"),
        alt.Tooltip("value:Q", title=unit, format=",d"),
    ]
    layers = []
    if lines := [mark for mark in marks if mark["kind"] != "forecast" and mark["bound"]]:
        line = inline(lines).mark_rule(strokeWidth=2.5, opacity=0.6)
        layers.append(line.encode(x=x("value"), x2="bound:Q", y=y, color=colour))
    for kind, filled in (("largest that fits", True), ("forecast", False)):
        if own := [mark for mark in marks if mark["kind"] == kind]:
            point = inline(own).mark_point(filled=filled, size=75 if filled else 130, opacity=1)
            layers.append(point.encode(x=x("value"), y=y, color=colour, tooltip=tips))
    shown = [mark for mark in marks if mark["kind"] != "forecast"]
    layers += number_column(shown, y, "fits", "value", ",d") if shown else []
    return vega_lite(layers, rows_height(list(styles)), TOP)


def _memory(rows: list[Row], styles: Styles, find: str) -> Figure | None:
    rows = [row for row in rows if row["find"] == find]
    measured = [row for row in rows if row["peak_bytes"] is not None and row["outcome"] in _DONE]
    if not measured:
        return None
    errors = [100 * (row["forecast_bytes"] / row["peak_bytes"] - 1) for row in measured]
    span = dict.fromkeys(f"{error:+.1f}" for error in (min(errors), max(errors)))
    forecast_errors = f"Forecast against the measured peak: {' to '.join(span)} %"
    cells = [
        (
            row["label"],
            f"{row['value']:,d}",
            row["outcome"],
            number(row["forecast_bytes"] / _GIB, ",.2f"),
            number(row["peak_bytes"] and row["peak_bytes"] / _GIB, ",.2f"),
        )
        for row in rows
    ]
    return Figure(
        spec=_memory_plot(rows, styles, UNITS[find]),
        caption=(
            "A mark is a probe: its measured peak if it did its steps, else its forecast, which the lines "
            "show. Circles fit; diamonds are edges; crosses and squares do not fit. Of triangles, which "
            "hung or died, that is not known. "
            f"The rule is the memory: {cards(rows)}."
        ),
        description=f"Memory over {UNITS[find]}, by group. {forecast_errors}.",
        interval="none: single probes",
        used=frozenset(row["run_id"] for row in rows),
        finding=forecast_errors,
        table=Table(("group", UNITS[find], "outcome", "forecast, GiB", "peak, GiB"), tuple(cells)),
    )


def _memory_plot(rows: list[Row], styles: Styles, unit: str) -> dict[str, Any]:
    import altair as alt

    styles = styles_for({row["label"] for row in rows}, styles)
    legend = alt.Legend(title=None, orient="bottom", columns=4, labelLimit=0, symbolOpacity=1)
    colour = colours(styles, legend)
    marks: list[Row] = []
    for row in rows:
        done = row["outcome"] in _DONE and row["peak_bytes"] is not None
        if row["outcome"] in _DONE:
            shape = _DONE[row["outcome"]]
        else:  # what hung or died says nothing of its value
            ending = Outcome(row["outcome"])
            shape = "cross" if ending.out_of_memory else "square" if ending.is_early else "triangle-up"
        marks.append(
            {
                "label": row["label"],
                "value": row["value"],
                "outcome": row["outcome"],
                "shape": shape,
                "forecast": row["forecast_bytes"] / _GIB,
                "memory": (row["peak_bytes"] if done else row["forecast_bytes"]) / _GIB,
            }
        )
    rules = [{"memory": size / _GIB} for size in sorted({row["card_bytes"] for row in rows})]
    highest = max(rule["memory"] for rule in rules)
    # One probe far above the card would flatten all others.
    top = min(2 * highest, max(end for mark in marks for end in (mark["memory"], mark["forecast"])))
    across, up = (
        axis_ends([mark["value"] for mark in marks], zero=False),
        axis_ends([top, highest], zero=True),
    )

    def x() -> alt.X:
        axis = alt.Axis(grid=False, tickCount=5, tickMinStep=1, format=",.0f")
        return alt.X("value:Q", title=unit, scale=alt.Scale(domain=list(across), nice=False), axis=axis)

    def y(field: str) -> alt.Y:
        scale = alt.Scale(domain=list(up), nice=False, clamp=True)
        return alt.Y(f"{field}:Q", title="GiB", scale=scale, axis=alt.Axis(tickCount=5))

    form = fitting(",.2f", (mark[name] for mark in marks for name in ("memory", "forecast")))
    tips = [
        alt.Tooltip("label:N", title="group"),
        alt.Tooltip("value:Q", title=unit, format=",d"),
        alt.Tooltip("outcome:N"),
        alt.Tooltip("memory:Q", title="GiB", format=form),
        alt.Tooltip("forecast:Q", title="forecast, GiB", format=form),
    ]
    layers = [
        inline(rules).mark_rule(color=INK, strokeDash=[6, 3], strokeWidth=1.5).encode(y=y("memory")),
        inline(marks).mark_line(opacity=0.5).encode(x=x(), y=y("forecast"), color=colour),
    ]
    for shape in dict.fromkeys(mark["shape"] for mark in marks):
        own = [mark for mark in marks if mark["shape"] == shape]
        point = inline(own).mark_point(shape=shape, filled=shape == "circle", size=60, opacity=1)
        layers.append(point.encode(x=x(), y=y("memory"), color=colour, tooltip=tips))
    return vega_lite(layers, 260, TOP)


def _charts(find: str, order: int) -> dict[str, Chart]:
    def applies(rows: list[Row]) -> bool:
        return any(row["find"] == find for row in rows)

    def of(build: Callable[[list[Row], Styles, str], Figure | None]) -> Callable[..., Figure | None]:
        return lambda rows, styles: build(rows, styles, find)

    largest = Chart(
        title=f"Largest that fits: {UNITS[find]}",
        page="frontier",
        order=order,
        question=f"How many {UNITS[find]} fit into memory, and how many did the forecast expect?",
        sql=FRONTIERS,
        build=of(_found),
        empty="No run probed.",
        absent="without a probe of this",
        warmup=None,
        applies=applies,
        tasks=("frontier",),
    )
    memory = Chart(
        title=f"Memory over {UNITS[find]}",
        page="frontier",
        order=order + 1,
        question=f"How much memory do {UNITS[find]} need, and how good is the forecast?",
        sql=PROBES,
        build=of(_memory),
        empty="No probe did its steps.",
        absent="without a probe of this",
        warmup=None,
        applies=applies,
        tasks=("frontier",),
    )
    return {f"frontier_{find}": largest, f"frontier_{find}_memory": memory}


charts = {
    name: chart for place, find in enumerate(UNITS) for name, chart in _charts(find, 80 + 2 * place).items()
}
