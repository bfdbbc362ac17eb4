WITH tests(number, test, name, what) AS (VALUES
  (1, 'Logits, allclose', 'allclose', 'logits'),
  (2, 'Loss, relative difference', 'same loss', 'loss'),
  (3, 'Gradients, allclose', 'allclose', 'gradients'),
  (4, 'Outputs and gradients with NaN or infinity', 'finite', NULL),
  (5, 'Logits from a checkpoint of the other, relative difference', 'checkpoint outputs', NULL),
  (5, 'Logits from a checkpoint of the other, relative difference', 'checkpoint', NULL)),
checks AS (
  SELECT c.attention, c.device_name, c.shape AS run_shape, c.created_at, c.key, t.number, t.test, v.name,
    v.place, v.passed, v.measured, v.tolerance, v.plain, regexp_extract(v.shape, 'b?float[0-9]+') AS dtype,
    CASE WHEN v.name IN ('finite', 'checkpoint') OR v.name IS NULL THEN NULL
      WHEN v.measured IS NULL THEN 'infinity'::DOUBLE
      ELSE v.measured / coalesce(v.tolerance, 1) END AS ratio
  FROM certificates c CROSS JOIN tests t
  LEFT JOIN verifications v
    ON v.certificate = c.key AND v.name = t.name AND v.what = coalesce(t.what, v.what)
  WHERE c.key IN (SELECT certificate FROM admissions WHERE study = 'prefill-fp8') AND c.verdict <> 'unsupported')
SELECT attention, device_name, run_shape, test, string_agg(DISTINCT dtype, ', ' ORDER BY dtype) AS precision,
  count(place) AS checks, count(place) FILTER (NOT passed) AS failed, max(ratio) AS ratio,
  CASE WHEN bool_or(name = 'finite') THEN count(place) FILTER (NOT passed)
    ELSE first(measured ORDER BY ratio DESC, place) FILTER (ratio IS NOT NULL) END AS measured,
  CASE WHEN bool_or(name = 'finite') THEN 0
    ELSE first(tolerance ORDER BY ratio DESC, place) FILTER (ratio IS NOT NULL) END AS tolerance,
  first(plain ORDER BY ratio DESC, place) FILTER (ratio IS NOT NULL) AS plain,
  CASE WHEN count(place) = 0 THEN 'not checked' WHEN bool_or(NOT passed) THEN 'failed'
    WHEN bool_or(name = 'allclose' AND tolerance IS NULL) THEN 'not judged' ELSE 'passed' END AS result,
  key AS certificate
FROM checks GROUP BY attention, device_name, run_shape, created_at, key, number, test
ORDER BY attention, device_name, run_shape, created_at, key, number
