"""A log as the records of a run: what run.json, manifest.json, steps.jsonl and result.json will hold."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import isfinite
from pathlib import Path

from analysis.logs.checks import Read, findings
from analysis.logs.flop import counts_of
from analysis.logs.mapping import Mapping
from analysis.logs.points import Log, logs_of, named
from analysis.logs.steps import steps_of
from analysis.logs.table import Table
from model.record.files import dumps
from model.record.imported import PREFIX, Finding, Imported, ImportedRun, ImportedStep
from model.record.outcome import Outcome
from model.record.records import Manifest, Result

Factor = str | int | float | bool


@dataclass(frozen=True)
class Origin:
    """What all runs of one import share: its study, and who imports when."""

    format: str
    study: str
    title: str
    version: str
    at: datetime


@dataclass(frozen=True)
class Whole:
    """Everything that is known of an imported run."""

    run: ImportedRun
    manifest: Manifest
    steps: list[ImportedStep]
    result: Result

    @property
    def name(self) -> str:
        """What sentences call the run."""
        return " ".join(str(value) for value in self.run.factors.values())


def runs_of(
    table: Table, mapping: Mapping, sha256: str, origin: Origin, by_name: str | None = None
) -> list[Whole]:
    """The runs of one file.

    Args:
        sha256: of the file's content.
        by_name: which columns were taken by their names alone.

    Raises:
        Refused: it has no run that could be imported.
    """
    return [_run(log, mapping, sha256, origin, by_name) for log in logs_of(table, mapping)]


def _run(log: Log, mapping: Mapping, sha256: str, origin: Origin, by_name: str | None) -> Whole:
    name, groups = named(log, mapping.file_name)
    read = Read(name, log, mapping, steps_of(log, mapping), counts_of(log.points, mapping))
    if by_name:
        read.steps.sources["columns"] = f"by their names: {by_name}"
    run_id = PREFIX + _hash([sha256, log.part])
    manifest = _manifest(run_id, read)
    result = _result(run_id, read, manifest.started_at)
    return Whole(_record(run_id, read, groups, sha256, origin), manifest, read.steps.records, result)


def _hash(value: object) -> str:
    return hashlib.sha256(dumps(value).encode()).hexdigest()[:12]


def _record(run_id: str, read: Read, groups: dict[str, str], sha256: str, origin: Origin) -> ImportedRun:
    constants, config = read.mapping.constants, read.mapping.config.nested()
    attention = groups.get("attention") or constants.attention
    seed = int(groups["seed"]) if groups.get("seed", "").isdecimal() else constants.seed
    factors = _factors(read, groups, attention, seed)
    alike = {axis: value for axis, value in factors.items() if axis != "seed"}
    return ImportedRun(
        run_id=run_id,
        group=_hash([alike, config]),
        study=origin.study,
        title=origin.title,
        factors=factors,
        attention=attention,
        seed=seed,
        config=config,
        imported=_imported(read, sha256, origin),
        created_at=origin.at,
    )


def _factors(
    read: Read, groups: dict[str, str], attention: str | None, seed: int | None
) -> dict[str, Factor]:
    """What its file's name and the mapping say of a run; its own name, if that is nothing that varies."""
    found: dict[str, Factor] = {**({"attention": attention} if attention else {}), **groups}
    if not groups or read.log.part:
        found["log"] = read.name
    return found if seed is None else {**found, "seed": seed}


def _imported(read: Read, sha256: str, origin: Origin) -> Imported:
    counts = read.counts
    counted = {"flop_per_token": counts.flop_source, "peak_flops": counts.peak_source}
    return Imported(
        format=origin.format,
        file=str(Path(read.log.table.file).absolute()),
        part=read.log.part,
        sha256=sha256,
        imported_at=origin.at,
        version=origin.version,
        records=len(read.points),
        not_imported=[*read.log.table.problems, *read.log.problems],
        printed=counts.printed,
        sources=read.steps.sources | counted,
        findings=findings(read),
    )


def _manifest(run_id: str, read: Read) -> Manifest:
    constants, counts = read.mapping.constants, read.counts
    return Manifest(
        run_id=run_id,
        attempt=1,
        started_at=_started(read),
        host=constants.host,
        pid=None,
        pid_started=None,
        slurm={},
        software=constants.software,
        device_name=constants.gpu,
        gpus=constants.gpus,
        nodes=constants.nodes,
        flop_per_token=counts.flop_per_token,
        peak_flops=counts.peak_flops,
        peak_source=counts.peak_source if counts.peak_flops else None,
    )


def _started(read: Read) -> datetime | None:
    """When the first record's interval began."""
    first, record = read.points[0], read.steps.records[0]
    if first.time is None or read.log.clocks:
        return None
    try:
        return first.time - timedelta(seconds=(record.step_seconds or 0.0) * record.steps)
    except OverflowError:  # before the year 1
        return None


def _result(run_id: str, read: Read, started: datetime | None) -> Result:
    outcome, reason = _outcome(read)
    last, losses = read.points[-1], [step.loss for step in read.steps.records if step.loss is not None]
    ended = last.time if started else None
    memory = [step.memory_bytes for step in read.steps.records if step.memory_bytes is not None]
    return Result(
        run_id=run_id,
        attempt=1,
        outcome=outcome,
        reason=reason,
        steps=last.step,
        final_loss=losses[-1] if losses else None,
        peak_memory_bytes=max(memory, default=None),
        started_at=started,
        ended_at=ended,
        wall_seconds=(ended - started).total_seconds() if started and ended else None,
    )


def _outcome(read: Read) -> tuple[Outcome, str | None]:
    """How the log says that the run ended. That it went on is not known where nobody says how many steps."""
    last, planned = read.points[-1], read.mapping.config.train.steps
    loss = last.values.get("loss")
    if loss is not None and not isfinite(loss):
        return Outcome.DIVERGED, f"the loss at step {last.step}, the last one, is {loss}"
    if planned is None:
        return Outcome.COMPLETED, f"the log ends at step {last.step}; how many were planned is unknown"
    if last.step < planned:
        return Outcome.LOST, f"the log ends at step {last.step} of {planned}"
    return Outcome.COMPLETED, None


def with_findings(whole: Whole, more: Sequence[Finding]) -> Whole:
    """The same run with findings that other runs brought up."""
    kept = [found for found in whole.run.imported.findings if not found.evidence.get("across")]
    imported = whole.run.imported.model_copy(update={"findings": [*kept, *more]})
    return Whole(
        whole.run.model_copy(update={"imported": imported}), whole.manifest, whole.steps, whole.result
    )
