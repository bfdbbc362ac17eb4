WITH known AS (
  SELECT row_number() OVER (ORDER BY run_id)::INTEGER AS run, place::INTEGER AS place,
    run_id, label, seed, outcome, attention, warmup_steps
  FROM runs WHERE study = 'seed-003-grid'
), size AS (
  SELECT CASE WHEN count(*) > 1250 THEN 32 ELSE 256 END AS most,
    greatest(20, least(100, 20000 // count(DISTINCT label))) AS points
  FROM known
), bins AS (
  SELECT most, (ceil(max(step) / any_value(points) / max(width)) * max(width))::BIGINT AS width,
    min(c.width) AS narrowest
  FROM curves c JOIN size USING (most) WHERE study = 'seed-003-grid' AND tokens > 0 GROUP BY most
), narrower AS (
  FROM bins WHERE narrowest < width
), points AS (
  SELECT run, place, ((step - 1) // b.width)::INTEGER AS bin,
    first_step, step, records, losses, loss * losses / losses AS loss, tokens, seconds  -- to the bit as below
  FROM curves c JOIN bins b ON b.most = c.most AND b.width = c.width JOIN known USING (run_id)
  WHERE study = 'seed-003-grid' AND tokens > 0
  UNION ALL
  SELECT run, place, ((step - 1) // b.width)::INTEGER AS bin,
    min(first_step), max(step), sum(records)::BIGINT, sum(losses)::BIGINT,
    sum(loss * losses) / nullif(sum(losses), 0), sum(tokens)::BIGINT, sum(seconds)
  FROM curves c JOIN narrower b ON b.most = c.most AND b.width <> c.width JOIN known USING (run_id)
  WHERE study = 'seed-003-grid' AND tokens > 0 GROUP BY run, place, bin
), lines AS (
  SELECT place, bin, max(step) AS step, round(sum(tokens) / fsum(seconds), 6) AS value, count(*) AS n,
    bin = min(bin) OVER (PARTITION BY place) AS is_first
  FROM points GROUP BY place, bin HAVING sum(seconds) > 0
), groups AS (
  SELECT place, any_value(label) AS label, list(k.run_id ORDER BY k.run_id) AS run_ids,
    max(k.warmup_steps) AS warmup_steps,
    -- How far the middle half of a run's counted records goes from its median.
    round(max(greatest(m.step_seconds / m.step_seconds_25, m.step_seconds_75 / m.step_seconds) - 1), 9)
      AS half
  FROM known k LEFT JOIN run_measures m ON m.study = 'seed-003-grid' AND m.run_id = k.run_id
  WHERE run IN (SELECT run FROM points WHERE seconds > 0) GROUP BY place
)
SELECT label, step, value, n, run_ids, warmup_steps, half
FROM lines JOIN (SELECT * EXCLUDE (run_ids, half) FROM groups) USING (place)
LEFT JOIN (SELECT place, run_ids, half FROM groups) m ON m.place = lines.place AND is_first  -- once a group
ORDER BY label, step
