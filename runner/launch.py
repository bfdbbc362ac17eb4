"""From cells to runs: plan them on disk, claim what is left to do, and hand it to the executor."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

from model.config import DataConfig
from model.data import Source, check_vocabulary, fingerprint, load_tokenizer
from model.errors import UserError
from model.record import Provenance, RunFolder, RunRecord, now, write
from runner import ledger
from runner.cluster import Cluster
from runner.errors import InvalidFile, Problem
from runner.ledger import RunState
from runner.matrix import Cell
from runner.study import Study, read_study
from runner.tasks import Task


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
    made = provenance(study.path.resolve().parent)
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
    profile = cluster.profile
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


@cache
def provenance(folder: Path) -> Provenance:
    """Commit and state of the repository that holds the study, and the command line."""
    commit = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "status", "--porcelain")
    return Provenance(
        git_sha=commit.strip() if commit else None,
        git_dirty=bool(changes.strip()) if changes is not None else None,
        command=["runner", *sys.argv[1:]],
        version=version("assay-studies"),
    )


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


def write_runs(plan: Plan) -> list[Task]:
    """Write run.json of every run that is left, and give their next attempts, not yet claimed.

    Raises:
        UserError: the root cannot be written.
    """
    left = plan.left
    for run, state in plan.runs:
        folder = plan.folder(run).path
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if state is None:
                write(folder / "run.json", run)
            elif run in left:
                write(folder / "run.json", run.model_copy(update={"created_at": state.run.created_at}))
            elif (state.run.expected_outcome, state.run.because) != (run.expected_outcome, run.because):
                changes = {"expected_outcome": run.expected_outcome, "because": run.because}
                write(folder / "run.json", state.run.model_copy(update=changes))
        except OSError as error:
            raise UserError(f"{folder}: {error.strerror}; choose another place with --root") from error
    return [_task(plan.folder(run), run) for run in left]


def _task(folder: RunFolder, run: RunRecord) -> Task:
    number = max(folder.attempts(), default=0) + 1
    return Task(folder, number, label(run), run.config.train.steps)


def label(run: RunRecord) -> str:
    """A run for a person: the values of its factors."""
    return (
        " ".join(
            f"{value}" if axis == "attention" else f"{axis}={value}" for axis, value in run.factors.items()
        )
        or run.run_id
    )


def rehearsal(plan: Plan, cluster: Cluster) -> Plan:
    """The plan's cells for two steps each, under a study name of their own: what would fail fails now.

    Two, because the optimizer's states are first there at the second.
    """
    study = dataclasses.replace(plan.study, name=f"{plan.study.name}.rehearsal")
    short = {"steps": 2, "log_every": 1}
    runs = []
    for run, _ in plan.runs:
        train = run.config.train.model_copy(update=short)
        changes = {
            "study": study.name,
            "config": run.config.model_copy(update={"train": train}),
            "requeue": False,
        }
        runs.append(run.model_copy(update=changes))
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


def submit(plan: Plan, tasks: Sequence[Task], exclude: Sequence[str] = ()) -> int:
    """Claim tasks and submit them to Slurm; how many were submitted.

    Args:
        exclude: nodes that they must not run on.

    Raises:
        SchedulerError: sbatch refused.
    """
    from runner import slurm

    return slurm.submit(tasks, plan.cluster.profile, jobs_folder(plan), plan.study.name, exclude)


def jobs_folder(plan: Plan) -> Path:
    """Where submitit keeps its files."""
    return plan.root / plan.study.name / ".submitit"
