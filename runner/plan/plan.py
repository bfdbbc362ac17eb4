"""Plans: a study's runs under a root, which of them are still to do, and their folders on disk."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from model.record.config import ParallelConfig, RunConfig
from model.record.errors import UserError
from model.record.files import Unreadable, write_text
from model.record.folder import RunFolder, folders, run_folders, study_record
from model.record.imported import PREFIX
from model.record.outcome import Outcome
from model.record.records import RunRecord, StudyRecord, now
from runner.inputs.cells import Cell
from runner.inputs.checks import reported_elsewhere
from runner.inputs.document import InvalidFile
from runner.inputs.profile import Cluster, Resources, profile_files, read_cluster
from runner.inputs.study import Study, read_study
from runner.job import tasks
from runner.plan import edits
from runner.plan.data import checked_sources
from runner.plan.layout import process_problems, refuse_processes
from runner.state import guard, ledger
from runner.state.attempts import JobShape, NextAttempt, label
from runner.state.code import provenance
from runner.state.filesystem import not_writable
from runner.state.ledger import RunBrief, RunState, brief_of

REHEARSAL = ".rehearsal"  # ends the name of a rehearsal's study
PlannedRun = tuple[RunRecord, RunState | None]  # with its status; None for a run that is not on disk yet
# Fields of an already planned run that a study or profile may still change: its descriptions and limits.
_DESCRIPTIONS = (
    *(
        "expected_outcome",
        "also_expected",
        "because",
        "label",
        "reported",
        "reported_elsewhere",
        "title",
        "description",
        "scale_description",
    ),
    *("overridden", "factors", "why"),
)
_LIMITS = (
    *("profile", "profile_file", "memory_bytes", "memory_source", "time_limit_seconds", "cpus"),
    *("checkpoint_seconds", "grace_seconds", "chain"),
)


@dataclass(frozen=True)
class Plan:
    """A study's runs under one root, each with its status."""

    study: Study
    scale: str
    cluster: Cluster
    root: Path
    runs: list[PlannedRun]
    again: bool = False  # also restart runs that are done
    once: bool = False  # restart none that another launch has restarted since the plan was made
    changes: Mapping[str, int] = field(default_factory=dict)  # axes of `parallel` in which restarts differ
    record: StudyRecord | None = None  # what the launch of a study leaves of it; None of other plans
    later: Sequence[PlannedRun] = ()  # written to disk with the others, for other launches to start

    @property
    def left(self) -> list[RunRecord]:
        """Runs to start: neither done nor in flight."""
        return [
            run
            for run, state in self.runs
            if state is None or (not state.in_flight and (self.again or not state.done))
        ]

    @property
    def study_folder(self) -> Path:
        """The study's folder under the root, whether or not it exists."""
        return self.root / self.study.name

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
    if problems := process_problems(cells, cluster):
        raise InvalidFile(problems)
    if logs := [name for name in folders(root / study.name) if name.startswith(PREFIX)]:
        raise UserError(  # they would look like runs of this study
            f"study '{study.name}' under {root} holds {len(logs)} imported logs, which cannot be run: "
            "give the study another `name:`, or use another --root"
        )
    edits.refuse_another_file(study, root)
    _refuse_another_task(cells, root, study.name)
    sources = checked_sources(study, cells, root)
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
        "reported_elsewhere": reported_elsewhere(study, scale),
        "design": study.design(scale).record(study.name),
        "provenance": provenance.provenance(study.path.resolve().parent),
    }
    texts = {
        data: {
            "data_file": source and str(source.file),
            "tokenizer": source and source.tokenizer,
            "data_fingerprint": fingerprint,
            "data_content": source and source.content,
        }
        for data, (source, fingerprint) in sources.items()
    }

    @cache
    def limits(resources: Resources) -> dict[str, Any]:
        """A run record's fields for the resources that it may use: those of a rule, else the profile's."""
        profile = cluster.profile.model_copy(update=resources.model_dump(exclude_none=True))
        return {
            "memory_bytes": profile.memory_bytes,
            "memory_source": "`memory` in a rule of the study" if resources.memory else None,
            "time_limit_seconds": profile.time_limit_seconds,
            "cpus": profile.cpus,
            "checkpoint_seconds": profile.checkpoint_seconds,
            "grace_seconds": profile.grace_seconds,
            "chain": profile.chain and profile.executor == "slurm",
            "peak_flops_override": profile.peak_tflops * 1e12 if profile.peak_tflops else None,
        }

    on_disk = {*folders(root / study.name)}  # one look at the folder, not one for each run
    runs = list[PlannedRun]()
    for cell in cells:
        shared = {**common, **texts[cell.config.data], **limits(cell.resources)}
        shared["chain"] = shared["chain"] and tasks.load(cell.config.task).resumes
        run = RunRecord(
            run_id=cell.run_id,
            group=cell.group,
            repeat=cell.repeat,
            position=cell.position,
            block=cell.block,
            overridden=cell.overridden,
            factors=cell.factors,
            config=cell.config,
            expected_outcome=cell.expected[0],
            also_expected=cell.expected[1:],
            because=cell.because,
            label=cell.label,
            reported=list(cell.reported),
            why=list(cell.why),
            created_at=now(),
            **shared,
        )
        runs.append((run, _state(root, run) if run.run_id in on_disk else None))
    record = edits.launch_record(study, root, scale, cells, sets)
    return Plan(study, scale, cluster, root, _placed(runs, root, study.name), record=record)


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
            raise InvalidFile.at(place, f"{text}: {advice}")
        return


