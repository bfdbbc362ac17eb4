WITH profiles AS (
  SELECT run_id, attempt, sum(seconds) FILTER (part = 'products') AS products, sum(seconds) FILTER (part = 'attention') AS attention, sum(seconds) FILTER (part = 'loss') AS loss, sum(seconds) FILTER (part = 'optimizer') AS optimizer, sum(seconds) FILTER (part = 'elementwise') AS elementwise, sum(seconds) FILTER (part = 'copies') AS copies, sum(seconds) FILTER (part = 'communication') AS communication, sum(seconds) FILTER (part = 'idle') AS idle, sum(hidden_seconds) FILTER (part = 'communication') AS hidden, bool_or(by_name) AS by_name
  FROM step_profile WHERE study = 'lsai' AND phase = 'step' GROUP BY run_id, attempt
), floors AS (
  SELECT run_id, attempt, sum(seconds) FILTER (part = 'products') AS least_products, sum(seconds) FILTER (part = 'attention') AS least_attention, sum(seconds) FILTER (part = 'loss') AS least_loss, sum(seconds) FILTER (part = 'optimizer') AS least_optimizer, sum(seconds) FILTER (part = 'elementwise') AS least_elementwise
  FROM step_floor WHERE study = 'lsai' AND phase = 'step' GROUP BY run_id, attempt
)
SELECT r.label, r.run_id, r.seed, r.repeat, r.gpus, r.step_seconds AS timed_seconds, r.floor_seconds, r.floor_percentage, false AS in_graphs,
  p.* EXCLUDE (run_id, attempt) REPLACE (coalesce(p.by_name, coalesce(r.config->>'$.train.compile', r.config->>'$.inference.compile')::BOOLEAN, false) AS by_name),
  f.* EXCLUDE (run_id, attempt)
FROM runs r
JOIN profiles p ON p.run_id = r.run_id AND p.attempt = r.measured_attempt
LEFT JOIN floors f ON f.run_id = r.run_id AND f.attempt = r.measured_attempt
WHERE r.study = 'lsai' AND r.outcome = 'completed'
ORDER BY r.place, r.seed, r.repeat, r.run_id
