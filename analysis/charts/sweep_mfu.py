"""Model FLOPs utilisation, or model TFLOP/s, over a numeric axis of the study."""

from __future__ import annotations

from analysis.charts import Chart
from analysis.charts._quantities import utilisation
from analysis.charts._sweep import swept
from analysis.charts._sweep_lines import figure
from analysis.query.sweeps import SWEEP_RUNS

chart = Chart(
    title="MFU over an axis",
    page="sweeps",
    order=7,
    question="How does the use of the device change along the study's numeric axes?",
    sql=SWEEP_RUNS,
    build=lambda rows, _styles: figure(rows, *utilisation(rows)),
    applies=swept,
    empty="No run of this sweep completed with step records after the warm-up and a known FLOP count.",
)
