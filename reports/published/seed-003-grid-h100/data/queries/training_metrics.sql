SELECT label AS "Model",
  round(sqrt(quantile_disc(tokens_per_second, 0.5) * -quantile_disc(-tokens_per_second, 0.5)), 2) AS "Tokens/sec",
  round(median(training_tokens_percentage), 2) AS "Train token %",
  round(sqrt(quantile_disc(mfu, 0.5) * -quantile_disc(-mfu, 0.5)), 2) AS "MFU %",
  round(sqrt(quantile_disc(tflops, 0.5) * -quantile_disc(-tflops, 0.5)), 2) AS "TFLOP/s"
FROM runs
WHERE study = 'seed-003-grid' AND outcome = 'completed'
GROUP BY label, place
ORDER BY place
