WITH size AS (
  SELECT CASE WHEN count(*) > 1250 THEN 32 ELSE 256 END AS most,
    greatest(20, least(200, 20000 // count(DISTINCT label))) AS points
  FROM runs WHERE study = 'backends'
), bins AS (
  SELECT most, (ceil(max(step) / any_value(points) / max(width)) * max(width))::BIGINT AS width
  FROM curves JOIN size USING (most) WHERE study = 'backends' AND true GROUP BY most
), points AS (
  SELECT c.*, (step - 1) // b.width AS bin
  FROM curves c JOIN bins b USING (most) WHERE study = 'backends' AND true
), binned AS (
  SELECT run_id, bin, max(step) AS step, sum(records) AS records, sum(losses) AS losses,
    sum(loss * losses) / sum(losses) AS loss
  FROM points GROUP BY run_id, bin
), traces AS (  -- unknown if one of the losses is not finite
  SELECT r.label, run_id, r.seed, r.outcome, bin, step,
    CASE WHEN losses = records THEN round(loss, 9) END AS loss
  FROM binned JOIN runs r USING (run_id) WHERE r.study = 'backends'
), ends AS (
  SELECT label, run_id, seed, outcome, max(step) FILTER (loss IS NOT NULL) AS step,
    arg_max(loss, step) FILTER (loss IS NOT NULL) AS loss
  FROM traces GROUP BY label, run_id, seed, outcome
), sizes AS (
  SELECT label, count(*) AS runs FROM ends GROUP BY label
), groups AS (  -- only where every run of the group has a loss
  SELECT label, bin, max(step) AS step, avg(loss) AS loss, count(*) AS n,
    (SELECT count(DISTINCT bin) // 40 FROM traces) AS half  -- a window of a twentieth of the points
  FROM traces GROUP BY label, bin
  HAVING count(loss) = (SELECT runs FROM sizes WHERE sizes.label = traces.label)
), drawn AS (  -- the traces of at most 100 runs: the first of each group, the second of each, and so on
  SELECT run_id FROM (
    SELECT run_id, label, row_number() OVER (PARTITION BY label ORDER BY seed, run_id) AS turn FROM ends)
  ORDER BY turn, label LIMIT 100
)
SELECT 'run' AS kind, label, run_id, seed, outcome, step, loss AS value, 1 AS n, 1 AS points
FROM traces WHERE run_id IN (FROM drawn)
UNION ALL  -- of the other runs, where they ended
SELECT 'end', label, run_id, seed, outcome, step, loss, 1, 1 FROM ends WHERE run_id NOT IN (FROM drawn)
UNION ALL
SELECT 'group', label, NULL, NULL, NULL, step,
  round(avg(loss) OVER (PARTITION BY label ORDER BY bin ROWS BETWEEN half PRECEDING AND half FOLLOWING), 9),
  n, 2 * half + 1
FROM groups
ORDER BY kind, label, run_id, step
