"""Writes imported runs into a workspace: once each, whole or not at all, whatever was imported before."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from analysis.logs.between import across
from analysis.logs.runs import Whole, with_findings
from analysis.logs.table import Refused
from model.record.errors import UserError, did_you_mean
from model.record.files import Unreadable, read_lines, temporary, write_text
from model.record.folder import RunFolder, folders
from model.record.imported import PREFIX, Imported, ImportedStep
from model.record.units import counted

Done = Literal["imported", "unchanged", "updated"]


@dataclass(frozen=True)
class Written:
    """A run of the study and what this import did with it."""

    whole: Whole
    done: Done


@dataclass(frozen=True)
class Design:
    """How the runs of an import are compared. What is empty stays as the import before stated it."""

    margins: dict[str, float]
    baseline: dict[str, str | int | float | bool] | None = None


def write(root: Path, study: str, new: Sequence[Whole], design: Design) -> list[Written]:
    """Write new runs beside those that were imported before, and bring the findings of all up to date.

    A run's id follows from the content of its log, so that importing it again changes nothing, unless the
    mapping says something else now.

    Raises:
        UserError: the study has runs of its own, no run is the baseline, or the root cannot be written to.
        Refused: a log continues one that was imported when it was shorter, or is an older copy of it.
    """
    folder = root / study
    if own := [name for name in folders(folder) if not name.startswith(PREFIX)]:
        raise UserError(
            f"study '{study}' has {counted(len(own), 'run')} of its own; choose another name for these logs"
        )
    old = {whole.run.run_id: whole for whole in imported(root, study)}
    for whole in new:
        _refuse_continued(whole, [each for each in old.values() if each.run.run_id != whole.run.run_id])
    both = old | {whole.run.run_id: _as_before(whole, old.get(whole.run.run_id)) for whole in new}
    stated = _stated(design, old.values())
    _check_baseline(design.baseline, list(both.values()))
    found = across(list(both.values()), stated["margins"].get("loss"))
    written = []
    for run_id, whole in both.items():
        final = with_findings(replace(whole, run=whole.run.model_copy(update=stated)), found[run_id])
        written.append(Written(final, _brought(folder / run_id, final, old.get(run_id))))
    return written


def imported(root: Path, study: str) -> list[Whole]:
    """The runs of a study that were imported before. Raises Unreadable."""
    names = [name for name in folders(root / study) if name.startswith(PREFIX)]
    return [_read(RunFolder(root / study / name)) for name in names]


def _read(folder: RunFolder) -> Whole:
    attempt = folder.attempt(1)
    if attempt.manifest is None or attempt.result is None:
        raise Unreadable(f"{attempt.path}: incomplete; remove {folder.path} and import its log again")
    steps = read_lines(attempt.path / "steps.jsonl", ImportedStep)
    return Whole(folder.imported, attempt.manifest, steps, attempt.result)


def _refuse_continued(whole: Whole, others: Sequence[Whole]) -> None:
    """Two states of one log would count as two runs."""
    mine = _losses(whole)
    for other in others:
        theirs = _losses(other)
        short = min(len(mine), len(theirs))
        if short > 1 and mine[:short] == theirs[:short] and len(mine) != len(theirs):
            which = "continues" if len(mine) > len(theirs) else "is an older state of"
            raise Refused(
                f"{whole.run.imported.file}: it {which} {other.run.study}/{other.run.run_id}, imported from "
                f"{other.run.imported.file} with {counted(len(theirs), 'record')}: remove its folder to "
                "replace it"
            )


def _losses(whole: Whole) -> list[tuple[object, ...]]:
    return [(step.step, step.time, step.loss, step.step_seconds) for step in whole.steps]


def _as_before(whole: Whole, old: Whole | None) -> Whole:
    """The run with the date, file and version of its first import, if the log is the same."""
    if old is None:
        return whole
    same = ("file", "imported_at", "version")
    kept: Imported = whole.run.imported.model_copy(
        update={name: getattr(old.run.imported, name) for name in same}
    )
    return replace(
        whole, run=whole.run.model_copy(update={"imported": kept, "created_at": old.run.created_at})
    )


def _stated(design: Design, old: Iterable[Whole]) -> dict[str, Any]:
    before = next(iter(old), None)
    margins = design.margins or (before.run.margins if before else {})
    return {"margins": margins, "baseline": design.baseline or (before.run.baseline if before else None)}


def _check_baseline(baseline: Mapping[str, Any] | None, runs: Sequence[Whole]) -> None:
    if not baseline or any(baseline.items() <= whole.run.factors.items() for whole in runs):
        return
    valid = sorted({f"{name}={value}" for whole in runs for name, value in whole.run.factors.items()})
    asked = ", ".join(f"{name}={value}" for name, value in baseline.items())
    raise UserError(f"--baseline {asked}: no run of this study matches {did_you_mean(asked, valid)}")


def _brought(folder: Path, whole: Whole, old: Whole | None) -> Done:
    """Write a run if it is new or differs from what is there."""
    if old and _texts(whole) == _texts(old):
        return "unchanged"
    try:
        if old is None:
            _publish(folder, whole)
            return "imported"
        _write(folder, whole)
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}; choose another place with --root") from error
    return "updated"


def _publish(folder: Path, whole: Whole) -> None:
    """Write a new folder under a temporary name, so that nobody reads a part of it."""
    aside = temporary(folder)
    aside.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(aside, ignore_errors=True)
    try:
        _write(aside, whole)
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _write(folder: Path, whole: Whole) -> None:
    (folder / "attempt-1").mkdir(parents=True, exist_ok=True)
    for name, text in _texts(whole).items():
        write_text(folder / name, text)


def _texts(whole: Whole) -> dict[str, str]:
    """The content of each file of a run's folder."""
    return {
        "attempt-1/manifest.json": whole.manifest.model_dump_json(indent=1) + "\n",
        "attempt-1/steps.jsonl": "".join(
            step.model_dump_json(exclude_none=True) + "\n" for step in whole.steps
        ),
        "attempt-1/result.json": whole.result.model_dump_json(indent=1) + "\n",
        "run.json": whole.run.model_dump_json(indent=1) + "\n",
    }
