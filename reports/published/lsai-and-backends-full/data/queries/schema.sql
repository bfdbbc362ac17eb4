-- Tables: what the run folders and certificates say, one row per record, and what derive.sql makes of step records when
-- they are collected. views.sql derives the rest.
-- A run's key is (study, run_id): two studies may contain the same configuration and therefore the same run_id.
-- Times are UTC. Unknown is NULL.
-- After `--:` stands the comment of the table, view or column on that line. Views pass it on to columns that have none.

CREATE TABLE database_version (  --: The schema that this file was built with. A file with another schema is rebuilt, not migrated.
    fingerprint VARCHAR NOT NULL  --: SHA-256 of schema.sql and views.sql, hexadecimal.
);

CREATE TABLE files (  --: Every file that was read. A run or certificate is read again only if its files have changed.
    study VARCHAR NOT NULL,  --: Name of the study, which is the folder under the root; .certificates for a certificate.
    run_id VARCHAR NOT NULL,  --: Id of the run, which is the folder under the study; for a certificate its key, which is the name of its file.
    path VARCHAR NOT NULL,  --: Path relative to the root. Of what came from a report, STUDY/.reports/NAME/run_records.parquet.
    size_bytes BIGINT NOT NULL,  --: Size in bytes when the file was read.
    mtime_ns BIGINT NOT NULL,  --: Modification time in nanoseconds since 1970, UTC.
    sha256 VARCHAR NOT NULL,  --: SHA-256 of the content, in hexadecimal; the words not hashed for step records, which are read again whenever their size or time changes; empty if the file could not be read.
    missing_since TIMESTAMP  --: When a collect found that the file was gone, UTC; the rows that were read from it are kept. NULL if it is there.
);

CREATE TABLE run_records (  --: run.json, one row per planned run. Use the view runs, which adds how each run went.
    study VARCHAR NOT NULL,  --: Name of the study.
    run_id VARCHAR NOT NULL,  --: Id of the run: a hash of its resolved configuration, including the seed.
    group_id VARCHAR,  --: Id shared by runs that differ only in seed and repeat.
    title VARCHAR,  --: Title of the study.
    description VARCHAR,  --: What the study asks.
    scale_description VARCHAR,  --: What the study says of the scale of the run; empty if nothing. NULL in an imported run.
    study_file VARCHAR,  --: YAML file that the run was expanded from.
    attention VARCHAR,  --: Attention backend that the run asks for.
    seed BIGINT,  --: Seed of the weights and of the order of the documents.
    repeat BIGINT DEFAULT 1,  --: Number of the run among those of the same configuration and seed, from 1. Logs do not say it, so it is 1 for an imported run.
    factors JSON,  --: What varies in the study, by axis: a JSON object.
    config JSON,  --: Resolved configuration: a JSON object.
    scale VARCHAR,  --: Scale of the run: a named set of overrides in the study.
    profile VARCHAR,  --: Name of the cluster profile.
    position BIGINT,  --: Planned place in the order of starting, from 1; runs.started_at says when it began. NULL in an imported run.
    block BIGINT,  --: Block of the run, from 1: one repetition of every group, planned to run together. NULL if the order has no blocks.
    design JSON,  --: Design of the study when the run was planned: a JSON object with order, order_seed, baseline (factors), margins (loss in nats per token; tokens_per_second as a fraction) and until.
    overridden JSON,  --: Settings that the scale or --set changed: a JSON object of own, which is the study's value (null if it gives none), and by, which is what changed it. NULL in an imported run.
    planned_steps BIGINT,  --: Planned steps, the warm-up included: optimizer steps, prefills of task inference, or at most so many probes of task frontier.
    sequence_length BIGINT,  --: Tokens per sample; of task inference, per prompt; of task frontier, the most that may be tried where that is sought.
    batch_size BIGINT,  --: Samples per step, those of all processes together; of task frontier, the most that may be tried where that is sought.
    processes INTEGER,  --: Processes that train the run together, as its configuration asks: the product of parallel.*, one per GPU. NULL in an imported run, and in records of versions in which every run was one process.
    expected_outcome VARCHAR,  --: Outcome that the study expects, of several the likeliest.
    also_expected JSON,  --: Other outcomes that the study expects as well: a JSON array. NULL in an imported run.
    because VARCHAR,  --: Why the study expects that outcome, if it says so.
    label VARCHAR,  --: What the study calls the run's group; NULL if it does not say, and in an imported run. runs.label is what it is called in the end.
    reported JSON,  --: What the study says that others report of the run's group: a JSON array of objects of numbers (by quantity, as printed), hardware, gpus, source, read_from, note, flags and unchecked. NULL if it says nothing. The view reported has it by column.
    reported_elsewhere JSON,  --: Entries of the study's reported that are about no cell at the scale of the run: a JSON array of their numbers in the study's file, from 1; empty also in records of versions that do not say it. NULL in an imported run.
    why JSON,  --: FILE:LINE:COL of each entry in the study that led to this run: a JSON array.
    memory_limit_bytes BIGINT,  --: Limit on the run's host memory in bytes.
    time_limit_seconds BIGINT,  --: Time limit in seconds.
    data_file VARCHAR,  --: Parquet file with the training text.
    tokenizer VARCHAR,  --: The word bytes, the tokenizer's path, or its name on the hub.
    data_fingerprint VARCHAR,  --: Hash of the data file and the tokenizer when the run was planned.
    command JSON,  --: Command line of the launch: a JSON array.
    version VARCHAR,  --: Version of assay-studies that planned or imported the run.
    git_sha VARCHAR,  --: Commit that the run was planned from; NULL outside a repository.
    git_dirty BOOLEAN,  --: Whether a tracked file differed from that commit, or there was another that a run can import.
    git_diff VARCHAR,  --: SHA-256 of the uncommitted changes; NULL without any.
    code VARCHAR,  --: SHA-256 of the code that the jobs of the run execute; NULL in an imported run.
    created_at TIMESTAMP,  --: When the run was planned, or first imported, UTC.
    imported JSON,  --: For a run that another program made: format, file, sha256 of its log, when and by which version it was imported, what the log itself prints, what was found in it, and what was not imported: a JSON object. NULL for a run of this program.
    PRIMARY KEY (study, run_id)
);

