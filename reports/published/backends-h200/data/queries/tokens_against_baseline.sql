WITH known AS (
  SELECT row_number() OVER (ORDER BY run_id)::INTEGER AS run, place::INTEGER AS place,
    run_id, label, seed, outcome, attention, warmup_steps
  FROM runs WHERE study = 'backends'
), size AS (
  SELECT CASE WHEN count(*) > 1250 THEN 32 ELSE 256 END AS most,
    greatest(20, least(100, 20000 // count(DISTINCT label))) AS points
  FROM known
), bins AS (
  SELECT most, (ceil(max(step) / any_value(points) / max(width)) * max(width))::BIGINT AS width,
    min(c.width) AS narrowest
  FROM curves c JOIN size USING (most) WHERE study = 'backends' AND tokens > 0 GROUP BY most
), narrower AS (
  FROM bins WHERE narrowest < width
), points AS (
  SELECT run, place, ((step - 1) // b.width)::INTEGER AS bin,
    first_step, step, records, losses, loss * losses / losses AS loss, tokens, seconds  -- to the bit as below
  FROM curves c JOIN bins b ON b.most = c.most AND b.width = c.width JOIN known USING (run_id)
  WHERE study = 'backends' AND tokens > 0
  UNION ALL
  SELECT run, place, ((step - 1) // b.width)::INTEGER AS bin,
    min(first_step), max(step), sum(records)::BIGINT, sum(losses)::BIGINT,
    sum(loss * losses) / nullif(sum(losses), 0), sum(tokens)::BIGINT, sum(seconds)
  FROM curves c JOIN narrower b ON b.most = c.most AND b.width <> c.width JOIN known USING (run_id)
  WHERE study = 'backends' AND tokens > 0 GROUP BY run, place, bin
),
uncounted AS (  -- after the warm-up: where an attempt resumed, or of other processes
  SELECT run_id, step FROM steps JOIN known k USING (run_id)
  WHERE study = 'backends' AND NOT counted AND step - steps >= k.warmup_steps
), left_out AS (
  SELECT DISTINCT p.place, bin FROM points p JOIN known k USING (run) JOIN uncounted u USING (run_id)
  WHERE u.step BETWEEN p.first_step AND p.step
), rates AS (
  SELECT place, bin, min(first_step) AS first_step, max(step) AS step,
    round(sum(tokens) / fsum(seconds), 6) AS rate, row_number() OVER (PARTITION BY place ORDER BY bin) AS turn
  FROM points ANTI JOIN left_out USING (place, bin) GROUP BY place, bin HAVING sum(seconds) > 0
), groups AS (
  SELECT r.label, r.place, list(run_id ORDER BY run_id) AS run_ids, max(r.warmup_steps) AS warmup_steps,
    min(r.scale) AS scale, max(r.created_at) AS created_at,
    first(r.factors ORDER BY r.created_at DESC, run_id) AS factors,
    first(r.design ORDER BY r.created_at DESC, run_id) AS design
  FROM runs r JOIN known k USING (run_id)
  WHERE r.study = 'backends' AND k.run IN (SELECT run FROM points WHERE seconds > 0) GROUP BY r.label, r.place
)
SELECT label, place, first_step, step, rate, warmup_steps, scale, created_at,
  CASE WHEN turn = 1 THEN run_ids END AS run_ids, CASE WHEN turn = 1 THEN factors END AS factors,
  CASE WHEN turn = 1 THEN design END AS design
FROM rates JOIN groups USING (place) ORDER BY place, step
