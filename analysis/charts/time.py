"""Training time of every completed run, including the warm-up."""

from __future__ import annotations

from analysis import stats
from analysis.charts import Chart, Figure, Row, Styles
from analysis.charts._dots import MARKS, ORDER, Axis, called, plot

_SQL = """\
SELECT label, run_id, seed, repeat, steps, training_seconds, wall_seconds, attempts
FROM runs
WHERE study = $study AND outcome = 'completed' AND training_seconds IS NOT NULL
ORDER BY place, seed, repeat, run_id"""


def _build(rows: list[Row], styles: Styles) -> Figure | None:
    if not rows:
        return None
    unit, factor = _unit(max(row["training_seconds"] for row in rows))
    points = [(row["label"], called(row), row["training_seconds"] / factor) for row in rows]
    labels = dict.fromkeys(row["label"] for row in rows)
    found = {
        label: stats.over_runs([value for name, _, value in points if name == label]) for label in labels
    }
    steps = sorted({row["steps"] for row in rows})
    caption = (
        f"Time spent in {_steps(steps)}, including the warm-up: the sum of the logged steps' seconds. "
        "Start-up, checkpoints and waiting are not included; the table of runs has the wall time. "
        f"{MARKS} {ORDER}"
    )
    seen = "; ".join(f"{label} {found[label].median:,.4g} {unit}" for label in sorted(found))
    return Figure(
        spec=plot(points, found, styles, Axis(f"training time, {unit}", ",.2f", zero=True)),
        caption=caption,
        description=f"Training time by group. Medians: {seen}.",
        interval=stats.methods(found),
        used=frozenset(row["run_id"] for row in rows),
    )


def _unit(longest_seconds: float) -> tuple[str, float]:
    if longest_seconds < 300:
        return "seconds", 1.0
    return ("minutes", 60.0) if longest_seconds < 18000 else ("hours", 3600.0)


def _steps(steps: list[int]) -> str:
    return (
        f"all {steps[0]} steps" if len(steps) == 1 else f"{steps[0]} to {steps[-1]} steps: not the same work"
    )


chart = Chart(
    title="Training time",
    page="time",
    order=40,
    question="How long does the whole training take?",
    sql=_SQL,
    build=_build,
    empty="No run completed.",
    warmup=False,
)
