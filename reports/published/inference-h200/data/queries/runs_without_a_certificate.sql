SELECT r.attention, r.run_id, r.certificate,
  r.imported IS NOT NULL AS imported,
  coalesce(q.reason, 'it is for ' || c.attention || ' on ' || coalesce(c.device_name, 'no device')) AS reason
FROM runs r
LEFT JOIN certificates c ON c.key = r.certificate
LEFT JOIN quarantine q ON q.study = '.certificates' AND q.run_id = r.certificate
WHERE r.study = 'inference' AND (r.node IS NOT NULL OR r.imported IS NOT NULL) AND r.verdict IS NULL
  AND NOT EXISTS (FROM kernels k WHERE k.study = r.study AND k.run_id = r.run_id)
UNION
SELECT k.attention, k.run_id, k.certificate, false,
  coalesce(q.reason, 'it is for ' || c.attention || ' on ' || coalesce(c.device_name, 'no device'))
FROM kernels k JOIN deciding_attempts USING (study, run_id, attempt)
LEFT JOIN certificates c ON c.key = k.certificate
LEFT JOIN quarantine q ON q.study = '.certificates' AND q.run_id = k.certificate
WHERE k.study = 'inference' AND k.outcome = 'completed'
  AND (c.key IS NULL OR c.attention <> k.attention OR coalesce(c.device_name <> k.device, false))
ORDER BY attention, certificate NULLS FIRST, run_id
