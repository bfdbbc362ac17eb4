WITH declared AS (  -- the baseline of the run that was planned last; a margin only if all runs state the same
  SELECT arg_max(coalesce(design ->> '$.baseline.attention', ''), created_at) AS baseline,
    CASE WHEN count(DISTINCT coalesce(design ->> '$.margins.loss', '')) = 1
      THEN any_value(design ->> '$.margins.loss')::DOUBLE END AS margin
  FROM run_records WHERE study = 'lsai'
), known AS (
  SELECT row_number() OVER (ORDER BY run_id)::INTEGER AS run, place::INTEGER AS place,
    run_id, label, seed, outcome, attention, warmup_steps
  FROM runs WHERE study = 'lsai'
), size AS (
  SELECT CASE WHEN count(*) > 1250 THEN 32 ELSE 256 END AS most,
    greatest(20, least(200, 20000 // count(DISTINCT label))) AS points
  FROM known
), bins AS (
  SELECT most, (ceil(max(step) / any_value(points) / max(width)) * max(width))::BIGINT AS width,
    min(c.width) AS narrowest
  FROM curves c JOIN size USING (most) WHERE study = 'lsai' AND losses > 0 GROUP BY most
), narrower AS (
  FROM bins WHERE narrowest < width
), points AS (
  SELECT run, place, ((step - 1) // b.width)::INTEGER AS bin,
    first_step, step, records, losses, loss * losses / losses AS loss, tokens, seconds  -- to the bit as below
  FROM curves c JOIN bins b ON b.most = c.most AND b.width = c.width JOIN known USING (run_id)
  WHERE study = 'lsai' AND losses > 0
  UNION ALL
  SELECT run, place, ((step - 1) // b.width)::INTEGER AS bin,
    min(first_step), max(step), sum(records)::BIGINT, sum(losses)::BIGINT,
    sum(loss * losses) / nullif(sum(losses), 0), sum(tokens)::BIGINT, sum(seconds)
  FROM curves c JOIN narrower b ON b.most = c.most AND b.width <> c.width JOIN known USING (run_id)
  WHERE study = 'lsai' AND losses > 0 GROUP BY run, place, bin
), alike AS (  -- runs that differ by attention alone read the same tokens
  SELECT run, run_id, place, dense_rank() OVER (ORDER BY other_settings)::INTEGER AS rest,
    dense_rank() OVER (ORDER BY other_settings, attention)::INTEGER AS cell,
    coalesce(attention = baseline, false) AS is_baseline
  FROM comparable JOIN known USING (run_id), declared WHERE study = 'lsai'
), traces AS (  -- only points of the same steps are compared; to group by one number is faster than by four
  SELECT run, p.place, bin, step AS last, loss, cell,
    hash(first_step, step, losses) AS span, hash(cell, span) AS key, losses
  FROM points p JOIN alike USING (run)
), backends AS (
  SELECT key, any_value(cell) AS cell, any_value(span) AS span, any_value(bin) AS bin, favg(loss) AS loss,
    count(*) AS runs
  FROM traces GROUP BY key
), cells AS (
  SELECT DISTINCT cell, rest, is_baseline FROM alike
), sorted AS (
  SELECT rest, span, list(loss ORDER BY loss) AS losses, count(*) AS backends,
    max(loss) FILTER (is_baseline) AS base,
    coalesce(max(runs) FILTER (is_baseline), max(runs)) AS runs
  FROM backends JOIN cells USING (cell) GROUP BY ALL
), sets AS (  -- without a loss above them, `low` and `high` are in the middle; without another, the next ones
  SELECT rest, span, base, backends, losses[backends // 2] AS low, losses[backends // 2 + 1] AS next_low,
    losses[(backends + 1) // 2] AS high, losses[(backends + 1) // 2 + 1] AS next_high, runs
  FROM sorted
), others AS (  -- a backend is not among those that it is compared with
  SELECT key, cell, rest, CASE
    WHEN baseline <> '' THEN CASE WHEN NOT is_baseline THEN base END
    ELSE (CASE WHEN low >= loss THEN next_low ELSE low END
      + CASE WHEN high >= loss THEN next_high ELSE high END) / 2 END AS loss, sets.runs
  FROM backends JOIN cells USING (cell) JOIN sets USING (rest, span), declared
  WHERE baseline <> '' OR backends > 2
), compared AS (
  SELECT run, place, bin, last, t.loss - o.loss AS difference, t.losses, o.runs
  FROM traces t JOIN (SELECT key, loss, runs FROM others WHERE loss IS NOT NULL) o USING (key)
), differences AS (
  SELECT place, bin, max(last) AS step, round(round(favg(difference), 12), 9) AS difference, count(*) AS n,
    max(abs(difference)) AS farthest, max(losses)::BIGINT AS records, max(runs)::BIGINT AS repeats
  FROM compared GROUP BY place, bin
), repeats AS (  -- runs of the baseline, or of each backend without one, that differ by nothing
  SELECT key, sum(t.loss) AS total, count(*) AS runs FROM traces t JOIN cells USING (cell), declared
  WHERE baseline = '' OR is_baseline GROUP BY key HAVING count(*) > 1
), own AS (  -- how far one of them goes from the mean of the others, as far as they go from the baseline
  SELECT round(max(abs(t.loss - (total - t.loss) / (runs - 1))), 9) AS noise
  FROM traces t JOIN repeats USING (key)
), members AS (
  SELECT place, list(run_id ORDER BY run_id) AS run_ids
  FROM known WHERE run IN (SELECT run FROM compared) GROUP BY place
), smoothing AS (  -- a tenth of the points
  SELECT count(DISTINCT bin) // 20 AS half FROM backends
), smoothed AS (
  SELECT place, step, n, difference, round(farthest, 9) AS farthest, records, repeats,
    2 * half + 1 AS points,
    round(avg(difference) OVER nearby, 9) AS value,
    bin = min(bin) OVER (PARTITION BY place) AS is_first
  FROM differences, smoothing
  WINDOW nearby AS (PARTITION BY place ORDER BY bin ROWS BETWEEN half PRECEDING AND half FOLLOWING)
)
SELECT label, step, n, run_ids, difference, farthest, records, repeats,
  CASE WHEN is_first THEN noise END AS noise, points, value,
  nullif(baseline, '') AS baseline, margin,
  (SELECT list(DISTINCT run_id ORDER BY run_id) FROM alike
    WHERE is_baseline AND rest IN (SELECT rest FROM others WHERE loss IS NOT NULL)
  ) AS baseline_run_ids
FROM smoothed s
JOIN (SELECT place, any_value(label) AS label FROM known GROUP BY place) g ON g.place = s.place
LEFT JOIN members m ON m.place = s.place AND is_first, declared, own  -- one list a group, on its first line
ORDER BY s.place, step
