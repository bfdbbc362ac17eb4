"""Plans: a study's runs under a root, and which of them are still to do. Writes nothing."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from model.record.config import SECTIONS, ParallelConfig, RunConfig
from model.record.errors import UserError
from model.record.files import Unreadable
from model.record.folder import RunFolder, folders, study_record
from model.record.imported import PREFIX
from model.record.records import Outcome, RunRecord, StudyRecord, now
from model.record.text import Source
from runner.inputs.cells import Cell
from runner.inputs.document import InvalidFile, Problem
from runner.inputs.profile import Cluster, Profile, Resources, profile_files, read_cluster
from runner.inputs.study import Study, read_study
from runner.plan import edits
from runner.plan.data import checked_sources
from runner.plan.layout import layout, refused
from runner.plan.order import Planned, placed
from runner.state import guard, ledger
from runner.state.code import provenance
from runner.state.ledger import RunState

REHEARSAL = ".rehearsal"  # ends the name of a rehearsal's study


@dataclass(frozen=True)
class Plan:
    """A study's runs under one root, each with its status; None for a run that is not on disk yet."""

    study: Study
    scale: str
    cluster: Cluster
    root: Path
    runs: list[Planned]
    again: bool = False  # also restart runs that are done
    once: bool = False  # restart none that another launch has restarted since the plan was made
    changes: Mapping[str, int] = field(default_factory=dict)  # axes of `parallel` in which restarts differ
    record: StudyRecord | None = None  # what the launch of a study leaves of it; None of other plans

    @property
    def left(self) -> list[RunRecord]:
        """Runs to start: neither done nor in flight."""
        return [run for run, state in self.runs if state is None or self._to_do(state)]

    def _to_do(self, state: RunState) -> bool:
        return not state.in_flight and (self.again or not state.done)

    def parallel(self, run: RunRecord) -> ParallelConfig | None:
        """The processes of a run's next attempt, if they differ from its own."""
        if not self.changes:
            return None
        changed = run.config.parallel.on(self.changes)
        return None if changed == run.config.parallel else changed

    def folder(self, run: RunRecord) -> RunFolder:
        """A run's folder, whether or not it exists."""
        return RunFolder(self.root / run.study / run.run_id)


def plan(
    study: Study,
    cells: Sequence[Cell],
    scale: str,
    cluster: Cluster,
    root: Path,
    sets: Sequence[str] = (),
) -> Plan:
    """Check the cells' data and look up the status of their runs. Writes nothing.

    Args:
        sets: the `--set` options that the cells were made with.

    Raises:
        InvalidFile: a data file or tokenizer is missing or wrong, or has too little text; at its setting; or
            the study's folder holds runs of another task, or of another file; or the profile cannot give a
            run its processes.
        UserError: a run's data has changed since it was planned, or the study holds imported logs.
    """
    if problems := refused(cells, cluster):
        raise InvalidFile(problems)
    _refuse_logs(study.name, root)
    edits.refuse_another_file(study, root)
    _refuse_another_task(cells, root, study.name)
    sources = checked_sources(study, cells, root)
    made = provenance.provenance(study.path.resolve().parent)
    common = {
        "study": study.name,
        "study_file": str(study.path),
        "launched_in": str(Path.cwd()),
        "title": study.file.title,
        "description": study.file.description,
        "profile": cluster.name,
        "profile_file": str(cluster.file),
        "scale": scale,
        "scale_description": study.scale(scale)[0].description,
        "design": study.design(scale).record(study.name),
        "provenance": made,
    }
    texts = {data: _planned_with(*found) for data, found in sources.items()}
    limits = cache(lambda resources: _limits(cluster.profile, resources))
    records = [
        _record(cell, {**common, **texts[cell.config.data], **limits(cell.resources)}) for cell in cells
    ]
    there = {*folders(root / study.name)}  # one look at the folder, not one for each run
    runs: list[Planned] = [(run, _known(root, run) if run.run_id in there else None) for run in records]
    left = edits.record(study, root, scale, cells, sets)
    return Plan(study, scale, cluster, root, placed(runs, root, study.name), record=left)


def _refuse_logs(study: str, root: Path) -> None:
    """Refuse a study that holds imported runs: they would look like runs of this study."""
    if logs := [name for name in folders(root / study) if name.startswith(PREFIX)]:
        raise UserError(
            f"study '{study}' under {root} holds {len(logs)} imported logs, which cannot be run: "
            "give the study another `name:`, or use another --root"
        )


