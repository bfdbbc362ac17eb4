"""Peak memory of every completed run."""

from __future__ import annotations

from analysis import stats
from analysis.charts import Chart, Figure, Row, Styles
from analysis.charts._dots import MARKS, ORDER, Axis, called, plot

_SQL = """\
SELECT label, run_id, seed, repeat, gpus, peak_memory_bytes,
  peak_memory_bytes / 1024.0 ** 3 AS peak_memory_gib
FROM runs
WHERE study = $study AND outcome = 'completed' AND peak_memory_bytes IS NOT NULL
ORDER BY place, seed, repeat, run_id"""


def _build(rows: list[Row], styles: Styles) -> Figure | None:
    if not rows:
        return None
    points = [(row["label"], called(row), row["peak_memory_gib"]) for row in rows]
    labels = dict.fromkeys(row["label"] for row in rows)
    found = {
        label: stats.over_runs([value for name, _, value in points if name == label]) for label in labels
    }
    kinds = {
        "device memory that PyTorch allocated" if row["gpus"] else "resident memory of the process"
        for row in rows
    }
    caption = (
        f"Peak over the whole run: {' or '.join(sorted(kinds))}. {MARKS} Runs that ran out of memory are "
        f"not shown: their peak is that of the attempt that failed. {ORDER}"
    )
    seen = "; ".join(f"{label} {found[label].median:,.4g} GiB" for label in sorted(found))
    return Figure(
        spec=plot(points, found, styles, Axis("peak memory, GiB", ",.2f", zero=True)),
        caption=caption,
        description=f"Peak memory by group. Medians: {seen}.",
        interval=stats.methods(found),
        used=frozenset(row["run_id"] for row in rows),
    )


chart = Chart(
    title="Peak memory",
    page="memory",
    order=50,
    question="How much memory does each group need?",
    sql=_SQL,
    build=_build,
    empty="No run completed with a memory reading.",
    warmup=False,
)
