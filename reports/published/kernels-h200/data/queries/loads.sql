SELECT r.run_id, a.device_users, a.cores, a.load_before,
  a.load_before - CASE WHEN b.ended_at IS NULL THEN 0
    ELSE b.load_after * exp(-epoch(a.started_at - b.ended_at) / 60) END AS load_of_others
FROM runs r
JOIN attempts a ON a.study = r.study AND a.run_id = r.run_id
  AND a.attempt = coalesce(r.measured_attempt, r.deciding_attempt)
ASOF LEFT JOIN attempts b ON b.study = a.study AND b.node = a.node AND b.ended_at <= a.started_at
WHERE r.study = 'kernels' AND r.outcome = 'completed'
  AND (r.task = 'attention' OR r.step_seconds > 0 AND r.tokens_per_step > 0)
ORDER BY r.place, r.seed, r.repeat, r.run_id
