"""Model FLOPs utilisation, or model TFLOP/s, over two numeric axes of the study, as heat maps."""

from __future__ import annotations

from analysis.charts import Chart
from analysis.charts._quantities import utilisation
from analysis.charts._sweep import mapped
from analysis.charts._sweep_map import figure
from analysis.query.sweeps import SWEEP_RUNS

chart = Chart(
    title="MFU over two axes",
    page="sweeps",
    order=7,
    question="How does the use of the device change with two numeric axes at once?",
    sql=SWEEP_RUNS,
    build=lambda rows, _styles: figure(rows, *utilisation(rows)),
    applies=mapped,
    empty="No run of this sweep completed with step records after the warm-up and a known FLOP count.",
)
