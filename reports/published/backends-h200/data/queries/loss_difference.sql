WITH alike AS (  -- runs that differ by attention alone read the same tokens; a path says nothing
  SELECT run_id, dense_rank() OVER (
    ORDER BY json_merge_patch(config, '{"attention": null, "data": {"path": null}}')::VARCHAR,
      data_fingerprint) AS rest
  FROM run_records WHERE study = 'backends'
), declared AS (  -- the baseline of the run that was planned last; a margin only if all runs state the same
  SELECT arg_max(coalesce(design ->> '$.baseline.attention', ''), created_at) AS baseline,
    CASE WHEN count(DISTINCT coalesce(design ->> '$.margins.loss', '')) = 1
      THEN any_value(design ->> '$.margins.loss')::DOUBLE END AS margin
  FROM run_records WHERE study = 'backends'
), size AS (
  SELECT CASE WHEN count(*) > 1250 THEN 32 ELSE 256 END AS most,
    greatest(20, least(200, 20000 // count(DISTINCT label))) AS points
  FROM runs WHERE study = 'backends'
), bins AS (
  SELECT most, (ceil(max(step) / any_value(points) / max(width)) * max(width))::BIGINT AS width
  FROM curves JOIN size USING (most) WHERE study = 'backends' AND losses > 0 GROUP BY most
), points AS (
  SELECT c.*, (step - 1) // b.width AS bin
  FROM curves c JOIN bins b USING (most) WHERE study = 'backends' AND losses > 0
), traces AS (
  SELECT run_id, bin, sum(loss * losses) / sum(losses) AS loss,
    min(first_step) AS first, max(step) AS last, sum(losses) AS n  -- only bins of the same steps are compared
  FROM points GROUP BY run_id, bin
), named AS (
  SELECT r.label, r.place, r.attention, a.rest, t.*
  FROM traces t JOIN runs r USING (run_id) JOIN alike a USING (run_id) WHERE r.study = 'backends'
), backends AS (
  SELECT rest, bin, first, last, n, attention, avg(loss) AS loss FROM named GROUP BY ALL
), sets AS (
  SELECT rest, bin, first, last, n, list_sort(list(loss)) AS all_losses, count(*) AS backends,
    max(loss) FILTER (attention = baseline) AS base
  FROM backends, declared GROUP BY ALL
), others AS (  -- a backend is not among those that it is compared with
  SELECT b.* EXCLUDE (loss), CASE
    WHEN baseline <> '' THEN CASE WHEN b.attention <> baseline THEN base END
    ELSE (all_losses[backends // 2 + (all_losses[backends // 2] >= loss)::INT]
      + all_losses[(backends + 1) // 2 + (all_losses[(backends + 1) // 2] >= loss)::INT]) / 2 END AS loss
  FROM backends b JOIN sets USING (rest, bin, first, last, n), declared
  WHERE baseline <> '' OR backends > 2
), differences AS (
  SELECT t.label, t.place, bin, max(last) AS step, round(avg(t.loss - o.loss), 9) AS difference,
    count(*) AS n, list(t.run_id ORDER BY t.run_id) AS run_ids,
    (SELECT count(DISTINCT bin) // 20 FROM traces) AS half  -- a window of a tenth of the points
  FROM named t JOIN others o USING (rest, bin, first, last, n, attention)
  WHERE o.loss IS NOT NULL
  GROUP BY t.label, t.place, bin
)
SELECT label, step, n, run_ids, difference, 2 * half + 1 AS points,
  round(avg(difference) OVER nearby, 9) AS value, nullif(baseline, '') AS baseline, margin,
  (SELECT list(DISTINCT t.run_id ORDER BY t.run_id) FROM named t
    WHERE t.attention = baseline AND t.rest IN (SELECT rest FROM others WHERE loss IS NOT NULL)
  ) AS baseline_run_ids
FROM differences, declared
WINDOW nearby AS (PARTITION BY label ORDER BY bin ROWS BETWEEN half PRECEDING AND half FOLLOWING)
ORDER BY place, step
