SELECT label, run_id, seed, repeat, steps, training_seconds, wall_seconds, attempts
FROM runs
WHERE study = 'backends' AND outcome = 'completed' AND training_seconds IS NOT NULL
ORDER BY place, seed, repeat, run_id
