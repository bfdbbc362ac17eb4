"""SQL that charts, verdicts and the tables of a report share, so that they show the same numbers."""

from __future__ import annotations

# One row per completed run with a rate. Step times come with those runs alone whose medians get an interval:
# the single runs of their groups, and the baseline's where there are such.
MEASURED_RUNS = """\
WITH done AS (
  SELECT *, count(*) OVER (PARTITION BY label) = 1 AS alone,
    json_contains(factors, design -> '$.baseline') IS TRUE AS is_baseline
  FROM runs
  WHERE study = $study AND outcome = 'completed' AND step_seconds > 0 AND tokens_per_step > 0
), times AS (
  SELECT run_id, list(step_seconds ORDER BY step) AS counted_step_seconds
  FROM steps
  WHERE study = $study AND counted AND step_seconds > 0 AND run_id IN (
    SELECT run_id FROM done WHERE alone OR is_baseline AND EXISTS (FROM done WHERE alone))
  GROUP BY run_id
)
SELECT d.* EXCLUDE (alone, is_baseline), t.counted_step_seconds,
  a.load_before, a.load_after, a.cores, a.resumed_step
FROM done d
JOIN attempts a ON a.study = d.study AND a.run_id = d.run_id AND a.attempt = d.measured_attempt
LEFT JOIN times t ON t.run_id = d.run_id
ORDER BY d.place, d.seed, d.repeat, d.run_id"""

# One row per completed run with a rate or with times of attention alone: how busy its machine was before it.
# The kernel's load average forgets: after some seconds, exp(-seconds / 60) of a load are left in it. What is
# left of what the study's own attempts added on the node while they ran, at most its processors, is taken
# off. Where an attempt's load at its end is unknown, it may have added as much as it could.
LOADS = """\
WITH added AS (
  SELECT node, ended_at, least(cores * (1 - left_over),
    greatest(0, coalesce(load_after - load_before * left_over, cores))) AS load
  FROM (SELECT *, exp(-epoch(ended_at - started_at) / 60) AS left_over FROM attempts WHERE study = $study)
),
own AS (
  SELECT a.run_id, a.attempt, sum(b.load * exp(-epoch(a.started_at - b.ended_at) / 60)) AS load
  FROM attempts a
  JOIN added b ON b.node = a.node AND b.ended_at BETWEEN a.started_at - INTERVAL 10 MINUTE AND a.started_at
  WHERE a.study = $study
  GROUP BY ALL
)
SELECT r.run_id, a.device_users, a.cores, a.load_before, a.load_before - coalesce(o.load, 0) AS load_of_others
FROM runs r
JOIN attempts a ON a.study = r.study AND a.run_id = r.run_id
  AND a.attempt = coalesce(r.measured_attempt, r.deciding_attempt)
LEFT JOIN own o ON o.run_id = a.run_id AND o.attempt = a.attempt
WHERE r.study = $study AND r.outcome = 'completed'
  AND (r.task = 'attention' OR r.step_seconds > 0 AND r.tokens_per_step > 0)
ORDER BY r.place, r.seed, r.repeat, r.run_id"""

# Whether a step of a run has a loss; one that is not finite is NULL. Runs of other tasks have none,
# and other programs may log a loss at some of their records alone: what was found in their logs tells which
# losses were not finite.
HAS_LOSS = """\
(s.loss IS NOT NULL OR r.imported IS NULL AND r.config ->> '$.task' IS NULL OR list_contains(
  flatten((r.imported -> '$.findings[*].evidence.steps')::BIGINT[][]), s.step))"""

# The losses of the last fifth of the steps that all completed runs reached, in studies with a baseline.
FINAL_LOSSES = f"""\
SELECT s.run_id, list(s.step ORDER BY s.step) AS steps, list(s.loss ORDER BY s.step) AS losses
FROM steps s JOIN runs r ON r.study = s.study AND r.run_id = s.run_id
WHERE r.study = $study AND r.outcome = 'completed' AND s.step > 0.8 * (
  SELECT min(steps) FROM runs WHERE study = $study AND outcome = 'completed')
  AND {HAS_LOSS}
  AND EXISTS (FROM runs WHERE study = $study AND design ->> '$.baseline' IS NOT NULL)
GROUP BY s.run_id ORDER BY s.run_id"""


