"""Turns one run folder into rows of the base tables, except its steps. Unreadable files are quarantined."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import TypeVar

from analysis.store.scan import FileState, Key, SourceFiles, attempt_numbers, reported_plans
from analysis.store.tables import Row
from model.measure.flops import attention_flop
from model.record.config import CallConfig
from model.record.files import Unreadable, dumps, read, require_regular
from model.record.folder import DECODED, FRONTIER, KERNELS, PROFILE, STUDY, Attempt, RunFolder
from model.record.frontier import Frontier
from model.record.imported import PREFIX, ImportedRun
from model.record.kernels import KernelTime, KernelTimes
from model.record.records import (
    NAME,
    AuditRecord,
    DecodeRecord,
    DesignRecord,
    Manifest,
    Result,
    RunRecord,
    StudyRecord,
)
from model.record.speed import StepProfile
from model.record.traffic import score_bytes

# Fields of run.json that are columns of the same name.
_SAME_NAME = (
    *("study", "run_id", "title", "description", "scale_description", "study_file", "scale", "profile"),
    *("because", "label"),
    *("repeat", "position", "block", "time_limit_seconds", "data_file", "tokenizer", "data_fingerprint"),
)
# Fields of an attempt's manifest and result that are columns of the same name.
_OF_MANIFEST = (
    *("nodes", "gpu_uuid", "gpus", "certificate", "resumed_step", "parameter_count", "flop_per_token"),
    *("peak_flops", "peak_source", "load_before", "cores", "device_users", "ceilings", "no_ceilings"),
)
_OF_RESULT = ("steps", "final_loss", "peak_memory_bytes", "requested_bytes", "load_after")
_SHORT = ("attempt", "gpus", "nodes", "processes", "profiled_steps")  # columns of 32 bits
Read = TypeVar("Read")
_NO_DESIGN = dict.fromkeys(DesignRecord.model_fields)  # the keys of a design of which nothing is known


@dataclass
class Rows:
    """Rows by table, and the steps.jsonl files that are still to be loaded."""

    run_records: list[Row] = field(default_factory=list)
    attempts: list[Row] = field(default_factory=list)
    files: list[Row] = field(default_factory=list)
    quarantine: list[Row] = field(default_factory=list)
    certificates: list[Row] = field(default_factory=list)
    verifications: list[Row] = field(default_factory=list)
    nodes: list[Row] = field(default_factory=list)
    step_floor: list[Row] = field(default_factory=list)
    audits: list[Row] = field(default_factory=list)
    step_profile: list[Row] = field(default_factory=list)
    decoding: list[Row] = field(default_factory=list)
    kernels: list[Row] = field(default_factory=list)
    probes: list[Row] = field(default_factory=list)
    removed_runs: list[Row] = field(default_factory=list)
    step_files: list[Row] = field(default_factory=list)

    def refuse(self, key: Key, path: str, reason: str) -> None:
        """Put a file in quarantine."""
        self.quarantine.append({"study": key[0], "run_id": key[1], "path": path, "reason": reason})


def read_run(root: Path, source: SourceFiles, rows: Rows) -> None:
    """Add the rows of a run folder. Nothing in the folder can make this raise."""
    folder = RunFolder(f"{root}/{source.key[0]}/{source.key[1]}")
    reader = Reader(root, source.key, rows)

    def row_of_plan() -> Row:
        if not any(file.path.endswith("/run.json") for file in source.files):
            raise Unreadable("missing, although the folder has records of its run")
        run = folder.imported if folder.is_imported else folder.run
        if (run.study, run.run_id) != source.key:
            raise Unreadable(f"it belongs to study {run.study} run {run.run_id}, not to this folder")
        return fitting(_imported_row(run) if isinstance(run, ImportedRun) else _run_row(run))

    row = reader.read(f"{os.fspath(folder)}/run.json", row_of_plan)
    if row is None:
        return  # without the plan nothing else in the folder makes sense
    rows.run_records.append(row)
    ledger = reader.read(f"{os.fspath(folder)}/ledger.jsonl", lambda: folder.ledger) or []
    on_disk = attempt_numbers(folder)
    for number in sorted({*on_disk, *(event.attempt for event in ledger)}):
        attempt = Attempt(folder, number, ledger)
        if number in on_disk or not attempt.released:
            _read_attempt(reader, attempt, folder)


def read_study(root: Path, source: SourceFiles, rows: Rows) -> None:
    """Add the runs that a study no longer has. Nothing in the file can make this raise."""
    study = source.key[0]
    path = f"{root}/{study}/{STUDY}"
    record = Reader(root, source.key, rows).read(path, lambda: read(path, StudyRecord))
    of_reports = {plan["run_id"] for plan in reported_plans(root, study, "run_id")}
    for run_id, differs in record.removed.items() if record else ():
        exists = os.path.lexists(f"{root}/{study}/{run_id}/run.json") or run_id in of_reports
        if NAME.fullmatch(run_id) and exists:
            rows.removed_runs.append({"study": study, "run_id": run_id, "differs": differs})


def file_rows(key: Key, files: Iterable[FileState]) -> list[Row]:
    """Rows of the table `files`."""
    return [{"study": key[0], "run_id": key[1], **file._asdict()} for file in files]


@dataclass
class Reader:
    """Reads the files of one run or certificate; those that cannot be read are quarantined under its key.

    Paths are strings: over 10,000 runs, Path objects took a third of the time.
    """

    root: Path
    key: Key
    rows: Rows

    def read(self, path: str, load: Callable[[], Read]) -> Read | None:
        """Load a file's record, or quarantine the file and return None."""
        try:
            return load()
        except Unreadable as error:
            # The message starts with the file's path on this machine; the row has the path in its own column.
            reason = str(error).removeprefix(f"{path}: ")
            self.rows.refuse(self.key, path.removeprefix(f"{self.root}/"), reason)
            return None

    def add(self, table: str, path: str, shared: Row, load: Callable[[], Iterable[Row]]) -> None:
        """Add rows that a file gives to a table, each with what they share; none if it cannot be read."""
        rows = self.read(path, lambda: [fitting(shared | row) for row in load()])
        getattr(self.rows, table).extend(rows or [])


