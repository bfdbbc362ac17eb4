-- Tables: what the run folders and certificates say, one row per record, and what derive.sql makes of step records when
-- they are collected. views.sql derives the rest.
-- A run's key is (study, run_id): two studies may contain the same configuration and therefore the same run_id.
-- Times are UTC. Unknown is NULL.

CREATE TABLE database_version (fingerprint VARCHAR NOT NULL);
COMMENT ON TABLE database_version IS 'The schema that this file was built with. A file with another schema is rebuilt, not migrated.';
COMMENT ON COLUMN database_version.fingerprint IS 'SHA-256 of schema.sql and views.sql, hexadecimal.';

CREATE TABLE files (
    study VARCHAR NOT NULL, run_id VARCHAR NOT NULL, path VARCHAR NOT NULL,
    size_bytes BIGINT NOT NULL, mtime_ns BIGINT NOT NULL, sha256 VARCHAR NOT NULL, missing_since TIMESTAMP
);
COMMENT ON TABLE files IS 'Every file that was read. A run or certificate is read again only if its files have changed.';
COMMENT ON COLUMN files.study IS 'Name of the study, which is the folder under the root; .certificates for a certificate.';
COMMENT ON COLUMN files.run_id IS 'Id of the run, which is the folder under the study; for a certificate its key, which is the name of its file.';
COMMENT ON COLUMN files.path IS 'Path relative to the root.';
COMMENT ON COLUMN files.size_bytes IS 'Size in bytes when the file was read.';
COMMENT ON COLUMN files.mtime_ns IS 'Modification time in nanoseconds since 1970, UTC.';
COMMENT ON COLUMN files.sha256 IS 'SHA-256 of the content, in hexadecimal; the words not hashed for step records, which are read again whenever their size or time changes; empty if the file could not be read.';
COMMENT ON COLUMN files.missing_since IS 'When a collect found that the file was gone, UTC; the rows that were read from it are kept. NULL if it is there.';

CREATE TABLE run_records (
    study VARCHAR NOT NULL, run_id VARCHAR NOT NULL, group_id VARCHAR, title VARCHAR, description VARCHAR, scale_description VARCHAR, study_file VARCHAR,
    attention VARCHAR, seed BIGINT, repeat BIGINT DEFAULT 1, factors JSON, config JSON, scale VARCHAR, profile VARCHAR,
    position BIGINT, block BIGINT, design JSON, overridden JSON,
    planned_steps BIGINT, sequence_length BIGINT, batch_size BIGINT, processes INTEGER,
    expected_outcome VARCHAR, also_expected JSON, because VARCHAR, label VARCHAR, why JSON,
    memory_limit_bytes BIGINT, time_limit_seconds BIGINT, data_file VARCHAR, tokenizer VARCHAR, data_fingerprint VARCHAR,
    command JSON, version VARCHAR, git_sha VARCHAR, git_dirty BOOLEAN, git_diff VARCHAR, code VARCHAR, created_at TIMESTAMP, imported JSON,
    PRIMARY KEY (study, run_id)
);
COMMENT ON TABLE run_records IS 'run.json, one row per planned run. Use the view runs, which adds how each run went.';
COMMENT ON COLUMN run_records.study IS 'Name of the study.';
COMMENT ON COLUMN run_records.run_id IS 'Id of the run: a hash of its resolved configuration.';
COMMENT ON COLUMN run_records.group_id IS 'Id shared by runs that differ only in seed and repeat.';
COMMENT ON COLUMN run_records.title IS 'Title of the study.';
COMMENT ON COLUMN run_records.description IS 'What the study asks.';
COMMENT ON COLUMN run_records.scale_description IS 'What the study says of the scale of the run; empty if nothing. NULL in an imported run.';
COMMENT ON COLUMN run_records.study_file IS 'YAML file that the run was expanded from.';
COMMENT ON COLUMN run_records.attention IS 'Attention backend that the run asks for.';
COMMENT ON COLUMN run_records.seed IS 'Seed of the weights and of the order of the documents.';
COMMENT ON COLUMN run_records.repeat IS 'Number of the run among those of the same configuration and seed, from 1. Logs do not say it, so it is 1 for an imported run.';
COMMENT ON COLUMN run_records.position IS 'Planned place in the order of starting, from 1; runs.started_at says when it began. NULL in records of versions without an order.';
COMMENT ON COLUMN run_records.block IS 'Block of the run, from 1: one repetition of every group, planned to run together. NULL if the order has no blocks.';
COMMENT ON COLUMN run_records.design IS 'Design of the study when the run was planned: a JSON object with order, order_seed, baseline (factors), margins (loss in nats per token; tokens_per_second as a fraction) and until. NULL in records of versions without one.';
COMMENT ON COLUMN run_records.overridden IS 'Settings that the scale or --set changed: a JSON object of own, which is the study''s value (null if it gives none), and by, which is what changed it. NULL in records of versions that did not keep it.';
COMMENT ON COLUMN run_records.factors IS 'What varies in the study, by axis: a JSON object.';
COMMENT ON COLUMN run_records.config IS 'Resolved configuration: a JSON object.';
COMMENT ON COLUMN run_records.scale IS 'Scale of the run: a named set of overrides in the study.';
COMMENT ON COLUMN run_records.profile IS 'Name of the cluster profile.';
COMMENT ON COLUMN run_records.planned_steps IS 'Planned optimizer steps; of task frontier, probes at most.';
COMMENT ON COLUMN run_records.sequence_length IS 'Tokens per sample; of task frontier, the most that may be tried where that is sought.';
COMMENT ON COLUMN run_records.batch_size IS 'Samples per step, those of all processes together; of task frontier, the most that may be tried where that is sought.';
COMMENT ON COLUMN run_records.processes IS 'Processes that train the run together, as its configuration asks: the product of parallel.*, one per GPU. NULL in an imported run, and in records of versions in which every run was one process.';
COMMENT ON COLUMN run_records.expected_outcome IS 'Outcome that the study expects, of several the likeliest.';
COMMENT ON COLUMN run_records.also_expected IS 'Other outcomes that the study expects as well: a JSON array. NULL in an imported run.';
COMMENT ON COLUMN run_records.because IS 'Why the study expects that outcome, if it says so.';
COMMENT ON COLUMN run_records.label IS 'What the study calls the run''s group; NULL if it does not say, and in an imported run. runs.label is what it is called in the end.';
COMMENT ON COLUMN run_records.why IS 'FILE:LINE:COL of each entry in the study that led to this run: a JSON array.';
COMMENT ON COLUMN run_records.memory_limit_bytes IS 'Limit on the run''s host memory in bytes.';
COMMENT ON COLUMN run_records.time_limit_seconds IS 'Time limit in seconds.';
COMMENT ON COLUMN run_records.data_file IS 'Parquet file with the training text.';
COMMENT ON COLUMN run_records.tokenizer IS 'The word bytes, the tokenizer''s path, or its name on the hub.';
COMMENT ON COLUMN run_records.data_fingerprint IS 'Hash of the data file and the tokenizer when the run was planned.';
COMMENT ON COLUMN run_records.command IS 'Command line of the launch: a JSON array.';
COMMENT ON COLUMN run_records.version IS 'Version of assay-studies that planned or imported the run.';
COMMENT ON COLUMN run_records.git_sha IS 'Commit that the run was planned from; NULL outside a repository.';
COMMENT ON COLUMN run_records.git_dirty IS 'Whether the working tree differed from that commit.';
COMMENT ON COLUMN run_records.git_diff IS 'SHA-256 of the uncommitted changes; NULL without any.';
COMMENT ON COLUMN run_records.code IS 'SHA-256 of the code that the jobs of the run execute; NULL in records that are older than code snapshots.';
COMMENT ON COLUMN run_records.created_at IS 'When the run was planned, or first imported, UTC.';
COMMENT ON COLUMN run_records.imported IS 'For a run that another program made: format, file, sha256 of its log, when and by which version it was imported, what the log itself prints, what was found in it, and what was not imported: a JSON object. NULL for a run of this program.';