CREATE TABLE removed_runs (  --: Runs that their study no longer has, since its file was changed and launched again: reports leave them out unless asked for them.
    study VARCHAR NOT NULL,  --: Name of the study.
    run_id VARCHAR NOT NULL,  --: Id of the run.
    differs VARCHAR NOT NULL,  --: What it has that the study gives no run any more, such as train.steps=6.
    PRIMARY KEY (study, run_id)
);

CREATE TABLE attempts (  --: One row per attempt, which is one start of a run: manifest.json, result.json and its ledger entries.
    study VARCHAR NOT NULL,  --: Name of the study.
    run_id VARCHAR NOT NULL,  --: Id of the run.
    attempt INTEGER NOT NULL,  --: Number of the attempt, as in the name of its folder.
    outcome VARCHAR,  --: How the attempt ended; NULL while it is in flight.
    reason VARCHAR,  --: Why the attempt ended that way, if anything recorded a reason.
    executor VARCHAR,  --: local or slurm.
    job_id VARCHAR,  --: Job id assigned by the scheduler.
    claimed_at TIMESTAMP,  --: When a launcher claimed the attempt, UTC.
    started_at TIMESTAMP,  --: When the attempt started on its node, UTC; NULL if it never started.
    ended_at TIMESTAMP,  --: When the attempt ended, UTC: as its result says, otherwise when a launcher noticed.
    wall_seconds DOUBLE,  --: Seconds from start to end, or at most that many: to when a launcher noticed, where the attempt left no result (see ended_at). 0 if it ended without starting, NULL if unknown.
    node VARCHAR,  --: Host name.
    nodes INTEGER,  --: Number of nodes.
    device VARCHAR,  --: Name of the device, GPU or CPU, as the system reports it.
    gpu_uuid VARCHAR,  --: UUID of the GPU as its driver reports it: which one of its kind it was. NULL if unknown, and on a CPU.
    gpus INTEGER,  --: Number of GPUs; 0 on a CPU.
    certificate VARCHAR,  --: Key of the certificate that its backend had; NULL if there is none.
    software JSON,  --: Version of each package: a JSON object.
    slurm JSON,  --: SLURM_* environment variables of the job: a JSON object.
    parameter_count BIGINT,  --: Number of trainable parameters.
    flop_per_token BIGINT,  --: FLOP per token: 6 N + 12 L H Q T, where N excludes the input embedding. Of a prefill, forward only, 2 N + 2 V D / T + 4 L H Q T, where N excludes the output head too, whose V x D parameters count for the last token alone. No causal discount in either.
    peak_flops DOUBLE,  --: Dense peak of one device in FLOP/s; NULL if unknown.
    peak_source VARCHAR,  --: Source of the peak.
    steps BIGINT,  --: Completed optimizer steps, as the attempt reports them.
    resumed_step BIGINT,  --: Last step of the checkpoint that the attempt resumed from; NULL if it started from scratch.
    parallel JSON,  --: Processes of an attempt that was restarted on others than the run's own (runner retry --set parallel.AXIS=N): a JSON object. None of its step records counts. NULL if they are the run's own.
    final_loss DOUBLE,  --: Last loss in nats per token, as the attempt reports it.
    peak_memory_bytes BIGINT,  --: Peak memory in bytes, as the attempt reports it: device memory on a GPU, resident memory on a CPU.
    requested_bytes BIGINT,  --: Size in bytes of the allocation that failed, if the attempt ran out of memory.
    load_before DOUBLE,  --: Load average of the machine over the minute before the attempt: processes running or waiting to run. NULL if unknown.
    load_after DOUBLE,  --: Load average over the last minute of the attempt, its own threads included. NULL if unknown.
    cores BIGINT,  --: Logical processors of the machine, to judge the load averages by. NULL if unknown.
    device_users BIGINT,  --: Other processes that used the GPU when the attempt started. NULL if unknown, and on a CPU.
    power_limit_watts DOUBLE,  --: Power limit of the GPU in watts. NULL if unknown, and on a CPU.
    sm_mhz DOUBLE,  --: Clock of the GPU in MHz that applications run at unless throttled. NULL if unknown, and on a CPU.
    memory_mhz DOUBLE,  --: Clock of the GPU's memory in MHz. NULL if unknown, and on a CPU.
    power_capped_seconds DOUBLE,  --: Seconds for which the power limit throttled the clocks of the GPU. NULL if unknown, and on a CPU.
    slowed_seconds DOUBLE,  --: Seconds for which heat or the power supply throttled the clocks of the GPU. NULL if unknown, and on a CPU.
    ceilings VARCHAR,  --: Key of its device's measured ceilings in nodes; NULL if they are not known.
    no_ceilings VARCHAR,  --: Why they are not known, or why no floor is stated from them (see nodes.unsure); NULL if one is, if the attempt ended before, and in older records.
    profiled_steps INTEGER,  --: Steps that step_profile is the mean of, done after the last one of the run; NULL in older records, and if the attempt did not complete.
    no_profile VARCHAR,  --: Why no step could be profiled; NULL if some were, or if that was not tried.
    rank_nodes JSON,  --: Name of the node of each of its processes, from rank 0; NULL of one process, and of an attempt whose processes did not meet.
    PRIMARY KEY (study, run_id, attempt)
);

