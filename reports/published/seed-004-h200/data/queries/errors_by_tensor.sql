SELECT e.attention, e.tensor, e.relative_error, e.relative_error_shape, e.ratio, e.measured, e.tolerance,
  e.name, e.variant, e.shape, e.checks, e.failed, c.shape AS run_shape, c.device_name, e.certificate,
  (SELECT list(DISTINCT a.run_id ORDER BY a.run_id) FROM admissions a
   WHERE a.study = 'seed-004' AND a.certificate = c.key) AS runs
FROM tensor_errors e JOIN certificates c ON c.key = e.certificate
WHERE c.key IN (SELECT certificate FROM admissions WHERE study = 'seed-004')
ORDER BY e.attention, c.shape, c.created_at, e.certificate,
  list_position(['o', 'dq', 'dk', 'dv'], e.tensor)
