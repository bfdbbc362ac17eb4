WITH done AS (
  SELECT label, place, run_id, seed, repeat, deciding_attempt, batch_size, decode_seconds AS step_seconds,
    coalesce((config->>'$.inference.cuda_graphs')::BOOLEAN, false) AS graphs
  FROM runs
  WHERE study = 'kernels' AND outcome = 'completed' AND decode_seconds > 0
), times AS (
  SELECT d.run_id, list(d.seconds ORDER BY d.position) AS counted_step_seconds
  FROM decoding d JOIN done ON d.run_id = done.run_id AND d.attempt = done.deciding_attempt
  WHERE d.study = 'kernels' AND d.seconds > 0
  GROUP BY d.run_id
)
SELECT done.* EXCLUDE (deciding_attempt), times.counted_step_seconds
FROM done JOIN times ON times.run_id = done.run_id
ORDER BY place, seed, repeat, done.run_id
