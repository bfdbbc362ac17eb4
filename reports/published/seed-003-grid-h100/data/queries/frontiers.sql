SELECT r.label, r.place, r.seed, r.repeat, r.attention, r.device, r.outcome AS run_outcome, f.* EXCLUDE (study, attempt),
  (r.config ->> '$.frontier.resolution')::DOUBLE AS resolution
FROM frontiers f JOIN runs r USING (study, run_id)
WHERE f.study = 'seed-003-grid'
ORDER BY r.place, r.seed, r.repeat, f.run_id
