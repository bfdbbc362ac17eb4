WITH firsts AS (
  SELECT run_id, attempt, arg_min(time, step) AS time, arg_min(step_seconds, step) AS seconds,
    arg_min(steps, step) AS steps, arg_min(superseded, step) AS superseded
  FROM step_records WHERE study = 'backends' GROUP BY run_id, attempt
), begun AS (
  SELECT f.run_id,
    sum(greatest(0, date_diff('microsecond', a.started_at, f.time) / 1e6 - f.seconds * f.steps)) AS startup,
    sum(greatest(0, (f.seconds - r.step_seconds) * f.steps)) FILTER (NOT f.superseded) AS first_step
  FROM firsts f
  JOIN runs r ON r.study = 'backends' AND r.run_id = f.run_id
  JOIN attempts a ON a.study = 'backends' AND a.run_id = f.run_id AND a.attempt = f.attempt
  GROUP BY f.run_id
)
SELECT label, r.run_id, seed, repeat, steps, attempts, round(startup, 6) AS startup_seconds,
  round(first_step, 6) AS first_step_seconds, round(training_seconds - first_step, 6) AS steps_seconds,
  round(greatest(0, wall_seconds - startup - training_seconds), 6) AS rest_seconds
FROM runs r LEFT JOIN begun b ON b.run_id = r.run_id
WHERE study = 'backends' AND outcome = 'completed' AND training_seconds IS NOT NULL
ORDER BY place, seed, repeat, r.run_id
