SELECT r.*,
  r.tokens_per_step / q.step_seconds_75 AS tokens_per_second_low,
  r.tokens_per_step / q.step_seconds_25 AS tokens_per_second_high,
  a.why, a.command, a.version, a.study_file, a.tokenizer, a.overridden, a.scale_description,
  a.reported_elsewhere, a.label AS given_label, q.highest_learning_rate,
  a.position AS position_in_root
FROM runs r
JOIN run_records a ON a.study = r.study AND a.run_id = r.run_id
LEFT JOIN run_measures q ON q.study = r.study AND q.run_id = r.run_id
WHERE r.study = 'seed-002'
ORDER BY r.place, r.seed, r.repeat, r.run_id
