-- Base tables: what the run folders and certificates say, one row a record, nothing derived. views.sql derives the rest.
-- A run's key is (study, run_id): two studies may hold the same configuration, and so the same run_id.
-- Times are UTC. Unknown is NULL.

CREATE TABLE database_version (fingerprint VARCHAR NOT NULL);
COMMENT ON TABLE database_version IS 'Which schema this file was built with; another one is rebuilt, not migrated.';
COMMENT ON COLUMN database_version.fingerprint IS 'SHA-256 of schema.sql and views.sql, hexadecimal.';

CREATE TABLE files (
    study VARCHAR NOT NULL, run_id VARCHAR NOT NULL, path VARCHAR NOT NULL,
    size_bytes BIGINT NOT NULL, mtime_ns BIGINT NOT NULL, sha256 VARCHAR NOT NULL
);
COMMENT ON TABLE files IS 'Ledger of the files that were read: a run or certificate whose files are unchanged is not read again.';
COMMENT ON COLUMN files.study IS 'Name of the study, the folder under the root; .certificates for a certificate.';
COMMENT ON COLUMN files.run_id IS 'Id of the run, the folder under the study; of a certificate its key, the file''s name.';
COMMENT ON COLUMN files.path IS 'Path relative to the root.';
COMMENT ON COLUMN files.size_bytes IS 'Size in bytes when it was read.';
COMMENT ON COLUMN files.mtime_ns IS 'Modification time in nanoseconds since 1970, UTC.';
COMMENT ON COLUMN files.sha256 IS 'SHA-256 of the content, hexadecimal.';

CREATE TABLE run_records (
    study VARCHAR NOT NULL, run_id VARCHAR NOT NULL, group_id VARCHAR, title VARCHAR, description VARCHAR, study_file VARCHAR,
    attention VARCHAR, seed BIGINT, factors JSON, config JSON, scale VARCHAR, profile VARCHAR,
    planned_steps BIGINT, sequence_length BIGINT, batch_size BIGINT,
    expected_outcome VARCHAR, because VARCHAR, why JSON,
    memory_limit_bytes BIGINT, time_limit_seconds BIGINT, data_file VARCHAR, tokenizer VARCHAR, data_fingerprint VARCHAR,
    command JSON, version VARCHAR, git_sha VARCHAR, git_dirty BOOLEAN, created_at TIMESTAMP,
    PRIMARY KEY (study, run_id)
);
COMMENT ON TABLE run_records IS 'run.json: one planned run a row. Use the view runs, which adds how it went.';
COMMENT ON COLUMN run_records.study IS 'Name of the study.';
COMMENT ON COLUMN run_records.run_id IS 'Id of the run: a hash of its resolved configuration.';
COMMENT ON COLUMN run_records.group_id IS 'Id that runs differing by seed alone share.';
COMMENT ON COLUMN run_records.title IS 'Title of the study.';
COMMENT ON COLUMN run_records.description IS 'What the study asks.';
COMMENT ON COLUMN run_records.study_file IS 'The YAML file that the run was expanded from.';
COMMENT ON COLUMN run_records.attention IS 'Attention backend that was asked for.';
COMMENT ON COLUMN run_records.seed IS 'Seed of the weights and of the order of the documents.';
COMMENT ON COLUMN run_records.factors IS 'What varies in the study, by axis: a JSON object.';
COMMENT ON COLUMN run_records.config IS 'Resolved configuration: a JSON object.';
COMMENT ON COLUMN run_records.scale IS 'Named set of overrides that the run was planned at.';
COMMENT ON COLUMN run_records.profile IS 'Name of the cluster profile.';
COMMENT ON COLUMN run_records.planned_steps IS 'Optimizer steps planned.';
COMMENT ON COLUMN run_records.sequence_length IS 'Tokens a sample.';
COMMENT ON COLUMN run_records.batch_size IS 'Samples a step.';
COMMENT ON COLUMN run_records.expected_outcome IS 'Outcome that the study expects.';
COMMENT ON COLUMN run_records.because IS 'Why that outcome is expected, where the study says so.';
COMMENT ON COLUMN run_records.why IS 'FILE:LINE:COL of what made this run: a JSON array.';
COMMENT ON COLUMN run_records.memory_limit_bytes IS 'Host memory that the run may use, in bytes.';
COMMENT ON COLUMN run_records.time_limit_seconds IS 'Time limit in seconds.';
COMMENT ON COLUMN run_records.data_file IS 'Parquet file of the training text.';
COMMENT ON COLUMN run_records.tokenizer IS 'bytes, the tokenizer''s path, or its name on the hub.';
COMMENT ON COLUMN run_records.data_fingerprint IS 'Hash of the data file and tokenizer when the run was planned.';
COMMENT ON COLUMN run_records.command IS 'The launching command line: a JSON array.';
COMMENT ON COLUMN run_records.version IS 'Version of assay-studies that planned the run.';
COMMENT ON COLUMN run_records.git_sha IS 'Commit that planned the run; NULL outside a repository.';
COMMENT ON COLUMN run_records.git_dirty IS 'Whether the working tree differed from that commit.';
COMMENT ON COLUMN run_records.created_at IS 'When the run was planned, UTC.';

