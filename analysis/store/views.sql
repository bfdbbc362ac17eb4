-- What queries read: derived from the base tables, and for each step record and each run from what derive.sql left there.

-- The attempt that decides a run: the last one that completed, otherwise the last one. Where it ran on other processes
-- than the run's own, what it measured is not of the run: the last one before it on the run's own is.
-- Columns without a comment have that of: attempts.
CREATE VIEW deciding_attempts AS
WITH deciding AS (
    SELECT study, run_id, coalesce(max(attempt) FILTER (outcome = 'completed'), max(attempt)) AS attempt
    FROM attempts GROUP BY study, run_id
)
SELECT study, run_id, d.attempt, CASE WHEN bool_or(a.attempt = d.attempt AND a.parallel IS NULL) THEN d.attempt
    ELSE max(a.attempt) FILTER (a.attempt < d.attempt AND a.parallel IS NULL AND a.gpus IS NOT NULL) END AS measured
FROM deciding d JOIN attempts a USING (study, run_id) GROUP BY study, run_id, d.attempt;
COMMENT ON VIEW deciding_attempts IS 'The attempt that decides a run''s outcome: the last one that completed, otherwise the last one.';
COMMENT ON COLUMN deciding_attempts.attempt IS 'Number of the attempt.';
COMMENT ON COLUMN deciding_attempts.measured IS 'Number of the attempt whose measurements are of the run: the same one, and where it ran on other processes than the run''s own, the last one before it that began on those; NULL if none did.';

-- Columns without a comment have that of: attempts.
CREATE VIEW admissions AS
SELECT study, run_id, attempt, certificate FROM attempts WHERE certificate IS NOT NULL
UNION SELECT study, run_id, attempt, certificate FROM kernels WHERE certificate IS NOT NULL;
COMMENT ON VIEW admissions IS 'Which certificates the backends of an attempt had: one row for each.';
COMMENT ON COLUMN admissions.attempt IS 'Number of the attempt.';
COMMENT ON COLUMN admissions.certificate IS 'Key of the certificate.';

-- Columns without a comment have that of: step_lines, step_files.
CREATE VIEW step_records AS
SELECT f.study, f.run_id, f.attempt, l.* EXCLUDE (file),
    l.step - l.steps >= f.warmup_steps AND l.step - l.steps IS DISTINCT FROM f.resumed_step AND f.same_device AS counted,
    f.flop_per_token, f.gpus, f.processes, f.peak_flops
FROM step_lines l JOIN step_files f ON f.file = l.file;
COMMENT ON VIEW step_records IS 'steps.jsonl of every attempt, one row per line. Use the view steps, in which each step appears once. What the log of an imported run does not say is NULL.';
COMMENT ON COLUMN step_records.printed_tokens_per_second IS 'Tokens per second as the log of an imported run has them, where it does not say the tokens or the seconds that they follow from. NULL otherwise.';
COMMENT ON COLUMN step_records.superseded IS 'Whether a later attempt went on from an earlier step, or started over, or a later line has the step too: that counts instead. In task inference, whose attempts start over, whether another attempt decides.';
COMMENT ON COLUMN step_records.counted IS 'Whether it is after the warm-up, on the measured attempt''s device and on the run''s own processes (see steps.counted).';
COMMENT ON COLUMN step_records.flop_per_token IS 'FLOP per token, of its attempt.';
COMMENT ON COLUMN step_records.gpus IS 'Number of GPUs, of its attempt; 0 on a CPU.';
COMMENT ON COLUMN step_records.processes IS 'Number of processes, of its attempt (see runs.processes).';
COMMENT ON COLUMN step_records.peak_flops IS 'Dense peak of one device in FLOP/s, of its attempt; NULL if unknown.';

-- Columns without a comment have that of: step_records.
CREATE VIEW steps AS
SELECT
    study, run_id, attempt, step, steps, time, loss, learning_rate, grad_norm, step_seconds,
    tokens, training_tokens,
    coalesce(tokens / steps / nullif(step_seconds, 0), printed_tokens_per_second) AS tokens_per_second,
    100.0 * training_tokens / tokens AS training_tokens_percentage,
    100.0 * flop_per_token * coalesce(tokens / steps / nullif(step_seconds, 0), printed_tokens_per_second) / (coalesce(processes, 1) * peak_flops) AS mfu,
    flop_per_token * coalesce(tokens / steps / nullif(step_seconds, 0), printed_tokens_per_second) / coalesce(processes, 1) / 1e12 AS tflops,
    memory_bytes, counted,
    step_seconds_min, step_seconds_median, step_seconds_max, data_wait_seconds,
    energy_joules, coalesce(power_joules, CASE WHEN step_seconds * steps >= 1 THEN energy_joules END)
        / (coalesce(power_seconds, step_seconds * steps) + 0.1) AS power_watts,
    sm_mhz, throttle_reasons,
    slowest_rank, slowest_rank_seconds, other_ranks_seconds
