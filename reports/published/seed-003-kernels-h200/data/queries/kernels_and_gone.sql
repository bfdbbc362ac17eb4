WITH known AS (
  SELECT k.* EXCLUDE (study, attempt, measured_at, reason, certificate)
  REPLACE (coalesce(k.dropout, 0) AS dropout)
FROM kernels k JOIN deciding_attempts d USING (study, run_id, attempt)
WHERE k.study = 'seed-003-kernels'
), gone AS (
  SELECT run_id, device, if(outcome = 'completed', 'no times', coalesce(outcome, 'not run')) AS outcome,
    (config ->> '$.call.causal')::BOOLEAN AS causal, config ->> '$.call.dtype' AS dtype,
    coalesce((config ->> '$.call.dropout')::DOUBLE, 0) AS dropout, config ->> '$.call.shape' AS shape,
    string_split(config ->> '$.call.tile', 'x') AS tile
  FROM runs
  WHERE study = 'seed-003-kernels' AND task = 'attention' AND run_id NOT IN (SELECT run_id FROM known)
)
FROM known
UNION ALL BY NAME
SELECT DISTINCT w.* REPLACE (coalesce(g.device, w.device) AS device), g.run_id, g.outcome, g.causal, g.dtype,
  g.dropout,
  regexp_extract(g.shape, 'B([0-9]+)', 1)::BIGINT AS batch,
  regexp_extract(g.shape, 'T([0-9]+)', 1)::BIGINT AS sequence_length,
  regexp_extract(g.shape, 'H([0-9]+)', 1)::BIGINT AS heads,
  coalesce(nullif(regexp_extract(g.shape, 'K([0-9]+)', 1), ''), regexp_extract(g.shape, 'H([0-9]+)', 1))
    ::BIGINT AS kv_heads,
  regexp_extract(g.shape, 'D([0-9]+)', 1)::BIGINT AS head_dim, g.tile[1]::BIGINT AS tile_queries,
  g.tile[2]::BIGINT AS tile_keys
FROM gone g, (SELECT DISTINCT attention, mode, direction, device FROM known) w
ORDER BY sequence_length, batch, heads, kv_heads, head_dim, causal DESC, dtype, dropout,
  tile_queries NULLS FIRST, tile_keys NULLS FIRST, attention, mode, direction, run_id