CREATE TABLE attempts (
    study VARCHAR NOT NULL, run_id VARCHAR NOT NULL, attempt INTEGER NOT NULL,
    outcome VARCHAR, reason VARCHAR, executor VARCHAR, job_id VARCHAR,
    claimed_at TIMESTAMP, started_at TIMESTAMP, ended_at TIMESTAMP, wall_seconds DOUBLE,
    node VARCHAR, nodes INTEGER, device VARCHAR, gpus INTEGER, certificate VARCHAR, software JSON, slurm JSON,
    parameter_count BIGINT, flop_per_token BIGINT, peak_flops DOUBLE, peak_source VARCHAR,
    steps BIGINT, resumed_step BIGINT, final_loss DOUBLE, peak_memory_bytes BIGINT, requested_bytes BIGINT,
    PRIMARY KEY (study, run_id, attempt)
);
COMMENT ON TABLE attempts IS 'One start of a run a row: manifest.json, result.json and what the ledger says of it.';
COMMENT ON COLUMN attempts.study IS 'Name of the study.';
COMMENT ON COLUMN attempts.run_id IS 'Id of the run.';
COMMENT ON COLUMN attempts.attempt IS 'Number of the attempt, as in its folder.';
COMMENT ON COLUMN attempts.outcome IS 'How it ended; NULL while it is in flight.';
COMMENT ON COLUMN attempts.reason IS 'Why it ended so, where something could say.';
COMMENT ON COLUMN attempts.executor IS 'local or slurm.';
COMMENT ON COLUMN attempts.job_id IS 'The scheduler''s id of the job.';
COMMENT ON COLUMN attempts.claimed_at IS 'When a launcher claimed it, UTC.';
COMMENT ON COLUMN attempts.started_at IS 'When it started on its node, UTC; NULL if it never did.';
COMMENT ON COLUMN attempts.ended_at IS 'When it ended, UTC: its own word, else when a launcher noticed.';
COMMENT ON COLUMN attempts.wall_seconds IS 'Seconds from start to end; 0 if it ended without starting, NULL if unknown.';
COMMENT ON COLUMN attempts.node IS 'Host name.';
COMMENT ON COLUMN attempts.nodes IS 'Number of nodes.';
COMMENT ON COLUMN attempts.device IS 'Name of the device as its driver reports it.';
COMMENT ON COLUMN attempts.gpus IS 'Number of GPUs; 0 on a CPU.';
COMMENT ON COLUMN attempts.certificate IS 'Key of the certificate that its backend had; NULL in records older than certificates.';
COMMENT ON COLUMN attempts.software IS 'Version by package: a JSON object.';
COMMENT ON COLUMN attempts.slurm IS 'SLURM_* variables of the job: a JSON object.';
COMMENT ON COLUMN attempts.parameter_count IS 'Trainable parameters.';
COMMENT ON COLUMN attempts.flop_per_token IS 'FLOP a token: 6 N + 12 L H Q T, N without the input embedding.';
COMMENT ON COLUMN attempts.peak_flops IS 'Dense peak of one device in FLOP/s; NULL where it is not known.';
COMMENT ON COLUMN attempts.peak_source IS 'Where the peak is from.';
COMMENT ON COLUMN attempts.steps IS 'Optimizer steps done, by its own word.';
COMMENT ON COLUMN attempts.resumed_step IS 'Last step of the checkpoint that it went on from; NULL where it began anew.';
COMMENT ON COLUMN attempts.final_loss IS 'Last loss in nats a token, by its own word.';
COMMENT ON COLUMN attempts.peak_memory_bytes IS 'Peak memory in bytes, by its own word: device memory on a GPU, resident on a CPU.';
COMMENT ON COLUMN attempts.requested_bytes IS 'The allocation that failed, in bytes, where it ran out of memory.';