FROM step_records WHERE NOT superseded;
COMMENT ON VIEW steps IS 'Step records with their rates. Each step appears once: of what an attempt did after the step that a later one went on from, nothing is here; in task inference, the attempt that decides is.';
COMMENT ON COLUMN steps.tokens_per_second IS 'tokens / steps / step_seconds: tokens per second over the interval, all GPUs together; as printed, where an imported log does not say what they follow from.';
COMMENT ON COLUMN steps.training_tokens_percentage IS 'Percentage of the tokens that count in the loss; the rest is padding.';
COMMENT ON COLUMN steps.mfu IS 'Percent: 100 x flop_per_token x tokens_per_second / (processes x peak_flops), one process per GPU; NULL if the peak is unknown.';
COMMENT ON COLUMN steps.tflops IS 'Model TFLOP/s per GPU, on a CPU per process: flop_per_token x tokens_per_second / processes / 1e12. No causal discount.';
COMMENT ON COLUMN steps.counted IS 'Whether the interval starts at or after the warm-up, W = greatest(1, least(10, planned steps // 10)) steps, or as many as inference.warmup_steps says, is not where its attempt resumed, and the device is the measured attempt''s and the processes are the run''s own. An imported log that is a single line about more steps than W counts as it is.';
COMMENT ON COLUMN steps.power_watts IS 'Mean power of all GPUs of the run in watts, pauses of up to 0.1 s between steps included: power_joules / (power_seconds + 0.1) of step_records, in its last power_steps steps, which last a second or more. Since NVML''s counter can be 0.1 s late, it is at most what was drawn, and up to 0.1 s of the time lower. Of a record of a version without these, of its own interval if that lasts a second. NULL of other records; if unknown; and on a CPU.';

-- A short name for a group: the values of the factors that actually vary in its study, except the seed, each
-- factor by the last part of its name where that is clear.
-- Made of the runs that are alike in all that a label says, which are few where runs are many.
-- Names are made as if the runs that a study no longer has had never been. These get theirs from all of its runs.
-- Columns without a comment have that of: labels.
CREATE VIEW labelled AS
WITH named_runs AS (
    FROM run_records ANTI JOIN removed_runs USING (study, run_id) SELECT *, false AS gone, (study, false) AS scope
    UNION ALL
    SELECT r.*, o.run_id IS NOT NULL AS gone, (study, true) AS scope FROM run_records r LEFT JOIN removed_runs o USING (study, run_id)
    WHERE study IN (SELECT study FROM removed_runs)
), options AS (  -- settings that a launch's `--set` changed for some run: they tell its runs from the study's own
    SELECT DISTINCT scope, change.key AS axis FROM named_runs, json_each(overridden) change
    WHERE change.value ->> '$.by' = '`--set`'
), optional AS (
    SELECT scope, run_id, json_group_object(axis, config -> ('$.' || axis)) AS settings
    FROM named_runs JOIN options USING (scope) GROUP BY scope, run_id
), alike AS (
    SELECT scope, gone, study, run_id, group_id, scale, attention, CASE WHEN attention IS NULL THEN run_id END AS last_resort,
        json_merge_patch(r.factors, coalesce(o.settings, '{}'), '{"seed": null, "repeat": null, "scale": null}')::VARCHAR AS axes,
        json_array(group_id, scale, attention, last_resort)::VARCHAR || axes AS key,
        -- Where the study's file says its factors: in the order of these places the matrix expands.
        [split_part(place, ':', 1)::BIGINT * 10000 + split_part(place, ':', 2)::BIGINT
            FOR place IN regexp_extract_all(why::VARCHAR, ':(\d{1,9}:\d{1,4})"', 1)] AS places,
        max(label) OVER (PARTITION BY scope, group_id) AS given  -- runs that a launch left out may lack it
    FROM named_runs r LEFT JOIN optional o USING (scope, run_id)
), kinds AS (
    SELECT scope, key, any_value(group_id) AS group_id, any_value(scale) AS scale, any_value(attention) AS attention,
        any_value(last_resort) AS last_resort, any_value(axes) AS axes, min(places) AS places, any_value(given) AS given
    FROM alike GROUP BY scope, key
), cells AS (
    SELECT scope, kinds.key AS kind, axis.key AS axis, axis.value ->> '$' AS value
    FROM kinds, json_each(axes) axis
    UNION ALL SELECT scope, key, 'scale', scale FROM kinds
), varying AS (
    SELECT scope, axis, split_part(axis, '.', -1) AS last, count(*) OVER (PARTITION BY scope) AS axes,
        count(*) OVER (PARTITION BY scope, last) AS alike
    FROM (SELECT scope, axis FROM cells GROUP BY scope, axis HAVING count(DISTINCT value) > 1)
), baselines AS (  -- only one that all runs agree on
    SELECT scope, axis.key AS axis, axis.value ->> '$' AS base
    FROM (
        SELECT scope, any_value(design -> '$.baseline') AS baseline FROM named_runs
        GROUP BY scope HAVING count(DISTINCT design -> '$.baseline') = 1
    ), json_each(baseline) axis
), named AS (  -- of many factors, only those in which a group differs from the baseline
    SELECT scope, kind, coalesce(string_agg(
        CASE WHEN axis = 'attention' THEN value ELSE if(alike = 1, last, axis) || '=' || value END,
        ', ' ORDER BY axis <> 'attention', axis) FILTER (axes < 3 OR base IS NULL OR value <> base), 'baseline') AS label
    FROM cells JOIN varying USING (scope, axis) LEFT JOIN baselines USING (scope, axis) GROUP BY scope, kind
), appended AS (  -- to a given label: what tells apart runs that it names alike
    SELECT scope, kind, string_agg(', ' || if(alike = 1, last, axis) || '=' || value, '' ORDER BY axis) AS more
    FROM cells JOIN varying USING (scope, axis) LEFT JOIN options o USING (scope, axis)
    WHERE axis = 'scale' OR o.axis IS NOT NULL GROUP BY scope, kind
), filled AS (
    SELECT k.scope, k.key, k.group_id, k.places,
        coalesce(given || coalesce(more, ''), label, attention, last_resort) AS label
    FROM kinds k LEFT JOIN named n ON n.scope = k.scope AND n.kind = k.key
    LEFT JOIN appended a ON a.scope = k.scope AND a.kind = k.key
), unique_names AS (
    SELECT scope, key, places, CASE
        WHEN count(DISTINCT group_id) OVER (PARTITION BY scope, label) > 1 THEN label || ' #' || left(group_id, 6)
        ELSE label END AS label
    FROM filled
), firsts AS (
    SELECT *, min(places) OVER (PARTITION BY scope, label) AS first_places FROM unique_names
), placed AS (
    SELECT scope, key, label,
        dense_rank() OVER (PARTITION BY scope ORDER BY first_places NULLS LAST, label) AS place
    FROM firsts
), kept AS (
    SELECT study, run_id, group_id, a.scale, label, place FROM alike a JOIN placed USING (scope, key)
    WHERE scope = (study, false)
), groups AS (
    SELECT study, group_id, scale, any_value(label) AS label, any_value(place) AS place FROM kept GROUP BY study, group_id, scale
), dropped AS (  -- of a group of which some runs are left it has the name, and of no other group
    SELECT a.study, a.run_id, g.place, p.place AS place_of_all, coalesce(g.label,
        if(t.label IS NULL, p.label, p.label || ' #' || left(a.group_id, 6))) AS label
    FROM alike a JOIN placed p USING (scope, key)
    LEFT JOIN groups g ON g.study = a.study AND g.group_id = a.group_id AND g.scale IS NOT DISTINCT FROM a.scale
    LEFT JOIN (SELECT DISTINCT study, label FROM kept) t ON t.study = a.study AND t.label = p.label
    WHERE a.gone
), last AS (
    SELECT study, max(place) AS place FROM kept GROUP BY study
)
SELECT study, run_id, label, place, true AS in_study FROM kept
UNION ALL
SELECT d.study, d.run_id, d.label, coalesce(d.place, coalesce(last.place, 0)
    + dense_rank() OVER (PARTITION BY d.study, d.place IS NULL ORDER BY d.place_of_all, d.label)) AS place, false AS in_study
