"""Rows of the report's queries as typed records, so that a misspelt column is an error of types."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NotRequired, TypedDict

from analysis.report.correctness import CorrectnessRow


class AttemptRow(TypedDict):
    """A row of the view `attempts`."""

    study: str
    run_id: str
    attempt: int
    outcome: str | None
    reason: str | None
    executor: str | None
    job_id: str | None
    claimed_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    wall_seconds: float | None
    node: str | None
    nodes: int | None
    device: str | None
    gpu_uuid: str | None
    gpus: int | None
    certificate: str | None
    software: Mapping[str, str] | None
    slurm: Mapping[str, Any] | None
    parameter_count: int | None
    flop_per_token: int | None
    peak_flops: float | None
    peak_source: str | None
    steps: int | None
    resumed_step: int | None
    parallel: Mapping[str, int] | None
    final_loss: float | None
    peak_memory_bytes: int | None
    requested_bytes: int | None
    load_before: float | None
    load_after: float | None
    cores: int | None
    device_users: int | None
    power_limit_watts: float | None
    sm_mhz: float | None
    memory_mhz: float | None
    power_capped_seconds: float | None
    slowed_seconds: float | None
    ceilings: str | None
    no_ceilings: str | None
    profiled_steps: int | None
    no_profile: str | None
    rank_nodes: list[str] | None


class Run(TypedDict):
    """A row of the view `runs`, with what else the report's query of runs adds to it.

    Attributes:
        history: its attempts, in their order.
        page: name of the file of its own page; None for a run that has none.
    """

    run_id: str
    study: str
    attention: str | None
    seed: int | None
    repeat: int
    factors: Mapping[str, Any]
    config: Mapping[str, Any]
    profile: str | None
    position: int | None
    block: int | None
    design: Mapping[str, Any] | None
    outcome: str | None
    expected_outcome: str
    reported: str | None
    reason: str | None
    attempts: int
    gpu: str | None
    node: str | None
    nodes: int | None
    gpus: int | None
    processes: int | None
    steps: int | None
    step_seconds: float | None
    tokens_per_second: float | None
    tokens_per_second_per_process: float | None
    mfu: float | None
    tflops: float | None
    training_tokens_percentage: float | None
    final_loss: float | None
    peak_memory_bytes: int | None
    energy_joules: float | None
    wall_seconds: float | None
    gpu_hours: float | None
    git_sha: str | None
    git_dirty: bool | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    group_id: str
    label: str
    place: int
    title: str
    description: str | None
    scale: str | None
    because: str | None
    planned_steps: int | None
    sequence_length: int | None
    batch_size: int | None
    warmup_steps: int
    counted_records: int
    tokens_per_step: float | None
    training_seconds: float | None
    device: str | None
    certificate: str | None
    verdict: str | None
    software: Mapping[str, str] | None
    flop_per_token: int | None
    peak_flops: float | None
    peak_source: str | None
    requested_bytes: int | None
    deciding_attempt: int | None
    measured_attempt: int | None
    missing_since: datetime | None
    from_report: str | None
    data_fingerprint: str | None
    code: str | None
    in_study: bool
    power_limit_watts: float | None
    sm_mhz: float | None
    memory_mhz: float | None
    power_capped_seconds: float | None
    slowed_seconds: float | None
    device_users: int | None
    imported: Mapping[str, Any] | None
    gpu_uuid: str | None
    ceiling_tflops: float | None
    ceiling_percentage: float | None
    floor_seconds: float | None
    floor_percentage: float | None
    power_watts: float | None
    joules_per_token: float | None
    data_wait_percentage: float | None
    sm_mhz_low: float | None
    sm_mhz_high: float | None
    throttle_reasons: str | None
    clocks_changed: bool | None
    slowest_rank: int | None
    slowest_rank_records: int | None
    ranked_records: int | None
    slowest_rank_percentage: float | None
    slowest_rank_node: str | None
    audits: int | None
    audits_passed: int | None
    audit_ratio: float | None
    task: str
    decoded_tokens: int | None
    decode_seconds: float | None
    decode_tokens_per_second: float | None
    decode_floor_seconds: float | None
    decode_floor_percentage: float | None
    tokens_per_second_low: float | None
    tokens_per_second_high: float | None
    why: list[str] | None
    command: list[str] | None
    version: str | None
    study_file: str | None
    tokenizer: str | None
    overridden: Mapping[str, Any] | None
    scale_description: str
    reported_elsewhere: list[int] | None
    given_label: str | None
    highest_learning_rate: float | None
    position_in_root: int | None
    history: NotRequired[list[AttemptRow]]
    page: NotRequired[str | None]


class UntimedRow(TypedDict):
    """A backend that runs of attention alone did not time, in how many of them, with their ids, and why."""

    attention: str
    dtype: str
    directions: str
    modes: str
    outcome: str
    reason: str
    runs: int
    run_ids: str


class UnreadFile(TypedDict):
    """A row of the table `quarantine`."""

    path: str
    reason: str


class ColumnComment(TypedDict):
    """A column of a table of the database, and what it is."""

    table_name: str
    column_name: str
    type: str
    comment: str | None


class RunFile(TypedDict):
    """A file that a run was read from."""

    run_id: str
    path: str
    size_bytes: int
    sha256: str | None
    missing_since: datetime | None


class Printed(TypedDict):
    """The end of what an attempt printed to one stream."""

    study: str
    run_id: str
    attempt: int
    stream: str
    size_bytes: int
    text: str


class CertificateRow(TypedDict):
    """A row of the view `certificates`, with what its checks and audits found.

    Attributes:
        runs: ids of the runs that name it, and its audits: only where the page is of a study.
    """

    key: str
    attention: str
    verdict: str
    device_kind: str
    device_name: str | None
    dtype: str | None
    shape: str | None
    run_case: Mapping[str, Any] | None
    software: Mapping[str, str]
    code: str | None
    kernels: Mapping[str, list[str]]
    deterministic: bool | None
    graph_break: str | None
    reasons: list[str]
    not_looked_at: list[str]
    checks: int
    failed: int
    seconds: float | None
    created_at: datetime
    git_sha: str | None
    git_dirty: bool | None
    o_error: float | None
    dq_error: float | None
    dk_error: float | None
    dv_error: float | None
    ratio: float | None
    audits: NotRequired[int | None]
    audits_passed: NotRequired[int | None]
    audit_ratio: NotRequired[float | None]
    runs: NotRequired[list[str]]
    tests: NotRequired[list[CorrectnessRow]]
    tensors: NotRequired[list[dict[str, Any]]]
    kinds: NotRequired[list[dict[str, Any]]]