CREATE TABLE removed_runs (study VARCHAR NOT NULL, run_id VARCHAR NOT NULL, differs VARCHAR NOT NULL, PRIMARY KEY (study, run_id));
COMMENT ON TABLE removed_runs IS 'Runs that their study no longer has, since its file was changed and launched again: reports leave them out unless asked for them.';
COMMENT ON COLUMN removed_runs.study IS 'Name of the study.';
COMMENT ON COLUMN removed_runs.run_id IS 'Id of the run.';
COMMENT ON COLUMN removed_runs.differs IS 'What it has that the study gives no run any more, such as train.steps=6.';

CREATE TABLE attempts (
    study VARCHAR NOT NULL, run_id VARCHAR NOT NULL, attempt INTEGER NOT NULL,
    outcome VARCHAR, reason VARCHAR, executor VARCHAR, job_id VARCHAR,
    claimed_at TIMESTAMP, started_at TIMESTAMP, ended_at TIMESTAMP, wall_seconds DOUBLE,
    node VARCHAR, nodes INTEGER, device VARCHAR, gpu_uuid VARCHAR, gpus INTEGER, certificate VARCHAR, software JSON, slurm JSON,
    parameter_count BIGINT, flop_per_token BIGINT, peak_flops DOUBLE, peak_source VARCHAR,
    steps BIGINT, resumed_step BIGINT, parallel JSON, final_loss DOUBLE, peak_memory_bytes BIGINT, requested_bytes BIGINT,
    load_before DOUBLE, load_after DOUBLE, cores BIGINT, device_users BIGINT,
    power_limit_watts DOUBLE, sm_mhz DOUBLE, memory_mhz DOUBLE, power_capped_seconds DOUBLE, slowed_seconds DOUBLE,
    ceilings VARCHAR, no_ceilings VARCHAR, profiled_steps INTEGER, no_profile VARCHAR, rank_nodes JSON,
    PRIMARY KEY (study, run_id, attempt)
);
COMMENT ON TABLE attempts IS 'One row per attempt, which is one start of a run: manifest.json, result.json and its ledger entries.';
COMMENT ON COLUMN attempts.study IS 'Name of the study.';
COMMENT ON COLUMN attempts.run_id IS 'Id of the run.';
COMMENT ON COLUMN attempts.attempt IS 'Number of the attempt, as in the name of its folder.';
COMMENT ON COLUMN attempts.outcome IS 'How the attempt ended; NULL while it is in flight.';
COMMENT ON COLUMN attempts.reason IS 'Why the attempt ended that way, if anything recorded a reason.';
COMMENT ON COLUMN attempts.executor IS 'local or slurm.';
COMMENT ON COLUMN attempts.job_id IS 'Job id assigned by the scheduler.';
COMMENT ON COLUMN attempts.claimed_at IS 'When a launcher claimed the attempt, UTC.';
COMMENT ON COLUMN attempts.started_at IS 'When the attempt started on its node, UTC; NULL if it never started.';
COMMENT ON COLUMN attempts.ended_at IS 'When the attempt ended, UTC: as its result says, otherwise when a launcher noticed.';
COMMENT ON COLUMN attempts.wall_seconds IS 'Seconds from start to end, or at most that many: to when a launcher noticed, where the attempt left no result (see ended_at). 0 if it ended without starting, NULL if unknown.';
COMMENT ON COLUMN attempts.node IS 'Host name.';
COMMENT ON COLUMN attempts.nodes IS 'Number of nodes.';
COMMENT ON COLUMN attempts.device IS 'Name of the device as its driver reports it.';
COMMENT ON COLUMN attempts.gpu_uuid IS 'UUID of the GPU as its driver reports it: which one of its kind it was. NULL if unknown, and on a CPU.';
COMMENT ON COLUMN attempts.gpus IS 'Number of GPUs; 0 on a CPU.';
COMMENT ON COLUMN attempts.certificate IS 'Key of the certificate that its backend had; NULL in records that are older than certificates.';
COMMENT ON COLUMN attempts.software IS 'Version of each package: a JSON object.';
COMMENT ON COLUMN attempts.slurm IS 'SLURM_* environment variables of the job: a JSON object.';
COMMENT ON COLUMN attempts.parameter_count IS 'Number of trainable parameters.';
COMMENT ON COLUMN attempts.flop_per_token IS 'FLOP per token: 6 N + 12 L H Q T, where N excludes the input embedding.';
COMMENT ON COLUMN attempts.peak_flops IS 'Dense peak of one device in FLOP/s; NULL if unknown.';
COMMENT ON COLUMN attempts.peak_source IS 'Source of the peak.';
COMMENT ON COLUMN attempts.steps IS 'Completed optimizer steps, as the attempt reports them.';
COMMENT ON COLUMN attempts.resumed_step IS 'Last step of the checkpoint that the attempt resumed from; NULL if it started from scratch.';
COMMENT ON COLUMN attempts.parallel IS 'Processes of an attempt that was restarted on others than the run''s own (runner retry --set parallel.AXIS=N): a JSON object. None of its step records counts. NULL if they are the run''s own.';
COMMENT ON COLUMN attempts.final_loss IS 'Last loss in nats per token, as the attempt reports it.';
COMMENT ON COLUMN attempts.peak_memory_bytes IS 'Peak memory in bytes, as the attempt reports it: device memory on a GPU, resident memory on a CPU.';
COMMENT ON COLUMN attempts.requested_bytes IS 'Size in bytes of the allocation that failed, if the attempt ran out of memory.';

