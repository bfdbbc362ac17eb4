"""How close each backend's output and gradients come to the allowed error: the worst check of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analysis.charts import Chart, Figure, Row, Styles, Table
from analysis.charts._rows import TOP
from analysis.charts._style import INK, colours, drawn, inline, right_edge, shapes
from analysis.charts._style import styles as styles_of
from analysis.charts._values import UNKNOWN, names

if TYPE_CHECKING:
    import altair as alt

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
    names = _names(judged)
    worst = {
        label: max(row["ratio"] for row in judged if names[row["certificate"]] == label)
        for label in dict.fromkeys(names.values())
    }
    marks = [_mark(row, names[row["certificate"]]) for row in judged]
    return Figure(
        spec=_plot(marks, worst),
        caption=(
            "Each mark is the check of a tensor that comes closest to its limit or exceeds it the most: its "
            f"error as a fraction of the allowed error. A check passes up to the line at 1.{_beyond(worst)} "
            "The number on the right is the backend's largest."
        ),
        description="Dot plot of error over tolerance by backend and tensor. Largest: "
        + "; ".join(f"{label} {ratio_text(ratio)}" for label, ratio in worst.items())
        + ".",
        interval="none: a mark is the worst of its checks, not a mean of them",
        used=frozenset(run for row in judged for run in row.get("runs") or ()),
        finding=_finding(worst),
        table=_table(marks, worst),
    )


def _beyond(worst: dict[str, float]) -> str:
    return f" Marks beyond the axis are drawn at {_END:g}." if max(worst.values()) > _END else ""


def _finding(worst: dict[str, float]) -> str:
    """Which backends exceed a limit, and which comes closest."""
    wrong = [label for label, ratio in worst.items() if ratio > 1]
    if wrong:
        return f"Errors of {names(wrong)} exceed what is allowed"
    nearest = max(worst, key=lambda label: worst[label])
    return f"Every error is within what is allowed, at most {ratio_text(worst[nearest])} of it ({nearest})"


def _table(marks: list[Row], worst: dict[str, float]) -> Table:
    """The largest error of each tensor, as a fraction of the allowed error."""
    ratios = {(mark["backend"], mark["label"]): mark["ratio"] for mark in marks}
    rows = [
        (backend, *(ratios.get((backend, tensor), UNKNOWN) for tensor in NAMES.values()), ratio_text(ratio))
        for backend, ratio in worst.items()
    ]
    return Table(("backend", *NAMES.values(), "largest"), tuple(rows))


def ratio_text(ratio: float) -> str:
    """Measured over tolerance, as it is written everywhere."""
    if ratio == float("inf"):
        return NOT_FINITE
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}"


def _names(rows: list[Row]) -> dict[str, str]:
    """What to call each certificate: its backend, and if there are several, what tells them apart."""
    firsts = {row["certificate"]: row for row in rows}
    words = {
        "run_shape": {key: str(row["run_shape"] or "all shapes").split() for key, row in firsts.items()},
        "device_name": {key: [str(row["device_name"])] for key, row in firsts.items()},
        "certificate": {key: [f"#{key[:6]}"] for key in firsts},
    }
    names = {key: row["attention"] for key, row in firsts.items()}
    for words_of in words.values():
        names = {
            key: _told_apart(
                name, words_of[key], [words_of[other] for other in names if names[other] == name]
            )
            for key, name in names.items()
        }
    return names


def _told_apart(name: str, own_words: list[str], theirs: list[list[str]]) -> str:
    """The name with those of its words that not all of its namesakes have."""
    own = [word for word in own_words if not all(word in other for other in theirs)]
    return f"{name}, {' '.join(own)}" if own else name


def _mark(row: Row, label: str) -> Row:
    return {
        "backend": label,
        "label": NAMES[row["tensor"]],
        "at": min(row["ratio"], _END),
        "ratio": ratio_text(row["ratio"]),
        "check": f"{row['name']}, {row['variant']}",
        "shape": row["shape"],
    }


def _plot(marks: list[Row], worst: dict[str, float]) -> dict[str, Any]:
    end = 1.2 if max(worst.values()) <= 1.2 else _END
    layers = [*_limit(), *_largest(worst), _errors(marks, list(worst), end)]
    return drawn(layers, 40 * len(worst) + 12, TOP)


def _y(backends: list[str]) -> alt.Y:
    import altair as alt

    axis = alt.Axis(labelLimit=220, labelPadding=8, grid=True, tickBand="extent")
    return alt.Y("backend:N", scale=alt.Scale(domain=backends), sort=None, title=None, axis=axis)


def _errors(marks: list[Row], backends: list[str], end: float) -> alt.Chart:
    import altair as alt

    made = styles_of(list(NAMES.values()))
    legend = alt.Legend(orient="top", title=None, labelColor=INK, labelFontSize=12, symbolSize=70)
    axis = alt.Axis(grid=False, tickCount=5)
    x_scale = alt.Scale(domain=[0, end], nice=False)
    tips = [
        *(alt.Tooltip(f"{name}:N") for name in ("backend", "check", "shape")),
        alt.Tooltip("label:N", title="tensor"),
        alt.Tooltip("ratio:N", title="of the allowed error"),
    ]
    mark: alt.Chart = inline(marks).mark_point(filled=True, size=70, opacity=0.95, clip=False)
    return mark.encode(
        x=alt.X("at:Q", title="largest error over the allowed error", scale=x_scale, axis=axis),
        y=_y(backends),
        yOffset=alt.YOffset("label:N", scale=alt.Scale(domain=list(made), paddingOuter=0.9)),
        color=colours(made, legend),
        shape=shapes(made, legend),
        tooltip=tips,
    )


def _limit() -> list[alt.Chart]:
    import altair as alt

    base = inline([{"limit": 1, "text": "limit"}])
    top: Any = alt.YValue
    rule = base.mark_rule(strokeWidth=1.5, strokeDash=[5, 3]).encode(x="limit:Q")
    text = base.mark_text(color=INK, opacity=0.8, dy=-8).encode(x="limit:Q", y=top(0), text="text:N")
    return [rule, text]


def _largest(worst: dict[str, float]) -> list[alt.Chart]:
    """The largest of each backend as a column of numbers to the right."""
    import altair as alt

    rows = [{"backend": backend, "text": ratio_text(ratio)} for backend, ratio in worst.items()]
    top: Any = alt.YValue
    place: dict[str, Any] = {"align": "right", "dx": 66, "color": INK}
    text = inline(rows).mark_text(**place).encode(x=right_edge(), y=_y(list(worst)), text="text:N")
    head = inline([{"text": "largest"}]).mark_text(**place, opacity=0.7)
    return [text, head.encode(x=right_edge(), y=top(-8), text="text:N")]


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
