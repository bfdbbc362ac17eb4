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
  SELECT k.run, k.place, ((step - 1) // b.width)::INTEGER AS bin, c.width = b.width AS whole,
    first_step, step, records, losses, loss, tokens, seconds
  FROM curves c JOIN bins b USING (most) JOIN known k USING (run_id) WHERE study = 'backends' AND losses > 0
), alike AS (  -- runs that differ by attention alone read the same tokens
  SELECT run, dense_rank() OVER (ORDER BY other_settings)::INTEGER AS rest,
    dense_rank() OVER (ORDER BY attention)::INTEGER AS backend,
    coalesce(attention = baseline, false) AS is_baseline
  FROM comparable JOIN known USING (run_id), declared WHERE study = 'backends'
), binned AS (
  SELECT run, place, bin, first_step AS first, step AS last, losses AS n, loss * losses / losses AS loss
  FROM points WHERE whole
  UNION ALL
  SELECT run, place, bin, min(first_step), max(step), sum(losses)::BIGINT, sum(loss * losses) / sum(losses)
  FROM points WHERE NOT whole GROUP BY run, place, bin
), spans AS (  -- only bins of the same steps are compared
  SELECT *, row_number() OVER ()::INTEGER AS span FROM (SELECT DISTINCT bin, first, last, n FROM binned)
), traces AS (
  SELECT run, place, bin, last, loss, span, rest, backend, is_baseline
  FROM binned JOIN spans USING (bin, first, last, n) JOIN alike USING (run)
), backends AS (
  SELECT rest, span, backend, is_baseline, favg(loss) AS loss FROM traces GROUP BY ALL
), sorted AS (
  SELECT rest, span, list_sort(list(loss)) AS losses, count(*) AS backends,
    max(loss) FILTER (is_baseline) AS base
  FROM backends GROUP BY ALL
), sets AS (  -- without a loss above them, `low` and `high` are in the middle; without another, the next ones
  SELECT rest, span, base, backends, losses[backends // 2] AS low, losses[backends // 2 + 1] AS next_low,
    losses[(backends + 1) // 2] AS high, losses[(backends + 1) // 2 + 1] AS next_high
  FROM sorted
), others AS (  -- a backend is not among those that it is compared with
  SELECT b.* EXCLUDE (loss), CASE
    WHEN baseline <> '' THEN CASE WHEN NOT is_baseline THEN base END
    ELSE (CASE WHEN low >= loss THEN next_low ELSE low END
      + CASE WHEN high >= loss THEN next_high ELSE high END) / 2 END AS loss
  FROM backends b JOIN sets USING (rest, span), declared
  WHERE baseline <> '' OR backends > 2
), compared AS (
  SELECT t.run, t.place, t.bin, t.last, t.loss - o.loss AS difference
  FROM traces t JOIN others o USING (rest, span, backend) WHERE o.loss IS NOT NULL
), differences AS (
  SELECT place, bin, max(last) AS step, round(round(favg(difference), 12), 9) AS difference, count(*) AS n
  FROM compared GROUP BY place, bin
), members AS (
  SELECT place, list(run_id ORDER BY run_id) AS run_ids
  FROM known WHERE run IN (SELECT run FROM compared) GROUP BY place
), smoothing AS (  -- a tenth of the points
  SELECT count(DISTINCT bin) // 20 AS half FROM spans
), smoothed AS (
  SELECT place, step, n, difference, 2 * half + 1 AS points, round(avg(difference) OVER nearby, 9) AS value,
    bin = min(bin) OVER (PARTITION BY place) AS is_first
  FROM differences, smoothing
  WINDOW nearby AS (PARTITION BY place ORDER BY bin ROWS BETWEEN half PRECEDING AND half FOLLOWING)
)
SELECT label, step, n, run_ids, difference, points, value,
  nullif(baseline, '') AS baseline, margin,
  (SELECT list(DISTINCT run_id ORDER BY run_id) FROM alike JOIN known USING (run)
    WHERE is_baseline AND rest IN (SELECT rest FROM others WHERE loss IS NOT NULL)
  ) AS baseline_run_ids
FROM smoothed s
JOIN (SELECT place, any_value(label) AS label FROM known GROUP BY place) g ON g.place = s.place
LEFT JOIN members m ON m.place = s.place AND is_first, declared  -- one list a group, on its first line
ORDER BY s.place, step
