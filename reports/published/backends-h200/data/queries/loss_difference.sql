WITH declared AS (  -- the baseline of the run that was planned last; a margin only if all runs state the same
  SELECT arg_max(coalesce(design ->> '$.baseline.attention', ''), created_at) AS baseline,
    CASE WHEN count(DISTINCT coalesce(design ->> '$.margins.loss', '')) = 1
      THEN any_value(design ->> '$.margins.loss')::DOUBLE END AS margin
  FROM run_records WHERE study = 'backends'
), known AS (
  SELECT row_number() OVER (ORDER BY run_id)::INTEGER AS run, place::INTEGER AS place,
    run_id, label, seed, outcome, attention, warmup_steps
  FROM runs WHERE study = 'backends'
), size AS (
  SELECT CASE WHEN count(*) > 1250 THEN 32 ELSE 256 END AS most,
    greatest(20, least(200, 20000 // count(DISTINCT label))) AS points
  FROM known
), bins AS (
  SELECT most, (ceil(max(step) / any_value(points) / max(width)) * max(width))::BIGINT AS width
  FROM curves JOIN size USING (most) WHERE study = 'backends' AND losses > 0 GROUP BY most
), points AS (
  SELECT k.run, k.place, ((step - 1) // b.width)::INTEGER AS bin,
    first_step, step, records, losses, loss, tokens, seconds
  FROM curves c JOIN bins b USING (most) JOIN known k USING (run_id) WHERE study = 'backends' AND losses > 0
), alike AS (  -- runs that differ by attention alone read the same tokens
  SELECT run, dense_rank() OVER (ORDER BY md5_number(
      json_merge_patch(config, '{"attention": null, "data": {"path": null}}')::VARCHAR),
      data_fingerprint)::INTEGER AS rest,
    dense_rank() OVER (ORDER BY known.attention)::INTEGER AS backend,
    coalesce(known.attention = baseline, false) AS is_baseline
  FROM run_records JOIN known USING (run_id), declared WHERE study = 'backends'
), traces AS (
  SELECT run, place, bin, rest, backend, is_baseline, sum(loss * losses) / sum(losses) AS loss,
    min(first_step) AS first, max(step) AS last,  -- only bins of the same steps are compared
    sum(losses)::BIGINT AS n
  FROM points JOIN alike USING (run) GROUP BY run, place, bin, rest, backend, is_baseline
), backends AS (
  SELECT rest, bin, first, last, n, backend, is_baseline, favg(loss) AS loss FROM traces GROUP BY ALL
), sets AS (
  SELECT rest, bin, first, last, n, list_sort(list(loss)) AS all_losses, count(*) AS backends,
    max(loss) FILTER (is_baseline) AS base
  FROM backends GROUP BY ALL
), others AS (  -- a backend is not among those that it is compared with
  SELECT b.* EXCLUDE (loss), CASE
    WHEN baseline <> '' THEN CASE WHEN NOT is_baseline THEN base END
    ELSE (all_losses[backends // 2 + (all_losses[backends // 2] >= loss)::INT]
      + all_losses[(backends + 1) // 2 + (all_losses[(backends + 1) // 2] >= loss)::INT]) / 2 END AS loss
  FROM backends b JOIN sets USING (rest, bin, first, last, n), declared
  WHERE baseline <> '' OR backends > 2
), compared AS (
  SELECT t.run, t.place, t.bin, t.last, t.loss - o.loss AS difference
  FROM traces t JOIN others o USING (rest, bin, first, last, n, backend) WHERE o.loss IS NOT NULL
), differences AS (
  SELECT place, bin, max(last) AS step, round(favg(difference), 9) AS difference, count(*) AS n
  FROM compared GROUP BY place, bin
), groups AS (
  SELECT place, any_value(label) AS label, list(run_id ORDER BY run_id) AS run_ids
  FROM known WHERE run IN (SELECT run FROM compared) GROUP BY place
), smoothing AS (  -- a tenth of the points
  SELECT count(DISTINCT bin) // 20 AS half FROM traces
)
SELECT label, step, n,
  CASE WHEN bin = min(bin) OVER (PARTITION BY place) THEN run_ids END AS run_ids,
  difference, 2 * half + 1 AS points, round(avg(difference) OVER nearby, 9) AS value,
  nullif(baseline, '') AS baseline, margin,
  (SELECT list(DISTINCT run_id ORDER BY run_id) FROM alike JOIN known USING (run)
    WHERE is_baseline AND rest IN (SELECT rest FROM others WHERE loss IS NOT NULL)
  ) AS baseline_run_ids
FROM differences JOIN groups USING (place), declared, smoothing
WINDOW nearby AS (PARTITION BY place ORDER BY bin ROWS BETWEEN half PRECEDING AND half FOLLOWING)
ORDER BY place, step
