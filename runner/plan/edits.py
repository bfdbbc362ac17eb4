"""What became of a study since its last launch: runs that it no longer has, and another file of its name.

A run belongs to its study as long as the study gives it: at any scale, with the `--set` that the run was made
with, whatever part of the study is launched. Its repeat counts too, except where `until` added it: results
that were looked at stay.
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from analysis.store import scan
from model.record.config import RunConfig
from model.record.errors import UserError
from model.record.files import Unreadable, write
from model.record.folder import STUDY, RunFolder, folders, study_record
from model.record.imported import PREFIX
from model.record.records import RunRecord, StudyRecord
from model.record.units import counted
from runner.inputs.cells import Cell
from runner.inputs.document import InvalidFile
from runner.inputs.expansion import BY_SET, expand
from runner.inputs.settings import flatten
from runner.inputs.study import Study, read_study
from runner.state.filesystem import not_writable
from runner.state.runs import warn_once

_MOST_NAMED = 3  # of what a run has that its study no longer gives


def launch_record(
    study: Study, root: Path, scale: str, cells: Sequence[Cell], sets: Sequence[str]
) -> StudyRecord:
    """The record of a launch: the study's file, the `--set` of all launches, and runs that it no longer has.

    These runs come with what differs: what they have that the study gives no run.

    Args:
        cells: what is launched, at this scale and with these `--set`; it may be a part of the study.
    """
    before, launched = study_record(root, study.name), {cell.run_id for cell in cells}
    others = [*_runs_besides(root, study.name, launched)]
    if scan.stat_reports(root, study.name):
        from analysis.store import reports

        others += [run for run in reports.planned(root, study.name) if run.run_id not in launched]
    # The last are of launches that were killed before they left a record.
    options = [*(before.sets if before else ()), sorted(sets), *(sorted(_sets(run)) for run in others)]
    options = [list(given) for given in dict.fromkeys(map(tuple, options)) if given]
    removed = _removed(study, scale, others, options) if others else {}
    return StudyRecord(study=study.name, file=str(study.path.resolve()), sets=options, removed=removed)


def _removed(
    study: Study, scale: str, runs: Sequence[RunRecord], options: Sequence[Sequence[str]]
) -> dict[str, str]:
    """The runs that the study does not give, by id, each with what differs."""
    left = {run.run_id: run for run in runs}
    unknown = set[str]()
    cells_by_scale: dict[str, Sequence[Cell]] = {}

    def strike(name: str, given: Sequence[str] = ()) -> Sequence[Cell]:
        """Leave out the runs that the study gives at a scale, with its repeats and those of `until`."""
        design = study.design(name)
        added = [run.repeat for run in left.values() if run.design and run.design.until]
        repeats = max([design.repeats, design.until.at_most if design.until else 1, *added])
        cells = expand(study, name, given, repeats=repeats)
        for cell in cells:
            left.pop(cell.run_id, None)
        return cells

    scales_of_runs = {run.scale: None for run in runs}
    for name in dict.fromkeys([scale, *scales_of_runs, *study.scale_names]):
        if left and name in study.scale_names:
            try:
                cells_by_scale[name] = strike(name)
            except UserError as error:
                unknown |= {run_id for run_id, run in left.items() if run.scale == name}
                if name in scales_of_runs:
                    warn_once(f"cannot tell which runs of scale {name} the study still has: {error}")
    for name, given in itertools.product(cells_by_scale, options):
        if left:
            with suppress(UserError):  # the study no longer takes this --set
                strike(name, given)
    # By scale, every value that some cell has, by setting.
    values: dict[str, dict[str, set[Any]]] = {}
    for name, cells in cells_by_scale.items():
        of_scale = values.setdefault(name, {})
        for cell in {cell.group: cell for cell in cells}.values():
            for dotted, value in _settings(cell.config).items():
                of_scale.setdefault(dotted, set()).add(json.dumps(value))
        of_scale["seed"] = {json.dumps(cell.config.seed) for cell in cells}
    return {run_id: _differs(run, values) for run_id, run in left.items() if run_id not in unknown}


def _runs_besides(root: Path, study: str, launched: Collection[str] = ()) -> Iterator[RunRecord]:
    """Runs on disk that are not launched."""
    for name in folders(root / study):
        if name not in launched and not name.startswith(PREFIX):
            try:
                yield RunFolder(root / study / name).run
            except Unreadable:  # a collect puts it in quarantine
                continue


def changed_by_set(run: RunRecord) -> list[str]:
    """The settings of a run that `--set` gave another value than the study's own."""
    return [name for name, change in run.overridden.items() if change.by == BY_SET]


def _sets(run: RunRecord) -> tuple[str, ...]:
    """The `--set` options that made a run, of those that changed a value of the study's own."""
    settings = _settings(run.config)
    return tuple(f"{name}={json.dumps(settings[name])}" for name in changed_by_set(run))


def _settings(config: RunConfig) -> dict[str, Any]:
    return {dotted: value for dotted, value, _ in flatten(config.model_dump(mode="json"), ())}


