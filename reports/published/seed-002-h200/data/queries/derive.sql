-- What is derived from the step records of some runs, once when they are collected and not by every query.
-- The records of every steps.jsonl of these runs are in step_lines by then, and the files in `fresh`; their other rows are in
-- the base tables. Records that come with the key of their attempt instead, as those of a report do, are in `loaded`.
--
-- Warm-up rule: a step record counts towards a run's step_seconds and rates only if its interval
-- (step - steps, step] starts at or after W = greatest(1, least(10, planned steps // 10)) steps, or in a run of inference
-- as many as it says, and not where its attempt resumed: kernels are loaded and compiled again there. It must come from the device that the
-- run's measured attempt ran on (see deciding_attempts): rates of two devices must not be mixed. Where nobody knows how many steps were planned,
-- as of most imported logs, W is 10. An imported log that is a single line about more steps than those counts as it is.

-- The first statements make the tables that others fill before the rest is run. Attempts and runs go by numbers here,
-- because to group and join ten million rows by text takes twice as long.

CREATE TEMP TABLE IF NOT EXISTS loaded AS
SELECT * EXCLUDE (superseded, counted, flop_per_token, gpus, processes, peak_flops) FROM step_records LIMIT 0;

CREATE TEMP TABLE IF NOT EXISTS fresh AS SELECT file, study, run_id, attempt FROM step_files LIMIT 0;

-- What is in `loaded` takes the place of what was read from a file of the same attempt.
DELETE FROM step_lines WHERE file IN (SELECT file FROM fresh SEMI JOIN loaded USING (study, run_id, attempt));
DELETE FROM fresh WHERE (study, run_id, attempt) IN (SELECT study, run_id, attempt FROM loaded);
INSERT INTO fresh
SELECT row_number() OVER (ORDER BY study, run_id, attempt) + (SELECT coalesce(max(file), 0) FROM (
        SELECT file FROM step_files UNION ALL SELECT file FROM fresh)) AS file, study, run_id, attempt
FROM (SELECT DISTINCT study, run_id, attempt FROM loaded);
INSERT INTO step_lines BY NAME
SELECT * EXCLUDE (study, run_id, attempt) FROM loaded JOIN fresh USING (study, run_id, attempt);

-- A log that is one line, as a paper's table of averages has it: that line counts, warm-up included.
CREATE TEMP TABLE only_lines AS
SELECT file, any_value(steps) AS steps FROM step_lines SEMI JOIN fresh USING (file) GROUP BY file HAVING count(*) = 1;

-- What all records of an attempt share. An attempt that was in flight when its files went has no row.
CREATE TEMP TABLE shared AS
SELECT * EXCLUDE (covered) REPLACE (CASE WHEN covered > warmup_steps THEN 0 ELSE warmup_steps END AS warmup_steps)
FROM (
SELECT f.*, o.steps AS covered, dense_rank() OVER (ORDER BY f.study, f.run_id)::INTEGER AS run,
    d.measured AS measured_attempt, coalesce(try_cast(r.config ->> '$.inference.warmup_steps' AS BIGINT), greatest(1, least(10, r.planned_steps // 10))) AS warmup_steps,
    a.device IS NOT DISTINCT FROM da.device AND a.gpus IS NOT DISTINCT FROM da.gpus AND a.parallel IS NULL AS same_device,
    a.resumed_step, a.flop_per_token, a.gpus, coalesce(nullif(a.gpus, 0),
        list_product([(a.parallel ->> axis)::BIGINT FOR axis IN json_keys(a.parallel)])::INTEGER, r.processes) AS processes, a.peak_flops,
    -- A log begins with its first record: when its program was started is unknown.
    a.attempt IS NOT NULL AS noted, d.attempt IS NOT NULL AS decided, CASE WHEN r.imported IS NULL THEN a.started_at END AS started_at,
    r.config ->> '$.task' = 'inference' AND f.attempt <> d.attempt AS given_up
FROM fresh f
LEFT JOIN run_records r ON r.study = f.study AND r.run_id = f.run_id
LEFT JOIN attempts a ON a.study = f.study AND a.run_id = f.run_id AND a.attempt = f.attempt
LEFT JOIN deciding_attempts d ON d.study = f.study AND d.run_id = f.run_id
LEFT JOIN attempts da ON da.study = d.study AND da.run_id = d.run_id AND da.attempt = d.measured
LEFT JOIN only_lines o ON o.file = f.file AND r.imported IS NOT NULL
);

INSERT INTO step_files BY NAME SELECT * EXCLUDE (run, measured_attempt, noted, decided, started_at, given_up) FROM shared;

-- An attempt takes the place of all that earlier ones did after the step that it went on from, or of all of it where it
-- started over, also as long as it has not come as far. Of several lines of a step the last wins.
-- A run whose records are one ascending series, as nearly all are, has nothing to replace. An attempt of inference starts
-- over, and goes on from none: only the deciding one counts.
UPDATE step_lines SET superseded = true WHERE rowid IN (
WITH ordered AS (
    SELECT file, step, lag(step) OVER () AS before, lag(file) OVER () IS NOT DISTINCT FROM file AS goes_on
    FROM step_lines SEMI JOIN fresh USING (file)
), disordered AS (
    SELECT file FROM ordered GROUP BY file
    HAVING count(*) FILTER (NOT goes_on) > 1 OR bool_or(goes_on AND step <= before)
), several AS (
    SELECT run FROM shared GROUP BY run
    HAVING min(attempt) < max(attempt) OR bool_or(file IN (FROM disordered)) OR bool_or(given_up)
), doubtful AS (
    SELECT l.rowid AS id, run, attempt, step, steps, time, given_up
    FROM step_lines l JOIN shared USING (file) SEMI JOIN several USING (run)
), spans AS (
    SELECT run, attempt, min(step - steps) AS start
    FROM doubtful WHERE given_up IS NOT TRUE GROUP BY run, attempt
), standing AS (
    SELECT id FROM doubtful s WHERE given_up IS NOT TRUE AND NOT EXISTS (
        FROM spans l WHERE l.run = s.run AND l.attempt > s.attempt AND s.step > l.start)
    QUALIFY row_number() OVER (PARTITION BY run, step ORDER BY attempt DESC, time DESC, id DESC) = 1
)
SELECT id FROM doubtful ANTI JOIN standing USING (id)
);

-- The rule of `counted` is that of the view step_records.
CREATE TEMP VIEW derived AS
SELECT l.*, a.run, a.attempt, a.measured_attempt, a.decided,
    l.step - l.steps >= a.warmup_steps AND l.step - l.steps IS DISTINCT FROM a.resumed_step AND a.same_device AS counted,
    l.step - coalesce(l.power_steps, l.steps) AS drawn_from,
    CASE WHEN counted AND drawn_from >= a.warmup_steps AND drawn_from IS DISTINCT FROM a.resumed_step
        THEN coalesce(power_joules, CASE WHEN step_seconds * steps >= 1 THEN energy_joules END) END AS drawn_joules,
    coalesce(power_seconds, step_seconds * steps) AS drawn_seconds,
    tokens / l.steps * coalesce(l.power_steps, l.steps) AS drawn_tokens
FROM step_lines l JOIN shared a ON a.file = l.file;

-- Rates come from seconds and counts, never from averages of rates.
CREATE TEMP TABLE measured AS
SELECT run,
    count(*) AS records,
    any_value(decided) AS decided,
    max(step) AS last_step,
    arg_max_null(loss, step) AS final_loss,
    max(learning_rate) AS highest_learning_rate,
    -- The records of a log need not all give tokens: a share is of those that do.
    100.0 * sum(training_tokens) FILTER (tokens IS NOT NULL)
        / sum(tokens) FILTER (training_tokens IS NOT NULL) AS training_tokens_percentage,
    max(memory_bytes) FILTER (attempt = measured_attempt) AS memory_bytes,
    count(*) FILTER (counted) AS counted_records,
    -- The middle value twice, or the two in the middle: less than one record in a billion is above the half.
    quantile_disc(step_seconds, [0.5, 0.500000001]) FILTER (counted) AS middle,
    quantile_cont(step_seconds, [0.25, 0.75]) FILTER (counted) AS quartiles,
    sum(tokens) FILTER (counted) / sum(steps) FILTER (counted AND tokens IS NOT NULL) AS tokens_per_step,
    median(printed_tokens_per_second) FILTER (counted) AS printed_tokens_per_second,
    -- Rounded: the last bits of a sum depend on the order of its terms.
    round(sum(step_seconds * steps), 6) AS training_seconds,
    CASE WHEN count(*) = count(energy_joules) THEN round(sum(energy_joules), 3) END AS energy_joules,
    -- The first reading of each attempt's may have been late by 0.1 s, as in the view steps.
    round(sum(drawn_joules) / (sum(drawn_seconds) FILTER (drawn_joules IS NOT NULL)
        + 0.1 * count(DISTINCT attempt) FILTER (drawn_joules IS NOT NULL)), 3) AS power_watts,
    round(sum(drawn_joules) FILTER (drawn_tokens IS NOT NULL)
        / sum(drawn_tokens) FILTER (drawn_joules IS NOT NULL), 9) AS joules_per_token,
    round(100 * sum(data_wait_seconds) FILTER (counted)
        / sum(step_seconds * steps) FILTER (counted AND data_wait_seconds IS NOT NULL), 4) AS data_wait_percentage,
    min(sm_mhz) FILTER (counted) AS sm_mhz_low, max(sm_mhz) FILTER (counted) AS sm_mhz_high
FROM derived WHERE NOT superseded GROUP BY run;

-- What held back the clocks, where it is known, which is nowhere on CPUs.
CREATE TEMP TABLE held AS
SELECT run, count(*) AS kinds, string_agg(reasons, '; ' ORDER BY reasons) AS throttle_reasons
FROM (
    SELECT DISTINCT run, coalesce(nullif(throttle_reasons, ''), 'none') AS reasons
    FROM derived WHERE counted AND NOT superseded AND throttle_reasons IS NOT NULL
) GROUP BY run;

-- Which process was slowest most often, while the processes were where the measured attempt had them.
CREATE TEMP TABLE slowest AS
WITH ranked AS (
    SELECT run, slowest_rank, slowest_rank_seconds / nullif(other_ranks_seconds, 0) AS ratio
    FROM derived WHERE counted AND NOT superseded AND attempt = measured_attempt AND slowest_rank IS NOT NULL
), ranks AS (
    SELECT run, slowest_rank, count(*) AS slowest_rank_records, round(100 * (median(ratio) - 1), 4) AS slowest_rank_percentage
    FROM ranked GROUP BY run, slowest_rank
)
SELECT *, sum(slowest_rank_records) OVER (PARTITION BY run)::BIGINT AS ranked_records
FROM ranks QUALIFY row_number() OVER (PARTITION BY run ORDER BY slowest_rank_records DESC, slowest_rank) = 1;

-- Each attempt's first record: the first line of it, if there are several of that step.
CREATE TEMP TABLE firsts AS
WITH lowest AS (
    SELECT file, min(step) AS step FROM step_lines SEMI JOIN fresh USING (file) GROUP BY file
), places AS (
    SELECT file, min(l.rowid) AS id FROM step_lines l JOIN lowest USING (file, step) GROUP BY file
)
SELECT run, started_at, time, step_seconds, steps, superseded
FROM step_lines l JOIN shared USING (file) WHERE noted AND l.rowid IN (SELECT id FROM places);

CREATE TEMP TABLE names AS SELECT DISTINCT run, study, run_id FROM shared;

-- The median is the geometric mean of the two in the middle, as analysis.stats has it.
INSERT INTO run_measures BY NAME
WITH usual AS (
    SELECT * EXCLUDE (records, decided, middle, quartiles),
        sqrt(greatest(middle[1], 0) * middle[2]) AS step_seconds,
        quartiles[1] AS step_seconds_25, quartiles[2] AS step_seconds_75
    FROM measured JOIN names USING (run) WHERE decided
), begun AS (
    SELECT run,
        -- greatest() of NULL and 0 is 0, but what is unknown takes no known time.
        sum(greatest(0, startup)) FILTER (startup IS NOT NULL) AS startup_seconds,
        sum(greatest(0, extra)) FILTER (extra IS NOT NULL AND NOT f.superseded) AS first_step_seconds
    FROM (
        SELECT run, f.superseded, date_diff('microsecond', f.started_at, f.time) / 1e6 - f.step_seconds * f.steps AS startup,
            (f.step_seconds - u.step_seconds) * f.steps AS extra
        FROM firsts f JOIN usual u USING (run)
    ) f GROUP BY run
)
SELECT * EXCLUDE (run, kinds), CASE WHEN coalesce(sm_mhz_high, kinds) IS NOT NULL
    THEN coalesce(sm_mhz_low < 0.85 * sm_mhz_high, false) OR coalesce(kinds, 1) > 1 END AS clocks_changed
FROM usual LEFT JOIN begun USING (run) LEFT JOIN held USING (run) LEFT JOIN slowest USING (run);

-- Runs that differ by attention alone, and by where the same data lay, read the same tokens.
INSERT INTO comparable BY NAME
SELECT n.study, n.run_id, md5(
    json_merge_patch(config, '{"attention": null, "data": {"path": null}}')::VARCHAR || coalesce(data_fingerprint, '')
) AS other_settings
FROM names n JOIN run_records r ON r.study = n.study AND r.run_id = n.run_id;

-- Few points a run, for figures. Widths are powers of two, so that the points of long runs and of short ones nest.
CREATE TEMP TABLE points AS
WITH lengths AS (
    SELECT run, CASE WHEN records <= 256 THEN 1 ELSE pow(2, ceil(log2(last_step / 200)))::BIGINT END AS width
    FROM measured
)
SELECT run, 256 AS most, width, min(step) AS first_step, max(step) AS step, count(*) AS records,
    count(loss) AS losses, avg(loss) AS loss, sum(tokens) FILTER (step_seconds IS NOT NULL) AS tokens,
    sum(step_seconds * steps) FILTER (tokens IS NOT NULL) AS seconds
FROM derived JOIN lengths USING (run) WHERE NOT superseded
GROUP BY run, width, (derived.step - 1) // width;

INSERT INTO curves BY NAME
WITH lengths AS (
    SELECT run, CASE WHEN count(*) <= 32 THEN any_value(width)
        ELSE pow(2, ceil(log2(max(step) / 32)))::BIGINT END AS wide
    FROM points GROUP BY run
), levels AS (
    FROM points
    UNION ALL BY NAME
    SELECT run, 32 AS most, wide AS width, min(first_step) AS first_step, max(step) AS step,
        sum(records) AS records, sum(losses) AS losses, sum(loss * losses) / nullif(sum(losses), 0) AS loss,
        sum(tokens) AS tokens, sum(seconds) AS seconds
    FROM points JOIN lengths USING (run) GROUP BY run, wide, (points.step - 1) // wide
)
-- So many tokens that no column holds their sum are no record of a run, but must not stop a collect.
SELECT * EXCLUDE (run) REPLACE (try_cast(tokens AS BIGINT) AS tokens)
FROM levels JOIN names USING (run) ORDER BY most, run, step;

DROP VIEW derived;
DROP TABLE points;
DROP TABLE firsts;
DROP TABLE names;
DROP TABLE only_lines;
DROP TABLE measured;
DROP TABLE held;
DROP TABLE slowest;
DROP TABLE shared;
DROP TABLE fresh;
DROP TABLE loaded;

-- AFTER ALL RUNS
-- Groups get their names once, because a run that comes or goes can change those of its whole study.

DELETE FROM labels;
INSERT INTO labels FROM labelled;
