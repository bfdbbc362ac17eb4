"""The records on disk: what a run is, where its attempts ran, and how they ended. See `model.record.folder`.

Whole files are written to a temporary name, fsynced and renamed; lines are appended and flushed. Times are
UTC. Every record carries `schema_version`.
"""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from model.record.config import Frozen, ParallelConfig, RunConfig, Scalar
from model.record.outcome import Outcome
from model.record.reported import Reported
from model.record.speed import FloorPart
from model.record.text import Content, Source

SCHEMA_VERSION: Literal[1] = 1
Version = Literal[1]


class Provenance(Frozen):
    """Which code planned a run, and by which command."""

    git_sha: str | None = Field(description="Commit of the project, None outside a repository.")
    git_dirty: bool | None = Field(
        description="Whether a tracked file differed from that commit, or a run can import an untracked one."
    )
    command: list[str] = Field(description="The launching command line.")
    version: str = Field(description="Version of assay-studies.")
    python: str | None = Field(None, description="Version of the launching Python.")
    user: str | None = Field(None, description="Who launched.")
    host: str | None = Field(None, description="Where the launch was made.")
    environment: dict[str, str] = Field(
        default={},
        description="Of the launch: the variables listed in runner/state/code/provenance.py, if set.",
    )
    diff: str | None = Field(
        None, description="SHA-256 of the uncommitted changes, STUDY/.provenance/HASH.diff; None without any."
    )
    packages: str | None = Field(
        None, description="SHA-256 of the installed packages' list, STUDY/.provenance/HASH.lock."
    )
    code: str | None = Field(
        None, description="SHA-256 of the code snapshot that the run's jobs start from, STUDY/.code/HASH."
    )
    reproduces: str | None = Field(None, description="STUDY/RUN_ID of the run that this one repeats.")


Order = Literal["interleaved", "random", "as written"]


class DesignRecord(Frozen):
    """The part of a study's design that its comparisons need, as it was when the run was planned."""

    order: Order = Field(description="How the order of starting was chosen.")
    order_seed: int | None = Field(None, description="Seeds the shuffling; None: the runs were not shuffled.")
    baseline: dict[str, Scalar] | None = Field(
        None, description="Factors that pick the baseline; None: the study names none."
    )
    margins: dict[str, float] = Field(
        default={}, description="Largest difference that does not matter: of loss in nats, else a fraction."
    )
    until: dict[str, float] | None = Field(
        None, description="Half-width of the interval at which repeats end, a fraction, and `at_most`."
    )


class Override(Frozen):
    """What a scale or an option put in place of the study's own value of a setting."""

    own: Scalar | None = Field(description="The study's value; None: it gives none.")
    by: str = Field(description="`scale laptop`, or `--set`.")


