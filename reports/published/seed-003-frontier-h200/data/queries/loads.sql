WITH added AS (
  SELECT node, ended_at, least(cores * (1 - left_over),
    greatest(0, coalesce(load_after - load_before * left_over, cores))) AS load
  FROM (SELECT *, exp(-epoch(ended_at - started_at) / 60) AS left_over FROM attempts WHERE study = 'seed-003-frontier')
),
own AS (
  SELECT a.run_id, a.attempt, sum(b.load * exp(-epoch(a.started_at - b.ended_at) / 60)) AS load
  FROM attempts a
  JOIN added b ON b.node = a.node AND b.ended_at BETWEEN a.started_at - INTERVAL 10 MINUTE AND a.started_at
  WHERE a.study = 'seed-003-frontier'
  GROUP BY ALL
)
SELECT r.run_id, a.device_users, a.cores, a.load_before, a.load_before - coalesce(o.load, 0) AS load_of_others
FROM runs r
JOIN attempts a ON a.study = r.study AND a.run_id = r.run_id
  AND a.attempt = coalesce(r.measured_attempt, r.deciding_attempt)
LEFT JOIN own o ON o.run_id = a.run_id AND o.attempt = a.attempt
WHERE r.study = 'seed-003-frontier' AND r.outcome = 'completed'
  AND (r.task = 'attention' OR r.step_seconds > 0 AND r.tokens_per_step > 0)
ORDER BY r.place, r.seed, r.repeat, r.run_id
