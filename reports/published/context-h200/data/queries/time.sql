WITH resumed AS (
  SELECT run_id FROM attempts WHERE study = 'scaling' GROUP BY run_id HAVING count(*) > 1
), lasts AS (  -- when each attempt of theirs logged the last step that counts
  SELECT run_id, attempt, max(time) AS time FROM steps
  WHERE study = 'scaling' AND run_id IN (FROM resumed) GROUP BY run_id, attempt
), lost AS (
  SELECT a.run_id, sum(greatest(0, epoch(a.ended_at - coalesce(l.time, a.started_at)))) AS seconds
  FROM attempts a JOIN runs r ON r.study = a.study AND r.run_id = a.run_id
  LEFT JOIN lasts l ON l.run_id = a.run_id AND l.attempt = a.attempt
  WHERE a.study = 'scaling' AND a.run_id IN (FROM resumed) AND a.attempt <> r.deciding_attempt
  GROUP BY a.run_id
), timed AS (
  SELECT label, place, r.run_id, seed, repeat, steps, attempts, startup_seconds, first_step_seconds,
    r.training_seconds,
    CASE WHEN startup_seconds IS NOT NULL
      THEN greatest(0, wall_seconds - startup_seconds - r.training_seconds) END AS other_seconds,
    CASE WHEN lost.seconds IS NULL THEN 0 ELSE least(lost.seconds, other_seconds) END AS lost_seconds
  FROM runs r JOIN run_measures m ON m.study = r.study AND m.run_id = r.run_id
  LEFT JOIN lost ON lost.run_id = r.run_id
  WHERE r.study = 'scaling' AND outcome = 'completed' AND r.training_seconds IS NOT NULL
)
SELECT label, run_id, seed, repeat, steps, attempts, round(startup_seconds, 6) AS startup_seconds,
  round(first_step_seconds, 6) AS first_step_seconds,
  round(training_seconds - first_step_seconds, 6) AS steps_seconds, round(lost_seconds, 6) AS lost_seconds,
  round(other_seconds - lost_seconds, 6) AS rest_seconds
FROM timed ORDER BY place, seed, repeat, run_id
