WITH done AS (
  SELECT label, place, run_id, seed, repeat, step_seconds, tokens_per_step, tokens_per_second, mfu, tflops,
    flop_per_token, task, gpus, peak_flops, peak_source, device, counted_records,
    count(*) OVER alike = 1 OR (mfu IS NOT NULL AND count(mfu) OVER alike = 1)
      OR (tflops IS NOT NULL AND count(tflops) OVER alike = 1) AS alone
  FROM runs
  WHERE study = 'fp8' AND outcome = 'completed' AND step_seconds > 0
  WINDOW alike AS (PARTITION BY label)
), times AS (
  SELECT run_id, list(step_seconds ORDER BY step) AS counted_step_seconds
  FROM steps
  WHERE study = 'fp8' AND counted AND step_seconds > 0 AND run_id IN (SELECT run_id FROM done WHERE alone)
  GROUP BY run_id
)
SELECT done.* EXCLUDE (alone), times.counted_step_seconds
FROM done LEFT JOIN times ON times.run_id = done.run_id
ORDER BY place, seed, repeat, done.run_id