def _read_attempt(reader: Reader, attempt: Attempt, folder: RunFolder) -> None:
    study, run_id = reader.key
    path = os.fspath(attempt)
    # What cannot be read goes to quarantine, and counts as missing.
    manifest = reader.read(f"{path}/manifest.json", lambda: _placed(attempt.manifest, run_id, attempt))
    result = reader.read(f"{path}/result.json", lambda: _placed(attempt.result, run_id, attempt))
    profile = reader.read(f"{path}/{PROFILE}", lambda: _placed(attempt.profile, run_id, attempt))
    key = {"study": study, "run_id": run_id, "attempt": attempt.number}
    profiled = {"profiled_steps": profile and profile.steps, "no_profile": profile and profile.reason}
    row = reader.read(path, lambda: fitting(key | _attempt_row(attempt.holding(manifest, result)) | profiled))
    if row is None:
        return
    reader.rows.attempts.append(row)
    floor = (manifest and manifest.floor) or ()
    reader.add("step_floor", path, key, lambda: [part.model_dump() for part in floor])
    reader.add("audits", f"{path}/audits.jsonl", key, lambda: map(_audit_row, attempt.audits))
    reader.add("decoding", f"{path}/{DECODED}", key, lambda: map(_decoding_row, attempt.decoded))
    if profile:
        reader.add("step_profile", f"{path}/{PROFILE}", key, lambda: _profile_rows(profile))
    device = {"device": manifest and manifest.device_name}
    reader.add("kernels", f"{path}/{KERNELS}", key | device, lambda: _kernel_rows(attempt, run_id, folder))
    reader.add("probes", f"{path}/{FRONTIER}", key, lambda: _probe_rows(attempt, run_id))

    def steps_row() -> Row:
        require_regular(steps)
        return key | {"path": steps, "imported": run_id.startswith(PREFIX)}

    steps = f"{path}/steps.jsonl"
    if os.path.lexists(steps) and (step_file := reader.read(steps, steps_row)):
        reader.rows.step_files.append(step_file)


Placed = TypeVar("Placed", Manifest, Result, StepProfile, KernelTimes, Frontier)


def _placed(record: Placed | None, run_id: str, attempt: Attempt) -> Placed | None:
    """The record, if it belongs here: a folder that was copied or renamed by hand would count twice."""
    if record and (record.run_id, record.attempt) != (run_id, attempt.number):
        raise Unreadable(f"it belongs to run {record.run_id} attempt {record.attempt}, not to this folder")
    return record


def fitting(row: Row) -> Row:
    """The row. Raises Unreadable if it has a number that no column can hold: it would stop every collect."""
    for name, value in row.items():
        bits = 31 if name in _SHORT else 63
        if isinstance(value, int) and not -(2**bits) <= value < 2**bits:
            raise Unreadable(f"{name} is {value:.3g}, more than the database holds")
    return row


