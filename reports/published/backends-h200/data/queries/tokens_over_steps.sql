WITH size AS (
  SELECT CASE WHEN count(*) > 1250 THEN 32 ELSE 256 END AS most,
    greatest(20, least(100, 20000 // count(DISTINCT label))) AS points
  FROM runs WHERE study = 'backends'
), bins AS (
  SELECT most, (ceil(max(step) / any_value(points) / max(width)) * max(width))::BIGINT AS width
  FROM curves JOIN size USING (most) WHERE study = 'backends' AND tokens > 0 GROUP BY most
), points AS (
  SELECT c.*, (step - 1) // b.width AS bin
  FROM curves c JOIN bins b USING (most) WHERE study = 'backends' AND tokens > 0
), traces AS (
  SELECT run_id, bin, max(step) AS step, sum(tokens) AS tokens, sum(seconds) AS seconds
  FROM points GROUP BY run_id, bin
)
SELECT label, max(step) AS step, round(sum(tokens) / sum(seconds), 6) AS value, count(*) AS n,
  list(run_id ORDER BY run_id) AS run_ids, max(warmup_steps) AS warmup_steps
FROM traces JOIN runs r USING (run_id) WHERE r.study = 'backends'
GROUP BY label, bin HAVING sum(seconds) > 0
ORDER BY label, step