# One row per completed run. The interval of a group with a single run, or with a single one whose rate is
# known, is computed from that run's step times after the warm-up; no other run's step times are given.
COMPLETED_RUNS = """\
WITH done AS (
  SELECT label, place, run_id, seed, repeat, step_seconds, tokens_per_step, tokens_per_second, mfu, tflops,
    flop_per_token, task, gpus, peak_flops, peak_source, device, counted_records,
    count(*) OVER alike = 1 OR (mfu IS NOT NULL AND count(mfu) OVER alike = 1)
      OR (tflops IS NOT NULL AND count(tflops) OVER alike = 1) AS alone
  FROM runs
  WHERE study = $study AND outcome = 'completed' AND step_seconds > 0
  WINDOW alike AS (PARTITION BY label)
), times AS (
  SELECT run_id, list(step_seconds ORDER BY step) AS counted_step_seconds
  FROM steps
  WHERE study = $study AND counted AND step_seconds > 0 AND run_id IN (SELECT run_id FROM done WHERE alone)
  GROUP BY run_id
)
SELECT done.* EXCLUDE (alone), times.counted_step_seconds
FROM done LEFT JOIN times ON times.run_id = done.run_id
ORDER BY place, seed, repeat, done.run_id"""
# A run's median position takes the place of its median step, and its positions that of its steps.
DECODED_RUNS = """\
WITH done AS (
  SELECT label, place, run_id, seed, repeat, deciding_attempt, batch_size, decode_seconds AS step_seconds,
    coalesce((config->>'$.inference.cuda_graphs')::BOOLEAN, false) AS graphs
  FROM runs
  WHERE study = $study AND outcome = 'completed' AND decode_seconds > 0
), times AS (
  SELECT d.run_id, list(d.seconds ORDER BY d.position) AS counted_step_seconds
  FROM decoding d JOIN done ON d.run_id = done.run_id AND d.attempt = done.deciding_attempt
  WHERE d.study = $study AND d.seconds > 0
  GROUP BY d.run_id
)
SELECT done.* EXCLUDE (deciding_attempt), times.counted_step_seconds
FROM done JOIN times ON times.run_id = done.run_id
ORDER BY place, seed, repeat, done.run_id"""


# Every run, completed or not, of a study in which some factor is a number with at least three values; no rows
# of any other study. `counted_step_seconds` is as in COMPLETED_RUNS.
SWEEP_RUNS = """\
WITH mine AS (
  SELECT *, count(*) FILTER (outcome = 'completed') OVER (PARTITION BY label) = 1 AS alone
  FROM runs WHERE study = $study
), cells AS (  -- few where runs are many
  SELECT DISTINCT json_merge_patch(factors, '{"seed": null, "repeat": null}') AS factors FROM mine
), swept AS (
  SELECT factor.key FROM cells, json_each(factors) AS factor
  GROUP BY factor.key
  HAVING bool_and(factor.type IN ('BIGINT', 'UBIGINT', 'HUGEINT', 'DOUBLE'))
    AND count(DISTINCT try_cast(factor.value ->> '$' AS DOUBLE)) >= 3
), times AS (
  SELECT run_id, list(step_seconds ORDER BY step) AS counted_step_seconds
  FROM steps
  WHERE study = $study AND counted AND step_seconds > 0 AND EXISTS (FROM swept)
    AND run_id IN (SELECT run_id FROM mine WHERE alone AND outcome = 'completed')
  GROUP BY run_id
)
SELECT m.label, m.place, m.run_id, m.attention, m.scale, m.factors, m.seed, m.repeat, m.outcome,
  m.step_seconds, m.tokens_per_second, m.mfu, m.tflops, m.peak_memory_bytes, m.final_loss, m.device, m.gpus,
  m.peak_flops, m.peak_source, times.counted_step_seconds
FROM mine m LEFT JOIN times ON times.run_id = m.run_id
WHERE EXISTS (FROM swept)
ORDER BY m.place, m.seed, m.repeat, m.run_id"""


# The attempt that decides each run, of any outcome: a run may have rows though it timed nothing.
# Records that reports carried before there was a column of dropout have NULL there.
_TIMES = """\
SELECT k.* EXCLUDE (study, attempt, measured_at, reason, certificate)
  REPLACE (coalesce(k.dropout, 0) AS dropout)
FROM kernels k JOIN deciding_attempts d USING (study, run_id, attempt)
WHERE k.study = $study"""
KERNEL_TIMES = f"""\
{_TIMES}
ORDER BY k.sequence_length, k.batch, k.heads, k.kv_heads, k.head_dim, k.causal DESC, k.dtype,
  dropout, k.tile_queries NULLS FIRST, k.tile_keys NULLS FIRST, k.attention, k.mode, k.direction, k.run_id"""