CREATE TABLE step_records (
    study VARCHAR NOT NULL, run_id VARCHAR NOT NULL, attempt INTEGER NOT NULL,
    step BIGINT NOT NULL, steps BIGINT NOT NULL, time TIMESTAMP NOT NULL,
    loss DOUBLE, learning_rate DOUBLE NOT NULL, grad_norm DOUBLE, step_seconds DOUBLE NOT NULL,
    tokens BIGINT NOT NULL, training_tokens BIGINT NOT NULL, memory_bytes BIGINT NOT NULL
);
COMMENT ON TABLE step_records IS 'steps.jsonl: one line a row, of every attempt. Use the view steps, where a step appears once.';
COMMENT ON COLUMN step_records.study IS 'Name of the study.';
COMMENT ON COLUMN step_records.run_id IS 'Id of the run.';
COMMENT ON COLUMN step_records.attempt IS 'Number of the attempt.';
COMMENT ON COLUMN step_records.step IS 'Optimizer step, from 1.';
COMMENT ON COLUMN step_records.steps IS 'Steps since the record before: the interval is (step - steps, step].';
COMMENT ON COLUMN step_records.time IS 'When it was written, UTC.';
COMMENT ON COLUMN step_records.loss IS 'Mean cross-entropy at the step, nats a token; NULL if not finite.';
COMMENT ON COLUMN step_records.learning_rate IS 'Learning rate at the step.';
COMMENT ON COLUMN step_records.grad_norm IS 'Gradient norm before clipping; NULL if not finite.';
COMMENT ON COLUMN step_records.step_seconds IS 'Mean seconds a step over the interval.';
COMMENT ON COLUMN step_records.tokens IS 'Tokens in the interval, padding included.';
COMMENT ON COLUMN step_records.training_tokens IS 'Tokens in the interval that the loss counts.';
COMMENT ON COLUMN step_records.memory_bytes IS 'Peak memory so far in bytes: device memory on a GPU, resident on a CPU.';

CREATE TABLE quarantine (study VARCHAR NOT NULL, run_id VARCHAR NOT NULL, path VARCHAR NOT NULL, reason VARCHAR NOT NULL);
COMMENT ON TABLE quarantine IS 'Files that could not be read. Nothing of them is in the other tables.';
COMMENT ON COLUMN quarantine.study IS 'Name of the study, the folder under the root; .certificates for a certificate.';
COMMENT ON COLUMN quarantine.run_id IS 'Name of the run''s folder; of a certificate its key, the file''s name.';
COMMENT ON COLUMN quarantine.path IS 'Path relative to the root.';
COMMENT ON COLUMN quarantine.reason IS 'Why it could not be read.';

