"""A study's runs under a root, and which of them are left to do. Writes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from model.config import DataConfig
from model.data import Source, check_vocabulary, fingerprint, load_tokenizer
from model.disk.folder import RunFolder
from model.disk.record import Provenance, RunRecord, now
from model.errors import UserError
from runner.spec.expansion import Cell
from runner.spec.problems import InvalidFile, Problem
from runner.spec.profile import Cluster
from runner.spec.study import Study, read_study
from runner.state import ledger
from runner.state.code import provenance
from runner.state.ledger import RunState


@dataclass(frozen=True)
class Plan:
    """A study's runs under one root, and which of them are left to do."""

    study: Study
    scale: str
    cluster: Cluster
    root: Path
    runs: list[tuple[RunRecord, RunState | None]]
    again: bool = False  # also start what is done

    @property
    def left(self) -> list[RunRecord]:
        """Runs to start: not done, and nobody is at them."""
        return [run for run, state in self.runs if state is None or self._to_do(state)]

    def _to_do(self, state: RunState) -> bool:
        return not state.in_flight and (self.again or not state.done)

    def folder(self, run: RunRecord) -> RunFolder:
        """Where a run's files are."""
        return RunFolder(self.root / run.study / run.run_id)


def plan(study: Study, cells: Sequence[Cell], scale: str, cluster: Cluster, root: Path) -> Plan:
    """Check the cells' data and say what is left to do. Writes nothing.

    Raises:
        InvalidFile: a data file or tokenizer is missing or wrong, where the study names it.
        UserError: a run's data has changed since it was planned.
    """
    checks = _check_data(study, cells)
    made = provenance.provenance(study.path.resolve().parent)
    records = [_record(study, cell, scale, cluster, made, *checks[cell.config.data]) for cell in cells]
    return Plan(study, scale, cluster, root, [(record, _known(root, record)) for record in records])


def refreshed(plan: Plan) -> Plan:
    """The plan with where its runs stand now."""
    return dataclasses.replace(plan, runs=[(run, _known(plan.root, run)) for run, _ in plan.runs])


def _check_data(study: Study, cells: Sequence[Cell]) -> dict[DataConfig, tuple[Source, str]]:
    """The file and fingerprint of each way in which the cells read data, each checked once."""
    problems: list[Problem] = []
    checks: dict[DataConfig, tuple[Source, str]] = {}
    for cell in {(cell.config.data, cell.config.model.vocab_size): cell for cell in cells}.values():
        data, here = cell.config.data, study.document.mark(("base",))
        source = Source.of(data, study.path.parent)
        try:
            checks[data] = source, fingerprint(source, data.text_column)
        except UserError as error:
            setting = (
                "data.text_column"
                if "column" in str(error) and "data.text_column" in cell.marks
                else "data.path"
            )
            problems.append(Problem(cell.marks.get(setting, here), str(error)))
        try:
            check_vocabulary(cell.config, load_tokenizer(source.tokenizer))
        except UserError as error:
            problems.append(Problem(cell.marks.get("data.tokenizer", here), str(error)))
    if problems:
        raise InvalidFile(problems)
    return checks


def _known(root: Path, record: RunRecord) -> RunState | None:
    folder = RunFolder(root / record.study / record.run_id)
    if not (folder.path / "run.json").exists():
        return None
    state = ledger.state(folder)
    if state.run.data_fingerprint != record.data_fingerprint:
        changed = f"{record.data_file} has changed since run {record.run_id} was planned"
        raise UserError(f"{changed}: give the study another name, or remove {folder.path}")
    return state


def _record(
    study: Study, cell: Cell, scale: str, cluster: Cluster, made: Provenance, source: Source, check: str
) -> RunRecord:
    profile = cluster.profile.allowing(cell.resources)
    return RunRecord(
        run_id=cell.run_id,
        group=cell.group,
        study=study.name,
        study_file=str(study.path),
        title=study.file.title,
        description=study.file.description,
        factors=cell.factors,
        config=cell.config,
        expected_outcome=cell.expected,
        because=cell.because,
        why=list(cell.why),
        scale=scale,
        profile=cluster.name,
        memory_bytes=profile.memory_bytes,
        time_limit_seconds=profile.time_limit_seconds,
        cpus=profile.cpus,
        checkpoint_seconds=profile.checkpoint_seconds,
        grace_seconds=profile.grace_seconds,
        requeue=profile.requeue and profile.executor == "slurm",
        peak_flops_override=profile.peak_tflops * 1e12 if profile.peak_tflops else None,
        data_file=str(source.file),
        tokenizer=source.tokenizer,
        data_fingerprint=check,
        provenance=made,
        created_at=now(),
    )


def rehearsal(plan: Plan) -> Plan:
    """The plan's cells for two steps each, as a separate study: what would fail fails now.

    Two steps, because the optimizer's states are first used at the second.
    """
    study = dataclasses.replace(plan.study, name=f"{plan.study.name}.rehearsal")
    cluster = dataclasses.replace(plan.cluster, profile=plan.cluster.profile.rehearsal)
    short = {"steps": 2, "log_every": 1}
    profile, limit = cluster.profile, {}
    if profile.time_limit != plan.cluster.profile.time_limit:
        limit = {"time_limit_seconds": profile.time_limit_seconds, "grace_seconds": profile.grace_seconds}
    runs = []
    for run, _ in plan.runs:
        train = run.config.train.model_copy(update=short)
        config = run.config.model_copy(update={"train": train})
        runs.append(run.model_copy(update={"study": study.name, "config": config, "requeue": False, **limit}))
    known = [(run, _known(plan.root, run)) for run in runs]
    return Plan(study, plan.scale, cluster, plan.root, known, again=True)


def planned_again(root: Path, states: Sequence[RunState], cluster: Cluster) -> Plan:
    """A plan of runs that have ended, as they were planned, whatever their study says by now.

    Raises:
        InvalidFile: the study's file, which holds its budget, cannot be read.
    """
    first = states[0].run
    study = read_study(Path(first.study_file))
    named = dataclasses.replace(study, name=first.study)
    return Plan(named, first.scale, cluster, root, [(state.run, state) for state in states], again=True)
