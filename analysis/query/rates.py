"""SQL that several charts and the tables of a report share, so that they show the same numbers."""

from __future__ import annotations

# One row per completed run. It includes the step times after the warm-up: the interval of a group with a
# single run is computed from them.
COMPLETED_RUNS = """\
SELECT r.label, r.run_id, r.seed, r.step_seconds, r.tokens_per_step, r.tokens_per_second, r.mfu, r.tflops,
  r.flop_per_token, r.gpus, r.peak_flops, r.peak_source, r.device, r.counted_records,
  (SELECT list(s.step_seconds ORDER BY s.step) FROM steps s
   WHERE s.study = r.study AND s.run_id = r.run_id AND s.counted) AS counted_step_seconds
FROM runs r
WHERE r.study = $study AND r.outcome = 'completed' AND r.step_seconds IS NOT NULL
ORDER BY r.label, r.seed, r.run_id"""