COMMENT ON COLUMN attempts.load_before IS 'Load average of the machine over the minute before the attempt: processes running or waiting to run. NULL if unknown.';
COMMENT ON COLUMN attempts.load_after IS 'Load average over the last minute of the attempt, its own threads included. NULL if unknown.';
COMMENT ON COLUMN attempts.cores IS 'Logical processors of the machine, to judge the load averages by. NULL if unknown.';
COMMENT ON COLUMN attempts.device_users IS 'Other processes that used the GPU when the attempt started. NULL if unknown, and on a CPU.';
COMMENT ON COLUMN attempts.power_limit_watts IS 'Power limit of the GPU in watts. NULL if unknown, and on a CPU.';
COMMENT ON COLUMN attempts.sm_mhz IS 'Clock of the GPU in MHz that applications run at unless throttled. NULL if unknown, and on a CPU.';
COMMENT ON COLUMN attempts.memory_mhz IS 'Clock of the GPU''s memory in MHz. NULL if unknown, and on a CPU.';
COMMENT ON COLUMN attempts.power_capped_seconds IS 'Seconds for which the power limit throttled the clocks of the GPU. NULL if unknown, and on a CPU.';
COMMENT ON COLUMN attempts.slowed_seconds IS 'Seconds for which heat or the power supply throttled the clocks of the GPU. NULL if unknown, and on a CPU.';
COMMENT ON COLUMN attempts.ceilings IS 'Key of its device''s measured ceilings in nodes; NULL if they are not known.';
COMMENT ON COLUMN attempts.no_ceilings IS 'Why they are not known, or why no floor is stated from them (see nodes.unsure); NULL if one is, if the attempt ended before, and in older records.';
COMMENT ON COLUMN attempts.profiled_steps IS 'Steps that step_profile is the mean of, done after the last one of the run; NULL in older records, and if the attempt did not complete.';
COMMENT ON COLUMN attempts.no_profile IS 'Why no step could be profiled; NULL if some were, or if that was not tried.';
COMMENT ON COLUMN attempts.rank_nodes IS 'Name of the node of each of its processes, from rank 0; NULL of one process, and of an attempt whose processes did not meet.';

CREATE TABLE step_files (
    file INTEGER NOT NULL PRIMARY KEY, study VARCHAR NOT NULL, run_id VARCHAR NOT NULL, attempt INTEGER NOT NULL,
    warmup_steps BIGINT, resumed_step BIGINT, same_device BOOLEAN, flop_per_token BIGINT, gpus INTEGER, processes INTEGER, peak_flops DOUBLE
);
COMMENT ON TABLE step_files IS 'Every steps.jsonl that has a record, one row per attempt, with what its records share. Use the view step_records.';
COMMENT ON COLUMN step_files.file IS 'Number of the file in this database; another database may number it differently.';
COMMENT ON COLUMN step_files.study IS 'Name of the study.';
COMMENT ON COLUMN step_files.run_id IS 'Id of the run.';
COMMENT ON COLUMN step_files.attempt IS 'Number of the attempt.';
COMMENT ON COLUMN step_files.warmup_steps IS 'Length of the warm-up in steps: records whose interval starts before do not count.';
COMMENT ON COLUMN step_files.resumed_step IS 'Last step of the checkpoint that the attempt resumed from: the record whose interval starts there does not count. NULL if it started from scratch.';
COMMENT ON COLUMN step_files.same_device IS 'Whether the attempt ran on the measured attempt''s device, and on the run''s own processes: otherwise no record of it counts.';
COMMENT ON COLUMN step_files.flop_per_token IS 'FLOP per token, of the attempt.';
COMMENT ON COLUMN step_files.gpus IS 'Number of GPUs, of the attempt; 0 on a CPU.';
COMMENT ON COLUMN step_files.processes IS 'Number of processes, of the attempt: one per GPU; on a CPU as attempts.parallel, or else run_records.processes, says. NULL if unknown.';
COMMENT ON COLUMN step_files.peak_flops IS 'Dense peak of one device in FLOP/s, of the attempt; NULL if unknown.';

-- Ten million rows are written once, straight from the files, with a number in place of their attempt's key.
CREATE TABLE step_lines (
    file INTEGER NOT NULL, step BIGINT NOT NULL, steps BIGINT NOT NULL, time TIMESTAMP,
    loss DOUBLE, learning_rate DOUBLE, grad_norm DOUBLE, step_seconds DOUBLE,
    tokens BIGINT, training_tokens BIGINT, memory_bytes BIGINT,
    step_seconds_min DOUBLE, step_seconds_median DOUBLE, step_seconds_max DOUBLE, data_wait_seconds DOUBLE,
    energy_joules DOUBLE, sm_mhz DOUBLE, throttle_reasons VARCHAR,
    slowest_rank INTEGER, slowest_rank_seconds DOUBLE, other_ranks_seconds DOUBLE,
    power_joules DOUBLE, power_seconds DOUBLE, power_steps BIGINT, printed_tokens_per_second DOUBLE,
    superseded BOOLEAN NOT NULL DEFAULT false
);
COMMENT ON TABLE step_lines IS 'What the lines of these files say, one row per line. Use the view step_records.';
COMMENT ON COLUMN step_lines.file IS 'Number of its file in step_files.';
COMMENT ON COLUMN step_lines.step IS 'Optimizer step, counted from 1.';
COMMENT ON COLUMN step_lines.steps IS 'Steps since the previous record: the interval is (step - steps, step].';
COMMENT ON COLUMN step_lines.time IS 'When the record was written, UTC.';
COMMENT ON COLUMN step_lines.loss IS 'Mean cross-entropy at the step in nats per token; NULL if not finite.';
COMMENT ON COLUMN step_lines.learning_rate IS 'Learning rate at the step.';
COMMENT ON COLUMN step_lines.grad_norm IS 'Gradient norm before clipping; NULL if not finite.';
COMMENT ON COLUMN step_lines.step_seconds IS 'Mean seconds per step over the interval.';
COMMENT ON COLUMN step_lines.tokens IS 'Tokens in the interval, including padding.';
COMMENT ON COLUMN step_lines.training_tokens IS 'Tokens in the interval that count in the loss.';
COMMENT ON COLUMN step_lines.memory_bytes IS 'Peak memory so far in bytes: device memory on a GPU, resident memory on a CPU.';
COMMENT ON COLUMN step_lines.step_seconds_min IS 'Seconds of the shortest step of the interval. NULL in records of versions that did not keep it.';
COMMENT ON COLUMN step_lines.step_seconds_median IS 'Median seconds of the steps of the interval. NULL in records of versions that did not keep it.';
COMMENT ON COLUMN step_lines.step_seconds_max IS 'Seconds of the longest step of the interval. NULL in records of versions that did not keep it.';
COMMENT ON COLUMN step_lines.data_wait_seconds IS 'Seconds of the interval in which the device had done a step and the next batch was not there, of the process that waited longest. NULL in records of versions that did not keep it.';
COMMENT ON COLUMN step_lines.energy_joules IS 'Energy of all GPUs of the run in the interval in joules, by NVML; coarse in intervals shorter than a second. NULL if unknown, and on a CPU.';
COMMENT ON COLUMN step_lines.sm_mhz IS 'Clock of the GPU''s multiprocessors in MHz when the record was made, at the end of the interval. NULL if unknown, and on a CPU.';
COMMENT ON COLUMN step_lines.throttle_reasons IS 'What throttled the GPU''s clocks then, as nvidia-smi calls it (sw_power_cap, hw_thermal_slowdown, ...), with commas between; empty if nothing did. NULL if unknown, and on a CPU.';
COMMENT ON COLUMN step_lines.slowest_rank IS 'The process that spent most seconds itself in the interval, on its data and on computing, and not waiting for others in collectives: it is the one that the others waited for. NULL of a run of one process, with tensor parallelism, which waits inside of blocks, and in records of versions that did not keep it.';
COMMENT ON COLUMN step_lines.slowest_rank_seconds IS 'Seconds that it spent itself, mean per step of the interval, of its first 32 where it has more. NULL of a run of one process, with tensor parallelism, and in records of versions that did not keep it.';
COMMENT ON COLUMN step_lines.other_ranks_seconds IS 'Median of the same of the other processes. NULL of a run of one process, with tensor parallelism, and in records of versions that did not keep it.';
COMMENT ON COLUMN step_lines.power_joules IS 'Energy of all GPUs of the run in joules, by NVML, in the power_steps steps up to this one and the pauses between them, from one reading of its counter to another a second later or more. NULL where less time has gone by since the last record that has it; if unknown; on a CPU; and in records of versions that did not keep it.';
COMMENT ON COLUMN step_lines.power_seconds IS 'Seconds in which it was used at least: the time between the readings, and after a pause of more than 0.1 s, as of a checkpoint, 0.1 s more, by which a reading of the counter can be late. NULL where power_joules is.';
COMMENT ON COLUMN step_lines.power_steps IS 'Steps of these. NULL where power_joules is.';
COMMENT ON COLUMN step_lines.printed_tokens_per_second IS 'See step_records.printed_tokens_per_second.';
COMMENT ON COLUMN step_lines.superseded IS 'Whether a later attempt went on from an earlier step, or started over, or a later line has the step too: that counts instead.';