FROM dropped d LEFT JOIN last ON last.study = d.study;
COMMENT ON VIEW labelled IS 'What the table labels holds, made of the run records: a collect computes it once for all queries.';
COMMENT ON COLUMN labelled.place IS 'Position of the group in the study, counted from 1.';

-- Columns without a comment have that of: run_records, run_measures, attempts, labels.
CREATE VIEW runs AS
WITH spent AS (
    SELECT study, run_id, count(*) AS attempts, min(started_at) AS started_at, max(ended_at) AS ended_at,
        CASE WHEN count(*) = count(wall_seconds) THEN sum(wall_seconds) END AS wall_seconds,
        -- What never started held no GPU. The log of an imported run may not say how many there were.
        CASE WHEN count(*) = count(held) THEN sum(held) / 3600 END AS gpu_hours,
        count(*) FILTER (wall_seconds IS DISTINCT FROM 0) AS begun,
        CASE WHEN begun = count(power_capped_seconds) THEN sum(power_capped_seconds) END AS power_capped_seconds,
        CASE WHEN begun = count(slowed_seconds) THEN sum(slowed_seconds) END AS slowed_seconds
    FROM (SELECT *, CASE WHEN wall_seconds = 0 THEN 0 ELSE wall_seconds * gpus END AS held FROM attempts)
    GROUP BY study, run_id
), floors AS (
    SELECT study, run_id, attempt, sum(seconds ORDER BY part) FILTER (phase = 'step') AS floor_seconds,
        sum(flop) FILTER (part = 'products' AND phase = 'step') / sum(seconds) FILTER (part = 'products' AND phase = 'step')
            / 1e12 AS ceiling_tflops,
        sum(seconds ORDER BY part) FILTER (phase = 'decode') AS decode_floor_seconds
    FROM step_floor GROUP BY study, run_id, attempt
), audited AS (
    SELECT study, run_id, count(*) AS audits, count(*) FILTER (passed) AS audits_passed, max(ratio) AS audit_ratio
    FROM audits GROUP BY study, run_id
), decoded AS (
    SELECT study, run_id, attempt, count(*) AS decoded_tokens, median(seconds) AS decode_seconds
    FROM decoding GROUP BY study, run_id, attempt
)
SELECT
    r.run_id, r.study, r.attention, r.seed, r.repeat, r.factors, r.config, r.profile,
    r.position, r.block, r.design,
    a.outcome, CASE WHEN json_contains(r.also_expected, to_json(a.outcome)) THEN a.outcome ELSE r.expected_outcome END AS expected_outcome, a.reason, coalesce(p.attempts, 0) AS attempts,
    CASE WHEN b.gpus > 0 THEN b.device END AS gpu, b.node, b.nodes, b.gpus,
    coalesce(CASE WHEN b.parallel IS NULL THEN nullif(b.gpus, 0) END, r.processes, CASE WHEN r.imported IS NULL THEN 1 END) AS processes,
    greatest(m.last_step, a.steps) AS steps,
    m.step_seconds,
    coalesce(m.tokens_per_step / nullif(m.step_seconds, 0), m.printed_tokens_per_second) AS tokens_per_second,
    coalesce(m.tokens_per_step / nullif(m.step_seconds, 0), m.printed_tokens_per_second)
        / coalesce(nullif(b.gpus, 0), r.processes, CASE WHEN r.imported IS NULL THEN 1 END) AS tokens_per_second_per_process,
    100.0 * b.flop_per_token * coalesce(m.tokens_per_step / nullif(m.step_seconds, 0), m.printed_tokens_per_second)
        / (coalesce(nullif(b.gpus, 0), r.processes, 1) * b.peak_flops) AS mfu,
    b.flop_per_token * coalesce(m.tokens_per_step / nullif(m.step_seconds, 0), m.printed_tokens_per_second) / coalesce(nullif(b.gpus, 0), r.processes, 1) / 1e12 AS tflops,
    m.training_tokens_percentage,
    -- A completed run logs its last step: without that line, its loss there is not known.
    CASE WHEN a.outcome = 'completed' AND r.imported IS NULL AND a.steps > m.last_step THEN NULL ELSE m.final_loss END AS final_loss,
    CASE WHEN b.parallel IS NULL THEN greatest(b.peak_memory_bytes, m.memory_bytes) END AS peak_memory_bytes,
    m.energy_joules,
    p.wall_seconds, p.gpu_hours, r.git_sha, r.git_dirty, r.created_at, p.started_at,
    CASE WHEN a.outcome IS NOT NULL THEN p.ended_at END AS ended_at,
    r.group_id, l.label, l.place, r.title, r.description, r.scale, r.because, r.planned_steps, r.sequence_length, r.batch_size,
    coalesce(try_cast(r.config ->> '$.inference.warmup_steps' AS BIGINT), greatest(1, least(10, r.planned_steps // 10))) AS warmup_steps,
    coalesce(m.counted_records, 0) AS counted_records, m.tokens_per_step, m.training_seconds,
    b.device, a.certificate, c.verdict, b.software, b.flop_per_token, b.peak_flops, b.peak_source, a.requested_bytes,
    d.attempt AS deciding_attempt, d.measured AS measured_attempt, g.missing_since,
    r.data_fingerprint, r.code, l.in_study,
    b.power_limit_watts, b.sm_mhz, b.memory_mhz, p.power_capped_seconds, p.slowed_seconds, b.device_users, r.imported,
    b.gpu_uuid, f.ceiling_tflops, 100.0 * tflops / f.ceiling_tflops AS ceiling_percentage,
    f.floor_seconds, 100.0 * f.floor_seconds / nullif(m.step_seconds, 0) AS floor_percentage,
    m.power_watts, m.data_wait_percentage, m.sm_mhz_low, m.sm_mhz_high, m.throttle_reasons, m.clocks_changed,
    m.slowest_rank, m.slowest_rank_records, m.ranked_records, m.slowest_rank_percentage,
    b.rank_nodes ->> m.slowest_rank AS slowest_rank_node,
    u.audits, u.audits_passed, u.audit_ratio,
    coalesce(r.config ->> '$.task', 'training') AS task,
    q.decoded_tokens, q.decode_seconds, r.batch_size / nullif(q.decode_seconds, 0) AS decode_tokens_per_second,
    f.decode_floor_seconds, 100.0 * f.decode_floor_seconds / nullif(q.decode_seconds, 0) AS decode_floor_percentage
FROM run_records r
JOIN labels l ON l.study = r.study AND l.run_id = r.run_id
LEFT JOIN deciding_attempts d ON d.study = r.study AND d.run_id = r.run_id
LEFT JOIN attempts a ON a.study = d.study AND a.run_id = d.run_id AND a.attempt = d.attempt
LEFT JOIN attempts b ON b.study = d.study AND b.run_id = d.run_id AND b.attempt = coalesce(d.measured, d.attempt)
-- A certificate of another backend or device says nothing about this run, even if its attempt names it.
LEFT JOIN certificates c ON c.key = a.certificate AND c.attention = r.attention
    AND NOT coalesce(c.device_name <> a.device, false)
LEFT JOIN spent p ON p.study = r.study AND p.run_id = r.run_id
LEFT JOIN floors f ON f.study = d.study AND f.run_id = d.run_id AND f.attempt = d.measured
LEFT JOIN decoded q ON q.study = d.study AND q.run_id = d.run_id AND q.attempt = d.attempt
LEFT JOIN run_measures m ON m.study = r.study AND m.run_id = r.run_id
LEFT JOIN (
    SELECT study, run_id, min(missing_since) AS missing_since FROM files WHERE missing_since IS NOT NULL GROUP BY study, run_id) g
    ON g.study = r.study AND g.run_id = r.run_id
LEFT JOIN audited u ON u.study = r.study AND u.run_id = r.run_id;
COMMENT ON VIEW runs IS 'One row per run: its plan, how it ended, and its rates without the warm-up.';
COMMENT ON COLUMN runs.run_id IS 'Id of the run: a hash of its resolved configuration, including the seed.';
COMMENT ON COLUMN runs.position IS 'Planned place in the order of starting, from 1; started_at says when it began. NULL in records of versions without an order.';
COMMENT ON COLUMN runs.outcome IS 'completed if any attempt completed, otherwise the outcome of the last attempt; NULL if in flight or never started.';
COMMENT ON COLUMN runs.expected_outcome IS 'Outcome that the study expects; where it expects any of several, that of the run if it is one of these, else the likeliest. An expected failure is a result.';
COMMENT ON COLUMN runs.reason IS 'Why the run ended that way, if anything recorded a reason.';
COMMENT ON COLUMN runs.attempts IS 'Number of attempts, including those that never started.';
COMMENT ON COLUMN runs.gpu IS 'Name of the GPU as its driver reports it; NULL on a CPU.';
COMMENT ON COLUMN runs.node IS 'Host name; of several nodes, that of the first process.';
COMMENT ON COLUMN runs.gpus IS 'Number of GPUs, on all nodes; 0 on a CPU.';
COMMENT ON COLUMN runs.processes IS 'Number of processes of the run: one per GPU; on a CPU as the configuration asks (the product of parallel.*). NULL for an imported run whose log does not say how many GPUs there were.';
COMMENT ON COLUMN runs.tokens_per_second_per_process IS 'tokens_per_second / processes: on GPUs, tokens per second and GPU. NULL if either is unknown.';
COMMENT ON COLUMN runs.steps IS 'Completed steps: optimizer steps, or prefills of task inference.';
COMMENT ON COLUMN runs.step_seconds IS 'Median seconds per step over the step records after the warm-up (see warmup_steps). For an even number of records, the geometric mean of the middle two, so that the median of the rates is the rate at the median.';
COMMENT ON COLUMN runs.tokens_per_second IS 'tokens_per_step / step_seconds: tokens per second, all GPUs together, with padding, without the warm-up. Of an imported log that says neither the tokens nor the seconds of its records, the median of those that it prints.';
COMMENT ON COLUMN runs.mfu IS 'Model FLOPs utilisation in percent: 100 x flop_per_token x tokens_per_second / (processes x peak_flops), one process per GPU; NULL if the peak is unknown. Each task has its own formula: that of a prefill must not be compared with that of training.';
COMMENT ON COLUMN runs.tflops IS 'Model TFLOP/s per GPU, on a CPU per process: flop_per_token x tokens_per_second / processes / 1e12. No causal discount, no recomputation.';
COMMENT ON COLUMN runs.final_loss IS 'Loss at the last logged step in nats per token: one step''s loss, not a mean. NULL if not finite, and of a completed run whose record of its last step is lost.';
COMMENT ON COLUMN runs.peak_memory_bytes IS 'Peak memory of the measured attempt in bytes, of the process that needed most: device memory on a GPU, resident memory on a CPU.';
COMMENT ON COLUMN runs.wall_seconds IS 'Seconds from start to end, summed over attempts; too many for an attempt without a result that was noticed late (see attempts.wall_seconds). NULL if unknown for any of them.';
COMMENT ON COLUMN runs.gpu_hours IS 'wall_seconds x gpus / 3600, summed over attempts.';
COMMENT ON COLUMN runs.created_at IS 'When the run was planned, UTC.';
COMMENT ON COLUMN runs.started_at IS 'When its first attempt started, UTC.';
COMMENT ON COLUMN runs.ended_at IS 'When its last attempt ended, UTC; NULL while in flight.';
COMMENT ON COLUMN runs.label IS 'What charts call the run''s group: the factors that vary in the study, except seed and repeat. Where three or more vary and the study has a baseline, those in which the group differs from it; the baseline itself is called baseline. Where a rule of the study gives the group a label, that.';
COMMENT ON COLUMN runs.place IS 'Position of the run''s group in the study, counted from 1: the order of its matrix, whatever the results.';
COMMENT ON COLUMN runs.planned_steps IS 'Planned steps, the warm-up included: optimizer steps, or prefills of task inference.';
COMMENT ON COLUMN runs.sequence_length IS 'Tokens per sample; of task inference, per prompt.';
COMMENT ON COLUMN runs.warmup_steps IS 'Length of the warm-up: W = greatest(1, least(10, planned steps // 10)), or inference.warmup_steps. Only step records whose interval starts at or after W steps count.';
COMMENT ON COLUMN runs.counted_records IS 'Number of step records that count: after the warm-up, on the measured attempt''s device.';
COMMENT ON COLUMN runs.tokens_per_step IS 'Tokens per step, including padding, over the counted records.';
COMMENT ON COLUMN runs.training_seconds IS 'Seconds spent in the logged steps, including the warm-up: the sum of step_seconds x steps.';
COMMENT ON COLUMN runs.device IS 'Name of the device, GPU or CPU, as the system reports it.';
COMMENT ON COLUMN runs.certificate IS 'Key of the certificate that the backend had in the deciding attempt; NULL in records that are older than certificates.';
COMMENT ON COLUMN runs.verdict IS 'Verdict of that certificate: right, wrong or unsupported; NULL if there is none or if it belongs to another backend or device.';
COMMENT ON COLUMN runs.flop_per_token IS 'FLOP per token: 6 N + 12 L H Q T, where N excludes the input embedding. Of a prefill, forward only, 2 N + 2 V D / T + 4 L H Q T, where N excludes the output head too, whose V x D parameters count for the last token alone. No causal discount in either.';
COMMENT ON COLUMN runs.requested_bytes IS 'Size in bytes of the allocation that failed, if the run ran out of memory.';
COMMENT ON COLUMN runs.deciding_attempt IS 'Attempt that the outcome and certificate are taken from: the last one that completed, otherwise the last one.';
COMMENT ON COLUMN runs.measured_attempt IS 'Attempt that the device, processes, memory and profile are taken from: the deciding one, and where that ran on other processes than the run''s own (attempts.parallel), the last one before it that began on those. NULL if none did: then the device and the GPUs are those of the deciding one, and nothing is measured.';
COMMENT ON COLUMN runs.missing_since IS 'When a collect found that some or all of the run''s files were gone, UTC: the row is what they said before. NULL if all are there.';
COMMENT ON COLUMN runs.in_study IS 'Whether the study still has the run: false of one that it no longer gave when its changed file was last launched (see removed_runs). True of imported runs.';
COMMENT ON COLUMN runs.power_capped_seconds IS 'Seconds for which the power limit throttled the clocks of the GPU, summed over attempts like wall_seconds. NULL if unknown for any of them, and on a CPU.';
COMMENT ON COLUMN runs.slowed_seconds IS 'Seconds for which heat or the power supply throttled the clocks of the GPU, summed over attempts like wall_seconds. NULL if unknown for any of them, and on a CPU.';
COMMENT ON COLUMN runs.device_users IS 'Other processes that used the GPU when the measured attempt started. NULL if unknown, and on a CPU.';
COMMENT ON COLUMN runs.gpu_uuid IS 'UUID of the GPU of the measured attempt: which one of its kind it was. NULL if unknown, and on a CPU.';
COMMENT ON COLUMN runs.ceiling_tflops IS 'Measured rate of all matrix products of a step together on this device, in TFLOP/s: their FLOP over the sum of their times. NULL if it was not measured.';
COMMENT ON COLUMN runs.ceiling_percentage IS 'Percent: 100 x tflops / ceiling_tflops, of which tflops counts masked attention in full: where samples are long, it is not the share of what the device did (floor_percentage is near that). NULL if it was not measured.';
COMMENT ON COLUMN runs.floor_seconds IS 'The least seconds that a step, or a prefill, can take by the measured ceilings of its device, of one process''s share of the work: the sum of the parts of phase step in step_floor. NULL if they were not measured, or are unsure (see nodes.unsure).';
COMMENT ON COLUMN runs.floor_percentage IS 'Percent: 100 x floor_seconds / step_seconds, the floor as a share of the step''s time.';
COMMENT ON COLUMN runs.audits IS 'Number of audits during the run, over all attempts: its own attention calls, compared with float64 (see the table audits). NULL if there are none, as in records that are older than audits.';
COMMENT ON COLUMN runs.audits_passed IS 'Number of those that passed. A run ends failed with the first that does not; an attempt after it starts over.';
COMMENT ON COLUMN runs.audit_ratio IS 'Largest measured / tolerance of all audits, a ratio: up to 1 passes, infinity means a result that is not finite.';
COMMENT ON COLUMN runs.task IS 'What the run does: training; inference; attention, which is in the table kernels; or frontier, which is in the view frontiers. Rates of one task must not be compared with those of another.';
COMMENT ON COLUMN runs.decoded_tokens IS 'Positions decoded with a KV cache, of which decode_seconds is the median. NULL if nothing was decoded.';
COMMENT ON COLUMN runs.decode_seconds IS 'Median seconds of a decoded position, one token of each sample: see decoding. NULL if nothing was decoded.';
COMMENT ON COLUMN runs.decode_tokens_per_second IS 'batch_size / decode_seconds: decoded tokens per second, all samples together.';
COMMENT ON COLUMN runs.decode_floor_seconds IS 'The least seconds that a decoded position can take by the measured ceilings of its device, with the median number of keys: the sum of the parts of phase decode in step_floor. NULL if they were not measured, are unsure (see nodes.unsure), or nothing was decoded.';
COMMENT ON COLUMN runs.decode_floor_percentage IS 'Percent: 100 x decode_floor_seconds / decode_seconds.';
COMMENT ON COLUMN runs.imported IS 'For a run that another program made: where its log came from and what was found in it (see run_records.imported). NULL for a run of this program.';
COMMENT ON COLUMN runs.slowest_rank_node IS 'Name of the slowest process''s node. NULL of a run of one process, and if unknown.';

-- The largest error of each tensor of a backend. The error of a result that is not finite is infinite, not
-- missing: a maximum over the finite numbers would overlook it.
-- Columns without a comment have that of: verifications.
CREATE VIEW tensor_errors AS
WITH scored AS (
    SELECT *,
        CASE
            WHEN name = 'finite' AND NOT passed THEN 'infinity'::DOUBLE
            WHEN tolerance IS NULL THEN NULL
            WHEN measured IS NULL THEN 'infinity'::DOUBLE
            WHEN measured = 0 THEN 0
            ELSE measured / tolerance
        END AS ratio,
        -- With a single token the softmax is 1 whatever Q and K are: dQ and dK are zero, and no error is relative to zero.
        CASE WHEN isinf(ratio) THEN ratio
            WHEN split_part(variant, ',', 1) = 'plain' AND NOT (what IN ('dq', 'dk') AND shape LIKE '% T1 %')
            THEN relative_error END AS plain_error
    FROM verifications WHERE what IN ('o', 'dq', 'dk', 'dv')
)
SELECT certificate, attention, what AS tensor,
    count(*) AS checks, count(*) FILTER (NOT passed) AS failed,
    max(plain_error) AS relative_error,
    first(shape ORDER BY plain_error DESC NULLS LAST, place) FILTER (plain_error IS NOT NULL) AS relative_error_shape,
    max(ratio) AS ratio,
    first(measured ORDER BY ratio DESC NULLS LAST, place) FILTER (ratio IS NOT NULL) AS measured,
    first(tolerance ORDER BY ratio DESC NULLS LAST, place) FILTER (ratio IS NOT NULL) AS tolerance,
    first(name ORDER BY ratio DESC NULLS LAST, place) FILTER (ratio IS NOT NULL) AS name,
    first(shape ORDER BY ratio DESC NULLS LAST, place) FILTER (ratio IS NOT NULL) AS shape,
    first(variant ORDER BY ratio DESC NULLS LAST, place) FILTER (ratio IS NOT NULL) AS variant
FROM scored GROUP BY certificate, attention, what;
COMMENT ON VIEW tensor_errors IS 'Largest errors of the output and the gradients, one row per certificate and tensor.';
COMMENT ON COLUMN tensor_errors.tensor IS 'o is the output; dq, dk and dv are the gradients.';
COMMENT ON COLUMN tensor_errors.checks IS 'Number of checks of this tensor.';
COMMENT ON COLUMN tensor_errors.failed IS 'Number of these checks that failed.';
COMMENT ON COLUMN tensor_errors.relative_error IS 'Largest relative error, which is the norm of the error divided by the norm of the exact result, on plain (random) data: a ratio. Leaves out dq and dk of a single token, which are zero. Infinity if any result is not finite.';
COMMENT ON COLUMN tensor_errors.relative_error_shape IS 'Shape, precision and mask at which the relative error was largest.';
COMMENT ON COLUMN tensor_errors.ratio IS 'Largest measured / tolerance over all checks, a ratio: up to 1 passes, infinity means a result that is not finite.';
COMMENT ON COLUMN tensor_errors.measured IS 'What that check measured, in roundings in its precision; NULL if not finite.';
COMMENT ON COLUMN tensor_errors.tolerance IS 'Largest value that passes that check, in roundings in its precision.';
COMMENT ON COLUMN tensor_errors.name IS 'Kind of that check.';
COMMENT ON COLUMN tensor_errors.shape IS 'Shape, precision and mask of that check.';
COMMENT ON COLUMN tensor_errors.variant IS 'Data of that check and how it called the backend.';

-- Columns without a comment have that of: tensor_errors.
CREATE VIEW certificate_errors AS
SELECT certificate,
    max(relative_error) FILTER (tensor = 'o') AS o_error, max(relative_error) FILTER (tensor = 'dq') AS dq_error,
    max(relative_error) FILTER (tensor = 'dk') AS dk_error, max(relative_error) FILTER (tensor = 'dv') AS dv_error,
    max(ratio) AS ratio
FROM tensor_errors GROUP BY certificate;
COMMENT ON VIEW certificate_errors IS 'tensor_errors with one row per certificate. Certificates whose backend was never called are left out.';
COMMENT ON COLUMN certificate_errors.o_error IS 'Largest relative error of the output on plain data, a ratio.';
COMMENT ON COLUMN certificate_errors.dq_error IS 'Largest relative error of the gradient of Q on plain data, a ratio.';
COMMENT ON COLUMN certificate_errors.dk_error IS 'Largest relative error of the gradient of K on plain data, a ratio.';
COMMENT ON COLUMN certificate_errors.dv_error IS 'Largest relative error of the gradient of V on plain data, a ratio.';
COMMENT ON COLUMN certificate_errors.ratio IS 'Largest measured / tolerance of output and gradients over all checks, a ratio: up to 1 passes.';

-- Columns without a comment have that of: certificates, certificate_errors.
CREATE VIEW backends AS
SELECT c.attention, c.device_kind, c.device_name, c.verdict, c.key AS certificate, c.checks, c.failed,
    e.o_error, e.dq_error, e.dk_error, e.dv_error, e.ratio, c.created_at
FROM certificates c LEFT JOIN certificate_errors e ON e.certificate = c.key
WHERE c.run_case IS NULL
QUALIFY row_number() OVER (
    PARTITION BY c.attention, c.device_kind, c.device_name ORDER BY c.created_at DESC, c.key) = 1;
COMMENT ON VIEW backends IS 'What runner verify found last: the newest certificate of each backend and device that covers everything the backend supports.';
COMMENT ON COLUMN backends.verdict IS 'right, wrong or unsupported.';
COMMENT ON COLUMN backends.o_error IS 'Largest relative error of the output on plain data, a ratio (see tensor_errors).';

-- Columns without a comment have that of: probes.
CREATE VIEW frontiers AS
WITH sought AS (
    SELECT p.*, max(value) FILTER (outcome = 'fits') OVER (PARTITION BY p.study, p.run_id) AS largest
    FROM probes p JOIN deciding_attempts USING (study, run_id, attempt)
)
SELECT study, run_id, attempt, find, multiple, most, card_bytes, memory_fraction, foreseen, largest,
    min(value) FILTER (value > coalesce(largest, 0)) AS bound,
    arg_min(outcome, value) FILTER (value > coalesce(largest, 0)) AS bound_outcome,
    coalesce(bound_outcome NOT IN ('timeout', 'failed'), coalesce(largest = most, false)) AS is_bounded,
    count(*) FILTER (value < largest AND outcome NOT IN ('fits', 'timeout', 'failed')) AS holes,
    count(*) AS probes,
    count(*) FILTER (purpose = 'search') AS searched,
    count(*) FILTER (outcome IN ('timeout', 'failed')) AS unknown,
    100.0 * (foreseen - largest) / largest AS foreseen_error_percentage,
    any_value(forecast_bytes) FILTER (value = largest) AS forecast_bytes,
    any_value(peak_bytes) FILTER (value = largest) AS peak_bytes,
    any_value(reserved_bytes) FILTER (value = largest) AS reserved_bytes,
    any_value(outside_bytes) FILTER (value = largest) AS outside_bytes,
    100.0 * (any_value(forecast_bytes) FILTER (value = largest) - any_value(peak_bytes) FILTER (value = largest))
        / any_value(peak_bytes) FILTER (value = largest) AS forecast_error_percentage
FROM sought
GROUP BY study, run_id, attempt, find, multiple, most, card_bytes, memory_fraction, foreseen, largest;
COMMENT ON VIEW frontiers IS 'The largest value that fits into memory, one row per run of task frontier that probed: of the attempt that decides its outcome.';
COMMENT ON COLUMN frontiers.largest IS 'Largest value of which a probe did its steps and fits; NULL if none does.';
COMMENT ON COLUMN frontiers.bound IS 'Smallest value above that of which a probe did not fit; NULL if none was tried.';
COMMENT ON COLUMN frontiers.bound_outcome IS 'How that probe ended.';
COMMENT ON COLUMN frontiers.is_bounded IS 'Whether it is known that the next value tried does not fit, or that the largest that may be tried fits; otherwise the frontier is at least largest.';
COMMENT ON COLUMN frontiers.holes IS 'Values below largest that do not fit: then fitting is not monotone.';
COMMENT ON COLUMN frontiers.probes IS 'Number of probes.';
COMMENT ON COLUMN frontiers.searched IS 'Of these, how many the search took; the others were above a value that does not fit.';
COMMENT ON COLUMN frontiers.unknown IS 'Of these, how many hung or died: of their values it is not known whether they fit.';
COMMENT ON COLUMN frontiers.foreseen_error_percentage IS 'By how many percent of largest the forecast''s value is larger; negative where it is smaller.';
COMMENT ON COLUMN frontiers.forecast_bytes IS 'Peak in bytes of largest by the configuration.';
COMMENT ON COLUMN frontiers.peak_bytes IS 'Peak in bytes of largest, measured.';
COMMENT ON COLUMN frontiers.reserved_bytes IS 'See probes.reserved_bytes, of largest.';
COMMENT ON COLUMN frontiers.outside_bytes IS 'See probes.outside_bytes, of largest.';
COMMENT ON COLUMN frontiers.forecast_error_percentage IS 'By how many percent of the measured peak of largest its forecast is larger; negative where it is smaller.';
