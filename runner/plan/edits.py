"""What became of a study since its last launch: runs that it no longer has, and another file of its name.

A run belongs to its study as long as the study gives it: at any scale, with the `--set` that the run was made
with, whatever part of the study is launched. Its repeat counts too, except where `until` added it: results
that were looked at stay.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from model.record.config import RunConfig
from model.record.errors import UserError
from model.record.files import Unreadable, write
from model.record.folder import STUDY, RunFolder, folders, study_record
from model.record.imported import PREFIX
from model.record.records import RunRecord, StudyRecord
from model.record.units import counted
from runner.inputs.cells import Cell
from runner.inputs.document import InvalidFile, Problem
from runner.inputs.expansion import BY_SET, expand
from runner.inputs.settings import flatten
from runner.inputs.study import Study, read_study
from runner.state.runs import warn_once

_MOST_NAMED = 3  # of what a run has that its study no longer gives


def record(
    study: Study, root: Path, scale: str, cells: Sequence[Cell], sets: Sequence[str] = ()
) -> StudyRecord:
    """What a launch leaves of a study: its file, the `--set` of all launches, and what it no longer has.

    Runs that it no longer has come with what differs: what they have that the study gives no run.

    Args:
        cells: what is launched, at this scale and with these `--set`; it may be a part of the study.
    """
    before = study_record(root, study.name)
    options = [*(before.sets if before else ()), *([sorted(sets)] if sets else [])]
    left = {run.run_id: run for run in _others(root, study.name, {cell.run_id for cell in cells})}
    options += [
        given for run in left.values() if (given := sorted(_sets(run)))
    ]  # of versions that kept no list
    options = [list(given) for given in dict.fromkeys(map(tuple, options))]
    gone = _removed(study, scale, left, options) if left else {}
    file = str(study.path.resolve())
    return StudyRecord(study=study.name, file=file, sets=options, removed=gone)


def _removed(
    study: Study, scale: str, left: dict[str, RunRecord], options: Sequence[Sequence[str]]
) -> dict[str, str]:
    """Those of these runs that the study does not give, by id, each with what differs; empties `left`."""
    now: dict[str, Sequence[Cell]] = {}  # by scale
    unknown = set[str]()
    theirs = dict.fromkeys(run.scale for run in left.values())
    for name in dict.fromkeys([scale, *theirs, *study.scale_names]):
        if left and name in study.scale_names:
            try:
                now[name] = expand(study, name, repeats=_repeats(study, name, left.values()))
            except UserError as error:
                unknown |= {run_id for run_id, run in left.items() if run.scale == name}
                if name in theirs:
                    warn_once(f"cannot tell which runs of scale {name} the study still has: {error}")
            _strike(left, now.get(name, ()))
    for name, given in itertools.product(now, options):
        if left:
            with suppress(UserError):  # the study no longer takes this --set
                _strike(left, expand(study, name, given, repeats=_repeats(study, name, left.values())))
    values = {name: _values(cells) for name, cells in now.items()}
    return {run_id: _differs(run, values) for run_id, run in left.items() if run_id not in unknown}


def _others(root: Path, study: str, launched: set[str]) -> Iterator[RunRecord]:
    """Runs on disk that are not launched."""
    for name in folders(root / study):
        if name not in launched and not name.startswith(PREFIX):
            try:
                yield RunFolder(root / study / name).run
            except Unreadable:  # a collect puts it in quarantine
                continue


def _repeats(study: Study, scale: str, runs: Iterable[RunRecord]) -> int:
    """How many repeats of a cell belong to the study: its own, and those of `until`, also added ones."""
    design = study.design(scale)
    looked_at = [run.repeat for run in runs if run.design and run.design.until]
    return max([design.repeats, design.until.at_most if design.until else 1, *looked_at])


def _strike(left: dict[str, RunRecord], cells: Iterable[Cell]) -> None:
    for cell in cells:
        left.pop(cell.run_id, None)


def changed_by_set(run: RunRecord) -> list[str]:
    """The settings of a run that `--set` gave another value than the study's own."""
    return [name for name, change in (run.overridden or {}).items() if change.by == BY_SET]


def _sets(run: RunRecord) -> tuple[str, ...]:
    """The `--set` options that made a run, of those that changed a value of the study's own."""
    settings = _settings(run.config)
    return tuple(f"{name}={json.dumps(settings[name])}" for name in changed_by_set(run))


def _settings(config: RunConfig) -> dict[str, Any]:
    return {dotted: value for dotted, value, _ in flatten(config.model_dump(mode="json"), ())}


def _values(cells: Iterable[Cell]) -> dict[str, set[Any]]:
    """Every value that some cell has, by setting."""
    values: dict[str, set[Any]] = {}
    seeds = {cell.config.seed for cell in cells}
    for cell in {cell.group: cell for cell in cells}.values():
        for dotted, value in _settings(cell.config).items():
            values.setdefault(dotted, set()).add(json.dumps(value))
    return values | {"seed": {json.dumps(seed) for seed in seeds}}


def _differs(run: RunRecord, values: Mapping[str, Mapping[str, set[Any]]]) -> str:
    """What a run has that its study no longer gives any: settings, a scale, a repeat, or a combination."""
    if (now := values.get(run.scale)) is None:
        return f"scale={run.scale}"
    settings, given = _settings(run.config), [text.partition("=")[0] for text in _sets(run)]
    apart = [name for name, value in settings.items() if json.dumps(value) not in now.get(name, ())]
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


def describe_removed(study: str, gone: Mapping[str, str], runner: str = "runner") -> str:
    """How many runs a study no longer has, what these have that it does not, and how to see them."""
    differences = Counter(gone.values()).most_common(_MOST_NAMED + 1)
    kinds = [f"{count} with {difference}" for difference, count in differences[:_MOST_NAMED]]
    more = ", ..." if len(differences) > _MOST_NAMED else ""
    such = f"such as {study}/{min(gone, key=lambda run: (gone[run] != differences[0][0], run))}"
    return (
        f"{counted(len(gone), 'run')} on disk no longer belong{'s' * (len(gone) == 1)} to study {study}: "
        f"{', '.join(kinds)}{more} ({such}); reports leave "
        f"{'it' if len(gone) == 1 else 'them'} out unless asked with `{runner} report {study} --removed`"
    )


def refuse_another_file(study: Study, root: Path) -> None:
    """Refuse a file that would join its runs with those of another file of the same name.

    A file that was moved, or a copy that says the same, goes on with the study.

    Raises:
        InvalidFile: at the name; the text names both files.
    """
    before = _file(root, study.name)
    if before is None or not before.is_file():
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
    raise InvalidFile([Problem(study.document.mark(("name",)), text)])


def _file(root: Path, study: str) -> Path | None:
    """The file that a study was launched from; None if nobody knows."""
    if recorded := study_record(root, study):
        return Path(recorded.file)
    runs = [*_others(root, study, set())]  # of versions that kept it in each run alone
    newest = max(runs, key=lambda run: run.created_at, default=None)
    return Path(newest.launched_in, newest.study_file) if newest and newest.launched_in else None


def keep(record: StudyRecord, root: Path) -> None:
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
        raise UserError(f"{path}: {error.strerror}; choose another place with --root") from error
