-- What queries read: derived from the base tables, and for each step record and each run from what derive.sql left there.

-- The attempt that decides a run: the last one that completed, otherwise the last one. Where it ran on other processes
-- than the run's own, what it measured is not of the run: the last one before it on the run's own is.
-- Columns without a comment have that of: attempts.
CREATE VIEW deciding_attempts AS  --: The attempt that decides a run's outcome: the last one that completed, otherwise the last one.
WITH deciding AS (
    SELECT study, run_id, coalesce(max(attempt) FILTER (outcome = 'completed'), max(attempt)) AS attempt
    FROM attempts GROUP BY study, run_id
)
SELECT study, run_id,
    d.attempt,  --: Number of the attempt.
    CASE WHEN bool_or(a.attempt = d.attempt AND a.parallel IS NULL) THEN d.attempt
        ELSE max(a.attempt) FILTER (a.attempt < d.attempt AND a.parallel IS NULL AND a.gpus IS NOT NULL) END
        AS measured  --: Number of the attempt whose measurements are of the run: the same one, and where it ran on other processes than the run's own, the last one before it that began on those; NULL if none did.
FROM deciding d JOIN attempts a USING (study, run_id) GROUP BY study, run_id, d.attempt;

-- Columns without a comment have that of: attempts.
CREATE VIEW admissions AS  --: Which certificates the backends of an attempt had: one row for each.
SELECT study, run_id,
    attempt,  --: Number of the attempt.
    certificate  --: Key of the certificate.
FROM attempts WHERE certificate IS NOT NULL
UNION SELECT study, run_id, attempt, certificate FROM kernels WHERE certificate IS NOT NULL;

-- Columns without a comment have that of: step_lines, step_files.
CREATE VIEW step_records AS  --: steps.jsonl of every attempt, one row per line. Use the view steps, in which each step appears once. What the log of an imported run does not say is NULL.
SELECT f.study, f.run_id, f.attempt, l.* EXCLUDE (file),
    l.step - l.steps >= f.warmup_steps AND l.step - l.steps IS DISTINCT FROM f.resumed_step AND f.same_device
        AS counted,  --: Whether it is after the warm-up, on the measured attempt's device and on the run's own processes (see steps.counted).
    f.flop_per_token,  --: FLOP per token, of its attempt.
    f.gpus,  --: Number of GPUs, of its attempt; 0 on a CPU.
    f.processes,  --: Number of processes, of its attempt (see runs.processes).
    f.peak_flops  --: Dense peak of one device in FLOP/s, of its attempt; NULL if unknown.
FROM step_lines l JOIN step_files f ON f.file = l.file;

