SELECT r.label, r.place, r.seed, r.repeat, r.attention, r.device, p.* EXCLUDE (study, attempt, measured_at)
FROM probes p JOIN deciding_attempts d USING (study, run_id, attempt) JOIN runs r USING (study, run_id)
WHERE p.study = 'backends'
ORDER BY r.place, r.seed, r.repeat, p.run_id, p.number