def _state(root: Path, run: RunRecord) -> RunState | None:
    """The status of a run; None if it is not on disk.

    Raises:
        UserError: a file of it cannot be read, or its data has changed.
    """
    folder = RunFolder(root / run.study / run.run_id)
    if not (folder.path / "run.json").exists():
        return None
    try:
        state = ledger.state(folder)
        fingerprint = state.run.data_fingerprint
    except Unreadable as error:
        raise UserError(f"{error}; restore that file, or remove {folder.path} to run it anew") from error
    if fingerprint != run.data_fingerprint:
        changed = f"{run.data_file} has changed since run {run.run_id} was planned"
        raise UserError(f"{changed}: rename the study, or remove {folder.path}")
    return state


def _placed(runs: list[PlannedRun], root: Path, study: str) -> list[PlannedRun]:
    """The runs with their places: earlier ones keep theirs, and new ones come after all of them.

    A block therefore holds runs that were planned together. A run that was planned without a place gets one
    only if it starts again.
    """
    places = {
        run.run_id: {"position": state.run.position, "block": state.run.block}
        for run, state in runs
        if state and state.run.position is not None
    }
    new = sorted((run for run, _ in runs if run.run_id not in places), key=lambda run: run.position or 0)
    briefs = list[RunBrief]()
    for folder in run_folders(root, study) if new else ():
        with suppress(Unreadable):  # who reads the runs themselves says so
            briefs.append(brief_of(folder))
    first = 1 + max((brief.position or 0 for brief in briefs), default=0)
    first_block = 1 + max((brief.block or 0 for brief in briefs), default=0)
    blocks = {
        block: n for n, block in enumerate(sorted({run.block for run in new if run.block}), first_block)
    }
    for n, run in enumerate(new):
        places[run.run_id] = {"position": first + n, "block": run.block and blocks[run.block]}
    return [(run.model_copy(update=places[run.run_id]), state) for run, state in runs]


def refreshed(plan: Plan) -> Plan:
    """The plan with the current status of its runs, without those that `once` leaves out.

    Runs that somebody has cancelled since are left out too: a launch that waited must not undo that.
    """
    runs = list[PlannedRun]()
    for run, before in plan.runs:
        state = _state(plan.root, run)
        restarted = bool(before and state and state.highest > before.highest)
        cancelled = state and not state.in_flight and state.outcome is Outcome.CANCELLED
        cancelled_since = cancelled and (
            before is None or before.outcome is not Outcome.CANCELLED or restarted
        )
        if not cancelled_since and not (plan.once and restarted):
            runs.append((run, state))
    later = [(run, _state(plan.root, run)) for run, _ in plan.later]
    return dataclasses.replace(plan, runs=runs, later=later)


def rehearsal(plan: Plan) -> Plan:
    """The plan's cells, each once and shortened, as a separate study, to catch failures early.

    The runs have their own ids: a run's id names it in every command.
    """
    study = dataclasses.replace(plan.study, name=plan.study.name + REHEARSAL)
    cluster = dataclasses.replace(plan.cluster, profile=plan.cluster.profile.rehearsal)
    profile, limit = cluster.profile, {}
    if profile.time_limit != plan.cluster.profile.time_limit:
        limit = {"time_limit_seconds": profile.time_limit_seconds, "grace_seconds": profile.grace_seconds}
    firsts = dict[RunConfig, RunRecord]()
    for run, _ in plan.runs:
        firsts.setdefault(run.config, run)
    runs = list[PlannedRun]()
    for run in firsts.values():
        section = {run.config.section.key: run.config.section.rehearsed()}
        ids = {
            name: derived_id(f"rehearsal of {run.study}/{text}")
            for name, text in (("run_id", run.run_id), ("group", run.group))
        }
        config = run.config.model_copy(update=section)
        short_run = {"study": study.name, "config": config, "chain": False, **ids, **limit}
        record = run.model_copy(update=short_run)
        runs.append((record, _state(plan.root, record)))
    return Plan(study, plan.scale, cluster, plan.root, runs, again=True)