-- Columns without a comment have that of: step_records.
CREATE VIEW steps AS  --: Step records with their rates. Each step appears once: of what an attempt did after the step that a later one went on from, nothing is here; in task inference, the attempt that decides is.
SELECT
    study, run_id, attempt, step, steps, time, loss, learning_rate, grad_norm, step_seconds,
    tokens, training_tokens,
    coalesce(tokens / steps / nullif(step_seconds, 0), printed_tokens_per_second)
        AS tokens_per_second,  --: tokens / steps / step_seconds: tokens per second over the interval, all GPUs together; as printed, where an imported log does not say what they follow from.
    100.0 * training_tokens / tokens AS training_tokens_percentage,  --: Percentage of the tokens that count in the loss; the rest is padding.
    100.0 * flop_per_token * coalesce(tokens / steps / nullif(step_seconds, 0), printed_tokens_per_second) / (coalesce(processes, 1) * peak_flops)
        AS mfu,  --: Percent: 100 x flop_per_token x tokens_per_second / (processes x peak_flops), one process per GPU; NULL if the peak is unknown.
    flop_per_token * coalesce(tokens / steps / nullif(step_seconds, 0), printed_tokens_per_second) / coalesce(processes, 1) / 1e12
        AS tflops,  --: Model TFLOP/s per GPU, on a CPU per process: flop_per_token x tokens_per_second / processes / 1e12. No causal discount.
    memory_bytes,
    counted,  --: Whether the interval starts at or after the warm-up, W = greatest(1, least(10, planned steps // 10)) steps, or as many as inference.warmup_steps says, is not where its attempt resumed, and the device is the measured attempt's and the processes are the run's own. An imported log that is a single line about more steps than W counts as it is.
    step_seconds_min, step_seconds_median, step_seconds_max, data_wait_seconds,
    energy_joules,
    coalesce(power_joules, CASE WHEN step_seconds * steps >= 1 THEN energy_joules END)
        / (coalesce(power_seconds, step_seconds * steps) + 0.1)
        AS power_watts,  --: Mean power of all GPUs of the run in watts, pauses of up to 0.1 s between steps included: power_joules / (power_seconds + 0.1) of step_records, in its last power_steps steps, which last a second or more. Since NVML's counter can be 0.1 s late, it is at most what was drawn, and up to 0.1 s of the time lower. Of a record of a version without these, of its own interval if that lasts a second. NULL of other records; if unknown; and on a CPU.
    sm_mhz, throttle_reasons,
    slowest_rank, slowest_rank_seconds, other_ranks_seconds
FROM step_records WHERE NOT superseded;

-- A short name for a group: the values of the factors that actually vary in its study, except the seed, each
-- factor by the last part of its name where that is clear.
-- Made of the runs that are alike in all that a label says, which are few where runs are many.
-- Names are made as if the runs that a study no longer has had never been. These get theirs from all of its runs.
-- Columns without a comment have that of: labels.
CREATE VIEW labelled AS  --: What the table labels holds, made of the run records: a collect computes it once for all queries.
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
), listed AS (  -- scopes whose runs are told apart without the backends that they call: these are in every table
    SELECT scope FROM kinds GROUP BY scope
    HAVING count(DISTINCT (scale, json_merge_patch(axes, '{"call.backends": null}'))) = count(DISTINCT (scale, axes))
), varying AS (
    SELECT scope, axis, split_part(axis, '.', -1) AS last, count(*) OVER (PARTITION BY scope) AS axes,
        count(*) OVER (PARTITION BY scope, last) AS alike
    FROM (SELECT scope, axis FROM cells GROUP BY scope, axis HAVING count(DISTINCT value) > 1)
    WHERE axis <> 'call.backends' OR scope NOT IN (FROM listed)
), baselines AS (  -- only one that all runs agree on, and of several settings: a backend alone is always named
    SELECT scope, axis.key AS axis, axis.value ->> '$' AS base
    FROM (
        SELECT scope, any_value(design -> '$.baseline') AS baseline FROM named_runs
        GROUP BY scope HAVING count(DISTINCT design -> '$.baseline') = 1 AND json_keys(baseline) <> ['attention']
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
SELECT study, run_id, label,
    place,  --: Position of the group in the study, counted from 1.
    true AS in_study
FROM kept
UNION ALL
SELECT d.study, d.run_id, d.label, coalesce(d.place, coalesce(last.place, 0)
    + dense_rank() OVER (PARTITION BY d.study, d.place IS NULL ORDER BY d.place_of_all, d.label)) AS place, false AS in_study
FROM dropped d LEFT JOIN last ON last.study = d.study;

-- Columns without a comment have that of: run_records, labels.
CREATE VIEW reported AS  --: Numbers of other people that a study gives of its groups, one row per group and entry, from the newest run of the group. Nothing here was measured by this program, and no comparison or ranking reads it. What an entry does not give is NULL.
WITH newest AS (
    SELECT r.study, l.label, l.place, r.attention, r.factors, CAST(r.reported AS JSON[]) AS entries
    FROM run_records r JOIN labels l USING (study, run_id)
    QUALIFY row_number() OVER (PARTITION BY r.study, l.label ORDER BY r.created_at DESC, r.run_id) = 1
), numbered AS (
    SELECT * EXCLUDE entries, generate_subscripts(entries, 1) AS entry, unnest(entries) AS one FROM newest
)
SELECT study,
    label,  --: Group that the numbers are about, as charts name it.
    place, attention,
    entry,  --: Number of the entry among those about the group, from 1, in the order of the study's file.
    try_cast(one ->> '$.numbers.tokens_per_second' AS DOUBLE) AS tokens_per_second,  --: Tokens per second of all GPUs together, as reported.
    try_cast(one ->> '$.numbers.mfu' AS DOUBLE) AS mfu,  --: Model FLOP/s utilization in percent, as reported.
    try_cast(one ->> '$.numbers.tflops' AS DOUBLE) AS tflops,  --: Model TFLOP/s per GPU, as reported.
    try_cast(one ->> '$.numbers.training_tokens_percentage' AS DOUBLE) AS training_tokens_percentage,  --: Tokens that train in percent of all tokens, as reported.
    try_cast(one ->> '$.numbers.final_loss' AS DOUBLE) AS final_loss,  --: Loss at the end in nats per token, as reported.
    try_cast(one ->> '$.numbers.training_seconds' AS DOUBLE) AS training_seconds,  --: Time of all steps in seconds, as reported.
    try_cast(one ->> '$.numbers.prefill_milliseconds' AS DOUBLE) AS prefill_milliseconds,  --: Time to read a prompt in milliseconds, as reported.
    try_cast(one ->> '$.numbers.decode_milliseconds' AS DOUBLE) AS decode_milliseconds,  --: Time of a decoded token in milliseconds, as reported.
    try_cast(one ->> '$.numbers.peak_memory_bytes' AS DOUBLE) AS peak_memory_bytes,  --: Peak memory in bytes, as reported.
    try_cast(one ->> '$.numbers.time_saved_percentage' AS DOUBLE) AS time_saved_percentage,  --: Percent of the baseline's time that is saved, as reported.
    try_cast(one ->> '$.numbers.memory_saved_percentage' AS DOUBLE) AS memory_saved_percentage,  --: Percent of the baseline's peak memory that is saved, as reported.
    try_cast(one ->> '$.numbers.forward_milliseconds' AS DOUBLE) AS forward_milliseconds,  --: Time of a forward of attention alone in milliseconds, as reported.
    try_cast(one ->> '$.numbers.backward_milliseconds' AS DOUBLE) AS backward_milliseconds,  --: Time of a backward of attention alone in milliseconds, as reported.
    try_cast(one ->> '$.numbers.both_milliseconds' AS DOUBLE) AS both_milliseconds,  --: Time of a forward and its backward together in milliseconds, as reported.
    try_cast(one ->> '$.numbers.forward_tflops' AS DOUBLE) AS forward_tflops,  --: Kernel TFLOP/s of a forward of attention alone, as reported.
    try_cast(one ->> '$.numbers.backward_tflops' AS DOUBLE) AS backward_tflops,  --: Kernel TFLOP/s of a backward of attention alone, as reported.
    try_cast(one ->> '$.numbers.both_tflops' AS DOUBLE) AS both_tflops,  --: Kernel TFLOP/s of a forward and its backward together, as reported.
    try_cast(one ->> '$.numbers.call_memory_bytes' AS DOUBLE) AS call_memory_bytes,  --: Peak memory of a forward and its backward of attention alone in bytes, as reported.
    try_cast(one ->> '$.numbers.both_dram_bytes' AS DOUBLE) AS both_dram_bytes,  --: Bytes of the GPU's memory that a forward and its backward of attention alone read and write, as reported.
    one -> '$.numbers' AS printed,  --: The same numbers with the digits that were printed, by quantity: a JSON object of texts.
    one ->> '$.hardware' AS hardware,  --: What it ran on, as reported.
    CAST(one ->> '$.gpus' AS INTEGER) AS gpus,  --: Number of GPUs, as reported; 1 if the study does not say.
    one ->> '$.backend' AS backend,  --: Attention backend that the numbers are about, of a study of attention alone; NULL of others.
    one ->> '$.source' AS source,  --: Where the numbers are printed.
    one ->> '$.read_from' AS read_from,  --: table or text, where they are printed as numbers; plot, where they were read off a figure.
    nullif(one ->> '$.note', '') AS note,  --: What the study's author says of the numbers, such as that there is no such card; NULL if nothing.
    one -> '$.flags' AS flags,  --: Rules that the numbers break at the digits that were printed, such as mfu = tflops / peak: a JSON array of sentences, empty if they break none that could be checked.
    coalesce(one -> '$.unchecked', '[]') AS unchecked  --: What the numbers could not be held against, and why, such as a peak of hardware that has none here: a JSON array of sentences. Also empty where the run was collected before this was said.
FROM numbered;

-- Columns without a comment have that of: run_records, run_measures, attempts, labels.
CREATE VIEW runs AS  --: One row per run: its plan, how it ended, and its rates without the warm-up.
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
), places AS (  -- a place has one run, and a block one of a group: another is of a launch elsewhere, which counted from 1, too
    SELECT study, run_id, block, position, created_at, greatest(
        row_number() OVER (PARTITION BY study, position ORDER BY created_at, run_id),
        if(block IS NULL, 1, row_number() OVER (PARTITION BY study, group_id, scale, block ORDER BY created_at, run_id))
    ) AS launch
    FROM run_records WHERE position IS NOT NULL
), launches AS (  -- as are those that were planned after it
    SELECT * REPLACE (max(launch) OVER (PARTITION BY study, block ORDER BY created_at, run_id
        ROWS UNBOUNDED PRECEDING) AS launch)
    FROM places
), planned AS (
    SELECT study, run_id, CASE WHEN launch = 1 THEN block ELSE max(block) FILTER (launch = 1) OVER (PARTITION BY study)
        + dense_rank() OVER (PARTITION BY study, launch = 1 ORDER BY launch, block) END AS block,
        CASE WHEN launch = 1 THEN position ELSE max(position) FILTER (launch = 1) OVER (PARTITION BY study)
        + row_number() OVER (PARTITION BY study, launch = 1 ORDER BY launch, position, run_id) END AS position
    FROM launches
)
SELECT
    r.run_id, r.study, r.attention, r.seed, r.repeat, r.factors, r.config, r.profile,
    k.position,  --: Planned place in the order of starting, from 1; runs.started_at says when it began. Runs that were planned in another root, from 1 again, come after those of this one. NULL in an imported run.
    k.block,  --: Block of the run, from 1: one repetition of every group, planned to run together. Blocks that were planned in another root, from 1 again, come after those of this one. NULL if the order has no blocks.
    r.design,
    a.outcome,  --: completed if any attempt completed, otherwise the outcome of the last attempt; NULL if in flight or never started.
    CASE WHEN json_contains(r.also_expected, to_json(a.outcome)) THEN a.outcome ELSE r.expected_outcome END
        AS expected_outcome,  --: Outcome that the study expects; where it expects any of several, that of the run if it is one of these, else the likeliest. An expected failure is a result.
    a.reason,  --: Why the run ended that way, if anything recorded a reason.
    coalesce(p.attempts, 0) AS attempts,  --: Number of attempts, including those that never started.
    CASE WHEN b.gpus > 0 THEN b.device END AS gpu,  --: Name of the GPU as its driver reports it; NULL on a CPU.
    b.node,  --: Host name; of several nodes, that of the first process.
    b.nodes,
    b.gpus,  --: Number of GPUs, on all nodes; 0 on a CPU.
    coalesce(CASE WHEN b.parallel IS NULL THEN nullif(b.gpus, 0) END, r.processes, CASE WHEN r.imported IS NULL THEN 1 END)
        AS processes,  --: Number of processes of the run: one per GPU; on a CPU as the configuration asks (the product of parallel.*). NULL for an imported run whose log does not say how many GPUs there were.
    greatest(m.last_step, a.steps) AS steps,  --: Completed steps: optimizer steps, or prefills of task inference.
    m.step_seconds,  --: Median seconds per step over the step records after the warm-up (see warmup_steps). For an even number of records, the geometric mean of the middle two, so that the median of the rates is the rate at the median.
    coalesce(m.tokens_per_step / nullif(m.step_seconds, 0), m.printed_tokens_per_second)
        AS tokens_per_second,  --: tokens_per_step / step_seconds: tokens per second, all GPUs together, with padding, without the warm-up. Of an imported log that says neither the tokens nor the seconds of its records, the median of those that it prints.
    coalesce(m.tokens_per_step / nullif(m.step_seconds, 0), m.printed_tokens_per_second)
        / coalesce(nullif(b.gpus, 0), r.processes, CASE WHEN r.imported IS NULL THEN 1 END)
        AS tokens_per_second_per_process,  --: tokens_per_second / processes: on GPUs, tokens per second and GPU. NULL if either is unknown.
    100.0 * b.flop_per_token * coalesce(m.tokens_per_step / nullif(m.step_seconds, 0), m.printed_tokens_per_second)
        / (coalesce(nullif(b.gpus, 0), r.processes, 1) * b.peak_flops)
        AS mfu,  --: Model FLOPs utilisation in percent: 100 x flop_per_token x tokens_per_second / (processes x peak_flops), one process per GPU; NULL if the peak is unknown. Each task has its own formula: that of a prefill must not be compared with that of training.
    b.flop_per_token * coalesce(m.tokens_per_step / nullif(m.step_seconds, 0), m.printed_tokens_per_second) / coalesce(nullif(b.gpus, 0), r.processes, 1) / 1e12
        AS tflops,  --: Model TFLOP/s per GPU, on a CPU per process: flop_per_token x tokens_per_second / processes / 1e12. No causal discount, no recomputation.
    m.training_tokens_percentage,
    -- A completed run logs its last step: without that line, its loss there is not known.
    CASE WHEN a.outcome = 'completed' AND r.imported IS NULL AND a.steps > m.last_step THEN NULL ELSE m.final_loss END
        AS final_loss,  --: Loss at the last logged step in nats per token: one step's loss, not a mean. NULL if not finite, and of a completed run whose record of its last step is lost.
    CASE WHEN b.parallel IS NULL THEN greatest(b.peak_memory_bytes, m.memory_bytes) END
        AS peak_memory_bytes,  --: Peak memory of the measured attempt in bytes, of the process that needed most: device memory on a GPU, resident memory on a CPU.
    m.energy_joules,
    p.wall_seconds,  --: Seconds from start to end, summed over attempts; too many for an attempt without a result that was noticed late (see attempts.wall_seconds). NULL if unknown for any of them.
    p.gpu_hours,  --: wall_seconds x gpus / 3600, summed over attempts.
    r.git_sha, r.git_dirty,
    r.created_at,  --: When the run was planned, UTC.
    p.started_at,  --: When its first attempt started, UTC.
    CASE WHEN a.outcome IS NOT NULL THEN p.ended_at END AS ended_at,  --: When its last attempt ended, UTC; NULL while in flight.
    l.label,  --: What charts call the run's group: the factors that vary in the study, except seed and repeat. Where three or more vary and the study has a baseline, those in which the group differs from it; the baseline itself is called baseline. Where a rule of the study gives the group a label, that.
    l.place,  --: Position of the run's group in the study, counted from 1: the order of its matrix, whatever the results.
    l.in_study,  --: Whether the study still has the run: false of one that it no longer gave when its changed file was last launched (see removed_runs). True of imported runs.
    coalesce(try_cast(r.config ->> '$.inference.warmup_steps' AS BIGINT), greatest(1, least(10, r.planned_steps // 10)))
        AS warmup_steps,  --: Length of the warm-up: W = greatest(1, least(10, planned steps // 10)), or inference.warmup_steps. Only step records whose interval starts at or after W steps count.
    coalesce(m.counted_records, 0) AS counted_records,  --: Number of step records that count: after the warm-up, on the measured attempt's device.
    a.certificate,  --: Key of the certificate that the backend had in the deciding attempt; NULL if there is none.
    c.verdict,  --: Verdict of that certificate: right, wrong or unsupported; NULL if there is none or if it belongs to another backend or device.
    a.requested_bytes,  --: Size in bytes of the allocation that failed, if the run ran out of memory.
    d.attempt AS deciding_attempt,  --: Attempt that the outcome and certificate are taken from: the last one that completed, otherwise the last one.
    d.measured AS measured_attempt,  --: Attempt that the device, processes, memory and profile are taken from: the deciding one, and where that ran on other processes than the run's own (attempts.parallel), the last one before it that began on those. NULL if none did: then the device and the GPUs are those of the deciding one, and nothing is measured.
    g.missing_since,  --: When a collect found that some or all of the run's files were gone, UTC: the row is what they said before. NULL if all are there.
    g.from_report,  --: Path of the report's records that the run was taken from, relative to the root. NULL: from its own files.
    p.power_capped_seconds,  --: Seconds for which the power limit throttled the clocks of the GPU, summed over attempts like wall_seconds. NULL if unknown for any of them, and on a CPU.
    p.slowed_seconds,  --: Seconds for which heat or the power supply throttled the clocks of the GPU, summed over attempts like wall_seconds. NULL if unknown for any of them, and on a CPU.
    f.ceiling_tflops,  --: Measured rate of all matrix products of a step together on this device, in TFLOP/s: their FLOP over the sum of their times. NULL if it was not measured.
    100.0 * tflops / f.ceiling_tflops AS ceiling_percentage,  --: Percent: 100 x tflops / ceiling_tflops, of which tflops counts masked attention in full: where samples are long, it is not the share of what the device did (floor_percentage is near that). NULL if it was not measured.
    f.floor_seconds,  --: The least seconds that a step, or a prefill, can take by the measured ceilings of its device, of one process's share of the work: the sum of the parts of phase step in step_floor. NULL if they were not measured, or are unsure (see nodes.unsure).
    100.0 * f.floor_seconds / nullif(m.step_seconds, 0) AS floor_percentage,  --: Percent: 100 x floor_seconds / step_seconds, the floor as a share of the step's time.
    b.rank_nodes ->> m.slowest_rank AS slowest_rank_node,  --: Name of the slowest process's node. NULL of a run of one process, and if unknown.
    u.audits,  --: Number of audits during the run, over all attempts: its own attention calls, compared with float64 (see the table audits). NULL if there are none, as in records that are older than audits.
    u.audits_passed,  --: Number of those that passed. A run ends failed with the first that does not; an attempt after it starts over.
    u.audit_ratio,  --: Largest measured / tolerance of all audits, a ratio: up to 1 passes, infinity means a result that is not finite.
    coalesce(r.config ->> '$.task', 'training') AS task,  --: What the run does: training; inference; attention, which is in the table kernels; or frontier, which is in the view frontiers. Rates of one task must not be compared with those of another.
    q.decoded_tokens,  --: Positions decoded with a KV cache, of which decode_seconds is the median. NULL if nothing was decoded.
    q.decode_seconds,  --: Median seconds of a decoded position, one token of each sample: see decoding. NULL if nothing was decoded.
    r.batch_size / nullif(q.decode_seconds, 0) AS decode_tokens_per_second,  --: batch_size / decode_seconds: decoded tokens per second, all samples together.
    f.decode_floor_seconds,  --: The least seconds that a decoded position can take by the measured ceilings of its device, with the median number of keys: the sum of the parts of phase decode in step_floor. NULL if they were not measured, are unsure (see nodes.unsure), or nothing was decoded.
    100.0 * f.decode_floor_seconds / nullif(q.decode_seconds, 0) AS decode_floor_percentage,  --: Percent: 100 x decode_floor_seconds / decode_seconds.
    -- All other columns of the run, of its measures and of its measured attempt, but for those that stand above, those
    -- that the columns above are made of, and those that only people who look for them need: a new one is here by itself.
    r.* EXCLUDE (run_id, study, attention, seed, repeat, factors, config, profile, position, block, design, expected_outcome, also_expected,
        git_sha, git_dirty, created_at, label, processes, scale_description, reported_elsewhere, study_file, overridden, why, memory_limit_bytes,
        time_limit_seconds, data_file, tokenizer, command, version, git_diff),
    m.* EXCLUDE (study, run_id, step_seconds, training_tokens_percentage, energy_joules, final_loss, last_step, memory_bytes,
        counted_records, step_seconds_25, step_seconds_75, printed_tokens_per_second, highest_learning_rate, startup_seconds,
        first_step_seconds),
    b.* EXCLUDE (study, run_id, attempt, outcome, reason, node, nodes, gpus, certificate, steps, final_loss, peak_memory_bytes,
        requested_bytes, started_at, ended_at, wall_seconds, power_capped_seconds, slowed_seconds, parallel, rank_nodes,
        executor, job_id, claimed_at, slurm, parameter_count, resumed_step, load_before, load_after, cores, ceilings,
        no_ceilings, profiled_steps, no_profile)
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
LEFT JOIN planned k ON k.study = r.study AND k.run_id = r.run_id
LEFT JOIN decoded q ON q.study = d.study AND q.run_id = d.run_id AND q.attempt = d.attempt
LEFT JOIN run_measures m ON m.study = r.study AND m.run_id = r.run_id
LEFT JOIN (
    SELECT study, run_id, min(missing_since) AS missing_since,
        max(regexp_extract(path, '^.*/\.reports/[^/]*')) FILTER (path LIKE '%/.reports/%') AS from_report
    FROM files WHERE missing_since IS NOT NULL OR path LIKE '%/.reports/%' GROUP BY study, run_id) g
    ON g.study = r.study AND g.run_id = r.run_id
LEFT JOIN audited u ON u.study = r.study AND u.run_id = r.run_id;

-- The largest error of each tensor of a backend. The error of a result that is not finite is infinite, not
-- missing: a maximum over the finite numbers would overlook it.
-- Columns without a comment have that of: verifications.
CREATE VIEW tensor_errors AS  --: Largest errors of the output and the gradients, one row per certificate and tensor.
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
SELECT certificate, attention,
    what AS tensor,  --: o is the output; dq, dk and dv are the gradients.
    count(*) AS checks,  --: Number of checks of this tensor.
    count(*) FILTER (NOT passed) AS failed,  --: Number of these checks that failed.
    max(plain_error) AS relative_error,  --: Largest relative error, which is the norm of the error divided by the norm of the exact result, on plain (random) data: a ratio. Leaves out dq and dk of a single token, which are zero. Infinity if any result is not finite.
    first(shape ORDER BY plain_error DESC NULLS LAST, place) FILTER (plain_error IS NOT NULL) AS relative_error_shape,  --: Shape, precision and mask at which the relative error was largest.
    max(ratio) AS ratio,  --: Largest measured / tolerance over all checks, a ratio: up to 1 passes, infinity means a result that is not finite.
    first(measured ORDER BY ratio DESC NULLS LAST, place) FILTER (ratio IS NOT NULL) AS measured,  --: What that check measured, in roundings in its precision; NULL if not finite.
    first(tolerance ORDER BY ratio DESC NULLS LAST, place) FILTER (ratio IS NOT NULL) AS tolerance,  --: Largest value that passes that check, in roundings in its precision.
    first(name ORDER BY ratio DESC NULLS LAST, place) FILTER (ratio IS NOT NULL) AS name,  --: Kind of that check.
    first(shape ORDER BY ratio DESC NULLS LAST, place) FILTER (ratio IS NOT NULL) AS shape,  --: Shape, precision and mask of that check.
    first(variant ORDER BY ratio DESC NULLS LAST, place) FILTER (ratio IS NOT NULL) AS variant  --: Data of that check and how it called the backend.
FROM scored GROUP BY certificate, attention, what;

-- Columns without a comment have that of: tensor_errors.
CREATE VIEW certificate_errors AS  --: tensor_errors with one row per certificate. Certificates whose backend was never called are left out.
SELECT certificate,
    max(relative_error) FILTER (tensor = 'o') AS o_error,  --: Largest relative error of the output on plain data, a ratio.
    max(relative_error) FILTER (tensor = 'dq') AS dq_error,  --: Largest relative error of the gradient of Q on plain data, a ratio.
    max(relative_error) FILTER (tensor = 'dk') AS dk_error,  --: Largest relative error of the gradient of K on plain data, a ratio.
    max(relative_error) FILTER (tensor = 'dv') AS dv_error,  --: Largest relative error of the gradient of V on plain data, a ratio.
    max(ratio) AS ratio  --: Largest measured / tolerance of output and gradients over all checks, a ratio: up to 1 passes.
FROM tensor_errors GROUP BY certificate;

-- Columns without a comment have that of: certificates, certificate_errors.
CREATE VIEW backends AS  --: What runner verify found last: the newest certificate of each backend and device that covers everything the backend supports. Those that came with a report do not count.
SELECT c.attention, c.device_kind, c.device_name,
    c.verdict,  --: right, wrong or unsupported.
    c.key AS certificate, c.checks, c.failed,
    e.o_error,  --: Largest relative error of the output on plain data, a ratio (see tensor_errors).
    e.dq_error, e.dk_error, e.dv_error, e.ratio, c.created_at
FROM certificates c LEFT JOIN certificate_errors e ON e.certificate = c.key
WHERE c.run_case IS NULL AND NOT EXISTS (
    FROM files f WHERE f.study = '.certificates' AND f.run_id = c.key AND f.path LIKE '%/.reports/%')
QUALIFY row_number() OVER (
    PARTITION BY c.attention, c.device_kind, c.device_name ORDER BY c.created_at DESC, c.key) = 1;

-- Columns without a comment have that of: probes.
CREATE VIEW frontiers AS  --: The largest value that fits into memory, one row per run of task frontier that probed: of the attempt that decides its outcome.
WITH sought AS (
    SELECT p.*, max(value) FILTER (outcome = 'fits') OVER (PARTITION BY p.study, p.run_id) AS largest
    FROM probes p JOIN deciding_attempts USING (study, run_id, attempt)
)
SELECT study, run_id, attempt, find, multiple, most, card_bytes, memory_fraction, foreseen,
    largest,  --: Largest value of which a probe did its steps and fits; NULL if none does.
    min(value) FILTER (value > coalesce(largest, 0)) AS bound,  --: Smallest value above that of which a probe did not fit; NULL if none was tried.
    arg_min(outcome, value) FILTER (value > coalesce(largest, 0)) AS bound_outcome,  --: How that probe ended.
    coalesce(bound_outcome NOT IN ('timeout', 'failed'), false) AS is_bounded,  --: Whether it is known that the next value tried does not fit; otherwise, as where the largest that may be tried fits, the frontier is at least largest.
    count(*) FILTER (value < largest AND outcome NOT IN ('fits', 'timeout', 'failed')) AS holes,  --: Values below largest that do not fit: then fitting is not monotone.
    count(*) AS probes,  --: Number of probes.
    count(*) FILTER (purpose = 'search') AS searched,  --: Of these, how many the search took; the others were above a value that does not fit.
    count(*) FILTER (outcome IN ('timeout', 'failed')) AS unknown,  --: Of these, how many hung or died: of their values it is not known whether they fit.
    CASE WHEN is_bounded THEN 100.0 * (foreseen - largest) / largest END AS foreseen_error_percentage,  --: By how many percent of largest the forecast's value is larger; negative where it is smaller. NULL where the frontier is at least largest.
    any_value(forecast_bytes) FILTER (value = largest) AS forecast_bytes,  --: Peak in bytes of largest by the configuration.
    any_value(peak_bytes) FILTER (value = largest) AS peak_bytes,  --: Peak in bytes of largest, measured.
    any_value(reserved_bytes) FILTER (value = largest) AS reserved_bytes,  --: See probes.reserved_bytes, of largest.
    any_value(outside_bytes) FILTER (value = largest) AS outside_bytes,  --: See probes.outside_bytes, of largest.
    100.0 * (any_value(forecast_bytes) FILTER (value = largest) - any_value(peak_bytes) FILTER (value = largest))
        / any_value(peak_bytes) FILTER (value = largest) AS forecast_error_percentage  --: By how many percent of the measured peak of largest its forecast is larger; negative where it is smaller.
FROM sought
GROUP BY study, run_id, attempt, find, multiple, most, card_bytes, memory_fraction, foreseen, largest;
