SELECT r.label, r.run_id, p.phase, sum(p.seconds) AS seconds,
  any_value(if(p.phase = 'decode', r.decode_seconds, r.step_seconds)) AS timed_seconds,
  sum(p.seconds) FILTER (p.part = 'attention') AS attention,
  sum(f.seconds) FILTER (p.part = 'attention') AS least_attention
FROM runs r
JOIN step_profile p ON p.study = r.study AND p.run_id = r.run_id AND p.attempt = r.measured_attempt
LEFT JOIN step_floor f ON f.study = p.study AND f.run_id = p.run_id AND f.attempt = p.attempt
  AND f.phase = p.phase AND f.part = p.part
WHERE r.study = 'seed-002' AND r.outcome = 'completed'
GROUP BY r.label, r.run_id, r.place, p.phase
ORDER BY r.place, r.run_id, p.phase
