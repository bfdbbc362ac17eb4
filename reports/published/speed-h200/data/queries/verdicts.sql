SELECT c.*, e.* EXCLUDE (certificate), u.audits, u.audits_passed, u.audit_ratio,
  (SELECT list(DISTINCT a.run_id ORDER BY a.run_id) FROM admissions a
   WHERE a.study = 'speed' AND a.certificate = c.key) AS runs
FROM certificates c LEFT JOIN certificate_errors e ON e.certificate = c.key
LEFT JOIN (
  SELECT a.certificate, count(*) AS audits, count(*) FILTER (passed) AS audits_passed,
    max(ratio) AS audit_ratio
  FROM audits JOIN attempts a USING (study, run_id, attempt) WHERE study = 'speed' GROUP BY a.certificate
) u ON u.certificate = c.key
WHERE c.key IN (SELECT certificate FROM admissions WHERE study = 'speed')
ORDER BY c.attention, c.device_name, c.shape, c.created_at, c.key