-- `rows` is an SQL keyword.
CREATE TABLE audits (
    study VARCHAR NOT NULL, run_id VARCHAR NOT NULL, attempt INTEGER NOT NULL, step BIGINT NOT NULL, time TIMESTAMP,
    layer BIGINT NOT NULL, sample BIGINT NOT NULL, first_head BIGINT NOT NULL, heads BIGINT NOT NULL, row_count BIGINT NOT NULL, first_row BIGINT,
    passed BOOLEAN NOT NULL, reason VARCHAR, ratio DOUBLE, o_ratio DOUBLE, dq_ratio DOUBLE, dk_ratio DOUBLE, dv_ratio DOUBLE,
    tensors JSON NOT NULL, seconds DOUBLE NOT NULL, keys BIGINT
);
COMMENT ON TABLE audits IS 'audits.jsonl of every attempt, one row per audit: an attention call of the running model, forward and backward (of a call that decodes a token, forward), held to float64 by the rule of certificates. Layers, samples and heads count from 0.';
COMMENT ON COLUMN audits.study IS 'Name of the study.';
COMMENT ON COLUMN audits.run_id IS 'Id of the run.';
COMMENT ON COLUMN audits.attempt IS 'Number of the attempt.';
COMMENT ON COLUMN audits.step IS 'Optimizer step of the call, counted from 1: random, by the run''s seed. Of a decoded token, the prefill after which it comes.';
COMMENT ON COLUMN audits.time IS 'When it was judged, UTC.';
COMMENT ON COLUMN audits.layer IS 'Layer of the call.';
COMMENT ON COLUMN audits.sample IS 'Sample of the batch that was audited.';
COMMENT ON COLUMN audits.first_head IS 'First of the query heads that were audited.';
COMMENT ON COLUMN audits.heads IS 'Number of query heads that were audited: those that share one key head.';
COMMENT ON COLUMN audits.row_count IS 'Number of rows that were audited: every token of the sample, those of its part where processes share it, or the one that is decoded.';
COMMENT ON COLUMN audits.first_row IS 'First of the rows that were audited; above 0 where processes share the sample''s tokens. NULL in records of versions in which none did.';
COMMENT ON COLUMN audits.passed IS 'Whether output and gradients are within what is allowed. The run ends where one is not.';
COMMENT ON COLUMN audits.reason IS 'What is wrong, as a sentence; NULL if it passed.';
COMMENT ON COLUMN audits.ratio IS 'Largest measured / tolerance of output and gradients, a ratio: up to 1 passes, infinity means a result that is not finite.';
COMMENT ON COLUMN audits.o_ratio IS 'The same of the output; NULL if there was none.';
COMMENT ON COLUMN audits.dq_ratio IS 'The same of the gradient of Q.';
COMMENT ON COLUMN audits.dk_ratio IS 'The same of the gradient of K.';
COMMENT ON COLUMN audits.dv_ratio IS 'The same of the gradient of V.';
COMMENT ON COLUMN audits.tensors IS 'By tensor: measured and tolerance in roundings in the run''s precision, place of the worst slice, and relative_error: a JSON object.';
COMMENT ON COLUMN audits.seconds IS 'Seconds that the computation in float64 took. They are not part of any step''s.';
COMMENT ON COLUMN audits.keys IS 'Keys that a decoded token''s query met: random, by the run''s seed. NULL of a call of training.';

