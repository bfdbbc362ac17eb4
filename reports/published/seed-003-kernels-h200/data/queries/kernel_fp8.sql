WITH errors AS (
  SELECT certificate,
    max(measured / tolerance) FILTER (name = 'right') AS allowed,
    max(relative_error) FILTER (name = 'right' AND variant = 'plain') AS own,
    max(measured) FILTER (name = 'quantisation' AND what = 'o' AND variant = 'plain') AS whole,
    max(measured) FILTER (name = 'quantisation' AND what <> 'o' AND variant = 'plain') AS narrow,
    max(measured) FILTER (name = 'quantisation' AND what = 'o' AND variant <> 'plain') AS whole_outliers,
    max(measured) FILTER (name = 'quantisation' AND what <> 'o' AND variant <> 'plain') AS narrow_outliers
  FROM verifications GROUP BY certificate
)
SELECT k.* EXCLUDE (study, attempt, measured_at, reason),
  e.allowed, e.own, e.whole, e.narrow, e.whole_outliers, e.narrow_outliers
FROM kernels k JOIN deciding_attempts d USING (study, run_id, attempt) LEFT JOIN errors e USING (certificate)
WHERE k.study = 'seed-003-kernels' AND k.direction = 'forward'
ORDER BY k.sequence_length, k.batch, k.heads, k.kv_heads, k.head_dim, k.causal DESC, k.dtype,
  k.attention, k.mode, k.run_id