CREATE TABLE step_files (  --: Every steps.jsonl that has a record, one row per attempt, with what its records share. Use the view step_records.
    file INTEGER NOT NULL PRIMARY KEY,  --: Number of the file in this database; another database may number it differently.
    study VARCHAR NOT NULL,  --: Name of the study.
    run_id VARCHAR NOT NULL,  --: Id of the run.
    attempt INTEGER NOT NULL,  --: Number of the attempt.
    warmup_steps BIGINT,  --: Length of the warm-up in steps: records whose interval starts before do not count.
    resumed_step BIGINT,  --: Last step of the checkpoint that the attempt resumed from: the record whose interval starts there does not count. NULL if it started from scratch.
    same_device BOOLEAN,  --: Whether the attempt ran on the measured attempt's device, and on the run's own processes: otherwise no record of it counts.
    flop_per_token BIGINT,  --: FLOP per token, of the attempt.
    gpus INTEGER,  --: Number of GPUs, of the attempt; 0 on a CPU.
    processes INTEGER,  --: Number of processes, of the attempt: one per GPU; on a CPU as attempts.parallel, or else run_records.processes, says. NULL if unknown.
    peak_flops DOUBLE  --: Dense peak of one device in FLOP/s, of the attempt; NULL if unknown.
);

-- Ten million rows are written once, straight from the files, with a number in place of their attempt's key.
CREATE TABLE step_lines (  --: What the lines of these files say, one row per line. Use the view step_records.
    file INTEGER NOT NULL,  --: Number of its file in step_files.
    step BIGINT NOT NULL,  --: Optimizer step, counted from 1.
    steps BIGINT NOT NULL,  --: Steps since the previous record: the interval is (step - steps, step].
    time TIMESTAMP,  --: When the record was written, UTC.
    loss DOUBLE,  --: Mean cross-entropy at the step in nats per token; NULL if not finite.
    learning_rate DOUBLE,  --: Learning rate at the step.
    grad_norm DOUBLE,  --: Gradient norm before clipping; NULL if not finite.
    step_seconds DOUBLE,  --: Mean seconds per step over the interval.
    tokens BIGINT,  --: Tokens in the interval, including padding.
    training_tokens BIGINT,  --: Tokens in the interval that count in the loss.
    memory_bytes BIGINT,  --: Peak memory so far in bytes: device memory on a GPU, resident memory on a CPU.
    step_seconds_min DOUBLE,  --: Seconds of the shortest step of the interval. NULL in records of versions that did not keep it.
    step_seconds_median DOUBLE,  --: Median seconds of the steps of the interval. NULL in records of versions that did not keep it.
    step_seconds_max DOUBLE,  --: Seconds of the longest step of the interval. NULL in records of versions that did not keep it.
    data_wait_seconds DOUBLE,  --: Seconds of the interval in which the device had done a step and the next batch was not there, of the process that waited longest. NULL in records of versions that did not keep it.
    energy_joules DOUBLE,  --: Energy of all GPUs of the run in the interval in joules, by NVML; coarse in intervals shorter than a second. NULL if unknown, and on a CPU.
    sm_mhz DOUBLE,  --: Clock of the GPU's multiprocessors in MHz when the record was made, at the end of the interval. NULL if unknown, and on a CPU.
    throttle_reasons VARCHAR,  --: What throttled the GPU's clocks then, as nvidia-smi calls it (sw_power_cap, hw_thermal_slowdown, ...), with commas between; empty if nothing did. NULL if unknown, and on a CPU.
    slowest_rank INTEGER,  --: The process that spent most seconds itself in the interval, on its data and on computing, and not waiting for others in collectives: it is the one that the others waited for. NULL of a run of one process, with tensor parallelism, which waits inside of blocks, and in records of versions that did not keep it.
    slowest_rank_seconds DOUBLE,  --: Seconds that it spent itself, mean per step of the interval, of its first 32 where it has more. NULL of a run of one process, with tensor parallelism, and in records of versions that did not keep it.
    other_ranks_seconds DOUBLE,  --: Median of the same of the other processes. NULL of a run of one process, with tensor parallelism, and in records of versions that did not keep it.
    power_joules DOUBLE,  --: Energy of all GPUs of the run in joules, by NVML, in the power_steps steps up to this one and the pauses between them, from one reading of its counter to another a second later or more. NULL where less time has gone by since the last record that has it; if unknown; on a CPU; and in records of versions that did not keep it.
    power_seconds DOUBLE,  --: Seconds in which it was used at least: the time between the readings, and after a pause of more than 0.1 s, as of a checkpoint, 0.1 s more, by which a reading of the counter can be late. NULL where power_joules is.
    power_steps BIGINT,  --: Steps of these. NULL where power_joules is.
    printed_tokens_per_second DOUBLE,  --: Tokens per second as the log of an imported run has them, where it does not say the tokens or the seconds that they follow from. NULL otherwise.
    superseded BOOLEAN NOT NULL DEFAULT false  --: Whether a later attempt went on from an earlier step, or started over, or a later line has the step too: that counts instead. In task inference, whose attempts start over, whether another attempt decides.
);