CREATE TABLE run_measures (
    study VARCHAR NOT NULL, run_id VARCHAR NOT NULL, last_step BIGINT, final_loss DOUBLE,
    training_tokens_percentage DOUBLE, memory_bytes BIGINT, counted_records BIGINT,
    step_seconds DOUBLE, step_seconds_25 DOUBLE, step_seconds_75 DOUBLE, tokens_per_step DOUBLE, printed_tokens_per_second DOUBLE, highest_learning_rate DOUBLE, training_seconds DOUBLE,
    startup_seconds DOUBLE, first_step_seconds DOUBLE,
    energy_joules DOUBLE, power_watts DOUBLE, data_wait_percentage DOUBLE,
    sm_mhz_low DOUBLE, sm_mhz_high DOUBLE, throttle_reasons VARCHAR, clocks_changed BOOLEAN,
    slowest_rank INTEGER, slowest_rank_records BIGINT, ranked_records BIGINT, slowest_rank_percentage DOUBLE,
    PRIMARY KEY (study, run_id)
);
COMMENT ON TABLE run_measures IS 'What the step records of a run come to, one row per run that has any. Use the view runs.';
COMMENT ON COLUMN run_measures.study IS 'Name of the study.';
COMMENT ON COLUMN run_measures.run_id IS 'Id of the run.';
COMMENT ON COLUMN run_measures.last_step IS 'Last logged step.';
COMMENT ON COLUMN run_measures.final_loss IS 'Loss at that step in nats per token; NULL if not finite.';
COMMENT ON COLUMN run_measures.training_tokens_percentage IS 'Percentage of the tokens that count in the loss; the rest is padding.';
COMMENT ON COLUMN run_measures.memory_bytes IS 'Peak memory in bytes that the measured attempt logged.';
COMMENT ON COLUMN run_measures.counted_records IS 'Number of step records that count (see steps.counted).';
COMMENT ON COLUMN run_measures.step_seconds IS 'Median seconds per step over the records that count.';
COMMENT ON COLUMN run_measures.step_seconds_25 IS 'Lower quartile of the same.';
COMMENT ON COLUMN run_measures.step_seconds_75 IS 'Upper quartile of the same.';
COMMENT ON COLUMN run_measures.tokens_per_step IS 'Tokens per step, including padding, over the records that count.';
COMMENT ON COLUMN run_measures.printed_tokens_per_second IS 'Median of step_records.printed_tokens_per_second over the records that count; NULL if none has it.';
COMMENT ON COLUMN run_measures.highest_learning_rate IS 'Highest learning rate of the step records.';
COMMENT ON COLUMN run_measures.training_seconds IS 'Seconds spent in the logged steps, including the warm-up.';
COMMENT ON COLUMN run_measures.startup_seconds IS 'Seconds from the start of an attempt''s process to its first logged step, summed over attempts that logged one. NULL if unknown, as of an imported run.';
COMMENT ON COLUMN run_measures.first_step_seconds IS 'Seconds by which the first record of an attempt took longer than as many steps usually do, summed over attempts; not where a later attempt did that step again.';
COMMENT ON COLUMN run_measures.energy_joules IS 'Energy of all GPUs of the run in the logged steps in joules, including the warm-up; coarse where records are shorter than a second, as of prefills. NULL if unknown for any of them, and on a CPU.';
COMMENT ON COLUMN run_measures.power_watts IS 'Mean power of all GPUs of the run in watts: power_joules / (power_seconds + 0.1) over the records that count and have them (see steps.power_watts). NULL if none does, if unknown, and on a CPU.';
COMMENT ON COLUMN run_measures.data_wait_percentage IS 'Percentage of the time of the records that count in which the device waited for data. NULL if unknown.';
COMMENT ON COLUMN run_measures.sm_mhz_low IS 'Lowest clock of the GPU''s multiprocessors in MHz at the records that count. NULL if unknown, and on a CPU.';
COMMENT ON COLUMN run_measures.sm_mhz_high IS 'Highest clock of the same, in MHz.';
COMMENT ON COLUMN run_measures.throttle_reasons IS 'Each distinct value of steps.throttle_reasons in the records that count, with semicolons between; none where nothing throttled the clocks. NULL if unknown, and on a CPU.';
COMMENT ON COLUMN run_measures.clocks_changed IS 'Whether the records that count are of different regimes: sm_mhz_low below 85 % of sm_mhz_high (under a constant power limit single readings differ by up to 13 %), or more than one throttle_reasons. NULL if unknown, and on a CPU.';
COMMENT ON COLUMN run_measures.slowest_rank IS 'The process that was slowest in most of the measured attempt''s records that count (see steps.slowest_rank); of equally many, the lowest. NULL of a run of one process, and if unknown.';
COMMENT ON COLUMN run_measures.slowest_rank_records IS 'In how many of them it was. Of equally fast processes each is in about as many. NULL of a run of one process, and if unknown.';
COMMENT ON COLUMN run_measures.ranked_records IS 'How many of them say which process was slowest. NULL of a run of one process, and if unknown.';
COMMENT ON COLUMN run_measures.slowest_rank_percentage IS 'By how many percent its own seconds then exceeded the median of the others: the median over those records. NULL of a run of one process, and if unknown.';

CREATE TABLE comparable (study VARCHAR NOT NULL, run_id VARCHAR NOT NULL, other_settings VARCHAR NOT NULL, PRIMARY KEY (study, run_id));
COMMENT ON TABLE comparable IS 'Which runs read the same tokens, one row per run that has step records: their losses are compared step by step.';
COMMENT ON COLUMN comparable.study IS 'Name of the study.';
COMMENT ON COLUMN comparable.run_id IS 'Id of the run.';
COMMENT ON COLUMN comparable.other_settings IS 'Hash of the data fingerprint and of the configuration without attention and the path of the data: runs that share it differ by attention alone.';

CREATE TABLE labels (study VARCHAR NOT NULL, run_id VARCHAR NOT NULL, label VARCHAR NOT NULL, place BIGINT NOT NULL, in_study BOOLEAN NOT NULL);
COMMENT ON TABLE labels IS 'What charts call a group, the factors that vary in its study, except seed and repeat, and where it stands in it.';
COMMENT ON COLUMN labels.study IS 'Name of the study.';
COMMENT ON COLUMN labels.run_id IS 'Id of the run.';
COMMENT ON COLUMN labels.label IS 'Label of the run''s group, unique within a study.';
COMMENT ON COLUMN labels.place IS 'Position of the group in the study, counted from 1: the order of its matrix, whatever the results.';
COMMENT ON COLUMN labels.in_study IS 'Whether the study still has the run.';

CREATE TABLE curves (
    study VARCHAR NOT NULL, run_id VARCHAR NOT NULL, most SMALLINT NOT NULL, width BIGINT NOT NULL,
    first_step BIGINT NOT NULL, step BIGINT NOT NULL, records BIGINT NOT NULL,
    losses BIGINT NOT NULL, loss DOUBLE, tokens BIGINT, seconds DOUBLE
);
COMMENT ON TABLE curves IS 'Each run''s step records in at most 256 points, and again in at most 32, for figures over steps. A run that has no more records than that has one point per record. A step that several attempts logged is in it once, as in the view steps.';
COMMENT ON COLUMN curves.study IS 'Name of the study.';
COMMENT ON COLUMN curves.run_id IS 'Id of the run.';
COMMENT ON COLUMN curves.most IS 'Which of the two it is: 256 or 32.';
COMMENT ON COLUMN curves.width IS 'Steps that a point spans: a power of two, so that points of two runs nest. 1 where each record is a point.';
COMMENT ON COLUMN curves.first_step IS 'First logged step in it.';
COMMENT ON COLUMN curves.step IS 'Last logged step in it.';
COMMENT ON COLUMN curves.records IS 'Number of step records in it.';
COMMENT ON COLUMN curves.losses IS 'Number of those with a finite loss.';
COMMENT ON COLUMN curves.loss IS 'Mean of these losses in nats per token; NULL if there is none.';
COMMENT ON COLUMN curves.tokens IS 'Tokens of those of these records that give their seconds, including padding.';
COMMENT ON COLUMN curves.seconds IS 'Seconds of those of these records that give their tokens: the sum of step_seconds x steps.';

CREATE TABLE quarantine (study VARCHAR NOT NULL, run_id VARCHAR NOT NULL, path VARCHAR NOT NULL, reason VARCHAR NOT NULL);
COMMENT ON TABLE quarantine IS 'Files that could not be read. The other tables contain nothing from them.';
COMMENT ON COLUMN quarantine.study IS 'Name of the study, which is the folder under the root; .certificates for a certificate.';
COMMENT ON COLUMN quarantine.run_id IS 'Name of the run''s folder; for a certificate its key, which is the name of its file.';
COMMENT ON COLUMN quarantine.path IS 'Path relative to the root.';
COMMENT ON COLUMN quarantine.reason IS 'Why the file could not be read.';

