WITH profiles AS (
  SELECT run_id, attempt, sum(seconds) FILTER (part = 'products') AS products, sum(seconds) FILTER (part = 'attention') AS attention, sum(seconds) FILTER (part = 'loss') AS loss, sum(seconds) FILTER (part = 'optimizer') AS optimizer, sum(seconds) FILTER (part = 'elementwise') AS elementwise, sum(seconds) FILTER (part = 'copies') AS copies, sum(seconds) FILTER (part = 'communication') AS communication, sum(seconds) FILTER (part = 'idle') AS idle, sum(hidden_seconds) FILTER (part = 'communication') AS hidden
  FROM step_profile WHERE study = 'scaling' GROUP BY run_id, attempt
), measured AS (
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
)
SELECT m.*, p.products AS products_part, p.attention AS attention_part, p.loss AS loss_part, p.optimizer AS optimizer_part, p.elementwise AS elementwise_part, p.copies AS copies_part, p.communication AS communication_part, p.idle AS idle_part, p.hidden AS hidden_part, p.run_id IS NOT NULL AS profiled
FROM measured m LEFT JOIN profiles p ON p.run_id = m.run_id AND p.attempt = m.measured_attempt
ORDER BY m.place, m.seed, m.repeat, m.run_id