-- `rows` is an SQL keyword.
CREATE TABLE audits (  --: audits.jsonl of every attempt, one row per audit: an attention call of the running model, forward and backward (of a call that decodes a token, forward), held to float64 by the rule of certificates. Layers, samples and heads count from 0.
    study VARCHAR NOT NULL,  --: Name of the study.
    run_id VARCHAR NOT NULL,  --: Id of the run.
    attempt INTEGER NOT NULL,  --: Number of the attempt.
    step BIGINT NOT NULL,  --: Optimizer step of the call, counted from 1: random, by the run's seed. Of a decoded token, the prefill after which it comes.
    time TIMESTAMP,  --: When it was judged, UTC.
    layer BIGINT NOT NULL,  --: Layer of the call.
    sample BIGINT NOT NULL,  --: Sample of the batch that was audited.
    first_head BIGINT NOT NULL,  --: First of the query heads that were audited.
    heads BIGINT NOT NULL,  --: Number of query heads that were audited: those that share one key head.
    row_count BIGINT NOT NULL,  --: Number of rows that were audited: every token of the sample, those of its part where processes share it, or the one that is decoded.
    first_row BIGINT,  --: First of the rows that were audited; above 0 where processes share the sample's tokens. NULL in records of versions in which none did.
    passed BOOLEAN NOT NULL,  --: Whether output and gradients are within what is allowed. The run ends where one is not.
    reason VARCHAR,  --: What is wrong, as a sentence; NULL if it passed.
    ratio DOUBLE,  --: Largest measured / tolerance of output and gradients, a ratio: up to 1 passes, infinity means a result that is not finite.
    o_ratio DOUBLE,  --: The same of the output; NULL if there was none.
    dq_ratio DOUBLE,  --: The same of the gradient of Q.
    dk_ratio DOUBLE,  --: The same of the gradient of K.
    dv_ratio DOUBLE,  --: The same of the gradient of V.
    tensors JSON NOT NULL,  --: By tensor: measured and tolerance in roundings in the run's precision, place of the worst slice, and relative_error: a JSON object.
    seconds DOUBLE NOT NULL,  --: Seconds that the computation in float64 took. They are not part of any step's.
    keys BIGINT  --: Keys that a decoded token's query met: random, by the run's seed. NULL of a call of training.
);

CREATE TABLE run_measures (  --: What the step records of a run come to, one row per run that has any. Use the view runs.
    study VARCHAR NOT NULL,  --: Name of the study.
    run_id VARCHAR NOT NULL,  --: Id of the run.
    last_step BIGINT,  --: Last logged step.
    final_loss DOUBLE,  --: Loss at that step in nats per token; NULL if not finite.
    training_tokens_percentage DOUBLE,  --: Percentage of the tokens that count in the loss; the rest is padding.
    memory_bytes BIGINT,  --: Peak memory in bytes that the measured attempt logged.
    counted_records BIGINT,  --: Number of step records that count (see steps.counted).
    step_seconds DOUBLE,  --: Median seconds per step over the records that count.
    step_seconds_25 DOUBLE,  --: Lower quartile of the same.
    step_seconds_75 DOUBLE,  --: Upper quartile of the same.
    tokens_per_step DOUBLE,  --: Tokens per step, including padding, over the records that count.
    printed_tokens_per_second DOUBLE,  --: Median of step_records.printed_tokens_per_second over the records that count; NULL if none has it.
    highest_learning_rate DOUBLE,  --: Highest learning rate of the step records.
    training_seconds DOUBLE,  --: Seconds spent in the logged steps, including the warm-up: the sum of step_seconds x steps.
    startup_seconds DOUBLE,  --: Seconds from the start of an attempt's process to its first logged step, summed over attempts that logged one. NULL if unknown, as of an imported run.
    first_step_seconds DOUBLE,  --: Seconds by which the first record of an attempt took longer than as many steps usually do, summed over attempts; not where a later attempt did that step again.
    energy_joules DOUBLE,  --: Energy of all GPUs of the run in the logged steps in joules, including the warm-up; coarse where records are shorter than a second, as of prefills. NULL if unknown for any of them, and on a CPU.
    power_watts DOUBLE,  --: Mean power of all GPUs of the run in watts: power_joules / (power_seconds + 0.1) over the records that count and have them (see steps.power_watts). NULL if none does, if unknown, and on a CPU.
    joules_per_token DOUBLE,  --: Energy of all GPUs of the run in joules per token, padding included: the energy that power_watts is of, over the tokens of those steps. Pauses between them count; the counter's delay shifts either end by up to 0.1 s. NULL where power_watts or the tokens are.
    data_wait_percentage DOUBLE,  --: Percentage of the time of the records that count in which the device waited for data. NULL if unknown.
    sm_mhz_low DOUBLE,  --: Lowest clock of the GPU's multiprocessors in MHz at the records that count. NULL if unknown, and on a CPU.
    sm_mhz_high DOUBLE,  --: Highest clock of the same, in MHz.
    throttle_reasons VARCHAR,  --: Each distinct value of steps.throttle_reasons in the records that count, with semicolons between; none where nothing throttled the clocks. NULL if unknown, and on a CPU.
    clocks_changed BOOLEAN,  --: Whether the records that count are of different regimes: sm_mhz_low below 85 % of sm_mhz_high (under a constant power limit single readings differ by up to 13 %), or more than one throttle_reasons. NULL if unknown, and on a CPU.
    slowest_rank INTEGER,  --: The process that was slowest in most of the measured attempt's records that count (see steps.slowest_rank); of equally many, the lowest. NULL of a run of one process, and if unknown.
    slowest_rank_records BIGINT,  --: In how many of them it was. Of equally fast processes each is in about as many. NULL of a run of one process, and if unknown.
    ranked_records BIGINT,  --: How many of them say which process was slowest. NULL of a run of one process, and if unknown.
    slowest_rank_percentage DOUBLE,  --: By how many percent its own seconds then exceeded the median of the others: the median over those records. NULL of a run of one process, and if unknown.
    PRIMARY KEY (study, run_id)
);