-- `case` is an SQL keyword: the case of a certificate is in run_case, and the same as text, as in a check, is in shape.
CREATE TABLE certificates (
    key VARCHAR NOT NULL PRIMARY KEY, attention VARCHAR NOT NULL, verdict VARCHAR NOT NULL,
    device_kind VARCHAR NOT NULL, device_name VARCHAR, dtype VARCHAR, shape VARCHAR, run_case JSON,
    software JSON NOT NULL, code VARCHAR NOT NULL, kernels JSON NOT NULL, deterministic BOOLEAN, graph_break VARCHAR,
    reasons JSON NOT NULL, not_looked_at JSON NOT NULL, checks BIGINT NOT NULL, failed BIGINT NOT NULL, seconds DOUBLE NOT NULL,
    created_at TIMESTAMP NOT NULL, git_sha VARCHAR, git_dirty BOOLEAN
);
COMMENT ON TABLE certificates IS '.certificates/KEY.json, one row per certificate: what was found about one attention backend on one device.';
COMMENT ON COLUMN certificates.key IS 'SHA-256 over backend, code, case, device and software, hexadecimal. The certificate is valid for a run only if all of these are the same.';
COMMENT ON COLUMN certificates.attention IS 'Attention backend.';
COMMENT ON COLUMN certificates.verdict IS 'right only if every check passed, otherwise wrong; unsupported if the backend says so itself.';
COMMENT ON COLUMN certificates.device_kind IS 'cuda or cpu.';
COMMENT ON COLUMN certificates.device_name IS 'Name of the device as its driver reports it; NULL if there is no such device.';
COMMENT ON COLUMN certificates.dtype IS 'Precision of the run that the certificate is for; NULL if it covers everything that the backend supports.';
COMMENT ON COLUMN certificates.shape IS 'Shape, precision and mask of the run as text; NULL if the certificate covers everything that the backend supports.';
COMMENT ON COLUMN certificates.run_case IS 'The same as a JSON object: device, dtype, batch, sequence_length, heads, kv_heads, head_dim, causal.';
COMMENT ON COLUMN certificates.software IS 'Version of each package, including the backend''s own modules, and environment variables that change numbers: a JSON object.';
COMMENT ON COLUMN certificates.code IS 'SHA-256 of the backend''s source files and of the rules that it was checked against, hexadecimal.';
COMMENT ON COLUMN certificates.kernels IS 'Names of the kernels that the profiler saw in each pass, forward and backward: a JSON object of arrays.';
COMMENT ON COLUMN certificates.deterministic IS 'Whether calls with the same inputs gave bitwise equal results, forward and backward: ten calls on a GPU, three on a CPU, at the run''s shape or at one that keeps a GPU busy; NULL if not checked.';
COMMENT ON COLUMN certificates.graph_break IS 'Why torch.compile breaks the graph at a call; empty if it does not; NULL if not checked.';
COMMENT ON COLUMN certificates.reasons IS 'Why the verdict is not right: each failed check, or what is not supported. A JSON array.';
COMMENT ON COLUMN certificates.not_looked_at IS 'Cases that the backend says it does not support, with its reasons: a JSON array.';
COMMENT ON COLUMN certificates.checks IS 'Number of checks.';
COMMENT ON COLUMN certificates.failed IS 'Number of checks that failed.';
COMMENT ON COLUMN certificates.seconds IS 'Seconds that it took to make the certificate.';
COMMENT ON COLUMN certificates.created_at IS 'When the certificate was made, UTC.';
COMMENT ON COLUMN certificates.git_sha IS 'Commit of the checkout that runner verify ran from. NULL outside a repository, and for the certificate of a run, whose own commit is in runs.';
COMMENT ON COLUMN certificates.git_dirty IS 'Whether that checkout had uncommitted changes.';

CREATE TABLE verifications (
    certificate VARCHAR NOT NULL, attention VARCHAR NOT NULL, place BIGINT NOT NULL, name VARCHAR NOT NULL,
    what VARCHAR NOT NULL, shape VARCHAR NOT NULL, variant VARCHAR NOT NULL, measured DOUBLE, tolerance DOUBLE,
    relative_error DOUBLE, passed BOOLEAN NOT NULL, reason VARCHAR
);
COMMENT ON TABLE verifications IS 'The checks of all certificates, one row per check.';
COMMENT ON COLUMN verifications.certificate IS 'Key of the certificate.';
COMMENT ON COLUMN verifications.attention IS 'Attention backend.';
COMMENT ON COLUMN verifications.place IS 'Position of the check in the certificate, counted from 1.';
COMMENT ON COLUMN verifications.name IS 'Kind of check: right, finite, kernels, same loss, ...';
COMMENT ON COLUMN verifications.what IS 'The tensor or pass: o, dq, dk, dv, forward, backward, logits, ...';
COMMENT ON COLUMN verifications.shape IS 'Shape, precision and mask of the call: batch B, length T, heads H, key heads K, head dim D.';
COMMENT ON COLUMN verifications.variant IS 'The data and how the backend was called: plain, large logits, ...';
COMMENT ON COLUMN verifications.measured IS 'What was measured, in the unit of the tolerance; for tensors, roundings in their precision. NULL if not finite or not a number.';
COMMENT ON COLUMN verifications.tolerance IS 'Largest value that passes; NULL if the check does not measure a number.';
COMMENT ON COLUMN verifications.relative_error IS 'Norm of the error divided by the norm of the exact result, a ratio; NULL if not computed. Meaningless if the exact result is zero.';
COMMENT ON COLUMN verifications.passed IS 'Whether the check passed.';
COMMENT ON COLUMN verifications.reason IS 'What is wrong, as a sentence; NULL if the check passed.';

CREATE TABLE decoding (
    study VARCHAR NOT NULL, run_id VARCHAR NOT NULL, attempt INTEGER NOT NULL,
    position BIGINT NOT NULL, time TIMESTAMP, seconds DOUBLE NOT NULL, token_ids JSON NOT NULL
);
COMMENT ON TABLE decoding IS 'decode.jsonl of every attempt of task inference: tokens decoded greedily with a KV cache, one row per position. It is the second of two passes over the same positions, so that nothing is loaded or compiled in it.';
COMMENT ON COLUMN decoding.study IS 'Name of the study.';
COMMENT ON COLUMN decoding.run_id IS 'Id of the run.';
COMMENT ON COLUMN decoding.attempt IS 'Number of the attempt.';
COMMENT ON COLUMN decoding.position IS 'Position of the tokens that go through the model, from 0: each attends to position + 1 keys.';
COMMENT ON COLUMN decoding.time IS 'When the last position of the pass was done, UTC.';
COMMENT ON COLUMN decoding.seconds IS 'Seconds of the position by the device''s clock: one token of each sample through the whole model.';
COMMENT ON COLUMN decoding.token_ids IS 'Ids of these tokens, one of each sample: a JSON array.';

