"""Sequence length over processes that share each sample's tokens: how long they can be, and at what rate."""

from __future__ import annotations

from dataclasses import replace

from analysis import stats
from analysis.charts import Chart, Figure, Row, Styles
from analysis.charts._quantities import utilisation
from analysis.charts._sweep import Sweep, SweepAxis, SweepCell, completed_ids, outcome_counts
from analysis.charts._sweep_lines import lines_over
from analysis.charts._values import names
from analysis.charts.scaling import process_noun
from analysis.verdicts.scaling import longer, processes

_SQL = """\
WITH mine AS (
  SELECT *, count(*) FILTER (outcome = 'completed') OVER (PARTITION BY label) = 1 AS alone
  FROM runs WHERE study = $study AND EXISTS (
    FROM runs WHERE study = $study AND (config ->> '$.parallel.context')::BIGINT > 1)
), times AS (
  SELECT run_id, list(step_seconds ORDER BY step) AS counted_step_seconds
  FROM steps
  WHERE study = $study AND counted AND step_seconds > 0
    AND run_id IN (SELECT run_id FROM mine WHERE alone AND outcome = 'completed')
  GROUP BY run_id
)
SELECT m.label, m.run_id, m.seed, m.repeat, m.outcome, m.scale, m.config, m.processes, m.sequence_length,
  m.step_seconds, m.mfu, m.tflops, m.device, m.gpus, times.counted_step_seconds
FROM mine m LEFT JOIN times ON times.run_id = m.run_id
ORDER BY m.place, m.seed, m.repeat, m.run_id"""


def _build(rows: list[Row], _styles: Styles) -> Figure | None:
    longer_runs = longer(rows)
    if not longer_runs:
        return None
    quantity, note = utilisation(longer_runs)
    estimates = quantity.estimates([row for row in longer_runs if row["outcome"] == "completed"])
    lengths = tuple(sorted({float(row["sequence_length"]) for row in longer_runs}))
    axis = SweepAxis("train.sequence_length", "sequence length", lengths)
    cells = []
    for label, runs in stats.by_label(longer_runs).items():
        count = processes(runs[0])
        cells.append(
            SweepCell(
                label=label,
                at={axis.name: runs[0]["sequence_length"]},
                rest=f"{count} {process_noun(longer_runs, many=count > 1)}",
                estimate=estimates.get(label),
                missing=outcome_counts(runs, label in estimates),
                runs=len(runs),
                shown=completed_ids(runs),
            )
        )
    sweep = Sweep((axis,), {}, tuple(cells), ())
    figure = lines_over(sweep, sweep.by([axis]), quantity, note)
    if figure is None:
        return None

    # The longest samples, on the fewest processes that train them, and where memory ran out.
    done = [(cell, cell.estimate) for cell in cells if cell.estimate]
    longest = max(cell.at[axis.name] for cell, _ in done)
    cell, estimate = next((cell, estimated) for cell, estimated in done if cell.at[axis.name] == longest)
    value = f"{estimate.median:{quantity.number}}{quantity.suffix}"
    once = ", one run" if estimate.n == 1 else ""
    sentence = f"Samples of {axis.of(cell)} tokens train on {cell.rest} at {value} {quantity.name}{once}"
    gone = [f"{axis.of(cell)} on {cell.rest}" for cell in cells if "OOM" in cell.word]
    return replace(figure, finding=f"{sentence}; out of memory at {names(gone)}" if gone else sentence)


chart = Chart(
    title="Scaling",
    page="scaling",
    order=5,
    question="How long can samples be when processes share their tokens, and at what rate are they read?",
    sql=_SQL,
    build=_build,
    applies=lambda rows: bool(longer(rows)),
    empty="No run of context parallelism completed.",
)