def _refuse_another_task(cells: Sequence[Cell], root: Path, study: str) -> None:
    """Refuse a study with runs of another task: no page may rank the old runs with the new."""
    for name in folders(root / study) if cells else ():
        task, place = cells[0].config.task, cells[0].marks.get("task", cells[0].origin)
        try:
            before = RunFolder(root / study / name).run.config.task
        except Unreadable:  # others tell its owner
            continue
        if before != task:
            text = f"study '{study}' under {root} has runs of task {before}, and one study has one task"
            advice = "give this one another `name:`, or use another --root"
            raise InvalidFile([Problem(place, f"{text}: {advice}")])
        return


def refreshed(plan: Plan) -> Plan:
    """The plan with the current status of its runs, without those that `once` leaves out.

    Runs that somebody has cancelled since are left out too: a launch that waited must not undo that.
    """
    now = [(run, before, _known(plan.root, run)) for run, before in plan.runs]
    kept = [
        (run, state)
        for run, before, state in now
        if not (_cancelled(before, state) or (plan.once and _restarted(before, state)))
    ]
    return dataclasses.replace(plan, runs=kept)


def _cancelled(before: RunState | None, now: RunState | None) -> bool:
    if now is None or now.in_flight or now.outcome is not Outcome.CANCELLED:
        return False
    return before is None or before.outcome is not Outcome.CANCELLED or now.highest > before.highest


def _restarted(before: RunState | None, now: RunState | None) -> bool:
    return bool(before and now and now.highest > before.highest)


def _known(root: Path, record: RunRecord) -> RunState | None:
    folder = RunFolder(root / record.study / record.run_id)
    if not (folder.path / "run.json").exists():
        return None
    state = ledger.state(folder)
    if not _same_data(record, state.run.data_fingerprint):
        changed = f"{record.data_file} has changed since run {record.run_id} was planned"
        raise UserError(f"{changed}: rename the study, or remove {folder.path}")
    return state


def _same_data(record: RunRecord, planned: str | None) -> bool:
    return planned == record.data_fingerprint or bool(record.source and record.source.has(planned))


def _planned_with(source: Source | None, fingerprint: str | None) -> dict[str, Any]:
    """What a run's record says of its text."""
    return {
        "data_file": source and str(source.file),
        "tokenizer": source and source.tokenizer,
        "data_fingerprint": fingerprint,
        "data_content": source and source.content,
    }


def _limits(profile: Profile, resources: Resources) -> dict[str, Any]:
    """What a run's record says of the resources that it may use: those of a rule, else the profile's."""
    profile = profile.allowing(resources)
    return {
        "memory_bytes": profile.memory_bytes,
        "memory_source": "`memory` in a rule of the study" if resources.memory else None,
        "time_limit_seconds": profile.time_limit_seconds,
        "cpus": profile.cpus,
        "checkpoint_seconds": profile.checkpoint_seconds,
        "grace_seconds": profile.grace_seconds,
        "requeue": profile.chain and profile.executor == "slurm",
        "peak_flops_override": profile.peak_tflops * 1e12 if profile.peak_tflops else None,
    }


def _record(cell: Cell, shared: dict[str, Any]) -> RunRecord:
    """A cell's record; other cells share the rest of it."""
    requeue = shared["requeue"] and cell.config.task == "training"
    own = shared | {"requeue": requeue, "created_at": now()}
    return RunRecord(
        run_id=cell.run_id,
        group=cell.group,
        repeat=cell.repeat,
        position=cell.position,
        block=cell.block,
        overridden=cell.overridden,
        factors=cell.factors,
        config=cell.config,
        expected_outcome=cell.expected,
        because=cell.because,
        label=cell.label,
        why=list(cell.why),
        **own,
    )


def rehearsal(plan: Plan) -> Plan:
    """The plan's cells, each once and shortened, as a separate study, to catch failures early.

    The runs have their own ids: a run's id names it in every command.
    """
    study = dataclasses.replace(plan.study, name=plan.study.name + REHEARSAL)
    cluster = dataclasses.replace(plan.cluster, profile=plan.cluster.profile.rehearsal)
    profile, limit = cluster.profile, {}
    if profile.time_limit != plan.cluster.profile.time_limit:
        limit = {"time_limit_seconds": profile.time_limit_seconds, "grace_seconds": profile.grace_seconds}
    runs = []
    firsts = dict[RunConfig, RunRecord]()
    for run, _ in plan.runs:
        firsts.setdefault(run.config, run)
    for run in firsts.values():
        section = {SECTIONS[run.config.task][0]: run.config.section.rehearsed()}
        config = run.config.model_copy(update=section)
        ids = {name: _rehearsed(run.study, getattr(run, name)) for name in ("run_id", "group")}
        short_run = {"study": study.name, "config": config, "requeue": False, **ids, **limit}
        runs.append(run.model_copy(update=short_run))
    known = [(run, _known(plan.root, run)) for run in runs]
    return Plan(study, plan.scale, cluster, plan.root, known, again=True)