-- `case` is a word of SQL: a certificate's case is run_case, and its text, as a check has it, is shape.
CREATE TABLE certificates (
    key VARCHAR NOT NULL PRIMARY KEY, attention VARCHAR NOT NULL, verdict VARCHAR NOT NULL,
    device_kind VARCHAR NOT NULL, device_name VARCHAR, dtype VARCHAR, shape VARCHAR, run_case JSON,
    software JSON NOT NULL, code VARCHAR NOT NULL, kernels JSON NOT NULL, deterministic BOOLEAN, graph_break VARCHAR,
    reasons JSON NOT NULL, not_looked_at JSON NOT NULL, checks BIGINT NOT NULL, failed BIGINT NOT NULL, seconds DOUBLE NOT NULL,
    created_at TIMESTAMP NOT NULL
);
COMMENT ON TABLE certificates IS '.certificates/KEY.json: what was found out about one attention backend on one device, one certificate a row.';
COMMENT ON COLUMN certificates.key IS 'SHA-256 over backend, code, case, device and software, hexadecimal: what has to be equal for it to stand for a run.';
COMMENT ON COLUMN certificates.attention IS 'Attention backend.';
COMMENT ON COLUMN certificates.verdict IS 'right only if every check passed; wrong; or unsupported, by the backend''s own word.';
COMMENT ON COLUMN certificates.device_kind IS 'cuda or cpu.';
COMMENT ON COLUMN certificates.device_name IS 'Name of the device as its driver reports it; NULL where it is not there.';
COMMENT ON COLUMN certificates.dtype IS 'Precision of the run that it is for; NULL where it is for all that the backend supports.';
COMMENT ON COLUMN certificates.shape IS 'The run''s shape, precision and mask as text; NULL where it is for all that the backend supports.';
COMMENT ON COLUMN certificates.run_case IS 'The same as a JSON object: device, dtype, batch, sequence_length, heads, kv_heads, head_dim, causal.';
COMMENT ON COLUMN certificates.software IS 'Version by package, the backend''s own modules included: a JSON object.';
COMMENT ON COLUMN certificates.code IS 'SHA-256 of the backend''s source files and of the rules that it was held to, hexadecimal.';
COMMENT ON COLUMN certificates.kernels IS 'Names that the profiler saw by pass, forward and backward: a JSON object of arrays.';
COMMENT ON COLUMN certificates.deterministic IS 'Whether calls with the same inputs gave the same bits, forward and backward, at the run''s shape or one that keeps a GPU busy: ten calls on a GPU, three on a CPU; NULL: not looked at.';
COMMENT ON COLUMN certificates.graph_break IS 'Why torch.compile ends its graph at a call; empty: it does not; NULL: not looked at.';
COMMENT ON COLUMN certificates.reasons IS 'Why it is not right: each failed check, or what is not supported: a JSON array.';
COMMENT ON COLUMN certificates.not_looked_at IS 'Cases that the backend says it does not take, with its reason: a JSON array.';
COMMENT ON COLUMN certificates.checks IS 'Number of checks made.';
COMMENT ON COLUMN certificates.failed IS 'Number of checks that failed.';
COMMENT ON COLUMN certificates.seconds IS 'Seconds that it took to make.';
COMMENT ON COLUMN certificates.created_at IS 'When it was made, UTC.';

CREATE TABLE verifications (
    certificate VARCHAR NOT NULL, attention VARCHAR NOT NULL, place BIGINT NOT NULL, name VARCHAR NOT NULL,
    what VARCHAR NOT NULL, shape VARCHAR NOT NULL, variant VARCHAR NOT NULL, measured DOUBLE, tolerance DOUBLE,
    relative_error DOUBLE, passed BOOLEAN NOT NULL, reason VARCHAR
);
COMMENT ON TABLE verifications IS 'The checks of all certificates, one check a row.';
COMMENT ON COLUMN verifications.certificate IS 'Key of the certificate.';
COMMENT ON COLUMN verifications.attention IS 'Attention backend.';
COMMENT ON COLUMN verifications.place IS 'Place in the certificate, from 1.';
COMMENT ON COLUMN verifications.name IS 'Kind of check: right, finite, kernels, same loss, ...';
COMMENT ON COLUMN verifications.what IS 'The tensor or pass: o, dq, dk, dv, forward, backward, logits, ...';
COMMENT ON COLUMN verifications.shape IS 'Shape, precision and mask of the call: batch B, length T, heads H, key heads K, head dim D.';
COMMENT ON COLUMN verifications.variant IS 'The data and the way of calling: plain, large logits, ...';
COMMENT ON COLUMN verifications.measured IS 'In the unit of the tolerance, of tensors roundings of their precision; NULL if not finite, or not a number at all.';
COMMENT ON COLUMN verifications.tolerance IS 'The largest value that passes; NULL where the check is no number.';
COMMENT ON COLUMN verifications.relative_error IS 'Norm of the error over norm of the exact result, a ratio; NULL where it was not taken. Where the exact result is zero it says nothing.';
COMMENT ON COLUMN verifications.passed IS 'Whether it passed.';
COMMENT ON COLUMN verifications.reason IS 'What is wrong, as a sentence; NULL if it passed.';

