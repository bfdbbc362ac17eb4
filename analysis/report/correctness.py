"""Five tests that a published report makes of attention backends, answered by the checks of certificates."""

from __future__ import annotations

import math
from typing import TypedDict

from analysis.charts.certificates import NOT_FINITE
from analysis.wording import readable
from model.attention.verify.certificate import ALLCLOSE

# One row per test of each certificate. Its value is that of the check that comes nearest to its limit, or
# exceeds it most. `$certificates` stands for a query that gives the keys.
TESTS = """\
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
  WHERE c.key IN ($certificates) AND c.verdict <> 'unsupported')
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
ORDER BY attention, device_name, run_shape, created_at, key, number"""
ABOUT = (
    "Five tests of a published comparison (G. Oymak, Optimization of Scaled Dot-Product Attention with "
    "FlashAttention3, section 4), by checks of the certificates. Logits, loss, gradients and checkpoints are "
    "those of a small llama, against the same llama under plain attention, math. Allclose: the largest "
    f"|x \N{MINUS SIGN} math| / ({ALLCLOSE:g} + {ALLCLOSE:g} |math|), up to 1; the report gives no tolerance "
    "for gradients, so they have that of the logits. A checkpoint is saved under one of the two and loaded "
    "under the other, both ways, and its weights must be equal."
)
NOT_JUDGED = (
    "Not judged: in that precision rounding alone may exceed what allclose allows. What math measures "
    "against float64 stands beside it. There a certificate holds logits and gradients to a multiple of the "
    "error of math instead: the checks same logits and same gradients."
)


class CorrectnessRow(TypedDict):
    """One test of one certificate.

    Attributes:
        precision: those in which it was made, with commas between them; None if there is no such check.
        checks: how many checks answer it.
        ratio: measured over tolerance, or over 1 where nothing is judged; infinity if the measured number is
            not finite; None where nothing is measured.
        measured: of NaN or infinity, the number of tensors.
        plain: the same of `math` against float64.
        result: `passed`, `failed`, `not judged`, or `not checked`, as in certificates older than the check.
    """

    attention: str
    device_name: str | None
    run_shape: str | None
    test: str
    precision: str | None
    checks: int
    failed: int
    ratio: float | None
    measured: float | None
    tolerance: float | None
    plain: float | None
    result: str
    certificate: str


def value(row: CorrectnessRow) -> str | None:
    """What was measured: `0.0123`, `0 of 60` tensors, or `not finite`; None if no number was."""
    if row["ratio"] == math.inf:
        return NOT_FINITE
    if row["measured"] is None:
        return None
    if row["ratio"] is None:
        return f"{row['measured']:,.0f} of {row['checks']:,d}"
    return readable(row["measured"], ",.3g")
