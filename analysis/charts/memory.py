"""Peak memory of every completed run."""

from __future__ import annotations

from analysis.charts import Chart, Figure, Row, Styles
from analysis.charts._dots import Axis, called, figure
from analysis.charts._quantities import PEAK_MEMORY

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
    kinds = {
        "device memory that PyTorch allocated" if row["gpus"] else "resident memory of the process"
        for row in rows
    }
    what = (
        f"Peak over the whole run: {' or '.join(sorted(kinds))}. Runs that ran out of memory are not shown: "
        "their peak is that of the failed attempt."
    )
    axis = Axis("GiB of memory at the peak", ",.2f", zero=True)
    return figure(points, PEAK_MEMORY.estimates(rows), styles, axis, what, rows)


chart = Chart(
    title="Peak memory",
    page="memory",
    order=50,
    question="How much memory does each group need?",
    sql=_SQL,
    build=_build,
    empty="No run completed with a memory reading.",
    warmup=False,
    tasks=("training", "inference"),
)
