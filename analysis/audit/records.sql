-- What records contradict: each query gives a place, what a record says there, and what others say.
-- Its first line names the table whose record is at fault.

-- step_records
SELECT study || '/' || run_id || ' attempt ' || attempt || ', step ' || step,
    training_tokens || ' tokens that count', 'at most all ' || tokens
FROM step_records WHERE training_tokens > tokens OR training_tokens < 0;

-- step_records
SELECT study || '/' || run_id || ' attempt ' || attempt || ', step ' || step,
    step_seconds || ' seconds per step', 'a positive number'
FROM step_records WHERE NOT (step_seconds > 0 AND isfinite(step_seconds));

-- step_records
-- A mean is computed, and may be off in its last digits.
SELECT study || '/' || run_id || ' attempt ' || attempt || ', step ' || step,
    step_seconds || ' seconds per step', 'steps of ' || step_seconds_min || ' to ' || step_seconds_max
FROM step_records WHERE step_seconds NOT BETWEEN step_seconds_min * (1 - 1e-9) AND step_seconds_max * (1 + 1e-9);

-- step_records
SELECT study || '/' || run_id || ' attempt ' || attempt || ', step ' || step,
    data_wait_seconds || ' seconds of waiting', 'at most the ' || step_seconds * steps || ' of its steps'
FROM step_records WHERE data_wait_seconds NOT BETWEEN 0 AND step_seconds * steps * (1 + 1e-9);

-- step_records
-- Steps are timed by the device's clock, which may go another way than the host's by less than 0.1 %.
SELECT study || '/' || run_id || ' attempt ' || attempt || ', step ' || step,
    'power over ' || power_steps || ' steps in ' || power_seconds || ' seconds',
    steps || ' steps of ' || step_seconds || ' seconds, which are among them'
FROM step_records WHERE power_steps NOT BETWEEN steps AND step OR power_seconds < 0.999 * step_seconds * steps;

-- step_records
SELECT study || '/' || run_id || ' attempt ' || attempt || ', step ' || step,
    'rank ' || slowest_rank || ' slowest with ' || slowest_rank_seconds || ' seconds per step',
    'one of ' || coalesce(json_array_length(rank_nodes), 1) || ' processes, and no less than the ' || other_ranks_seconds || ' of the others'
FROM step_records JOIN attempts USING (study, run_id, attempt)
WHERE slowest_rank NOT BETWEEN 0 AND coalesce(json_array_length(rank_nodes), 1) - 1 OR slowest_rank_seconds < other_ranks_seconds;

-- step_records
SELECT study || '/' || run_id || ' attempt ' || attempt || ', step ' || step,
    'an interval of ' || steps || ' steps', 'one that starts after step ' || earlier
FROM (
    SELECT *, lag(step, 1, 0) OVER (PARTITION BY study, run_id, attempt ORDER BY step) AS earlier FROM step_records
) WHERE step - steps < earlier OR steps < 1;

-- step_records
-- Other programs may log some of their steps alone.
SELECT study || '/' || run_id || ' attempt ' || attempt || ', step ' || step,
    'an interval of ' || steps || ' steps', 'a record before it that ends with step ' || earlier
FROM (
    SELECT *, lag(step) OVER (PARTITION BY study, run_id, attempt ORDER BY step) AS earlier FROM step_records
) JOIN run_records r USING (study, run_id) WHERE r.imported IS NULL AND step - steps > earlier;

-- step_records
SELECT study || '/' || run_id || ' attempt ' || attempt || ', step ' || step,
    tokens || ' tokens', steps * batch_size * sequence_length || ' by the plan'
FROM step_records JOIN run_records USING (study, run_id) WHERE tokens <> steps * batch_size * sequence_length;

-- step_records
SELECT study || '/' || run_id || ' attempt ' || attempt || ', step ' || step, 'a step', 'no such run'
FROM step_records ANTI JOIN run_records USING (study, run_id);

-- attempts
SELECT study || '/' || run_id || ' attempt ' || attempt, 'an attempt', 'no such run'
FROM attempts ANTI JOIN run_records USING (study, run_id);

-- audits
SELECT study || '/' || run_id || ' attempt ' || attempt || ', step ' || step, 'an audit', 'no such attempt'
FROM audits ANTI JOIN attempts USING (study, run_id, attempt);

-- audits
SELECT study || '/' || run_id || ' attempt ' || attempt || ', step ' || step,
    CASE WHEN passed THEN 'an audit that passed' ELSE 'an audit that failed' END,
    'a largest error of ' || greatest(o_ratio, dq_ratio, dk_ratio, dv_ratio) || ' times what is allowed'