# A run without rows has one for each backend of the study, which says how it ended, on its device if known.
KERNEL_TIMES_AND_GONE = f"""\
WITH known AS (
  {_TIMES}
), gone AS (
  SELECT run_id, device, if(outcome = 'completed', 'no times', coalesce(outcome, 'not run')) AS outcome,
    (config ->> '$.call.causal')::BOOLEAN AS causal, config ->> '$.call.dtype' AS dtype,
    coalesce((config ->> '$.call.dropout')::DOUBLE, 0) AS dropout, config ->> '$.call.shape' AS shape,
    string_split(config ->> '$.call.tile', 'x') AS tile
  FROM runs
  WHERE study = $study AND task = 'attention' AND run_id NOT IN (SELECT run_id FROM known)
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
  tile_queries NULLS FIRST, tile_keys NULLS FIRST, attention, mode, direction, run_id"""


_MIDDLE = (
    "sqrt(quantile_disc({0}, 0.5) * -quantile_disc(-{0}, 0.5))"  # of two in the middle the geometric mean
)
_RATE, _MFU, _TFLOPS = (_MIDDLE.format(name) for name in ("tokens_per_second", "mfu", "tflops"))
_DONE = """\
WHERE study = $study AND outcome = 'completed'
GROUP BY label, place
ORDER BY place"""
# Medians over the completed runs, of each run's median step after the warm-up.
TRAINING_METRICS = f"""\
SELECT label AS "Model",
  round({_RATE}, 2) AS "Tokens/sec",
  round(median(training_tokens_percentage), 2) AS "Train token %",
  round({_MFU}, 2) AS "MFU %",
  round({_TFLOPS}, 2) AS "TFLOP/s"
FROM runs
{_DONE}"""
# The loss is the median over seeds; repeats of a seed count once, as their mean: analysis.verdicts.losses.
TRAINING_SUMMARY = f"""\
WITH seeds AS (
  SELECT label, seed, favg(final_loss) AS loss FROM runs
  WHERE study = $study AND outcome = 'completed' GROUP BY label, seed
), losses AS (
  SELECT label, median(loss) AS loss FROM seeds GROUP BY label
)
SELECT label AS "Backend",
  count(*) AS "Runs",
  round(any_value(loss), 4) AS "Training loss",
  round({_RATE})::BIGINT AS "Tokens/sec",
  round({_MFU}, 1) AS "MFU %",
  round(median(wall_seconds) / 60, 1) AS "Training time, min",
  round(median(peak_memory_bytes) / 2**30, 1) AS "Peak memory, GiB"
FROM runs JOIN losses USING (label)
{_DONE}"""
# Of a prompt and of a decoded position: medians over the completed runs, of each run's median.
INFERENCE_SUMMARY = f"""\
SELECT label AS "Backend",
  count(*) AS "Runs",
  round(1000 * {_MIDDLE.format("step_seconds")}, 3) AS "Prefill, ms",
  round({_RATE})::BIGINT AS "Tokens/sec",
  round({_MFU}, 1) AS "MFU %",
  round({_MIDDLE.format("floor_percentage")}, 1) AS "Prefill floor, %",
  round(1000 * {_MIDDLE.format("decode_seconds")}, 3) AS "Decoded token, ms",
  round({_MIDDLE.format("decode_floor_percentage")}, 1) AS "Decode floor, %",
  round(median(peak_memory_bytes) / 2**30, 1) AS "Peak memory, GiB"
FROM runs
{_DONE}"""


# The run's row, so that a chart can name and order it.
_OF_RUN = "r.label, r.place, r.seed, r.repeat, r.attention, r.device"
FRONTIERS = f"""\
SELECT {_OF_RUN}, r.outcome AS run_outcome, f.* EXCLUDE (study, attempt),
  (r.config ->> '$.frontier.resolution')::DOUBLE AS resolution
FROM frontiers f JOIN runs r USING (study, run_id)
WHERE f.study = $study
ORDER BY r.place, r.seed, r.repeat, f.run_id"""
PROBES = f"""\
SELECT {_OF_RUN}, p.* EXCLUDE (study, attempt, measured_at)
FROM probes p JOIN deciding_attempts d USING (study, run_id, attempt) JOIN runs r USING (study, run_id)
WHERE p.study = $study
ORDER BY r.place, r.seed, r.repeat, p.run_id, p.number"""