CREATE TABLE comparable (  --: Which runs read the same tokens, one row per run that has step records: their losses are compared step by step.
    study VARCHAR NOT NULL,  --: Name of the study.
    run_id VARCHAR NOT NULL,  --: Id of the run.
    other_settings VARCHAR NOT NULL,  --: Hash of the data fingerprint and of the configuration without attention and the path of the data: runs that share it differ by attention alone.
    PRIMARY KEY (study, run_id)
);

CREATE TABLE labels (  --: What charts call a group, the factors that vary in its study, except seed and repeat, and where it stands in it.
    study VARCHAR NOT NULL,  --: Name of the study.
    run_id VARCHAR NOT NULL,  --: Id of the run.
    label VARCHAR NOT NULL,  --: Label of the run's group, unique within a study.
    place BIGINT NOT NULL,  --: Position of the group in the study, counted from 1: the order of its matrix, whatever the results.
    in_study BOOLEAN NOT NULL  --: Whether the study still has the run.
);

CREATE TABLE curves (  --: Each run's step records in at most 256 points, and again in at most 32, for figures over steps. A run that has no more records than that has one point per record. A step that several attempts logged is in it once, as in the view steps.
    study VARCHAR NOT NULL,  --: Name of the study.
    run_id VARCHAR NOT NULL,  --: Id of the run.
    most SMALLINT NOT NULL,  --: Which of the two it is: 256 or 32.
    width BIGINT NOT NULL,  --: Steps that a point spans: a power of two, so that points of two runs nest. 1 where each record is a point.
    first_step BIGINT NOT NULL,  --: First logged step in it.
    step BIGINT NOT NULL,  --: Last logged step in it.
    records BIGINT NOT NULL,  --: Number of step records in it.
    losses BIGINT NOT NULL,  --: Number of those with a finite loss.
    loss DOUBLE,  --: Mean of these losses in nats per token; NULL if there is none.
    tokens BIGINT,  --: Tokens of those of these records that give their seconds, including padding.
    seconds DOUBLE  --: Seconds of those of these records that give their tokens: the sum of step_seconds x steps.
);

CREATE TABLE quarantine (  --: Files that could not be read. The other tables contain nothing from them.
    study VARCHAR NOT NULL,  --: Name of the study, which is the folder under the root; .certificates for a certificate.
    run_id VARCHAR NOT NULL,  --: Name of the run's folder; for a certificate its key, which is the name of its file.
    path VARCHAR NOT NULL,  --: Path relative to the root.
    reason VARCHAR NOT NULL  --: Why the file could not be read.
);

-- `case` is an SQL keyword: the case of a certificate is in run_case, and the same as text, as in a check, is in shape.
CREATE TABLE certificates (  --: .certificates/KEY.json, one row per certificate: what was found about one attention backend on one device.
    key VARCHAR NOT NULL PRIMARY KEY,  --: SHA-256 over backend, code, case, device and software, hexadecimal. The certificate is valid for a run only if all of these are the same.
    attention VARCHAR NOT NULL,  --: Attention backend.
    verdict VARCHAR NOT NULL,  --: right only if every check passed, otherwise wrong; unsupported if the backend says so itself.
    device_kind VARCHAR NOT NULL,  --: cuda or cpu.
    device_name VARCHAR,  --: Name of the device as its driver reports it; NULL if there is no such device.
    dtype VARCHAR,  --: Precision of the run that the certificate is for; NULL if it covers everything that the backend supports.
    shape VARCHAR,  --: Shape, precision and mask of the run as text; NULL if the certificate covers everything that the backend supports.
    run_case JSON,  --: The same as a JSON object: device, dtype, batch, sequence_length, heads, kv_heads, head_dim, causal.
    software JSON NOT NULL,  --: Version of each package, including the backend's own modules, and environment variables that change numbers: a JSON object.
    code VARCHAR NOT NULL,  --: SHA-256 of the backend's source files and of the rules that it was checked against, hexadecimal.
    kernels JSON NOT NULL,  --: Names of the kernels that the profiler saw in each pass, forward and backward: a JSON object of arrays.
    deterministic BOOLEAN,  --: Whether calls with the same inputs gave bitwise equal results, forward and backward: ten calls on a GPU, three on a CPU, at the run's shape or at one that keeps a GPU busy; NULL if not checked.
    graph_break VARCHAR,  --: Why torch.compile breaks the graph at a call; empty if it does not; NULL if not checked.
    reasons JSON NOT NULL,  --: Why the verdict is not right: each failed check, or what is not supported. A JSON array.
    not_looked_at JSON NOT NULL,  --: Cases that the backend says it does not support, with its reasons: a JSON array.
    checks BIGINT NOT NULL,  --: Number of checks.
    failed BIGINT NOT NULL,  --: Number of checks that failed.
    seconds DOUBLE NOT NULL,  --: Seconds that it took to make the certificate.
    created_at TIMESTAMP NOT NULL,  --: When the certificate was made, UTC.
    git_sha VARCHAR,  --: Commit of the checkout that runner verify ran from. NULL outside a repository, and for the certificate of a run, whose own commit is in runs.
    git_dirty BOOLEAN  --: Whether that checkout had uncommitted changes.
);