def _run_row(run: RunRecord) -> Row:
    config, plan, origin = run.config, run.config.section, run.provenance
    reported = None
    if run.reported:
        from analysis.importers import reported_rows  # here, since importers compute with NumPy

        reported = dumps(reported_rows(run))
    return {
        **{name: getattr(run, name) for name in _SAME_NAME},
        "group_id": run.group,
        "attention": config.attention if "attention" not in plan.unread else None,
        "seed": config.seed,
        "design": dumps(run.design.model_dump(mode="json")) if run.design else None,
        "factors": dumps(run.factors),
        "overridden": dumps({name: change.model_dump() for name, change in run.overridden.items()}),
        "config": dumps(config.model_dump(mode="json")),
        "planned_steps": plan.steps,
        "sequence_length": plan.sequence_length,
        "batch_size": plan.batch_size,
        "processes": config.parallel.processes,
        "expected_outcome": str(run.expected_outcome),
        "reported": reported,
        "reported_elsewhere": dumps(run.reported_elsewhere),
        "also_expected": dumps(run.also_expected),
        "why": dumps(run.why),
        "memory_limit_bytes": run.memory_bytes,
        "command": dumps(origin.command),
        "version": origin.version,
        "git_sha": origin.git_sha,
        "git_dirty": origin.git_dirty,
        "git_diff": origin.diff,
        "code": origin.code,
        "created_at": utc(run.created_at),
    }


def _imported_row(run: ImportedRun) -> Row:
    """What an import knows. A run that nobody planned here has no command, commit, profile or limits."""
    same = ("study", "run_id", "title", "description", "attention", "seed")
    return {
        **{name: getattr(run, name) for name in same},
        "group_id": run.group,
        "repeat": 1,  # said, since a run beside it in the same batch has the column
        "design": dumps({**_NO_DESIGN, "baseline": run.baseline, "margins": run.margins}),
        "factors": dumps(run.factors),
        "config": dumps(run.config),
        "planned_steps": _whole(run, "train.steps"),
        "sequence_length": _whole(run, "train.sequence_length"),
        "batch_size": _whole(run, "train.batch_size"),
        "expected_outcome": str(run.expected_outcome),
        "version": run.imported.version,
        "imported": dumps(run.imported.model_dump(mode="json")),
        "created_at": utc(run.created_at),
    }


def _whole(run: ImportedRun, setting: str) -> int | None:
    value = run.known(setting)
    if value is not None and not isinstance(value, int):
        raise Unreadable(f"{setting} is {str(value)[:40]!r}, not a whole number")
    return value


def _attempt_row(attempt: Attempt) -> Row:
    manifest, result = attempt.manifest, attempt.result
    outcome, reason = attempt.settled or (None, None)
    claimed = attempt.event("claimed")
    started, ended = attempt.started_at, attempt.ended_at
    seconds = None  # by its launcher's clock: none if it ended without ever starting
    if ended is not None:
        seconds = max(0.0, (ended - started).total_seconds()) if started else 0.0
    row: Row = {
        "outcome": outcome and str(outcome),
        "reason": reason,
        "executor": attempt.executor,
        "job_id": attempt.job_id,
        "claimed_at": utc(claimed.time if claimed else None),
        "started_at": utc(started),
        "ended_at": utc(ended),
        "wall_seconds": result.wall_seconds if result else seconds,
    }
    if manifest:
        row |= {name: getattr(manifest, name) for name in _OF_MANIFEST}
        row |= {
            "node": manifest.host,
            "device": manifest.device_name,
            "rank_nodes": manifest.ranks and dumps([rank.node for rank in manifest.ranks]),
            "parallel": manifest.parallel and dumps(manifest.parallel.model_dump()),
            "software": dumps(manifest.software),
            "slurm": dumps(manifest.slurm),
        }
    if result:
        row |= {name: getattr(result, name) for name in _OF_RESULT}

    # The GPU's clocks; how long they were held back is the difference of two counters.
    if manifest and (first := manifest.clocks):
        last = result and result.clocks
        row |= first.model_dump()
        for name in ("power_capped_seconds", "slowed_seconds"):
            began, stopped = getattr(first, name), last and getattr(last, name)
            is_known = began is not None and stopped is not None and stopped >= began
            row[name] = stopped - began if is_known else None
    return row


