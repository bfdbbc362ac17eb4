SELECT s.run_id, list(s.step ORDER BY s.step) AS steps, list(s.loss ORDER BY s.step) AS losses
FROM steps s JOIN runs r ON r.study = s.study AND r.run_id = s.run_id
WHERE r.study = 'scaling' AND r.outcome = 'completed' AND s.step > 0.8 * (
  SELECT min(steps) FROM runs WHERE study = 'scaling' AND outcome = 'completed')
  AND (s.loss IS NOT NULL OR r.imported IS NULL AND r.config ->> '$.task' IS NULL OR list_contains(
  flatten((r.imported -> '$.findings[*].evidence.steps')::BIGINT[][]), s.step))
  AND EXISTS (FROM runs WHERE study = 'scaling' AND design ->> '$.baseline' IS NOT NULL)
GROUP BY s.run_id ORDER BY s.run_id