CREATE TABLE verifications (  --: The checks of all certificates, one row per check.
    certificate VARCHAR NOT NULL,  --: Key of the certificate.
    attention VARCHAR NOT NULL,  --: Attention backend.
    place BIGINT NOT NULL,  --: Position of the check in the certificate, counted from 1.
    name VARCHAR NOT NULL,  --: Kind of check: right, finite, kernels, same loss, ...
    what VARCHAR NOT NULL,  --: The tensor or pass: o, dq, dk, dv, forward, backward, logits, ...
    shape VARCHAR NOT NULL,  --: Shape, precision and mask of the call: batch B, length T, heads H, key heads K, head dim D.
    variant VARCHAR NOT NULL,  --: The data and how the backend was called: plain, large logits, ...
    measured DOUBLE,  --: What was measured, in the unit of the tolerance; for tensors, roundings in their precision. NULL if not finite or not a number.
    tolerance DOUBLE,  --: Largest value that passes; NULL if the check does not judge a number.
    plain DOUBLE,  --: What plain attention (math) measures in the same precision, against float64; NULL if not recorded. Only allclose records it.
    relative_error DOUBLE,  --: Norm of the error divided by the norm of the exact result, a ratio; NULL if not computed. Meaningless if the exact result is zero.
    passed BOOLEAN NOT NULL,  --: Whether the check passed.
    reason VARCHAR  --: What is wrong, as a sentence; NULL if the check passed.
);

CREATE TABLE decoding (  --: decode.jsonl of every attempt of task inference: tokens decoded greedily with a KV cache, one row per position. It is the second of two passes over the same positions, so that nothing is loaded or compiled in it.
    study VARCHAR NOT NULL,  --: Name of the study.
    run_id VARCHAR NOT NULL,  --: Id of the run.
    attempt INTEGER NOT NULL,  --: Number of the attempt.
    position BIGINT NOT NULL,  --: Position of the tokens that go through the model, from 0: each attends to position + 1 keys.
    time TIMESTAMP,  --: When the last position of the pass was done, UTC.
    seconds DOUBLE NOT NULL,  --: Seconds of the position by the device's clock: one token of each sample through the whole model.
    token_ids JSON NOT NULL  --: Ids of these tokens, one of each sample: a JSON array.
);

