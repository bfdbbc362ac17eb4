WITH seeds AS (
  SELECT label, seed, favg(final_loss) AS loss FROM runs
  WHERE study = 'scaling' AND outcome = 'completed' GROUP BY label, seed
), losses AS (
  SELECT label, median(loss) AS loss FROM seeds GROUP BY label
)
SELECT label AS "Backend",
  count(*) AS "Runs",
  round(any_value(loss), 4) AS "Training loss",
  round(sqrt(quantile_disc(tokens_per_second, 0.5) * -quantile_disc(-tokens_per_second, 0.5)))::BIGINT AS "Tokens/sec",
  round(sqrt(quantile_disc(mfu, 0.5) * -quantile_disc(-mfu, 0.5)), 1) AS "MFU %",
  round(median(wall_seconds) / 60, 1) AS "Training time, min",
  round(median(peak_memory_bytes) / 2**30, 1) AS "Peak memory, GiB"
FROM runs JOIN losses USING (label)
WHERE study = 'scaling' AND outcome = 'completed'
GROUP BY label, place
ORDER BY place
