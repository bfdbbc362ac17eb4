SELECT s.run_id, s.step,
  CASE WHEN s.step > 500 AND (s.loss IS NOT NULL OR r.imported IS NULL AND r.config ->> '$.task' IS NULL OR list_contains(
  flatten((r.imported -> '$.findings[*].evidence.steps')::BIGINT[][]), s.step)) THEN coalesce(s.loss, 'nan') END,
  CASE WHEN s.counted AND s.step_seconds > 0 AND s.run_id IN ('2c06e6dd0497', 'ee61bfab030f', '67b30dfc808d', '8161db7ddbae', '6a852ff30ddc', '61c18873ca83', '20efea5f50f1', 'cb562269148f', '4a032d3a772e') THEN s.step_seconds END
FROM steps s JOIN run_records r ON r.study = s.study AND r.run_id = s.run_id
WHERE s.study = 'backends' AND (s.step > 500 OR s.run_id IN ('2c06e6dd0497', 'ee61bfab030f', '67b30dfc808d', '8161db7ddbae', '6a852ff30ddc', '61c18873ca83', '20efea5f50f1', 'cb562269148f', '4a032d3a772e')) ORDER BY s.run_id, s.step