CREATE TABLE kernels (
    attention VARCHAR NOT NULL, device VARCHAR, dtype VARCHAR, direction VARCHAR, causal BOOLEAN,
    batch BIGINT, sequence_length BIGINT, heads BIGINT, kv_heads BIGINT, head_dim BIGINT,
    milliseconds DOUBLE, tflops DOUBLE, memory_bytes BIGINT, measured_at TIMESTAMP
);
COMMENT ON TABLE kernels IS 'Micro-benchmarks of attention alone. Their TFLOP/s are halved when causal: never comparable with MFU.';
COMMENT ON COLUMN kernels.attention IS 'Attention backend.';
COMMENT ON COLUMN kernels.device IS 'Name of the device as its driver reports it.';
COMMENT ON COLUMN kernels.dtype IS 'Precision of the tensors.';
COMMENT ON COLUMN kernels.direction IS 'forward or backward.';
COMMENT ON COLUMN kernels.causal IS 'Whether a causal mask applies.';
COMMENT ON COLUMN kernels.batch IS 'Samples.';
COMMENT ON COLUMN kernels.sequence_length IS 'Tokens a sample.';
COMMENT ON COLUMN kernels.heads IS 'Query heads.';
COMMENT ON COLUMN kernels.kv_heads IS 'Key and value heads.';
COMMENT ON COLUMN kernels.head_dim IS 'Width of one head.';
COMMENT ON COLUMN kernels.milliseconds IS 'Median time of one call in milliseconds.';
COMMENT ON COLUMN kernels.tflops IS 'TFLOP/s by 4 B H S^2 D forward, halved when causal, 2.5 times that backward.';
COMMENT ON COLUMN kernels.memory_bytes IS 'Peak device memory of one call in bytes.';
COMMENT ON COLUMN kernels.measured_at IS 'When it was measured, UTC.';

CREATE TABLE nodes (
    node VARCHAR NOT NULL, gpu VARCHAR, gpus INTEGER, driver VARCHAR, graphics_clock_mhz DOUBLE,
    memory_clock_mhz DOUBLE, power_limit_watts DOUBLE, matmul_tflops DOUBLE, bandwidth_gigabytes_per_second DOUBLE,
    measured_at TIMESTAMP
);
COMMENT ON TABLE nodes IS 'Measured ceilings of nodes. Empty until they are measured.';
COMMENT ON COLUMN nodes.node IS 'Host name.';
COMMENT ON COLUMN nodes.gpu IS 'Name of the GPU as its driver reports it.';
COMMENT ON COLUMN nodes.gpus IS 'Number of GPUs.';
COMMENT ON COLUMN nodes.driver IS 'Version of the driver.';
COMMENT ON COLUMN nodes.graphics_clock_mhz IS 'Clock of the GPU under load in MHz.';
COMMENT ON COLUMN nodes.memory_clock_mhz IS 'Clock of its memory under load in MHz.';
COMMENT ON COLUMN nodes.power_limit_watts IS 'Power limit in watts.';
COMMENT ON COLUMN nodes.matmul_tflops IS 'Largest measured matrix-multiply rate in TFLOP/s.';
COMMENT ON COLUMN nodes.bandwidth_gigabytes_per_second IS 'Largest measured memory bandwidth in GB/s.';
COMMENT ON COLUMN nodes.measured_at IS 'When they were measured, UTC.';
