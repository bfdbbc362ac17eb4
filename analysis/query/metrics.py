"""Tables of a study's groups, with the columns that reports of such studies have."""

from __future__ import annotations

_MIDDLE = (
    "sqrt(quantile_disc({0}, 0.5) * -quantile_disc(-{0}, 0.5))"  # of two in the middle the geometric mean
)
_RATE, _MFU, _TFLOPS = (_MIDDLE.format(name) for name in ("tokens_per_second", "mfu", "tflops"))
_DONE = """\
WHERE study = $study AND outcome = 'completed'
GROUP BY label, place
ORDER BY place"""
# Medians over the completed runs, of each run's median step after the warm-up.
TRAINING_METRICS = f"""\
SELECT label AS "Model",
  round({_RATE}, 2) AS "Tokens/sec",
  round(median(training_tokens_percentage), 2) AS "Train token %",
  round({_MFU}, 2) AS "MFU %",
  round({_TFLOPS}, 2) AS "TFLOP/s"
FROM runs
{_DONE}"""
# The loss is the median over seeds; repeats of a seed count once, as their mean: analysis.verdicts.losses.
TRAINING_SUMMARY = f"""\
WITH seeds AS (
  SELECT label, seed, favg(final_loss) AS loss FROM runs
  WHERE study = $study AND outcome = 'completed' GROUP BY label, seed
), losses AS (
  SELECT label, median(loss) AS loss FROM seeds GROUP BY label
)
SELECT label AS "Backend",
  count(*) AS "Runs",
  round(any_value(loss), 4) AS "Training loss",
  round({_RATE})::BIGINT AS "Tokens/sec",
  round({_MFU}, 1) AS "MFU %",
  round(median(wall_seconds) / 60, 1) AS "Training time, min",
  round(median(peak_memory_bytes) / 2**30, 1) AS "Peak memory, GiB"
FROM runs JOIN losses USING (label)
{_DONE}"""
# Of a prompt and of a decoded position: medians over the completed runs, of each run's median.
INFERENCE_SUMMARY = f"""\
SELECT label AS "Backend",
  count(*) AS "Runs",
  round(1000 * {_MIDDLE.format("step_seconds")}, 3) AS "Prefill, ms",
  round({_RATE})::BIGINT AS "Tokens/sec",
  round({_MFU}, 1) AS "MFU %",
  round({_MIDDLE.format("floor_percentage")}, 1) AS "Prefill floor, %",
  round(1000 * {_MIDDLE.format("decode_seconds")}, 3) AS "Decoded token, ms",
  round({_MIDDLE.format("decode_floor_percentage")}, 1) AS "Decode floor, %",
  round(median(peak_memory_bytes) / 2**30, 1) AS "Peak memory, GiB"
FROM runs
{_DONE}"""


def of(infers: bool) -> dict[str, str]:
    """The tables of a study of inference, or of training, by name."""
    if infers:
        return {"inference_summary": INFERENCE_SUMMARY}
    return {"training_metrics": TRAINING_METRICS, "training_summary": TRAINING_SUMMARY}
