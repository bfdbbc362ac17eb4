WITH known AS (
  SELECT row_number() OVER (ORDER BY run_id)::INTEGER AS run, place::INTEGER AS place,
    run_id, label, seed, outcome, attention, warmup_steps
  FROM runs WHERE study = 'scaling'
), size AS (
  SELECT CASE WHEN count(*) > 1250 THEN 32 ELSE 256 END AS most,
    greatest(20, least(200, 20000 // count(DISTINCT label))) AS points
  FROM known
), bins AS (
  SELECT most, (ceil(max(step) / any_value(points) / max(width)) * max(width))::BIGINT AS width,
    min(c.width) AS narrowest
  FROM curves c JOIN size USING (most) WHERE study = 'scaling' AND true GROUP BY most
), narrower AS (
  FROM bins WHERE narrowest < width
), points AS (
  SELECT run, place, ((step - 1) // b.width)::INTEGER AS bin,
    first_step, step, records, losses, loss * losses / losses AS loss, tokens, seconds  -- to the bit as below
  FROM curves c JOIN bins b ON b.most = c.most AND b.width = c.width JOIN known USING (run_id)
  WHERE study = 'scaling' AND true
  UNION ALL
  SELECT run, place, ((step - 1) // b.width)::INTEGER AS bin,
    min(first_step), max(step), sum(records)::BIGINT, sum(losses)::BIGINT,
    sum(loss * losses) / nullif(sum(losses), 0), sum(tokens)::BIGINT, sum(seconds)
  FROM curves c JOIN narrower b ON b.most = c.most AND b.width <> c.width JOIN known USING (run_id)
  WHERE study = 'scaling' AND true GROUP BY run, place, bin
), traces AS (  -- unknown if one of the losses is not finite
  SELECT run, place, bin, step, CASE WHEN losses = records THEN round(loss, 9) END AS loss FROM points
), ends AS (
  SELECT run, max(step) FILTER (loss IS NOT NULL) AS step,
    arg_max(loss, step) FILTER (loss IS NOT NULL) AS loss
  FROM traces GROUP BY run
), sizes AS (
  SELECT place, any_value(label) AS label, count(*) AS runs FROM ends JOIN known USING (run) GROUP BY place
), groups AS (  -- only where every run of the group has a loss
  SELECT place, bin, max(step) AS step, round(round(favg(loss), 12), 9) AS loss, count(*) AS n, count(loss) AS known
  FROM traces GROUP BY place, bin
), smoothing AS (  -- a twentieth of the points
  SELECT count(DISTINCT bin) // 40 AS half FROM groups
), drawn AS (  -- the traces of at most 100 runs: the first of each group, the second of each, and so on
  SELECT run FROM (
    SELECT run, label, row_number() OVER (PARTITION BY place ORDER BY seed, run_id) AS turn
    FROM ends JOIN known USING (run))
  ORDER BY turn, label LIMIT 100
)
SELECT 'run' AS kind, label, run_id, seed, outcome, step, loss AS value, 1 AS n, 1 AS points,
  NULL AS tokens_per_step
FROM traces JOIN known USING (run) WHERE run IN (FROM drawn)
UNION ALL  -- of the other runs, where they ended
SELECT 'end', label, run_id, seed, outcome, step, loss, 1, 1, NULL FROM ends JOIN known USING (run)
WHERE run NOT IN (FROM drawn)
UNION ALL
SELECT 'group', label, NULL, NULL, NULL, step,
  round(avg(loss) OVER (PARTITION BY place ORDER BY bin ROWS BETWEEN half PRECEDING AND half FOLLOWING), 9),
  n, 2 * half + 1, NULL
FROM groups JOIN sizes USING (place), smoothing WHERE groups.known = runs
UNION ALL  -- as logged, of the last step
SELECT 'final', label, run_id, seed, outcome, steps, final_loss, 1, 1, round(r.tokens_per_step)::BIGINT
FROM runs r WHERE study = 'scaling' AND outcome = 'completed' AND final_loss IS NOT NULL
ORDER BY kind, label, run_id, step