FROM audits WHERE passed <> (coalesce(ratio <= 1, false) AND reason IS NULL)
    OR ratio IS DISTINCT FROM greatest(o_ratio, dq_ratio, dk_ratio, dv_ratio);

-- attempts
SELECT study || '/' || run_id || ' attempt ' || attempt, 'completed', 'a failed audit'
FROM attempts SEMI JOIN (FROM audits WHERE NOT passed) USING (study, run_id, attempt) WHERE outcome = 'completed';

-- attempts
WITH done AS (
    SELECT study, run_id, attempt, max(step) AS last FROM step_records GROUP BY ALL
)
SELECT study || '/' || run_id || ' attempt ' || attempt, steps || ' steps', 'a last record of step ' || last
FROM attempts JOIN done USING (study, run_id, attempt) WHERE steps <> last;

-- attempts
WITH done AS (
    SELECT study, run_id, attempt, last(loss ORDER BY step) AS loss FROM step_records GROUP BY ALL
)
SELECT study || '/' || run_id || ' attempt ' || attempt, 'a final loss of ' || final_loss, 'a last record of ' || loss
FROM attempts JOIN done USING (study, run_id, attempt) WHERE final_loss <> loss;

-- attempts
WITH done AS (
    SELECT study, run_id, attempt, max(memory_bytes) AS most FROM step_records GROUP BY ALL
)
SELECT study || '/' || run_id || ' attempt ' || attempt,
    'a peak of ' || peak_memory_bytes || ' bytes', 'a record of ' || most
-- Linux counts resident pages in batches, so that a later reading of the peak can be a little lower.
FROM attempts JOIN done USING (study, run_id, attempt) WHERE peak_memory_bytes < 0.99 * most;

-- attempts
-- Seconds are measured by a clock that is not set; what is started between two steps is not part of theirs.
WITH done AS (
    SELECT study, run_id, attempt, sum(step_seconds * steps) AS seconds FROM step_records GROUP BY ALL
)
SELECT study || '/' || run_id || ' attempt ' || attempt,
    wall_seconds || ' seconds in all', 'steps that took ' || round(seconds, 3)
FROM attempts JOIN done USING (study, run_id, attempt) WHERE steps IS NOT NULL AND seconds > wall_seconds * 1.001 + 1;

-- attempts
SELECT study || '/' || run_id || ' attempt ' || attempt,
    'completed on ' || gpus || ' GPUs in ' || coalesce(json_array_length(rank_nodes), 1) || ' processes', processes || ' by the plan'
FROM attempts a JOIN run_records r USING (study, run_id)
WHERE a.outcome = 'completed' AND r.imported IS NULL AND a.parallel IS NULL
    AND (a.gpus > 0 AND a.gpus <> r.processes OR json_array_length(a.rank_nodes) <> r.processes);

-- run_records
SELECT study || '/' || run_id, attention, 'the configuration: ' || (config ->> '$.attention')
FROM run_records WHERE attention <> config ->> '$.attention';

-- run_records
SELECT study || '/' || run_id, 'seed ' || seed, 'the configuration: ' || (config ->> '$.seed')
FROM run_records WHERE seed::VARCHAR <> config ->> '$.seed';

-- run_records
SELECT study || '/' || run_id, planned_steps || ' planned steps', 'the configuration: ' || (config ->> '$.train.steps')
FROM run_records WHERE planned_steps::VARCHAR <> config ->> '$.train.steps';

-- run_records
SELECT study || '/' || run_id, processes || ' processes', 'the configuration: ' || (config -> '$.parallel')
FROM run_records WHERE processes <> list_product([coalesce((config ->> ('$.parallel.' || axis))::BIGINT, 1)
    FOR axis IN ['replicate', 'shard', 'context', 'tensor']]);

-- certificates
SELECT c.attention || ' ' || key, failed || ' of ' || checks || ' checks failed',
    count(*) FILTER (NOT passed) || ' of ' || count(passed)
FROM certificates c LEFT JOIN verifications v ON v.certificate = c.key
GROUP BY c.attention, key, checks, failed
HAVING checks <> count(passed) OR failed <> count(*) FILTER (NOT passed);

-- certificates
SELECT attention || ' ' || key, verdict, failed || ' failed checks'
FROM certificates WHERE (verdict = 'right' AND failed > 0) OR (verdict = 'wrong' AND failed = 0);

