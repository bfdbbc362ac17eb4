WITH mine AS (
  SELECT *, count(*) FILTER (outcome = 'completed') OVER (PARTITION BY label) = 1 AS alone
  FROM runs WHERE study = 'scaling'
), cells AS (  -- few where runs are many
  SELECT DISTINCT json_merge_patch(factors, '{"seed": null, "repeat": null}') AS factors FROM mine
), swept AS (
  SELECT factor.key FROM cells, json_each(factors) AS factor
  GROUP BY factor.key
  HAVING bool_and(factor.type IN ('BIGINT', 'UBIGINT', 'HUGEINT', 'DOUBLE'))
    AND count(DISTINCT try_cast(factor.value ->> '$' AS DOUBLE)) >= 3
), times AS (
  SELECT run_id, list(step_seconds ORDER BY step) AS counted_step_seconds
  FROM steps
  WHERE study = 'scaling' AND counted AND step_seconds > 0 AND EXISTS (FROM swept)
    AND run_id IN (SELECT run_id FROM mine WHERE alone AND outcome = 'completed')
  GROUP BY run_id
)
SELECT m.label, m.place, m.run_id, m.attention, m.scale, m.factors, m.seed, m.repeat, m.outcome,
  m.step_seconds, m.tokens_per_second, m.mfu, m.tflops, m.peak_memory_bytes, m.final_loss, m.device, m.gpus,
  m.peak_flops, m.peak_source, times.counted_step_seconds
FROM mine m LEFT JOIN times ON times.run_id = m.run_id
WHERE EXISTS (FROM swept)
ORDER BY m.place, m.seed, m.repeat, m.run_id
