"""SQL that several charts and the tables of a report share, so that they show the same numbers."""

from __future__ import annotations

# One row per completed run. The interval of a group with a single run, or with a single one whose rate is
# known, is computed from that run's step times after the warm-up; no other run's step times are given.
COMPLETED_RUNS = """\
WITH done AS (
  SELECT label, place, run_id, seed, repeat, step_seconds, tokens_per_step, tokens_per_second, mfu, tflops,
    flop_per_token, task, gpus, peak_flops, peak_source, device, counted_records,
    count(*) OVER alike = 1 OR (mfu IS NOT NULL AND count(mfu) OVER alike = 1)
      OR (tflops IS NOT NULL AND count(tflops) OVER alike = 1) AS alone
  FROM runs
  WHERE study = $study AND outcome = 'completed' AND step_seconds > 0
  WINDOW alike AS (PARTITION BY label)
), times AS (
  SELECT run_id, list(step_seconds ORDER BY step) AS counted_step_seconds
  FROM steps
  WHERE study = $study AND counted AND step_seconds > 0 AND run_id IN (SELECT run_id FROM done WHERE alone)
  GROUP BY run_id
)
SELECT done.* EXCLUDE (alone), times.counted_step_seconds
FROM done LEFT JOIN times ON times.run_id = done.run_id
ORDER BY place, seed, repeat, done.run_id"""
# A run's median position takes the place of its median step, and its positions that of its steps.
DECODED_RUNS = """\
WITH done AS (
  SELECT label, place, run_id, seed, repeat, deciding_attempt, batch_size, decode_seconds AS step_seconds
  FROM runs
  WHERE study = $study AND outcome = 'completed' AND decode_seconds > 0
), times AS (
  SELECT d.run_id, list(d.seconds ORDER BY d.position) AS counted_step_seconds
  FROM decoding d JOIN done ON d.run_id = done.run_id AND d.attempt = done.deciding_attempt
  WHERE d.study = $study AND d.seconds > 0
  GROUP BY d.run_id
)
SELECT done.* EXCLUDE (deciding_attempt), times.counted_step_seconds
FROM done JOIN times ON times.run_id = done.run_id
ORDER BY place, seed, repeat, done.run_id"""