CREATE TABLE kernels (
    study VARCHAR NOT NULL, run_id VARCHAR NOT NULL, attempt INTEGER NOT NULL,
    attention VARCHAR NOT NULL, direction VARCHAR NOT NULL, mode VARCHAR NOT NULL, device VARCHAR, dtype VARCHAR, causal BOOLEAN,
    batch BIGINT, sequence_length BIGINT, heads BIGINT, kv_heads BIGINT, head_dim BIGINT,
    outcome VARCHAR NOT NULL, reason VARCHAR, calls INTEGER NOT NULL, seconds JSON,
    milliseconds DOUBLE, milliseconds_low DOUBLE, milliseconds_high DOUBLE, tflops DOUBLE, ceiling_tflops DOUBLE,
    memory_bytes BIGINT, sm_mhz_low DOUBLE, sm_mhz_high DOUBLE, throttle_reasons VARCHAR, certificate VARCHAR, measured_at TIMESTAMP
);
COMMENT ON TABLE kernels IS 'kernels.json of every attempt: attention alone, one row per backend, direction and mode. All backends of an attempt were called in one process, in random order within each round. Their TFLOP/s are halved when causal and must never be compared with MFU.';
COMMENT ON COLUMN kernels.study IS 'Name of the study.';
COMMENT ON COLUMN kernels.run_id IS 'Id of the run: one shape.';
COMMENT ON COLUMN kernels.attempt IS 'Number of the attempt.';
COMMENT ON COLUMN kernels.attention IS 'Attention backend.';
COMMENT ON COLUMN kernels.direction IS 'forward, backward, or both: a forward and the backward after it, summed in each round.';
COMMENT ON COLUMN kernels.mode IS 'eager, called from Python, or graph, replayed from a CUDA graph. A CPU has no graph.';
COMMENT ON COLUMN kernels.device IS 'Name of the device as the system reports it.';
COMMENT ON COLUMN kernels.dtype IS 'Precision of the tensors.';
COMMENT ON COLUMN kernels.causal IS 'Whether a causal mask applies.';
COMMENT ON COLUMN kernels.batch IS 'Samples per call.';
COMMENT ON COLUMN kernels.sequence_length IS 'Tokens per sample.';
COMMENT ON COLUMN kernels.heads IS 'Query heads.';
COMMENT ON COLUMN kernels.kv_heads IS 'Key and value heads.';
COMMENT ON COLUMN kernels.head_dim IS 'Width of one head.';
COMMENT ON COLUMN kernels.outcome IS 'completed; unsupported, by the backend''s own word or because no CUDA graph can hold its call; wrong, by its certificate or by what was timed; oom_gpu or oom_host; or failed.';
COMMENT ON COLUMN kernels.reason IS 'Why it did not complete; NULL if it did.';
COMMENT ON COLUMN kernels.calls IS 'Number of calls that were timed; 0 if it did not complete.';
COMMENT ON COLUMN kernels.seconds IS 'Seconds of each of these calls, in the order of the rounds: a JSON array. NULL if it did not complete.';
COMMENT ON COLUMN kernels.milliseconds IS 'Median time of one call in milliseconds; NULL if it did not complete.';
COMMENT ON COLUMN kernels.milliseconds_low IS 'Lower end of a 95 % interval of that median over the calls, between order statistics: how steady this process was, not what another would give. NULL below 6 calls.';
COMMENT ON COLUMN kernels.milliseconds_high IS 'Upper end of the same.';
COMMENT ON COLUMN kernels.tflops IS 'TFLOP/s in the median time, counting 4 B H S^2 D FLOP forward, half of that when causal, 2.5 times that backward, and 3.5 times for both.';
COMMENT ON COLUMN kernels.ceiling_tflops IS 'TFLOP/s of a large square matrix product in the same precision, in its median time: it was timed between the backends of the same process.';
COMMENT ON COLUMN kernels.memory_bytes IS 'Most bytes that PyTorch allocated at a time beyond the inputs: device memory on a GPU, host memory on a CPU. In the rows of backward and both, by a forward and its backward together.';
COMMENT ON COLUMN kernels.sm_mhz_low IS 'Lowest clock of the GPU''s multiprocessors in MHz, read after each call. NULL if unknown, and on a CPU.';
COMMENT ON COLUMN kernels.sm_mhz_high IS 'Highest clock of the same, in MHz.';
COMMENT ON COLUMN kernels.throttle_reasons IS 'Each distinct NVML reason that throttled the clocks after a call, with semicolons between; none where nothing did. NULL if unknown, and on a CPU.';
COMMENT ON COLUMN kernels.certificate IS 'Key of the certificate that the backend was timed under, or that found it wrong; NULL if there is none.';
COMMENT ON COLUMN kernels.measured_at IS 'When the shape was measured, UTC.';

CREATE TABLE nodes (
    study VARCHAR NOT NULL, key VARCHAR NOT NULL, node VARCHAR NOT NULL, device VARCHAR NOT NULL, gpu VARCHAR, gpu_uuid VARCHAR,
    gpus INTEGER, driver VARCHAR, software JSON, dtype VARCHAR, graphics_clock_mhz DOUBLE, memory_clock_mhz DOUBLE, power_limit_watts DOUBLE,
    matmul_tflops DOUBLE, bandwidth_gigabytes_per_second DOUBLE, launch_microseconds DOUBLE, unsure VARCHAR, measured JSON,
    seconds DOUBLE, measured_at TIMESTAMP, PRIMARY KEY (study, key)
);
COMMENT ON TABLE nodes IS 'STUDY/.nodes/KEY.json, one row per record: the measured ceilings of one device of a node, for the shapes of one model. Measured before the first run of a study computes there.';
COMMENT ON COLUMN nodes.study IS 'Name of the study.';
COMMENT ON COLUMN nodes.key IS 'SHA-256 over node, device, software, precision, shapes and the tokens of a pass, hexadecimal; attempts.ceilings names it.';
COMMENT ON COLUMN nodes.node IS 'Host name.';
COMMENT ON COLUMN nodes.device IS 'Name of the device, GPU or CPU, as the system reports it.';
COMMENT ON COLUMN nodes.gpu IS 'Name of the GPU as its driver reports it; NULL on a CPU.';
COMMENT ON COLUMN nodes.gpu_uuid IS 'UUID of the GPU: which one of the node it is. NULL on a CPU.';
COMMENT ON COLUMN nodes.gpus IS 'Number of GPUs that were measured: 1, or 0 on a CPU.';
COMMENT ON COLUMN nodes.driver IS 'Version of the driver; NULL if unknown, and on a CPU.';
COMMENT ON COLUMN nodes.software IS 'Version of each package: a JSON object.';
COMMENT ON COLUMN nodes.dtype IS 'Precision of the matrix products.';
COMMENT ON COLUMN nodes.graphics_clock_mhz IS 'Clock of the GPU under load, in MHz. NULL if unknown, and on a CPU.';
COMMENT ON COLUMN nodes.memory_clock_mhz IS 'Clock of the GPU''s memory under load, in MHz. NULL if unknown, and on a CPU.';
COMMENT ON COLUMN nodes.power_limit_watts IS 'Power limit in watts. NULL if unknown, and on a CPU.';
COMMENT ON COLUMN nodes.matmul_tflops IS 'Highest rate of a matrix product of the model in TFLOP/s: 2 x tokens x inputs x columns FLOP in the median time.';
COMMENT ON COLUMN nodes.bandwidth_gigabytes_per_second IS 'Memory bandwidth in GB/s: what c = a + b reads and writes, of arrays larger than a GPU''s caches, in the median time.';
COMMENT ON COLUMN nodes.launch_microseconds IS 'Microseconds from one smallest operation to the next in a row of 1000, PyTorch''s share included: median.';
COMMENT ON COLUMN nodes.unsure IS 'Which of the products and the bandwidth were measured so unsteadily, their upper quartile above 1.5 times their lower one, that no floor is stated from them. NULL if none.';
COMMENT ON COLUMN nodes.measured IS 'Every measurement, with its shape, median and quartiles in seconds, and repeats: a JSON object of products, traffic, launch and clocks.';
COMMENT ON COLUMN nodes.seconds IS 'Seconds that it took to measure, the start of the process that did included.';
COMMENT ON COLUMN nodes.measured_at IS 'When the node was measured, UTC.';

