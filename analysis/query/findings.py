"""SQL whose rows `analysis.verdicts` turns into verdicts."""

from __future__ import annotations

# One row per completed run with a rate. Step times come with those runs alone that are compared step by step:
# the single runs of their groups, and the baseline's where there are such.
MEASURED_RUNS = """\
WITH done AS (
  SELECT *, count(*) OVER (PARTITION BY label) = 1 AS alone,
    json_contains(factors, design -> '$.baseline') IS TRUE AS is_baseline
  FROM runs
  WHERE study = $study AND outcome = 'completed' AND step_seconds > 0 AND tokens_per_step > 0
), times AS (
  SELECT run_id, list(step ORDER BY step) AS counted_steps,
    list(step_seconds ORDER BY step) AS counted_step_seconds
  FROM steps
  WHERE study = $study AND counted AND step_seconds > 0 AND run_id IN (
    SELECT run_id FROM done WHERE alone OR is_baseline AND EXISTS (FROM done WHERE alone))
  GROUP BY run_id
)
SELECT d.* EXCLUDE (alone, is_baseline), t.counted_steps, t.counted_step_seconds,
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
