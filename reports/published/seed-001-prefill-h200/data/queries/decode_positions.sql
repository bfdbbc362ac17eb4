WITH mine AS (
  SELECT r.label, r.place, r.run_id, r.gpus, d.position, 1e3 * d.seconds AS milliseconds
  FROM runs r JOIN decoding d ON d.study = r.study AND d.run_id = r.run_id AND d.attempt = r.deciding_attempt
  WHERE r.study = 'seed-001-prefill' AND r.outcome = 'completed'
), size AS (
  SELECT min(position) AS first,
    greatest(1, ceil((max(position) - min(position) + 1) / 200.0))::BIGINT AS width
  FROM mine
)
SELECT label, max(position) AS step, round(median(milliseconds), 6) AS value, count(*) AS n,
  max(gpus) AS gpus, list(DISTINCT run_id ORDER BY run_id) AS run_ids
FROM mine, size
GROUP BY label, place, (position - first) // width
ORDER BY place, step
