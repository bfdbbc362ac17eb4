-- Ten questions that people ask about a study. Each block: its name, after a colon the only tasks that it is about,
-- the question, what to know about the answer.
-- `$study` stands for the study's name. Rates are derived from medians of seconds; nothing here ranks groups.

-- progress
-- Which runs are done, and how did the others end?
-- An outcome that the study expects is a result, not a failure. A run without an outcome is in flight or never started.
SELECT label, count(*) AS runs, count(*) FILTER (outcome = 'completed') AS completed,
  count(*) FILTER (outcome IS NULL) AS without_outcome,
  count(*) FILTER (outcome <> expected_outcome) AS unexpected,
  string_agg(DISTINCT outcome, ', ' ORDER BY outcome) AS outcomes
FROM runs WHERE study = $study GROUP BY label, place ORDER BY place

-- unexpected
-- Which runs ended unexpectedly, and why?
SELECT run_id, label, seed, outcome, expected_outcome, attempts, steps, reason
FROM runs WHERE study = $study AND outcome <> expected_outcome ORDER BY place, seed, run_id

-- speed: training, inference
-- How fast is each group?
-- In tokens per second: the median over runs of each run's median step after the warm-up, and the range of the runs.
-- Groups are in the study's order. A single run is only an observation; `runner compare` and the report compare groups.
WITH groups AS (
  SELECT label, place, count(*) AS runs, any_value(tokens_per_step) AS tokens_per_step,
    -- the middle run, or the geometric mean of the two in the middle
    sqrt(quantile_disc(step_seconds, 0.5) * -quantile_disc(-step_seconds, 0.5)) AS step_seconds,
    min(tokens_per_second) AS slowest, max(tokens_per_second) AS fastest
  FROM runs WHERE study = $study AND outcome = 'completed' AND step_seconds IS NOT NULL
  GROUP BY label, place
)
SELECT label, runs, round(tokens_per_step / step_seconds, 1) AS tokens_per_second,
  round(slowest, 1) AS slowest_run, round(fastest, 1) AS fastest_run, round(step_seconds, 5) AS step_seconds
FROM groups ORDER BY place

-- ratio: training, inference
-- How long does a step take, relative to the baseline, with the same seed?
-- Seconds over the baseline's seconds, run by run: above 1 is slower. The baseline is the one that the study declares,
-- or else the first group in the order of its matrix. Each row is one pair of runs, without a measure of uncertainty.
WITH done AS (
  SELECT label, place, seed, repeat, step_seconds,
    list_bool_and([coalesce((factors ->> wanted) = (design -> '$.baseline' ->> wanted), false)
      FOR wanted IN json_keys(design, '$.baseline')]) AS is_baseline
  FROM runs WHERE study = $study AND outcome = 'completed' AND step_seconds IS NOT NULL
), chosen AS (
  SELECT place, label FROM done ORDER BY coalesce(is_baseline, false) DESC, place LIMIT 1
), base AS (
  FROM done SEMI JOIN chosen USING (place)
)
SELECT done.label, base.label AS baseline, done.seed, done.repeat,
  round(done.step_seconds / base.step_seconds, 4) AS seconds_ratio
FROM done JOIN base ON done.seed = base.seed AND done.repeat IS NOT DISTINCT FROM base.repeat
WHERE done.place <> base.place ORDER BY done.place, done.seed, done.repeat

-- peak
-- How much memory does each group need?
-- The largest peak of the group's completed runs: memory that PyTorch allocated on a GPU, resident memory on a CPU.
SELECT label, count(*) AS runs, round(max(peak_memory_bytes) / 1024.0 ** 3, 2) AS peak_gib,
  CASE WHEN bool_and(gpus > 0) THEN 'GPU' ELSE 'host' END AS memory_of
FROM runs WHERE study = $study AND outcome = 'completed' AND peak_memory_bytes IS NOT NULL
GROUP BY label, place ORDER BY place

-- cost
-- What did the study cost, and how much of that went into runs that did not complete?
SELECT count(*) AS runs, sum(attempts) AS attempts, round(sum(gpu_hours), 3) AS gpu_hours,
  round(sum(gpu_hours) FILTER (outcome IS DISTINCT FROM 'completed'), 3) AS gpu_hours_not_completed,
  round(sum(wall_seconds) / 3600, 3) AS wall_hours, round(sum(training_seconds) / 3600, 3) AS training_hours
FROM runs WHERE study = $study

-- warm-up: training, inference
-- How much slower is the warm-up, which no other number counts?
-- Mean seconds per step during the warm-up, beside the median after it.
SELECT r.label, count(DISTINCT r.run_id) AS runs, max(r.warmup_steps) AS warmup_steps,
  round(sum(s.step_seconds * s.steps) / sum(s.steps), 4) AS warmup_step_seconds,
  round(median(r.step_seconds), 4) AS step_seconds
FROM runs r JOIN steps s ON s.study = r.study AND s.run_id = r.run_id
WHERE r.study = $study AND r.outcome = 'completed' AND r.step_seconds IS NOT NULL AND s.step <= r.warmup_steps
GROUP BY r.label, r.place ORDER BY r.place

-- steady: training, inference
-- Does a step take as long at the end of a run as at its beginning?
-- Median seconds per step in the last third of the records that count, divided by that in the first third.
WITH counted AS (
  SELECT run_id, step_seconds, ntile(3) OVER (PARTITION BY run_id ORDER BY step) AS third
  FROM steps WHERE study = $study AND counted
), thirds AS (
  SELECT run_id, median(step_seconds) FILTER (third = 1) AS early, median(step_seconds) FILTER (third = 3) AS late
  FROM counted GROUP BY run_id HAVING count(*) >= 6
)
SELECT r.label, count(*) AS runs, round(min(late / early), 4) AS least, round(median(late / early), 4) AS median,
  round(max(late / early), 4) AS most
FROM thirds t JOIN runs r ON r.study = $study AND r.run_id = t.run_id
WHERE r.outcome = 'completed'
GROUP BY r.label, r.place ORDER BY r.place

-- losses: training
-- What was the loss at the end, by group and seed?
-- The mean over the last tenth of the planned steps, in nats per token, because one step's loss depends on its text.
-- Compare only losses of the same seed and text. The report says whether a difference means anything.
SELECT r.label, r.seed, r.repeat, r.run_id, count(s.loss) AS records, round(avg(s.loss), 4) AS loss,
  r.data_fingerprint[:8] AS data
FROM runs r JOIN steps s ON s.study = r.study AND s.run_id = r.run_id
WHERE r.study = $study AND r.outcome = 'completed' AND s.step > r.planned_steps * 9 // 10
GROUP BY r.label, r.place, r.seed, r.repeat, r.run_id, r.data_fingerprint
ORDER BY r.place, r.seed, r.repeat, r.run_id

-- origin
-- Which device, software, code and data do the numbers come from, and is the backend certified?
-- If a group has more than one row, or groups differ, their runs may not be comparable.
SELECT attention, verdict, device, software ->> 'torch' AS torch, software ->> 'driver' AS driver,
  left(git_sha, 10) AS git_sha, git_dirty, data_fingerprint[:8] AS data, count(*) AS runs
FROM runs WHERE study = $study AND outcome = 'completed' GROUP BY ALL ORDER BY ALL