def _differs(run: RunRecord, values: Mapping[str, Mapping[str, set[Any]]]) -> str:
    """The settings, scale, repeat or combination that a run has and its study no longer gives any."""
    if (of_scale := values.get(run.scale)) is None:
        return f"scale={run.scale}"
    settings, given = _settings(run.config), [text.partition("=")[0] for text in _sets(run)]
    apart = [name for name, value in settings.items() if json.dumps(value) not in of_scale.get(name, ())]
    apart = [name for name in apart if name not in given] or apart
    ordered = sorted(apart, key=lambda name: name not in run.factors)
    words = [f"{name}={_text(settings[name])}" for name in ordered[:_MOST_NAMED]]
    if words:
        return ", ".join(words) + ", ..." * (len(ordered) > _MOST_NAMED)
    if run.repeat > 1:
        return f"repeat={run.repeat}"
    return ", ".join(f"{name}={_text(value)}" for name, value in run.factors.items()) or "other settings"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def describe_removed(study: str, gone: Mapping[str, str], runner: str) -> str:
    """How many runs a study no longer has, what these have that it does not, and how to see them.

    Args:
        runner: how a user types this program.
    """
    differences = Counter(gone.values()).most_common(_MOST_NAMED + 1)
    kinds = [f"{count} with {difference}" for difference, count in differences[:_MOST_NAMED]]
    more = ", ..." if len(differences) > _MOST_NAMED else ""
    such = f"such as {study}/{min(gone, key=lambda run: (gone[run] != differences[0][0], run))}"
    return (
        f"{counted(len(gone), 'run')} on disk no longer belong{'s' * (len(gone) == 1)} to study {study}: "
        f"{', '.join(kinds)}{more} ({such}); reports leave "
        f"{'it' if len(gone) == 1 else 'them'} out unless asked with `{runner} report {study} --removed`"
    )


def describe_outdated(study: Study, root: Path, runner: str) -> Iterator[str]:
    """What reports show as the runs recorded it, although the study's file says otherwise by now.

    Args:
        runner: how a user types this program.

    Raises:
        UserError: as `expand`.
    """
    runs = [run for run in _runs_besides(root, study.name) if "label" in run.model_fields_set]
    changed, margins_changed = dict[str, RunRecord](), False  # what differs, with the last run that shows it
    for scale in {run.scale: None for run in runs if run.scale in study.scale_names}:
        labels, design = {cell.group: cell.label for cell in expand(study, scale)}, study.design(scale)
        for run in (run for run in runs if run.scale == scale and run.group in labels):
            recorded_and_given: dict[str, tuple[object, object]] = {
                "title": (run.title, study.file.title),
                "description": (run.description, study.file.description),
                "labels": (run.label, labels[run.group]),
            }
            if run.design:
                recorded_and_given["baseline"] = (run.design.baseline, design.baseline)
                margins_changed = margins_changed or run.design.margins != design.margins.stated
            changed |= {name: run for name, (old, new) in recorded_and_given.items() if old != new}
    if changed:
        *_, run = changed.values()
        how = f"launch {shlex.quote(str(study.path))} --profile {run.profile} --scale {run.scale}"
        yield (
            f"{study.path}: {', '.join(changed)} changed since the launch, and the report shows what was "
            f"there then: `{runner} {how}` renews that, and starts what is not done (--dry-run shows what)"
        )
    if margins_changed:
        yield (
            f"{study.path}: margins changed since the launch, and the report judges by those of the launch: "
            "one that is chosen after the results proves nothing"
        )


def refuse_another_file(study: Study, root: Path) -> None:
    """Refuse a file that would join its runs with those of another file of the same name.

    A file that was moved, or a copy that says the same, goes on with the study.

    Raises:
        InvalidFile: at the name; the text names both files.
    """
    if recorded := study_record(root, study.name):
        before = Path(recorded.file)
    else:  # the launch was killed before it left a record
        newest = max(_runs_besides(root, study.name), key=lambda run: run.created_at, default=None)
        if newest is None or not newest.launched_in:
            return
        before = Path(newest.launched_in, newest.study_file)
    if not before.is_file():
        return
    if before.samefile(study.path) or before.read_bytes() == study.path.read_bytes():
        return
    with suppress(InvalidFile):
        if read_study(before).name != study.name:
            return
    text = (
        f"study '{study.name}' under {root} is that of {before}, which is another file with other content: "
        "the runs of both would mix; give this one another `name:`, or use another --root; "
        "if it takes the other's place, delete that one first"
    )
    raise InvalidFile.at(study.document.mark(("name",)), text)


def keep_record(record: StudyRecord, root: Path) -> None:
    """Write what a launch leaves of its study, if that is new.

    Raises:
        UserError: the study's folder cannot be written to.
    """
    path = root / record.study / STUDY
    try:
        if study_record(root, record.study) != record:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, record)
    except OSError as error:
        raise not_writable(path, error.strerror) from error
