"""How close each backend's output and gradients come to the allowed error: the worst check of each."""

from __future__ import annotations

from typing import Any

from analysis.charts import Chart, Figure, Row, Styles, Table
from analysis.charts._rows import TOP
from analysis.charts._style import INK, colours, inline, right_edge, shapes, vega_lite
from analysis.charts._style import styles as styles_of
from analysis.charts._values import names
from analysis.wording import UNKNOWN

# The runs that it covers; a figure that belongs to no study leaves this out.
RUNS = """,
  (SELECT list(DISTINCT a.run_id ORDER BY a.run_id) FROM admissions a
   WHERE a.study = $study AND a.certificate = c.key) AS runs"""
OF_STUDY = "SELECT certificate FROM admissions WHERE study = $study"
# One row per certificate and tensor. `$certificates` stands for a query that gives the keys.
TENSORS = f"""\
SELECT e.attention, e.tensor, e.relative_error, e.relative_error_shape, e.ratio, e.measured, e.tolerance,
  e.name, e.variant, e.shape, e.checks, e.failed, c.shape AS run_shape, c.device_name, e.certificate{RUNS}
FROM tensor_errors e JOIN certificates c ON c.key = e.certificate
WHERE c.key IN ($certificates)
ORDER BY e.attention, c.shape, c.created_at, e.certificate,
  list_position(['o', 'dq', 'dk', 'dv'], e.tensor)"""
NAMES = {"o": "output", "dq": "dQ", "dk": "dK", "dv": "dV"}
NOT_FINITE = "not finite"
_END = 2.0  # of the axis: a wrong result is often thousands of times over its limit


def build(rows: list[Row], _styles: Styles) -> Figure | None:
    """The figure of the rows of `TENSORS`; None if no backend was called."""
    judged = [row for row in rows if row["ratio"] is not None]
    if not judged:
        return None
    backends = _backend_names(judged)
    marks: list[Row] = [
        {
            "backend": backends[row["certificate"]],
            "label": NAMES[row["tensor"]],
            "at": min(row["ratio"], _END),
            "ratio": ratio_text(row["ratio"]),
            "check": f"{row['name']}, {row['variant']}",
            "shape": row["shape"],
        }
        for row in judged
    ]
    worst = {
        backend: max(row["ratio"] for row in judged if backends[row["certificate"]] == backend)
        for backend in dict.fromkeys(backends.values())
    }

    if wrong := [backend for backend, ratio in worst.items() if ratio > 1]:
        finding = f"Errors of {names(wrong)} exceed what is allowed"
    else:
        nearest = max(worst, key=lambda backend: worst[backend])
        largest = ratio_text(worst[nearest])
        finding = f"Every error is within what is allowed: at most {largest} times that ({nearest})"
    beyond = f" Marks beyond the axis are drawn at {_END:g}." if max(worst.values()) > _END else ""
    ratios = {(mark["backend"], mark["label"]): mark["ratio"] for mark in marks}
    cells = [
        (backend, *(ratios.get((backend, tensor), UNKNOWN) for tensor in NAMES.values()), ratio_text(ratio))
        for backend, ratio in worst.items()
    ]
    return Figure(
        spec=_plot(marks, worst),
        caption=(f"Each mark is the worst check of a tensor; up to 1 it passes.{beyond}"),
        description="Dot plot of error over tolerance by backend and tensor. Largest: "
        + "; ".join(f"{backend} {ratio_text(ratio)}" for backend, ratio in worst.items())
        + ".",
        interval="none: a mark is the worst of its checks, not a mean of them",
        used=frozenset(run for row in judged for run in row.get("runs") or ()),
        finding=finding,
        table=Table(("backend", *NAMES.values(), "largest"), tuple(cells)),
    )


def ratio_text(ratio: float) -> str:
    """Measured over tolerance, as it is written everywhere."""
    if ratio == float("inf"):
        return NOT_FINITE
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}"


def _backend_names(rows: list[Row]) -> dict[str, str]:
    """What to call each certificate: its backend, and if there are several, what tells them apart."""
    firsts = {row["certificate"]: row for row in rows}
    words_by_column = (
        {key: str(row["run_shape"] or "all shapes").split() for key, row in firsts.items()},
        {key: [str(row["device_name"])] for key, row in firsts.items()},
        {key: [f"#{key[:6]}"] for key in firsts},
    )
    names = {key: row["attention"] for key, row in firsts.items()}
    for words in words_by_column:
        longer = {}
        for key, name in names.items():
            namesakes = [words[other] for other in names if names[other] == name]
            own = [word for word in words[key] if not all(word in theirs for theirs in namesakes)]
            longer[key] = f"{name}, {' '.join(own)}" if own else name
        names = longer
    return names


def _plot(marks: list[Row], worst: dict[str, float]) -> dict[str, Any]:
    import altair as alt

    top: Any = alt.YValue
    y = alt.Y(
        "backend:N",
        scale=alt.Scale(domain=list(worst)),
        sort=None,
        title=None,
        axis=alt.Axis(labelLimit=220, labelPadding=8, grid=True, tickBand="extent"),
    )
    base = inline([{"limit": 1, "text": "limit"}])
    rule = base.mark_rule(strokeWidth=1.5, strokeDash=[5, 3]).encode(x="limit:Q")
    text = base.mark_text(color=INK, opacity=0.8, dy=-8).encode(x="limit:Q", y=top(0), text="text:N")
    layers = [rule, text]

    # The largest of each backend as a column of numbers to the right.
    place: dict[str, Any] = {"align": "right", "dx": 66, "color": INK}
    numbers = inline([{"backend": backend, "text": ratio_text(ratio)} for backend, ratio in worst.items()])
    layers.append(numbers.mark_text(**place).encode(x=right_edge(), y=y, text="text:N"))
    head = inline([{"text": "largest"}]).mark_text(**place, opacity=0.7)
    layers.append(head.encode(x=right_edge(), y=top(-8), text="text:N"))

    end = 1.2 if max(worst.values()) <= 1.2 else _END
    looks = styles_of(list(NAMES.values()))
    legend = alt.Legend(orient="top", title=None, labelColor=INK, labelFontSize=12, symbolSize=70)
    mark = inline(marks).mark_point(filled=True, size=70, opacity=0.95, clip=False)
    x = alt.X(
        "at:Q",
        title="largest error over the allowed error",
        scale=alt.Scale(domain=[0, end], nice=False),
        axis=alt.Axis(grid=False, tickCount=5),
    )
    layers.append(
        mark.encode(
            x=x,
            y=y,
            yOffset=alt.YOffset("label:N", scale=alt.Scale(domain=list(looks), paddingOuter=0.9)),
            color=colours(looks, legend),
            shape=shapes(looks, legend),
            tooltip=[
                *(alt.Tooltip(f"{name}:N") for name in ("backend", "check", "shape")),
                alt.Tooltip("label:N", title="tensor"),
                alt.Tooltip("ratio:N", title="of the allowed error"),
            ],
        )
    )
    return vega_lite(layers, 40 * len(worst) + 12, TOP)


chart = Chart(
    title="Certificates",
    page="certificates",
    order=90,
    question="Are the backends what they claim to be?",
    sql=TENSORS.replace("$certificates", OF_STUDY),
    build=build,
    empty="No certificate of this study's backends contains a number.",
    warmup=None,
    tasks=(),
)
