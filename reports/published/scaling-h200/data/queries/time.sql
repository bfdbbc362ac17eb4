SELECT label, r.run_id, seed, repeat, steps, attempts, round(startup_seconds, 6) AS startup_seconds,
  round(first_step_seconds, 6) AS first_step_seconds,
  round(r.training_seconds - first_step_seconds, 6) AS steps_seconds,
  round(CASE WHEN startup_seconds IS NOT NULL
    THEN greatest(0, wall_seconds - startup_seconds - r.training_seconds) END, 6) AS rest_seconds
FROM runs r JOIN run_measures m ON m.study = r.study AND m.run_id = r.run_id
WHERE r.study = 'scaling' AND outcome = 'completed' AND r.training_seconds IS NOT NULL
ORDER BY place, seed, repeat, r.run_id