CREATE TABLE kernels (  --: kernels.json of every attempt: attention alone, one row per backend, direction and mode. All backends of an attempt were called in one process, in random order within each round. Their TFLOP/s are halved when causal and must never be compared with MFU.
    study VARCHAR NOT NULL,  --: Name of the study.
    run_id VARCHAR NOT NULL,  --: Id of the run: one shape.
    attempt INTEGER NOT NULL,  --: Number of the attempt.
    attention VARCHAR NOT NULL,  --: Attention backend.
    direction VARCHAR NOT NULL,  --: forward, backward, or both: a forward and the backward after it, summed in each round.
    mode VARCHAR NOT NULL,  --: eager, called from Python, or graph, replayed from a CUDA graph. A CPU has no graph.
    device VARCHAR,  --: Name of the device as the system reports it.
    dtype VARCHAR,  --: Precision of the tensors.
    causal BOOLEAN,  --: Whether a causal mask applies.
    batch BIGINT,  --: Samples per call.
    sequence_length BIGINT,  --: Tokens per sample.
    heads BIGINT,  --: Query heads.
    kv_heads BIGINT,  --: Key and value heads.
    head_dim BIGINT,  --: Width of one head.
    dropout DOUBLE,  --: Probability with which each weight becomes 0. NULL in records of a report made before there was such a column.
    tile_queries BIGINT,  --: Queries of a tile of the kernel's, where the run chose it; NULL: the backend did.
    tile_keys BIGINT,  --: Keys of the same.
    outcome VARCHAR NOT NULL,  --: completed; unsupported, by the backend's own word or because no CUDA graph can hold its call; wrong, by its certificate or by what was timed; oom_gpu or oom_host; or failed.
    reason VARCHAR,  --: Why it did not complete; NULL if it did.
    calls INTEGER NOT NULL,  --: Number of calls that were timed; 0 if it did not complete.
    seconds JSON,  --: Seconds of each of these calls, in the order of the rounds: a JSON array. NULL if it did not complete.
    milliseconds DOUBLE,  --: Median time of one call in milliseconds; NULL if it did not complete.
    milliseconds_low DOUBLE,  --: Lower end of a 95 % interval of that median over the calls, between order statistics: how steady this process was, not what another would give. NULL below 6 calls.
    milliseconds_high DOUBLE,  --: Upper end of the same.
    host_milliseconds DOUBLE,  --: Median milliseconds until a call returned, by the host's clock: what it costs the host, which runs ahead of the GPU. NULL on a CPU, where milliseconds are the host's.
    kernel_milliseconds DOUBLE,  --: Milliseconds of the GPU's kernels without the gaps between them, in one more call from Python under the profiler. NULL on a CPU, in mode graph, and if the profiler saw none.
    tflops DOUBLE,  --: TFLOP/s in the median time, counting 4 B H S^2 D FLOP forward, half of that when causal, 2.5 times that backward, and 3.5 times for both.
    ceiling_tflops DOUBLE,  --: TFLOP/s of a large square matrix product in the same precision, in its median time: it was timed between the backends of the same process.
    memory_bytes BIGINT,  --: Most bytes that PyTorch allocated at a time beyond the inputs: device memory on a GPU, host memory on a CPU. In the rows of backward and both, by a forward and its backward together.
    score_bytes BIGINT,  --: Bytes of the matrix of scores of all heads and samples in the precision of the tensors, whether or not the backend keeps one: B H S^2 times 2, or 4 in float32.
    formula_bytes BIGINT,  --: Bytes that a call moves between multiprocessors and memory by the formula of the backend's tiles, without any cache. NULL where none is known, where nobody asked (call.traffic), and in mode graph.
    l2_read_bytes BIGINT,  --: Bytes that a call read through the L2 cache, by the GPU's counters: each kernel alone on empty caches, summed over the call. NULL where nothing was counted.
    l2_write_bytes BIGINT,  --: Bytes that it wrote there, additions in memory included, once each.
    dram_read_bytes BIGINT,  --: Bytes that it read from DRAM, by the same counters.
    dram_write_bytes BIGINT,  --: Bytes that it wrote to DRAM, without what stayed in the L2 cache when its kernel ended.
    traffic_reason VARCHAR,  --: Why nothing was counted; NULL if it was, and where nobody asked.
    sm_mhz_low DOUBLE,  --: Lowest clock of the GPU's multiprocessors in MHz, read after each call. NULL if unknown, and on a CPU.
    sm_mhz_high DOUBLE,  --: Highest clock of the same, in MHz.
    throttle_reasons VARCHAR,  --: Each distinct NVML reason that throttled the clocks after a call, with semicolons between; none where nothing did. NULL if unknown, and on a CPU.
    certificate VARCHAR,  --: Key of the certificate that the backend was timed under, or that found it wrong; NULL if there is none.
    measured_at TIMESTAMP  --: When the shape was measured, UTC.
);

CREATE TABLE nodes (  --: STUDY/.nodes/KEY.json, one row per record: the measured ceilings of one device of a node, for the shapes of one model. Measured before the first run of a study computes there.
    study VARCHAR NOT NULL,  --: Name of the study.
    key VARCHAR NOT NULL,  --: SHA-256 over node, device, software, precision, shapes and the tokens of a pass, hexadecimal; attempts.ceilings names it.
    node VARCHAR NOT NULL,  --: Host name.
    device VARCHAR NOT NULL,  --: Name of the device, GPU or CPU, as the system reports it.
    gpu VARCHAR,  --: Name of the GPU as its driver reports it; NULL on a CPU.
    gpu_uuid VARCHAR,  --: UUID of the GPU: which one of the node it is. NULL on a CPU.
    gpus INTEGER,  --: Number of GPUs that were measured: 1, or 0 on a CPU.
    driver VARCHAR,  --: Version of the driver; NULL if unknown, and on a CPU.
    software JSON,  --: Version of each package: a JSON object.
    dtype VARCHAR,  --: Precision of the matrix products.
    graphics_clock_mhz DOUBLE,  --: Clock of the GPU under load, in MHz. NULL if unknown, and on a CPU.
    memory_clock_mhz DOUBLE,  --: Clock of the GPU's memory under load, in MHz. NULL if unknown, and on a CPU.
    power_limit_watts DOUBLE,  --: Power limit in watts. NULL if unknown, and on a CPU.
    matmul_tflops DOUBLE,  --: Highest rate of a matrix product of the model in TFLOP/s: 2 x tokens x inputs x columns FLOP in the median time.
    bandwidth_gigabytes_per_second DOUBLE,  --: Memory bandwidth in GB/s: what c = a + b reads and writes, of arrays larger than a GPU's caches, in the median time.
    launch_microseconds DOUBLE,  --: Microseconds from one smallest operation to the next in a row of 1000, PyTorch's share included: median.
    unsure VARCHAR,  --: Which of the products and the bandwidth were measured so unsteadily, their upper quartile above 1.5 times their lower one, that no floor is stated from them. NULL if none.
    measured JSON,  --: Every measurement, with its shape, median and quartiles in seconds, and repeats: a JSON object of products, traffic, launch and clocks.
    seconds DOUBLE,  --: Seconds that it took to measure, the start of the process that did included.
    measured_at TIMESTAMP,  --: When the node was measured, UTC.
    PRIMARY KEY (study, key)
);

