SELECT r.run_id, r.label, r.device_users, a.load_before, a.cores
FROM runs r
JOIN attempts a ON a.study = r.study AND a.run_id = r.run_id AND a.attempt = r.deciding_attempt
WHERE r.study = 'kernels' AND r.outcome = 'completed' AND r.task = 'attention'
ORDER BY r.place, r.seed, r.repeat, r.run_id
