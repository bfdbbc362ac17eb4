WITH done AS (
  SELECT *, count(*) OVER (PARTITION BY label) = 1 AS alone,
    json_contains(factors, design -> '$.baseline') IS TRUE AS is_baseline
  FROM runs
  WHERE study = 'scaling' AND outcome = 'completed' AND step_seconds > 0 AND tokens_per_step > 0
), times AS (
  SELECT run_id, list(step_seconds ORDER BY step) AS counted_step_seconds
  FROM steps
  WHERE study = 'scaling' AND counted AND step_seconds > 0 AND run_id IN (
    SELECT run_id FROM done WHERE alone OR is_baseline AND EXISTS (FROM done WHERE alone))
  GROUP BY run_id
)
SELECT d.* EXCLUDE (alone, is_baseline), t.counted_step_seconds,
  a.load_before, a.load_after, a.cores, a.resumed_step
FROM done d
JOIN attempts a ON a.study = d.study AND a.run_id = d.run_id AND a.attempt = d.measured_attempt
LEFT JOIN times t ON t.run_id = d.run_id
ORDER BY d.place, d.seed, d.repeat, d.run_id
