"""What share of a large product's rate each backend reaches at one shape, forward and backward."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from analysis.charts import Chart, Figure, Row, Styles, Table
from analysis.charts._kernels import (
    OTHER_SHAPE,
    backend_names,
    how_called,
    main_shape,
    points,
    shape_in_words,
)
from analysis.charts._rows import TOP, rows_height, y_of
from analysis.charts._style import COLOURS, INK, axis_ends, inline, vega_lite
from analysis.query.statements import KERNEL_TIMES
from analysis.wording import capital, number

if TYPE_CHECKING:
    import altair as alt

_VALUE = itemgetter("value")
_MOST = 125  # percent of the product: on GPUs, caches and clocks allow for some above 100
_WAYS = {"forward": "circle", "backward": "square"}


def _build(rows: list[Row], _styles: Styles) -> Figure | None:
    shown = main_shape(points(rows))
    timed: list[Row] = []
    for point in shown:
        ceiling = point.median("ceiling_tflops", "forward")
        for way in _WAYS:
            if ceiling and (rate := point.rate(way)):
                value = 100 * rate.median / ceiling
                timed.append({"label": point.attention, "pass": way, "value": value, "tflops": rate.median})
    bars = [bar for bar in timed if bar["value"] <= _MOST]
    if not bars:
        return None
    labels = [name for name in backend_names(shown) if name in {bar["label"] for bar in bars}]

    have_time = {bar["label"] for bar in timed}
    gone = [
        f"{point.attention} ({', '.join(point.gone())})"
        for point in shown
        if point.attention not in have_time
    ]
    left_out = f" Without a time there: {', '.join(gone)}." if gone else ""
    beyond = [f"{bar['label']} {bar['pass']} ({bar['value']:.0f} %)" for bar in timed if bar["value"] > _MOST]
    if beyond:
        left_out += f" Not shown: {', '.join(beyond)}. Above {_MOST} %, the product was disturbed."
    best = {way: max((bar for bar in bars if bar["pass"] == way), key=_VALUE, default=None) for way in _WAYS}
    rates = [
        f"{way} {best_bar['value']:.0f} % ({best_bar['label']})" for way, best_bar in best.items() if best_bar
    ]

    above = ""
    if any(bar["value"] > 100 for bar in bars):
        above = " Above 100 %: the product's clock or caches differed."
    forms = {"tflops": ("kernel TFLOP/s", ",.3g"), "value": ("% of the product's", ".1f")}
    heads = [f"{capital(way)}, {what}" for way in _WAYS for what, _ in forms.values()]
    by_place = {(bar["label"], bar["pass"]): bar for bar in bars}
    cells = []
    for label in labels:
        of_ways = [by_place.get((label, way), {}) for way in _WAYS]
        texts = [number(bar.get(column), form) for bar in of_ways for column, (_, form) in forms.items()]
        cells.append((label, *texts))

    shape = shape_in_words(shown[0])
    return Figure(
        spec=_plot(bars, labels),
        caption=(
            "The product: a large one, in the same process and precision. Not comparable with MFU. "
            f"{how_called(rows)}: {shape}, the largest shape with the most backends.{left_out}{above}"
        ),
        description=f"Dot plot of percent of a large product's rate by backend and pass, {shape}. "
        + "; ".join(f"{bar['label']} {bar['pass']} {bar['value']:.1f}" for bar in bars)
        + ".",
        interval="none: a ratio of two medians",
        used=frozenset(run for point in shown for run in point.runs),
        finding=f"Highest share of a large product's rate: {', '.join(rates)}",
        table=Table(("Backend", *heads), tuple(cells)),
    )


def _plot(bars: list[Row], labels: list[str]) -> dict[str, Any]:
    import altair as alt

    ways = list(_WAYS)
    legend = alt.Legend(title=None, orient="top", symbolOpacity=1, labelColor=INK, labelFontSize=12)
    domain = list(axis_ends(map(_VALUE, bars), zero=True))
    scale = alt.Scale(domain=domain, nice=False)
    x = alt.X(
        "value:Q",
        title="percent of a large product's rate",
        scale=scale,
        axis=alt.Axis(grid=True, tickCount=5),
    )
    colour = alt.Color(
        "pass:N", scale=alt.Scale(domain=ways, range=list(COLOURS[: len(ways)])), legend=legend
    )
    shape = alt.Shape("pass:N", scale=alt.Scale(domain=ways, range=list(_WAYS.values())), legend=legend)
    tips = [
        alt.Tooltip("label:N", title="backend"),
        alt.Tooltip("pass:N"),
        alt.Tooltip("value:Q", title="percent of a large product's rate", format=".1f"),
        alt.Tooltip("tflops:Q", title="kernel TFLOP/s", format=",.3g"),
    ]
    mark: alt.Chart = inline(bars).mark_point(filled=True, size=80, opacity=1)
    layer = mark.encode(x=x, y=y_of(labels), color=colour, shape=shape, tooltip=tips)
    return vega_lite([layer], rows_height(labels), TOP)


chart = Chart(
    title="Efficiency at one shape",
    page="kernels",
    order=74,
    question="What share of the device's measured rate does each backend reach?",
    sql=KERNEL_TIMES,
    build=_build,
    applies=bool,
    empty="No backend was timed, or the large product was disturbed.",
    absent=OTHER_SHAPE,
    warmup=None,
    tasks=("attention",),
)
