SELECT attention, mode, outcome, reason, count(DISTINCT run_id) AS runs
FROM kernels JOIN deciding_attempts USING (study, run_id, attempt)
WHERE study = 'seed-003-frontier' AND outcome <> 'completed'
GROUP BY ALL ORDER BY attention, mode, outcome, reason
