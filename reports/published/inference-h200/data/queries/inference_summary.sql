SELECT label AS "Backend",
  count(*) AS "Runs",
  round(1000 * sqrt(quantile_disc(step_seconds, 0.5) * -quantile_disc(-step_seconds, 0.5)), 3) AS "Prefill, ms",
  round(sqrt(quantile_disc(tokens_per_second, 0.5) * -quantile_disc(-tokens_per_second, 0.5)))::BIGINT AS "Tokens/sec",
  round(sqrt(quantile_disc(mfu, 0.5) * -quantile_disc(-mfu, 0.5)), 1) AS "MFU %",
  round(sqrt(quantile_disc(floor_percentage, 0.5) * -quantile_disc(-floor_percentage, 0.5)), 1) AS "Prefill floor, %",
  round(1000 * sqrt(quantile_disc(decode_seconds, 0.5) * -quantile_disc(-decode_seconds, 0.5)), 3) AS "Decoded token, ms",
  round(sqrt(quantile_disc(decode_floor_percentage, 0.5) * -quantile_disc(-decode_floor_percentage, 0.5)), 1) AS "Decode floor, %",
  round(median(peak_memory_bytes) / 2**30, 1) AS "Peak memory, GiB"
FROM runs
WHERE study = 'inference' AND outcome = 'completed'
GROUP BY label, place
ORDER BY place