CREATE TABLE step_floor (
    study VARCHAR NOT NULL, run_id VARCHAR NOT NULL, attempt INTEGER NOT NULL, phase VARCHAR NOT NULL DEFAULT 'step',
    part VARCHAR NOT NULL, flop BIGINT, bytes BIGINT, seconds DOUBLE NOT NULL
);
COMMENT ON TABLE step_floor IS 'The least time that a step can take by the ceilings of its device, of one process''s share of the work, one row per attempt, phase and part; the formulas are in model/measure/floor.py. Attempts without ceilings, or with unsure ones, have none.';
COMMENT ON COLUMN step_floor.study IS 'Name of the study.';
COMMENT ON COLUMN step_floor.run_id IS 'Id of the run.';
COMMENT ON COLUMN step_floor.attempt IS 'Number of the attempt.';
COMMENT ON COLUMN step_floor.phase IS 'step: an optimizer step, or a prefill of task inference; decode: a decoded token of each sample, with the median number of keys.';
COMMENT ON COLUMN step_floor.part IS 'products (matrix products, each at its own measured rate), attention (causal, at the rate of all products; of a decoded token the cache that it reads), loss, optimizer (with the gradient norm) or elementwise.';
COMMENT ON COLUMN step_floor.flop IS 'FLOP of a step, all its passes; NULL for a part that is counted in bytes.';
COMMENT ON COLUMN step_floor.bytes IS 'Bytes that a step has to read and write, of products of task inference the weights; NULL for a part that is counted in FLOP.';
COMMENT ON COLUMN step_floor.seconds IS 'Seconds by the measured rates; of products of task inference, each takes the longer of its FLOP and its bytes.';

CREATE TABLE step_profile (
    study VARCHAR NOT NULL, run_id VARCHAR NOT NULL, attempt INTEGER NOT NULL, phase VARCHAR NOT NULL DEFAULT 'step',
    part VARCHAR NOT NULL, seconds DOUBLE NOT NULL, share DOUBLE, hidden_seconds DOUBLE
);
COMMENT ON TABLE step_profile IS 'Where the time of a step goes, one row per completed attempt, phase and part, seen by PyTorch''s profiler in a few more steps after the last one of the run: those are in no other table, and nobody keeps what they update.';
COMMENT ON COLUMN step_profile.study IS 'Name of the study.';
COMMENT ON COLUMN step_profile.run_id IS 'Id of the run.';
COMMENT ON COLUMN step_profile.attempt IS 'Number of the attempt.';
COMMENT ON COLUMN step_profile.phase IS 'step: an optimizer step, or a prefill of task inference; decode: a decoded token of each sample, with the median number of keys, eight times as many as steps.';
COMMENT ON COLUMN step_profile.part IS 'products (matrix products but those of attention), attention, loss (without the head''s product), optimizer (with the gradient norm), elementwise (norms, rotary, SwiGLU, all else), copies and communication (of both, what nothing hides), or idle: on a GPU without work, on a CPU between operators.';
COMMENT ON COLUMN step_profile.seconds IS 'Seconds of a step, mean over the profiled ones: on a GPU of its kernels, on a CPU of operators, whose times the profiler lengthens.';
COMMENT ON COLUMN step_profile.hidden_seconds IS 'Seconds of a step, more of the same part, beside which other work ran on the device (on a CPU, in the thread of the steps): they are in no sum. NULL for parts that nothing hides, and in older records.';
COMMENT ON COLUMN step_profile.share IS 'Share of the step, a fraction of 1: seconds over the sum of all parts.';

CREATE TABLE probes (
    study VARCHAR NOT NULL,
    run_id VARCHAR NOT NULL,
    attempt INTEGER NOT NULL,
    number BIGINT NOT NULL,
    find VARCHAR NOT NULL,
    multiple BIGINT NOT NULL,
    most BIGINT NOT NULL,
    card_bytes BIGINT NOT NULL,
    memory_fraction DOUBLE NOT NULL,
    foreseen BIGINT NOT NULL,
    value BIGINT NOT NULL,
    purpose VARCHAR NOT NULL,
    outcome VARCHAR NOT NULL,
    reason VARCHAR,
    forecast_bytes BIGINT NOT NULL,
    peak_bytes BIGINT,
    reserved_bytes BIGINT,
    retries BIGINT,
    outside_bytes BIGINT,
    seconds DOUBLE NOT NULL,
    measured_at TIMESTAMP
);
COMMENT ON TABLE probes IS 'frontier.json of every attempt of task frontier, one row per probe: three steps of training in a process of their own. The view frontiers says what they come to.';
COMMENT ON COLUMN probes.study IS 'Name of the study.';
COMMENT ON COLUMN probes.run_id IS 'Id of the run.';
COMMENT ON COLUMN probes.attempt IS 'Number of the attempt.';
COMMENT ON COLUMN probes.number IS 'Place of the probe among the attempt''s, from 1.';
COMMENT ON COLUMN probes.find IS 'What is increased: sequence_length, batch_size or layers.';
COMMENT ON COLUMN probes.multiple IS 'Of which all values are multiples.';
COMMENT ON COLUMN probes.most IS 'Largest value that may be tried.';
COMMENT ON COLUMN probes.card_bytes IS 'Memory in bytes that a probe may use: of the GPU, CUDA''s own included; on a CPU, of the run''s limit.';
COMMENT ON COLUMN probes.memory_fraction IS 'Share of the device''s memory that this is, a fraction of 1; below 1, a smaller card is emulated.';
COMMENT ON COLUMN probes.foreseen IS 'Largest value that fits by the forecast; 0: none does.';
COMMENT ON COLUMN probes.value IS 'Value that was tried.';
COMMENT ON COLUMN probes.purpose IS 'search, or above: beyond a value that does not fit, since fitting is not monotone.';
COMMENT ON COLUMN probes.outcome IS 'fits; edge: the steps were done, but the allocator had to free its cache to go on, or with what CUDA uses beside it they need more than the card has; oom_gpu, oom_host or unsupported; timeout or failed: whether it fits is not known.';
COMMENT ON COLUMN probes.reason IS 'Why it does not fit; NULL if it does.';
COMMENT ON COLUMN probes.forecast_bytes IS 'Peak in bytes by the configuration.';
COMMENT ON COLUMN probes.peak_bytes IS 'Most bytes that were allocated until the probe ended: on a GPU by PyTorch, on a CPU by the process in pages of no file. NULL if it hung or died.';
COMMENT ON COLUMN probes.reserved_bytes IS 'Most bytes of the GPU that PyTorch''s allocator held. NULL if unknown, and on a CPU.';
COMMENT ON COLUMN probes.retries IS 'How often the allocator freed its cache to go on. NULL if unknown, and on a CPU.';
COMMENT ON COLUMN probes.outside_bytes IS 'Bytes of the GPU that were in use at the end beside what the allocator held, by whatever process. NULL if unknown, and on a CPU.';
COMMENT ON COLUMN probes.seconds IS 'Seconds from the start of the probe''s process to its end.';
COMMENT ON COLUMN probes.measured_at IS 'When the last probe had ended, UTC.';
