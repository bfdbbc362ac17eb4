-- What is derived from the step records of some runs, once when they are collected and not by every query.
-- Moves the lines of every steps.jsonl of these runs from `loaded` to step_records, and measures the runs. Their other
-- rows are in the base tables by then. Where there is no `loaded`, it does nothing.
--
-- Warm-up rule: a step record counts towards a run's step_seconds and rates only if its interval
-- (step - steps, step] starts at or after W = greatest(1, least(10, planned steps // 10)) steps, and not where
-- its attempt resumed: kernels are loaded and compiled again there. It must come from the device that the
-- deciding attempt ran on: rates of two devices must not be mixed. Where nobody knows how many steps were planned,
-- as of most imported logs, W is 10.

CREATE TEMP TABLE IF NOT EXISTS loaded AS
SELECT * EXCLUDE (superseded, counted, flop_per_token, gpus, peak_flops) FROM step_records LIMIT 0;

-- What all records of an attempt share. An attempt that was in flight when its files went has no row.
CREATE TEMP TABLE shared AS
SELECT l.*, d.attempt AS deciding_attempt, greatest(1, least(10, r.planned_steps // 10)) AS warmup_steps,
    a.device IS NOT DISTINCT FROM da.device AND a.gpus IS NOT DISTINCT FROM da.gpus AS same_device,
    a.resumed_step, a.flop_per_token, a.gpus, a.peak_flops
FROM (SELECT DISTINCT study, run_id, attempt FROM loaded) l
LEFT JOIN run_records r ON r.study = l.study AND r.run_id = l.run_id
LEFT JOIN attempts a ON a.study = l.study AND a.run_id = l.run_id AND a.attempt = l.attempt
LEFT JOIN deciding_attempts d ON d.study = l.study AND d.run_id = l.run_id
LEFT JOIN attempts da ON da.study = d.study AND da.run_id = d.run_id AND da.attempt = d.attempt;

-- If several attempts cover a step, the latest wins, and what it covers takes the place of all that was there.
-- A run whose records are one ascending series, as nearly all are, has nothing to replace.
CREATE TEMP TABLE replaced AS
WITH ordered AS (
    SELECT study, run_id, attempt, step, lag(step) OVER () AS before,
        lag(run_id) OVER () IS NOT DISTINCT FROM run_id AND lag(study) OVER () IS NOT DISTINCT FROM study AS goes_on
    FROM loaded
), several AS (
    SELECT study, run_id FROM ordered GROUP BY study, run_id
    HAVING min(attempt) < max(attempt) OR count(*) FILTER (NOT goes_on) > 1 OR bool_or(goes_on AND step <= before)
), doubtful AS (
    SELECT rowid AS id, study, run_id, attempt, step, steps, time FROM loaded SEMI JOIN several USING (study, run_id)
), spans AS (
    SELECT study, run_id, attempt, min(step - steps) AS start, max(step) AS last
    FROM doubtful GROUP BY study, run_id, attempt
), standing AS (
    SELECT id FROM doubtful s WHERE NOT EXISTS (
        FROM spans l WHERE l.study = s.study AND l.run_id = s.run_id AND l.attempt > s.attempt
        AND s.step > l.start AND s.step <= l.last)
    QUALIFY row_number() OVER (PARTITION BY study, run_id, step ORDER BY attempt DESC, time DESC, id DESC) = 1
)
SELECT id FROM doubtful ANTI JOIN standing USING (id);

CREATE TEMP VIEW derived AS
SELECT s.*, s.rowid IN (SELECT id FROM replaced) AS superseded,
    s.step - s.steps >= a.warmup_steps AND s.step - s.steps IS DISTINCT FROM a.resumed_step AND a.same_device AS counted,
    a.flop_per_token, a.gpus, a.peak_flops, a.deciding_attempt
FROM loaded s JOIN shared a ON a.study = s.study AND a.run_id = s.run_id AND a.attempt = s.attempt;

INSERT INTO step_records BY NAME SELECT * EXCLUDE (deciding_attempt) FROM derived;

-- Rates come from seconds and counts, never from averages of rates.
INSERT INTO run_measures BY NAME
WITH measured AS (
    SELECT study, run_id,
        max(step) AS last_step,
        arg_max_null(loss, step) AS final_loss,
        100.0 * sum(training_tokens) / sum(tokens) AS training_tokens_percentage,
        max(memory_bytes) FILTER (attempt = deciding_attempt) AS memory_bytes,
        count(*) FILTER (counted) AS counted_records,
        -- The middle value, or the geometric mean of the two in the middle, as analysis.stats has it.
        sqrt(greatest(quantile_disc(step_seconds, 0.5) FILTER (counted), 0)
            * -quantile_disc(-step_seconds, 0.5) FILTER (counted)) AS step_seconds,
        quantile_cont(step_seconds, [0.25, 0.75]) FILTER (counted) AS quartiles,
        sum(tokens) FILTER (counted) / sum(steps) FILTER (counted) AS tokens_per_step,
        -- Rounded: the last bits of a sum depend on the order of its terms.
        round(sum(step_seconds * steps), 6) AS training_seconds
    FROM derived WHERE NOT superseded AND deciding_attempt IS NOT NULL
    GROUP BY study, run_id
)
SELECT * EXCLUDE (quartiles),
    quartiles[1] AS step_seconds_25, quartiles[2] AS step_seconds_75
FROM measured;

-- Few points a run, for figures. Widths are powers of two, so that the points of long runs and of short ones nest.
CREATE TEMP TABLE points AS
WITH lengths AS (
    SELECT study, run_id, CASE WHEN count(*) <= 256 THEN 1 ELSE pow(2, ceil(log2(max(step) / 200)))::BIGINT END AS width
    FROM derived WHERE NOT superseded GROUP BY study, run_id
)
SELECT study, run_id, 256 AS most, width, min(step) AS first_step, max(step) AS step, count(*) AS records,
    count(loss) AS losses, avg(loss) AS loss, sum(tokens) AS tokens,
    sum(step_seconds * steps) FILTER (tokens IS NOT NULL) AS seconds
FROM derived JOIN lengths USING (study, run_id) WHERE NOT superseded
GROUP BY study, run_id, width, (derived.step - 1) // width;

INSERT INTO curves BY NAME
WITH lengths AS (
    SELECT study, run_id, CASE WHEN count(*) <= 32 THEN any_value(width)
        ELSE pow(2, ceil(log2(max(step) / 32)))::BIGINT END AS wide
    FROM points GROUP BY study, run_id
)
FROM points
UNION ALL BY NAME
SELECT study, run_id, 32 AS most, wide AS width, min(first_step) AS first_step, max(step) AS step,
    sum(records) AS records, sum(losses) AS losses, sum(loss * losses) / nullif(sum(losses), 0) AS loss,
    sum(tokens) AS tokens, sum(seconds) AS seconds
FROM points JOIN lengths USING (study, run_id) GROUP BY study, run_id, wide, (points.step - 1) // wide
ORDER BY most, study, run_id, step;

DROP VIEW derived;
DROP TABLE points;
DROP TABLE replaced;
DROP TABLE shared;
DROP TABLE loaded;