-- verifications
SELECT attention || ', check ' || place || ' of ' || certificate,
    'a check that passed', measured || ' measured where ' || tolerance || ' is allowed'
FROM verifications WHERE passed AND measured > tolerance;

-- kernels
SELECT study || '/' || run_id || ' attempt ' || attempt || ', ' || attention || ' ' || direction || ' ' || mode,
    coalesce(tflops, 0) || ' TFLOP/s', round(expected, 6) || ' in ' || milliseconds || ' ms'
FROM (
    SELECT *, 4.0 * batch * heads * sequence_length * sequence_length * head_dim * if(causal, 0.5, 1.0)
        * CASE direction WHEN 'forward' THEN 1.0 WHEN 'backward' THEN 2.5 ELSE 3.5 END / milliseconds / 1e9 AS expected FROM kernels
) WHERE abs(coalesce(tflops, 0) - expected) > 1e-9 * expected;

-- kernels
SELECT study || '/' || run_id || ' attempt ' || attempt || ', ' || attention || ' ' || direction || ' ' || mode,
    milliseconds || ' ms of ' || calls || ' calls, ' || outcome, 'a median within ' || milliseconds_low || ' to ' || milliseconds_high
FROM kernels WHERE milliseconds NOT BETWEEN milliseconds_low AND milliseconds_high;

-- kernels
SELECT study || '/' || run_id || ' attempt ' || attempt || ', ' || attention || ' ' || direction || ' ' || mode,
    coalesce(milliseconds::VARCHAR, 'no') || ' ms of ' || calls || ' calls', 'the outcome ' || outcome
FROM kernels WHERE (outcome = 'completed') <> (milliseconds IS NOT NULL AND calls > 0);

-- kernels
SELECT k.study || '/' || k.run_id || ' attempt ' || k.attempt || ', ' || k.attention, 'timed', 'a certificate that is ' || c.verdict
FROM kernels k JOIN certificates c ON c.key = k.certificate WHERE k.outcome = 'completed' AND c.verdict <> 'right';

-- kernels
SELECT k.study || '/' || k.run_id || ' attempt ' || k.attempt, k.attention || ' timed', 'its certificate is of ' || c.attention
FROM kernels k JOIN certificates c ON c.key = k.certificate WHERE c.attention <> k.attention;

-- kernels
SELECT study || '/' || run_id || ' attempt ' || attempt || ', ' || attention || ' ' || direction || ' ' || mode, count(*) || ' rows', '1'
FROM kernels GROUP BY study, run_id, attempt, attention, direction, mode HAVING count(*) > 1;

-- decoding
SELECT study || '/' || run_id || ' attempt ' || attempt, 'decoded positions ' || min(position) || ' to ' || max(position), count(*) || ' records'
FROM decoding GROUP BY study, run_id, attempt HAVING max(position) - min(position) + 1 <> count(*) OR count(DISTINCT position) <> count(*);

-- decoding
SELECT d.study || '/' || d.run_id || ' attempt ' || d.attempt || ', position ' || d.position, 'decoded', 'a run of task ' || r.task
FROM decoding d JOIN runs r ON r.study = d.study AND r.run_id = d.run_id WHERE r.task <> 'inference';

-- probes
SELECT study || '/' || run_id || ' attempt ' || attempt || ', probe of ' || value, outcome || ', retries: ' || retries, 'edge'
FROM probes WHERE outcome = 'fits' AND retries > 0;

-- probes
SELECT study || '/' || run_id || ' attempt ' || attempt || ', probe of ' || value,
    outcome || ' in ' || coalesce(reserved_bytes + outside_bytes, peak_bytes) || ' bytes', 'the card has ' || card_bytes
FROM probes WHERE outcome = 'fits' AND coalesce(reserved_bytes + outside_bytes, peak_bytes) > card_bytes;

-- probes
SELECT study || '/' || run_id || ' attempt ' || attempt || ', probe of ' || value, outcome || ', with a peak', 'nothing is known of it'
FROM probes WHERE outcome IN ('timeout', 'failed') AND peak_bytes IS NOT NULL;

-- probes
SELECT study || '/' || run_id || ' attempt ' || attempt, 'rows of ' || count(DISTINCT card_bytes) || ' cards and '
    || count(DISTINCT foreseen) || ' forecasts', 'one search'
FROM probes GROUP BY study, run_id, attempt
HAVING count(DISTINCT card_bytes) > 1 OR count(DISTINCT foreseen) > 1 OR count(*) > count(DISTINCT value);