def _rehearsed(study: str, identity: str) -> str:
    return hashlib.sha256(f"rehearsal of {study}/{identity}".encode()).hexdigest()[:12]


def planned_again(
    root: Path, states: Sequence[RunState], cluster: Cluster, changes: Mapping[str, int] | None = None
) -> Plan:
    """A plan that restarts ended runs as originally planned, even if their study has changed.

    Args:
        changes: axes of `parallel` in which the restarted attempts differ; the runs stay as they are.

    Raises:
        UserError: the study's file, which defines its budget, cannot be read; or the runs cannot
            be shared evenly by these processes, or the profile cannot give them.
    """
    first = states[0].run
    latest = study_record(root, first.study)
    try:
        study = read_study(Path(latest.file if latest else Path(first.launched_in or "", first.study_file)))
    except UserError as error:
        advice = "put it back to restart them"
        raise UserError(f"{error}\nruns of {first.study} were launched from it: {advice}") from error
    named = dataclasses.replace(study, name=first.study)
    runs: list[Planned] = [(_under(state.run, cluster), state) for state in states]
    again = Plan(named, first.scale, cluster, root, runs, again=True, once=True, changes=changes or {})
    for run, _ in runs if changes else ():
        _refuse_processes(run, changes or {}, cluster)
    return again


_TRIED = 512  # numbers of processes that a suggestion is looked for among: each validates a run anew


def _refuse_processes(run: RunRecord, changes: Mapping[str, int], cluster: Cluster) -> None:
    """Raise UserError if a run cannot be restarted on these processes."""
    if run.config.task != "training":
        raise UserError(f"run {run.run_id}: task {run.config.task} has no `parallel`")
    try:
        layout(cluster.profile, _processes(run, changes))
    except ValidationError as error:
        # What would do for its other settings is of no use: a restart keeps them.
        why, _, _ = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ").partition(": ")
        raise UserError(f"run {run.run_id}: {why}{_instead(run, changes, cluster)}") from error


def _processes(run: RunRecord, changes: Mapping[str, int]) -> int:
    """How many a run has with these axes changed. Raises ValidationError if they cannot share it."""
    return run.on(run.config.parallel.on(changes)).config.processes


def _instead(run: RunRecord, changes: Mapping[str, int], cluster: Cluster) -> str:
    """Values that would do, the nearest below and above that were tried, if one axis is changed."""
    if len(changes) != 1:
        return ""
    ((axis, value),) = changes.items()

    def fits(number: int) -> bool:
        try:
            return bool(layout(cluster.profile, _processes(run, {axis: number})))
        except (ValidationError, UserError):
            return False

    sides = (range(min(value - 1, _TRIED), 0, -1), range(value + 1, value + _TRIED // 8))
    found = [next(filter(fits, side), None) for side in sides]
    numbers = " or ".join(str(number) for number in found if number)
    return f": {numbers} would do for parallel.{axis}" if numbers else ""


def _under(run: RunRecord, cluster: Cluster) -> RunRecord:
    """The run with this profile's name and file, if its record has them: older code rejects new keys."""
    now = {"profile": cluster.name, "profile_file": str(cluster.file)}
    return run.model_copy(update={key: now[key] for key in now.keys() & run.model_fields_set})


def cluster_of(run: RunRecord) -> Cluster:
    """The profile that a run was launched with, as it is today; older records have its name only.

    Raises:
        UserError: there is no such profile any more, or it is another user's. Its lines run as this user, and
            others may have put another record in the run's place, which names a profile of theirs.
    """
    try:
        cluster = read_cluster(run.profile_file or run.profile)
        file = cluster.file
        if file not in profile_files().values() and (owner := guard.belongs_to_others(file)):
            raise UserError(f"{file} belongs to {owner}, and its settings would run as you")
    except UserError as error:
        launched = f"{run.study}/{run.run_id} was launched with it"
        raise UserError(f"{error}\n{launched}: choose a profile with --profile") from error
    return cluster
