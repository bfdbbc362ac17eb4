"""A log as the records of a run: what run.json, manifest.json, steps.jsonl and result.json will hold."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import isfinite
from pathlib import Path

from analysis.importers._checks import ReadLog, counts_of, findings
from analysis.importers._mapping import Mapping
from analysis.importers._points import logs_of, steps_of
from analysis.importers._table import LogTable
from model.record.config import Scalar
from model.record.files import dumps
from model.record.imported import PREFIX, Finding, Imported, ImportedRun, ImportedStep
from model.record.outcome import Outcome
from model.record.records import Manifest, Result


@dataclass(frozen=True)
class Origin:
    """What all runs of one import share: its study, and who imports when."""

    format: str
    study: str
    title: str
    version: str
    at: datetime


@dataclass(frozen=True)
class RunRecords:
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
    table: LogTable,
    mapping: Mapping,
    sha256: str,
    origin: Origin,
    run_name: str,
    factors: dict[str, str],
    sources: dict[str, str],
) -> list[RunRecords]:
    """The runs of one file.

    Args:
        sha256: of the file's content.
        run_name: what to call a run that the file has no name for.
        factors: those that the file's name states.
        sources: which columns were taken by their names alone, and which were not.

    Raises:
        Refused: it has no run that could be imported.
    """
    runs = []
    for log in logs_of(table, mapping):
        read = ReadLog(
            log.part or run_name, log, mapping, steps_of(log, mapping), counts_of(log.points, mapping)
        )
        read.steps.sources.update(sources)
        run_id = PREFIX + _hash([sha256, log.part])
        manifest, result = _attempt(run_id, read)
        run = _run(run_id, read, factors, sha256, origin)
        runs.append(RunRecords(run, manifest, read.steps.records, result))
    return runs


def _hash(value: object) -> str:
    return hashlib.sha256(dumps(value).encode()).hexdigest()[:12]


def _attempt(run_id: str, read: ReadLog) -> tuple[Manifest, Result]:
    """The records of the only attempt, as far as the log and the mapping know them."""
    constants, counts, records = read.mapping.constants, read.counts, read.steps.records
    first, last, planned = read.points[0], read.points[-1], read.mapping.config.train.steps
    started: datetime | None = None  # when the first record's interval began
    if first.time is not None and not read.log.clocks:
        with suppress(OverflowError):  # before the year 1
            started = first.time - timedelta(seconds=(records[0].step_seconds or 0.0) * records[0].steps)
    ended = last.time if started else None
    manifest = Manifest(
        run_id=run_id,
        attempt=1,
        started_at=started,
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

    # How the log says that the run ended. That it went on is not known where nobody says how many steps.
    outcome = Outcome.COMPLETED
    reason: str | None = None
    last_loss = last.values.get("loss")
    if last_loss is not None and not isfinite(last_loss):
        outcome, reason = Outcome.DIVERGED, f"the loss at step {last.step}, the last one, is {last_loss}"
    elif planned is None:
        reason = f"the log ends at step {last.step}; how many were planned is unknown"
    elif last.step < planned:
        outcome, reason = Outcome.LOST, f"the log ends at step {last.step} of {planned}"
    losses = [record.loss for record in records if record.loss is not None]
    memory = [record.memory_bytes for record in records if record.memory_bytes is not None]
    result = Result(
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
    return manifest, result


def _run(run_id: str, read: ReadLog, groups: dict[str, str], sha256: str, origin: Origin) -> ImportedRun:
    constants, counts, config = read.mapping.constants, read.counts, read.mapping.config.nested()
    attention = groups.get("attention") or constants.attention
    seed = int(groups["seed"]) if "seed" in groups else constants.seed
    # What its file's name and the mapping say of a run; its own name, if that is nothing that varies.
    factors: dict[str, Scalar] = {**({"attention": attention} if attention else {}), **groups}
    if not groups or read.log.part:
        factors["log"] = read.name
    if seed is not None:
        factors["seed"] = seed
    alike = {axis: value for axis, value in factors.items() if axis != "seed"}
    imported = Imported(
        format=origin.format,
        file=str(Path(read.log.table.file).absolute()),
        part=read.log.part,
        sha256=sha256,
        imported_at=origin.at,
        version=origin.version,
        records=len(read.points),
        not_imported=[*read.log.table.problems, *read.log.problems],
        printed=counts.printed,
        sources=read.steps.sources | {"flop_per_token": counts.flop_source, "peak_flops": counts.peak_source},
        findings=findings(read),
    )
    return ImportedRun(
        run_id=run_id,
        group=_hash([alike, config]),
        study=origin.study,
        title=origin.title,
        factors=factors,
        attention=attention,
        seed=seed,
        config=config,
        imported=imported,
        created_at=origin.at,
    )


def with_findings(log: RunRecords, more: Sequence[Finding]) -> RunRecords:
    """The same run with findings that other runs brought up."""
    own = [finding for finding in log.run.imported.findings if not finding.evidence.get("across")]
    imported = log.run.imported.model_copy(update={"findings": [*own, *more]})
    return replace(log, run=log.run.model_copy(update={"imported": imported}))