def derived_id(text: str) -> str:
    """An id made of a text, for a run that is made of another one."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


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
    study = dataclasses.replace(study, name=first.study)
    profile = {"profile": cluster.name, "profile_file": str(cluster.file)}
    runs = list[PlannedRun]()
    for state in states:
        run = state.run  # only keys that its record has: the code that planned it may reject others
        update = {key: value for key, value in profile.items() if key in run.model_fields_set}
        runs.append((run.model_copy(update=update), state))
    for run, _ in runs if changes else ():
        refuse_processes(run, changes or {}, cluster)
    return Plan(study, first.scale, cluster, root, runs, again=True, once=True, changes=changes or {})


def cluster_of(run: RunRecord) -> Cluster:
    """The profile that a run was launched with, as it is today.

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


def common_cluster(states: Sequence[RunState], profile: str | None) -> Cluster:
    """The given profile, or else the one that the runs were launched with.

    Raises:
        UserError: they were launched with several, or with one that is gone.
    """
    if profile:
        return read_cluster(profile)
    clusters = {cluster.file: cluster for cluster in (cluster_of(state.run) for state in states)}
    if len(clusters) > 1:
        files = ", ".join(sorted(map(str, clusters)))
        raise UserError(
            f"these runs were launched with {len(clusters)} profiles: {files}; choose with --profile"
        )
    return next(iter(clusters.values()))


def write_runs(plan: Plan) -> list[NextAttempt]:
    """Write run.json where it is new or changed; return the next attempts of the runs to do, not yet claimed.

    They are in the order of starting.

    Raises:
        UserError: the root is not writable.
    """
    left = {run.run_id for run in plan.left}
    if left:
        provenance.keep(plan.study.path.resolve().parent, plan.study_folder)
    attempts = []
    for run, state in (*plan.runs, *plan.later):
        folder = plan.folder(run)
        record = run if state is None else _updated(run, state, run.run_id in left)
        try:
            if state is None or record != state.run:
                folder.path.mkdir(parents=True, exist_ok=True)
                # Only keys that the record has: the code that the run executes may reject others.
                text = record.model_dump_json(exclude_unset=True, indent=1)
                write_text(folder.path / "run.json", text + "\n", sync=False)
        except OSError as error:
            raise not_writable(folder.path, error.strerror) from error
        if run.run_id in left:
            attempts.append(next_attempt(folder, record, state, plan.parallel(run)))
    if plan.record:
        edits.keep_record(plan.record, plan.root)
    if attempts:
        ledger.flush(plan.root)
    return sorted(attempts, key=lambda attempt: attempt.position)


def _updated(run: RunRecord, state: RunState, starts: bool) -> RunRecord:
    """An already planned run: new if it starts without a checkpoint, else with some fields changed alone."""
    saved = any((attempt.path / "checkpoint").exists() for attempt in state.folder.attempts())
    if starts and not saved:
        return run.model_copy(update={"created_at": state.run.created_at})
    names = (*_DESCRIPTIONS, *(_LIMITS if starts else ()))
    changes = {name: getattr(run, name) for name in names if name in state.run.model_fields_set}
    new, before = run.design, state.run.design
    if new and before:
        # It keeps its margins: those stated after results prove nothing. If `until` was removed from the
        # study, its earlier looks at the results still count.
        design = {"baseline": new.baseline, "until": new.until or before.until}
        changes["design"] = before.model_copy(update=design)
    return state.run.model_copy(update=changes)


def next_attempt(
    folder: RunFolder, run: RunRecord, state: RunState | None, parallel: ParallelConfig | None = None
) -> NextAttempt:
    """The attempt after the last one in a run's status.

    Args:
        parallel: the attempt's processes in place of the run's own.
    """
    return NextAttempt(
        folder=folder,
        number=(state.highest if state else 0) + 1,
        label=label(run),
        steps=run.config.section.steps,
        shape=JobShape.of(run.on(parallel)),
        code=run.provenance.code,
        expected=run.expected,
        position=run.position or 0,
        parallel=parallel,
    )
