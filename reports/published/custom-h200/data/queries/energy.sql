SELECT label, run_id, seed, repeat, joules_per_token
FROM runs
WHERE study = 'backends' AND outcome = 'completed' AND joules_per_token IS NOT NULL
ORDER BY place, seed, repeat, run_id
