WITH mine AS (
  SELECT *, count(*) FILTER (outcome = 'completed') OVER (PARTITION BY label) = 1 AS alone
  FROM runs WHERE study = 'lsai' AND EXISTS (
    FROM runs WHERE study = 'lsai' AND (config ->> '$.parallel.context')::BIGINT > 1)
), times AS (
  SELECT run_id, list(step_seconds ORDER BY step) AS counted_step_seconds
  FROM steps
  WHERE study = 'lsai' AND counted AND step_seconds > 0
    AND run_id IN (SELECT run_id FROM mine WHERE alone AND outcome = 'completed')
  GROUP BY run_id
)
SELECT m.label, m.run_id, m.seed, m.repeat, m.outcome, m.scale, m.config, m.processes, m.sequence_length,
  m.step_seconds, m.mfu, m.tflops, m.device, m.gpus, times.counted_step_seconds
FROM mine m LEFT JOIN times ON times.run_id = m.run_id
ORDER BY m.place, m.seed, m.repeat, m.run_id
