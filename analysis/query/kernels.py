"""SQL of the figures of attention alone: they all read the same rows."""

from __future__ import annotations

# The attempt that decides each run, of any outcome: a run may have rows though it timed nothing.
KERNEL_TIMES = """\
SELECT k.* EXCLUDE (study, attempt, measured_at, reason, certificate)
FROM kernels k JOIN deciding_attempts d USING (study, run_id, attempt)
WHERE k.study = $study
ORDER BY k.sequence_length, k.batch, k.heads, k.kv_heads, k.head_dim, k.causal DESC, k.dtype, k.attention,
  k.mode, k.direction, k.run_id"""