class RunRecord(Frozen):
    """`run.json`: one planned run."""

    schema_version: Version = SCHEMA_VERSION
    run_id: str
    group: str = Field(description="Id that runs differing by seed and repeat alone share.")
    repeat: int = Field(1, ge=1, description="Which of the runs of one configuration this is, from 1.")
    position: int | None = Field(None, description="Planned place in the order of starting, from 1.")
    block: int | None = Field(
        None, description="One repetition of every group, from 1; None: the order has no blocks."
    )
    design: DesignRecord | None = Field(None, description="The study's design; None: nothing is known of it.")
    study: str
    study_file: str = Field(description="The study's file, as it was given to the launch.")
    launched_in: str | None = Field(
        None, description="Working directory of the launch, to which `study_file` is relative."
    )
    title: str
    description: str = ""
    scale_description: str = Field("", description="What the study says of the scale of this run.")
    overridden: dict[str, Override] = Field(
        default={}, description="By setting that a scale or an option changed, what the study itself says."
    )
    factors: dict[str, Scalar] = Field(description="What varies, by axis.")
    config: RunConfig
    expected_outcome: Outcome
    also_expected: tuple[Outcome, ...] = Field((), description="Others that are as expected.")
    because: str | None = Field(description="Why that outcome is expected, where the study says so.")
    label: str | None = Field(None, description="What the study calls the run's group; None: by its factors.")
    reported: list[Reported] = Field(
        default=[], description="What the study says that others report of the run's group."
    )
    reported_elsewhere: list[int] = Field(
        default=[],
        description="Entries of the study's `reported` that are about no cell at this scale, from 1.",
    )
    why: list[str] = Field(description="FILE:LINE:COL of what made this cell.")
    scale: str
    profile: str = Field(description="Name of the profile.")
    profile_file: str | None = Field(
        None, description="Absolute path of the profile: several may have one name."
    )
    memory_bytes: int | None = Field(description="Host memory that each process of the run may have in use.")
    memory_source: str | None = Field(None, description="Where that limit is set; None: in the profile.")
    time_limit_seconds: int | None
    cpus: int | None = Field(None, description="CPUs of the run; None: as its profile says.")
    checkpoint_seconds: float | None = Field(None, description="Between checkpoints; None: when stopped.")
    grace_seconds: float = Field(120, description="Before the time limit: when to save and stop.")
    chain: bool = Field(False, description="On Slurm: go on in a next job when the time limit nears.")
    peak_flops_override: float | None = Field(description="FLOP/s, where the profile states the peak.")
    data_file: str | None = Field(description="Absolute path of the Parquet file; None: it reads no text.")
    tokenizer: str | None = Field(
        description="`bytes`, the tokenizer's absolute path, or its name on the hub; None: it reads no text."
    )
    data_fingerprint: str | None = Field(
        description="Hash of the data file and tokenizer when the run was planned; None: it reads no text."
    )
    data_content: Content | None = Field(
        None, description="The data file's content when the run was planned, by which it is recognised."
    )
    provenance: Provenance
    created_at: datetime

    @property
    def expected(self) -> tuple[Outcome, ...]:
        """Any of these is as the study expects; the likeliest first."""
        return self.expected_outcome, *self.also_expected

    @property
    def limit_of_memory(self) -> str:
        """Where the limit on its memory comes from, for messages."""
        return self.memory_source or f"`memory` of profile {self.profile}"

    @property
    def source(self) -> Source | None:
        """The text that the run was planned with; None if it reads none."""
        if self.data_file is None or self.tokenizer is None:
            return None
        return Source(Path(self.data_file), self.tokenizer, self.data_content)

    def on(self, parallel: ParallelConfig | None) -> RunRecord:
        """The run on these processes in place of its own; None: on its own.

        Raises:
            ValidationError: they cannot share it evenly; pydantic's, whose text names the settings.
        """
        if parallel is None:
            return self
        config = {**self.config.model_dump(mode="json"), "parallel": parallel.model_dump()}
        return self.model_copy(update={"config": RunConfig.model_validate_json(json.dumps(config))})


class StudyRecord(Frozen):
    """`.study.json`: where a study comes from, and which runs it no longer had at its last launch."""

    schema_version: Version = SCHEMA_VERSION
    study: str
    file: str = Field(description="Absolute path of the study's file.")
    sets: list[list[str]] = Field(
        default=[], description="The `--set` options of its launches, of those that had any."
    )
    removed: dict[str, str] = Field(
        default={}, description="By the id of a run, what it has that the study no longer gives any run."
    )


