SELECT c.*, e.* EXCLUDE (certificate),
  (SELECT list(DISTINCT a.run_id ORDER BY a.run_id) FROM attempts a
   WHERE a.study = 'backends' AND a.certificate = c.key) AS runs
FROM certificates c LEFT JOIN certificate_errors e ON e.certificate = c.key
WHERE c.key IN (SELECT certificate FROM attempts WHERE study = 'backends')
ORDER BY c.attention, c.device_name, c.shape, c.created_at, c.key
