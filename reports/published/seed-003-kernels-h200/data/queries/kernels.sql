SELECT k.* EXCLUDE (study, attempt, measured_at, reason, certificate)
  REPLACE (coalesce(k.dropout, 0) AS dropout)
FROM kernels k JOIN deciding_attempts d USING (study, run_id, attempt)
WHERE k.study = 'seed-003-kernels'
ORDER BY k.sequence_length, k.batch, k.heads, k.kv_heads, k.head_dim, k.causal DESC, k.dtype,
  dropout, k.tile_queries NULLS FIRST, k.tile_keys NULLS FIRST, k.attention, k.mode, k.direction, k.run_id