class LedgerEvent(Frozen):
    """One line of `ledger.jsonl`.

    `claimed`: a launcher has made the attempt's folder. `intent`: it is about to call sbatch. `submitted`:
    the scheduler has it. `released`: it never started and its folder is gone. `ended`: how it ended.

    Launchers and jobs of several versions of the code read one ledger, so unknown keys are ignored.
    """

    model_config = ConfigDict(extra="ignore")

    schema_version: Version = SCHEMA_VERSION
    time: datetime
    event: Literal["claimed", "intent", "submitted", "released", "ended"]
    attempt: int
    executor: Literal["local", "slurm"] | None = None
    host: str | None = Field(
        None,
        description="Of the launcher that claimed. Of an end: the nodes whose failure it was, "
        "as far as known, with commas between them.",
    )
    pid: int | None = Field(None, description="Of the launcher that claimed.")
    pid_started: float | None = Field(None, description="When it started, seconds since boot.")
    submission: str | None = Field(None, description="Names the array that an intent is about.")
    index: int | None = Field(None, description="Element of that array.")
    count: int | None = Field(None, description="Elements of that array.")
    slot: int | None = Field(None, description="Place among the runs of that element, which share a node.")
    job_id: str | None = Field(None, description="The scheduler's, ARRAY_INDEX for an array element.")
    outcome: Outcome | None = None
    reason: str | None = None
    parallel: ParallelConfig | None = Field(
        None, description="Of a claim: the attempt's processes, where they are not the run's own."
    )

    @property
    def failed_nodes(self) -> tuple[str, ...]:
        """Nodes whose failure an end was, as far as known."""
        return tuple(self.host.split(",")) if self.event == "ended" and self.host else ()


class Clocks(Frozen):
    """A GPU's clocks and power at one moment; None where the driver does not report it."""

    power_limit_watts: float | None = Field(description="Power limit that is in force.")
    sm_mhz: float | None = Field(description="Clock that applications run at unless throttled.")
    memory_mhz: float | None = Field(description="The same, of the memory.")
    power_capped_seconds: float | None = Field(
        description="How long the power limit has held back the clocks, since the driver was loaded."
    )
    slowed_seconds: float | None = Field(description="The same for heat, and for the power supply's brake.")


class RankRecord(Frozen):
    """One process of a run of several."""

    node: str = Field(description="Slurm's name of its node, else its host's.")
    gpu_uuid: str | None = Field(None, description="Its GPU; None on a CPU.")


class Manifest(Frozen):
    """`manifest.json`: where and with what an attempt runs. Device facts are None until torch is imported.

    In an imported run, all that its log does not say is None.
    """

    schema_version: Version = SCHEMA_VERSION
    run_id: str
    attempt: int
    started_at: datetime | None
    host: str | None
    pid: int | None
    pid_started: float | None = Field(
        description="When the process started, seconds since boot: tells it from a reused pid."
    )
    slurm: dict[str, str] = Field(
        description="SLURM_* variables of the job, and CUDA_, HIP_ and ROCR_VISIBLE_DEVICES."
    )
    software: dict[str, str] = Field(description="Version by package: python, torch, triton, cuda, driver.")
    device_name: str | None = None
    gpu_uuid: str | None = None
    gpus: int | None = Field(0, description="GPUs that the attempt uses.")
    nodes: int | None = 1
    ranks: list[RankRecord] | None = Field(
        None, description="The processes of the run, from rank 0, which wrote this; None: it has one."
    )
    load_before: float | None = Field(
        None, description="Processes running or waiting to, over all cores, averaged over the last minute."
    )
    cores: int | None = Field(None, description="Logical processors of the machine, to judge the load by.")
    device_users: int | None = Field(
        None, description="Other processes on the GPU at the start; None: not known, or no GPU."
    )
    clocks: Clocks | None = Field(None, description="Before the training; None: not known, or no GPU.")
    resumed_attempt: int | None = Field(
        None, description="The attempt whose checkpoint this one went on from."
    )
    resumed_step: int | None = Field(None, description="The last step of that checkpoint.")
    not_resumed: str | None = Field(None, description="Why a checkpoint that is there was not used.")
    parallel: ParallelConfig | None = Field(
        None, description="Its processes, where a retry has put others in place of the run's own."
    )
    parameter_count: int | None = None
    flop_per_token: int | None = Field(None, description="By model.measure.flops.flop_per_token.")
    peak_flops: float | None = Field(
        None, ge=1, description="FLOP/s of one device, None where it is not known."
    )
    peak_source: str | None = None
    certificate: str | None = Field(
        None, description="Key of the certificate of its attention backend, ROOT/.certificates/KEY.json."
    )
    ceilings: str | None = Field(None, description="Key of its device's ceilings, STUDY/.nodes/KEY.json.")
    no_ceilings: str | None = Field(None, description="Why no floor is stated from its device's ceilings.")
    floor: list[FloorPart] | None = Field(
        None,
        description="The least time of a step by its ceilings, by model.measure.floor; None: not known.",
    )


