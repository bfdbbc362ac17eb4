SELECT attention, dtype, string_agg(DISTINCT direction, ', ' ORDER BY direction DESC) AS directions,
  string_agg(DISTINCT mode, ', ' ORDER BY mode) AS modes, outcome, reason, count(DISTINCT run_id) AS runs,
  string_agg(DISTINCT run_id, ' ' ORDER BY run_id) AS run_ids
FROM kernels JOIN deciding_attempts USING (study, run_id, attempt)
WHERE study = 'backends' AND outcome <> 'completed'
GROUP BY attention, dtype, outcome, reason ORDER BY attention, dtype, outcome, reason
