WITH profiles AS (
  SELECT run_id, attempt, sum(seconds) FILTER (part = 'products') AS products, sum(seconds) FILTER (part = 'attention') AS attention, sum(seconds) FILTER (part = 'loss') AS loss, sum(seconds) FILTER (part = 'optimizer') AS optimizer, sum(seconds) FILTER (part = 'elementwise') AS elementwise, sum(seconds) FILTER (part = 'copies') AS copies, sum(seconds) FILTER (part = 'communication') AS communication, sum(seconds) FILTER (part = 'idle') AS idle, sum(hidden_seconds) FILTER (part = 'communication') AS hidden
  FROM step_profile WHERE study = 'backends' GROUP BY run_id, attempt
)
SELECT r.label, r.run_id, r.seed, r.repeat, r.gpus, r.processes, r.scale, r.config, r.factors,
  r.batch_size, r.sequence_length, r.tokens_per_step, r.created_at, p.* EXCLUDE (run_id, attempt)
FROM runs r
JOIN profiles p ON p.run_id = r.run_id AND p.attempt = r.measured_attempt
WHERE r.study = 'backends' AND r.outcome = 'completed' AND r.tokens_per_step > 0
ORDER BY r.place, r.seed, r.repeat, r.run_id