# Left out of a line where they are None, which is in most runs.
_LEFT_OUT = (
    *("slowest_rank", "slowest_rank_seconds", "other_ranks_seconds"),
    *("power_joules", "power_seconds", "power_steps"),
)


class StepRecord(Frozen):
    """One line of `steps.jsonl`: the state at `step`, and rates over the `steps` steps that end with it."""

    schema_version: Version = SCHEMA_VERSION
    step: int = Field(gt=0, description="Counts from 1.")
    steps: int = Field(gt=0, description="Steps since the record before.")
    time: datetime
    loss: float | None = Field(
        None, description="Mean cross-entropy in nats at `step`; None if not finite, or nothing is trained."
    )
    learning_rate: float | None = Field(None, description="None: nothing is trained.")
    grad_norm: float | None = Field(None, description="Before clipping, at `step`; None if not finite.")
    step_seconds: float = Field(ge=0, description="Mean over the `steps` steps, by the device's clock.")
    step_seconds_min: float | None = Field(None, description="The shortest of them.")
    step_seconds_median: float | None = Field(None, description="Their median.")
    step_seconds_max: float | None = Field(None, description="The longest.")
    data_wait_seconds: float | None = Field(
        None, description="In which the device had done a step, and the next batch was not there; their sum."
    )
    tokens: int = Field(gt=0, description="In the `steps` steps, padding included.")
    training_tokens: int | None = Field(
        None, description="In the `steps` steps, those that the loss counts; None: nothing is trained."
    )
    memory_bytes: int = Field(description="Peak so far: device memory on a GPU, resident memory on a CPU.")
    energy_joules: float | None = Field(None, description="Of the GPU in the `steps` steps; None: not known.")
    sm_mhz: float | None = Field(None, description="Clock of the GPU's multiprocessors at the record.")
    throttle_reasons: str | None = Field(
        None, description="What held back the GPU's clocks then, in nvidia-smi's words; empty: nothing."
    )
    slowest_rank: int | None = Field(
        None,
        description="The process that spent most itself, not waiting for others; None: not known, or alone.",
    )
    slowest_rank_seconds: float | None = Field(
        None, ge=0, description="Of a step, mean over the first 32 of them: what that process spent itself."
    )
    other_ranks_seconds: float | None = Field(
        None, ge=0, description="The same of the other processes, their median."
    )
    power_joules: float | None = Field(
        None,
        description="Of all GPUs in the last `power_steps` steps, by a reading at their start and one now; "
        "None: not known, or the time since the last record with it is too short.",
    )
    power_seconds: float | None = Field(
        None, description="The time of these, pauses between them included, in which it was used at least."
    )
    power_steps: int | None = Field(
        None, gt=0, description="Steps since the last record with `power_joules`."
    )

    @model_serializer(mode="wrap")
    def _without_unknown(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is known of few runs where it is None: a run writes thousands of lines."""
        return {
            name: value for name, value in dump(self).items() if name not in _LEFT_OUT or value is not None
        }

    @property
    def tokens_per_second(self) -> float:
        """The rate over the interval, padding included."""
        return self.tokens / self.steps / self.step_seconds


class AuditedTensor(Frozen):
    """One tensor of an audited call: its slice that came closest to the tolerance, or exceeds it."""

    measured: float | None = Field(
        ge=0, description="Error in roundings of the precision; None if not finite."
    )
    tolerance: float = Field(gt=0, description="The largest error that passes, in the same unit.")
    relative_error: float | None = Field(
        description="||x - exact|| / ||exact|| of all that was audited, for people; None if not finite."
    )
    place: str = Field(description="Which slice, with the model's own numbers of samples and heads.")


class AuditRecord(Frozen):
    """One line of `audits.jsonl`: one attention call of the running model, held to the certificate's rule.

    Layers, samples, heads and rows count from 0.
    """

    schema_version: Version = SCHEMA_VERSION
    step: int = Field(description="Counts from 1. Of a decoded token, the prefill after which it comes.")
    time: datetime
    layer: int
    sample: int = Field(description="Of the batch.")
    first_head: int = Field(description="The first of the query heads that were audited.")
    heads: int = Field(description="How many: those that share one key head.")
    rows: int = Field(description="Tokens: all of the sample, its part, or the one that is decoded.")
    first_row: int = Field(0, description="The first of them, where processes share the sample's tokens.")
    keys: int | None = Field(None, description="How many a decoded token meets; None: a call of training.")
    tensors: dict[str, AuditedTensor] = Field(description="By name: o, dq, dk, dv; those that there are.")
    passed: bool
    reason: str | None = Field(description="What is wrong, as a sentence; None if it passed.")
    seconds: float = Field(description="Taken by the computation in float64, outside of the step's time.")

    @property
    def where(self) -> str:
        """What was audited: `step 12, layer 3, sample 0, heads 4 to 7, rows 0 to 4095`.

        Or `decoding with 4100 keys, layer 3, sample 0, heads 4 to 7`.
        """
        last = self.first_head + self.heads - 1
        heads = f"heads {self.first_head} to {last}" if self.heads > 1 else f"head {last}"
        if self.keys is not None:
            decoding = f"decoding with {self.keys} keys"
            return f"{decoding}, layer {self.layer}, sample {self.sample}, {heads}"
        rows = f"rows {self.first_row} to {self.first_row + self.rows - 1}"
        return f"step {self.step}, layer {self.layer}, sample {self.sample}, {heads}, {rows}"


class DecodeRecord(Frozen):
    """One line of `decode.jsonl`: a token of each sample goes through the model, and the next come out."""

    schema_version: Version = SCHEMA_VERSION
    position: int = Field(
        ge=0, description="Of the tokens that go in, from 0: they attend to `position` + 1 keys."
    )
    time: datetime = Field(description="When the device had decoded the last position.")
    seconds: float = Field(ge=0, description="By the device's clock.")
    token_ids: list[int] = Field(description="Of the tokens that go in, one of each sample.")


class Result(Frozen):
    """`result.json`: how an attempt ended, written by the attempt itself. Times that a log lacks are None."""

    schema_version: Version = SCHEMA_VERSION
    run_id: str
    attempt: int
    outcome: Outcome
    reason: str | None
    failed_nodes: tuple[str, ...] = Field((), description="Nodes whose failure ended it, as far as known.")
    steps: int = Field(description="Steps done.")
    final_loss: float | None
    peak_memory_bytes: int | None
    requested_bytes: int | None = Field(None, description="The allocation that failed, for an oom outcome.")
    clocks: Clocks | None = Field(None, description="As the manifest's, at the end.")
    load_after: float | None = Field(None, description="As the manifest's `load_before`, at the end.")
    started_at: datetime | None
    ended_at: datetime | None
    wall_seconds: float | None


# A study's or a run's folder. People may give 100 characters; `.rehearsal` and `.reproduced` come on top.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,139}")


def now() -> datetime:
    """This moment, UTC."""
    return datetime.now(UTC)


def finite(number: float) -> float | None:
    """The number, or None where it is NaN or infinite, which JSON cannot hold."""
    return number if math.isfinite(number) else None