def _audit_row(record: AuditRecord) -> Row:
    """One audit. A result that is not finite is infinitely wrong: a maximum would overlook a missing one."""
    ratios = {
        f"{name}_ratio": inf if tensor.measured is None else tensor.measured / tensor.tolerance
        for name, tensor in record.tensors.items()
    }
    values = record.model_dump(mode="json", exclude={"schema_version", "rows"})
    return values | {
        "row_count": record.rows,
        "time": utc(record.time),
        "tensors": dumps(values["tensors"]),
        **{name: ratios.get(name) for name in ("o_ratio", "dq_ratio", "dk_ratio", "dv_ratio")},
        "ratio": max(ratios.values(), default=None),
    }


def _decoding_row(record: DecodeRecord) -> Row:
    values = record.model_dump(mode="json", exclude={"schema_version"})
    return values | {"time": utc(record.time), "token_ids": dumps(record.token_ids)}


def _profile_rows(profile: StepProfile) -> list[Row]:
    totals = {part.phase: 0.0 for part in profile.parts}
    for part in profile.parts:
        totals[part.phase] += part.seconds
    return [
        part.model_dump() | {"share": part.seconds / total if (total := totals[part.phase]) else None}
        for part in profile.parts
    ]


def _probe_rows(attempt: Attempt, run_id: str) -> list[Row]:
    if (frontier := _placed(attempt.frontier, run_id, attempt)) is None:
        return []
    shared = frontier.model_dump(exclude={"schema_version", "run_id", "attempt", "probes"})
    shared["measured_at"] = utc(frontier.measured_at)
    numbered = enumerate(frontier.probes, start=1)
    return [shared | {"number": number} | probe.model_dump() for number, probe in numbered]


def _kernel_rows(attempt: Attempt, run_id: str, folder: RunFolder) -> list[Row]:
    """The rows of each backend in each direction and mode. Raises Unreadable if the run is of other calls."""
    if (timed := _placed(attempt.kernels, run_id, attempt)) is None:
        return []
    config = None if folder.is_imported else folder.run.config
    calls = config and isinstance(config.section, CallConfig)
    if config and calls and (timed.case, timed.rounds) != (config.attention_case, config.call.steps):
        raise Unreadable("it has another shape, mask, precision or number of rounds than the run")
    return [_kernel_row(timed, time) for time in (*timed.times, *timed.sums)]


def _kernel_row(timed: KernelTimes, time: KernelTime) -> Row:
    """One backend in one direction and mode."""
    case, ceiling = asdict(timed.case), timed.ceiling_flops
    names = ("dtype", "causal", "batch", "sequence_length", "heads", "kv_heads", "head_dim", "dropout")
    seconds, ends = time.median_seconds, time.interval or (None, None)
    same = ("attention", "direction", "mode", "outcome", "reason", "memory_bytes", "certificate")
    counted = time.traffic and time.traffic.counted
    counters = ("l2_read_bytes", "l2_write_bytes", "dram_read_bytes", "dram_write_bytes")
    return {
        **{name: case[name] for name in names},
        **dict(zip(("tile_queries", "tile_keys"), timed.case.tile or (None, None), strict=True)),
        "ceiling_tflops": ceiling and ceiling / 1e12,
        "measured_at": utc(timed.measured_at),
        **{name: getattr(time, name) for name in same},
        "calls": len(time.seconds),
        "seconds": dumps(time.seconds) if time.seconds else None,
        "milliseconds": seconds and seconds * 1e3,
        "milliseconds_low": ends[0] and ends[0] * 1e3,
        "milliseconds_high": ends[1] and ends[1] * 1e3,
        "host_milliseconds": (host := time.median_host_seconds) and host * 1e3,
        "kernel_milliseconds": time.kernel_seconds and time.kernel_seconds * 1e3,
        "tflops": attention_flop(timed.case, time.direction) / seconds / 1e12 if seconds else None,
        "score_bytes": score_bytes(timed.case),
        "formula_bytes": time.traffic and time.traffic.formula_bytes,
        **{name: counted and getattr(counted, name) for name in counters},
        "traffic_reason": time.traffic and time.traffic.reason,
        "sm_mhz_low": min(time.sm_mhz, default=None),
        "sm_mhz_high": max(time.sm_mhz, default=None),
        "throttle_reasons": "; ".join(word or "none" for word in time.throttle_reasons) or None,
    }


def utc(moment: datetime | None) -> datetime | None:
    """The moment as naive UTC: DuckDB needs an extra package to return anything else.

    Raises:
        Unreadable: there is no such moment in UTC, as of the first day in Tokyo.
    """
    if moment is None or moment.tzinfo is None:
        return moment
    try:
        return moment.astimezone(UTC).replace(tzinfo=None)
    except OverflowError as error:
        raise Unreadable(f"{moment} is outside the years 1 to 9999") from error