CREATE TABLE step_floor (  --: The least time that a step can take by the ceilings of its device, of one process's share of the work, one row per attempt, phase and part; the formulas are in model/measure/floor.py. Attempts without ceilings, or with unsure ones, have none.
    study VARCHAR NOT NULL,  --: Name of the study.
    run_id VARCHAR NOT NULL,  --: Id of the run.
    attempt INTEGER NOT NULL,  --: Number of the attempt.
    phase VARCHAR NOT NULL DEFAULT 'step',  --: step: an optimizer step, or a prefill of task inference; decode: a decoded token of each sample, with the median number of keys.
    part VARCHAR NOT NULL,  --: products (matrix products, each at its own measured rate), attention (causal, at the rate of all products; of a decoded token the cache that it reads), loss, optimizer (with the gradient norm) or elementwise.
    flop BIGINT,  --: FLOP of a step, all its passes; NULL for a part that is counted in bytes.
    bytes BIGINT,  --: Bytes that a step has to read and write, of products of task inference the weights; NULL for a part that is counted in FLOP.
    seconds DOUBLE NOT NULL  --: Seconds by the measured rates; of products of task inference, each takes the longer of its FLOP and its bytes.
);

CREATE TABLE step_profile (  --: Where the time of a step goes, one row per completed attempt, phase and part, seen by PyTorch's profiler in a few more steps after the last one of the run: those are in no other table, and nobody keeps what they update.
    study VARCHAR NOT NULL,  --: Name of the study.
    run_id VARCHAR NOT NULL,  --: Id of the run.
    attempt INTEGER NOT NULL,  --: Number of the attempt.
    phase VARCHAR NOT NULL DEFAULT 'step',  --: step: an optimizer step, or a prefill of task inference; decode: a decoded token of each sample, with the median number of keys, eight times as many as steps.
    part VARCHAR NOT NULL,  --: products (matrix products but those of attention), attention, loss (without the head's product), optimizer (with the gradient norm), elementwise (norms, rotary, SwiGLU, all else), copies and communication (of both, what nothing hides), or idle: on a GPU without work, on a CPU between operators.
    seconds DOUBLE NOT NULL,  --: Seconds of a step, mean over the profiled ones: on a GPU of its kernels, on a CPU of operators, whose times the profiler lengthens.
    share DOUBLE,  --: Share of the step, a fraction of 1: seconds over the sum of all parts.
    hidden_seconds DOUBLE,  --: Seconds of a step, more of the same part, beside which other work ran on the device (on a CPU, in the thread of the steps): they are in no sum. NULL for parts that nothing hides, and in older records.
    by_name BOOLEAN  --: Whether attention's kernels were told by their names alone, as in compiled code: what else a backend launched counts as other parts. NULL in older records, where CUDA graphs did so too.
);

CREATE TABLE probes (  --: frontier.json of every attempt of task frontier, one row per probe: three steps of training in a process of their own. The view frontiers says what they come to.
    study VARCHAR NOT NULL,  --: Name of the study.
    run_id VARCHAR NOT NULL,  --: Id of the run.
    attempt INTEGER NOT NULL,  --: Number of the attempt.
    number BIGINT NOT NULL,  --: Place of the probe among the attempt's, from 1.
    find VARCHAR NOT NULL,  --: What is increased: sequence_length, batch_size or layers.
    multiple BIGINT NOT NULL,  --: Of which all values are multiples.
    most BIGINT NOT NULL,  --: Largest value that may be tried.
    card_bytes BIGINT NOT NULL,  --: Memory in bytes that a probe may use: of the GPU, CUDA's own included; on a CPU, of the run's limit.
    memory_fraction DOUBLE NOT NULL,  --: Share of the device's memory that this is, a fraction of 1; below 1, a smaller card is emulated.
    foreseen BIGINT NOT NULL,  --: Largest value that fits by the forecast; 0: none does.
    value BIGINT NOT NULL,  --: Value that was tried.
    purpose VARCHAR NOT NULL,  --: search, or above: beyond a value that does not fit, since fitting is not monotone.
    outcome VARCHAR NOT NULL,  --: fits; edge: the steps were done, but the allocator had to free its cache to go on, or with what CUDA uses beside it they need more than the card has; oom_gpu, oom_host or unsupported; timeout or failed: whether it fits is not known.
    reason VARCHAR,  --: Why it does not fit; NULL if it does.
    forecast_bytes BIGINT NOT NULL,  --: Peak in bytes by the configuration.
    peak_bytes BIGINT,  --: Most bytes that were allocated until the probe ended: on a GPU by PyTorch, on a CPU by the process in pages of no file. NULL if it hung or died.
    reserved_bytes BIGINT,  --: Most bytes of the GPU that PyTorch's allocator held. NULL if unknown, and on a CPU.
    retries BIGINT,  --: How often the allocator freed its cache to go on. NULL if unknown, and on a CPU.
    outside_bytes BIGINT,  --: Bytes of the GPU that were in use at the end beside what the allocator held, by whatever process. NULL if unknown, and on a CPU.
    seconds DOUBLE NOT NULL,  --: Seconds from the start of the probe's process to its end.
    measured_at TIMESTAMP  --: When the last probe had ended, UTC.
);
