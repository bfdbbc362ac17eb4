SELECT s.run_id, s.step,
  CASE WHEN s.step > 500 AND (s.loss IS NOT NULL OR r.imported IS NULL AND r.config ->> '$.task' IS NULL OR list_contains(
  flatten((r.imported -> '$.findings[*].evidence.steps')::BIGINT[][]), s.step)) THEN coalesce(s.loss, 'nan') END,
  CASE WHEN s.counted AND s.step_seconds > 0 AND s.run_id IN ('log-e666c8d74274', 'log-905cb8fae31f', 'log-5945a409e013', 'log-594f338243d4', 'log-3c631988f567') THEN s.step_seconds END
FROM steps s JOIN run_records r ON r.study = s.study AND r.run_id = s.run_id
WHERE s.study = 'lsai' AND (s.step > 500 OR s.run_id IN ('log-e666c8d74274', 'log-905cb8fae31f', 'log-5945a409e013', 'log-594f338243d4', 'log-3c631988f567')) ORDER BY s.run_id, s.step
