"""Imported runs in the study that they go to: what they say about each other, and their folders.

Losses and FLOP per token that should be equal and are not are findings. Runs are written once each, whole or
not at all, whatever was imported before.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from analysis import wording
from analysis.importers._checks import HIGH, LOW, flop_unit
from analysis.importers._points import NumberRange
from analysis.importers._runs import RunRecords, with_findings
from analysis.importers._table import Refused
from analysis.stats import grouped
from analysis.stats.equivalence import LAST, losses
from analysis.stats.student import Mean, mean_of
from model.record.config import Scalar
from model.record.errors import UserError, did_you_mean
from model.record.files import Unreadable, dumps, read_lines, temporary, write_text
from model.record.folder import RunFolder, folders
from model.record.imported import PREFIX, Finding, ImportedStep
from model.record.units import counted

_Array = NDArray[Any]
_MUST_BE_EQUAL = ("attention", "seed")  # factors whose runs must reach the same loss
_WINDOWS = 10  # parts of a run in which a difference is located
_FEWEST = 4  # records in such a part
_CONFIDENCE = 0.99  # high, because there are several parts
_FEWEST_OTHERS = 3  # runs whose spread is an estimate
_OUTLIER = 0.01  # p below which a run is not of the others' kind


@dataclass(frozen=True)
class _LossTable:
    """The losses of runs side by side, and the training tokens by which their texts are recognised.

    Attributes:
        steps: (S) every step that some run logged.
        losses, tokens: (R, S), NaN where a run does not say.
    """

    runs: Sequence[RunRecords]
    steps: _Array
    losses: _Array
    tokens: _Array

    @classmethod
    def of(cls, runs: Sequence[RunRecords]) -> _LossTable:
        """Build the table of runs that logged some loss."""
        steps = sorted({step.step for log in runs for step in log.steps})
        place = {step: column for column, step in enumerate(steps)}
        losses, tokens = np.full((2, len(runs), len(steps)), np.nan)
        for row, log in enumerate(runs):
            for step in log.steps:
                losses[row, place[step.step]] = np.nan if step.loss is None else step.loss
                tokens[row, place[step.step]] = (
                    np.nan if step.training_tokens is None else step.training_tokens
                )
        return cls(runs, np.array(steps), losses, tokens)

    def others(self, row: int, among: Sequence[int]) -> list[int]:
        """Runs that can have read the same text in the same order, and went on for as long."""
        own = self.tokens[row]
        differ = ((self.tokens != own) & ~np.isnan(self.tokens) & ~np.isnan(own)).any(axis=1)
        last = np.where(np.isnan(self.losses), 0, self.steps).max(axis=1)
        short = last < (1 - LAST) * last[row]
        return [other for other in among if other != row and not differ[other] and not short[other]]

    def common(self, rows: Sequence[int]) -> _Array:
        """Columns of the steps whose loss all of these runs logged."""
        return np.flatnonzero(~np.isnan(self.losses[list(rows)]).any(axis=0))

    def counted(self, rows: Sequence[int]) -> bool:
        """Whether these runs count training tokens wherever they log a loss."""
        losses, tokens = self.losses[list(rows)], self.tokens[list(rows)]
        return not (np.isnan(tokens) & ~np.isnan(losses)).any()


def compare_runs(runs: Sequence[RunRecords], margin: float | None) -> dict[str, list[Finding]]:
    """Findings that compare the runs of a study, by run id.

    Args:
        margin: in nats per token; what losses may differ by, as it was stated in advance.
    """
    # Runs that differ by attention and seed alone should be equal. Those that differ by the names of their
    # logs can be anything, unless a margin says that they are equal.
    alike = _MUST_BE_EQUAL if margin is None else (*_MUST_BE_EQUAL, "log")

    def rest(log: RunRecords) -> str:
        factors = {axis: value for axis, value in log.run.factors.items() if axis not in alike}
        return dumps([factors, log.run.config])

    by_run: dict[str, list[Finding]] = {log.run.run_id: [] for log in runs}
    groups = grouped(sorted(runs, key=lambda run: run.run.run_id), rest).values()
    for group in (group for group in groups if len(group) > 1):
        for run_id, finding in [*_losses(group, margin), *_flop(group)]:
            marked = finding.model_copy(update={"evidence": finding.evidence | {"across": len(group)}})
            by_run[run_id].append(marked)
    return by_run


def _losses(group: Sequence[RunRecords], margin: float | None) -> Iterator[tuple[str, Finding]]:
    """Each run against the median of the others at each step, which one wrong run hardly moves.

    Runs that differ are then left out of what the others are compared with.
    """
    table = _LossTable.of([log for log in group if any(step.loss is not None for step in log.steps)])
    everyone = range(len(table.runs))
    first = [_against_others(table, row, everyone, margin) for row in everyone]
    sound = [row for row, finding in enumerate(first) if finding and finding.level != "error"]
    again = len(sound) not in (0, 1, len(first))
    for row, log in enumerate(table.runs):
        finding = _against_others(table, row, sound, margin) if again else first[row]
        alone = (
            f"{log.name}: its loss is compared with none of the {len(first) - 1} others: they share no "
            "step with it, ended long before it, or count different training tokens at the same steps: they "
            "read another text."
        )
        yield log.run.run_id, finding or Finding(check="loss", level="note", sentence=alone)


def _against_others(
    table: _LossTable, row: int, among: Sequence[int], margin: float | None
) -> Finding | None:
    """A run's loss against the others'; None if no other can be compared."""
    others = table.others(row, among)
    columns = table.common([row, *others])
    if not others or not columns.size:
        return None
    steps = [int(step) for step in table.steps[columns]]
    median = np.median(table.losses[others][:, columns], axis=0)
    own, rest = (
        dict(zip(steps, values.tolist(), strict=True)) for values in (table.losses[row, columns], median)
    )
    verdict = losses({0: own}, {0: rest}, margin)
    last = [column for column in columns if table.steps[column] > (1 - LAST) * steps[-1]]
    means = table.losses[[row, *others]][:, last].mean(axis=1).tolist()
    apart = outlier_evidence(means[0], means[1:])
    # Parts of the run in which the mean difference is beyond the margin, or not zero if there is none.
    size = max(_FEWEST, -(-len(steps) // _WINDOWS))
    parts = []
    for window in (steps[start : start + size] for start in range(0, len(steps), size)):
        if len(window) >= _FEWEST:
            mean = mean_of([own[step] - rest[step] for step in window])
            low, high = mean.interval(_CONFIDENCE)
            if low > (margin or 0.0) or high < -(margin or 0.0):
                parts.append({"first": window[0], "last": window[-1], "difference": mean.value})

    if margin is not None or verdict.low is None:
        text = wording.sentence(verdict)
        difference = f"is {text[:1].lower()}{text[1:]}"
        if apart and verdict.kind == "inconclusive" and verdict.difference is not None:
            difference = f"differs by {verdict.difference:+.4f} nats, as no other's does."
    else:
        difference = (
            f"differs by {verdict.difference:+.4f} nats ({verdict.low:+.4f} to {verdict.high:+.4f}; "
            f"{verdict.method}). For a verdict, state how much does not matter with --margin loss=NATS."
        )
    names = [table.runs[other].name for other in others]
    against = names[0] if len(names) == 1 else f"the median of {len(names)} others"
    listed = "; ".join(
        f"{part['difference']:+.3f} over steps {part['first']}-{part['last']}" for part in parts
    )
    sentences = [
        f"{table.runs[row].name}: its loss against {against} {difference}",
        apart or "",
        f"Parts of the run that differ: {listed}." if parts else "",
        "All count the same training tokens at every step." if table.counted([row, *others]) else "",
    ]
    evidence = {
        "verdict": verdict.kind,
        "difference": verdict.difference,
        "low": verdict.low,
        "high": verdict.high,
        "method": verdict.method,
        "others": [table.runs[other].run.run_id for other in others],
        "parts": parts,
    }
    wrong = verdict.kind == "different" or (apart and verdict.kind != "equivalent")
    level: Literal["error", "note"] = "error" if wrong else "note"
    return Finding(check="loss", level=level, sentence=" ".join(filter(None, sentences)), evidence=evidence)


def outlier_evidence(value: float, others: Sequence[float]) -> str | None:
    """Evidence that a run's mean loss is not of the same kind as the others'; None if there is none.

    A t test of one value against the others' mean and spread (a prediction interval), corrected for having
    looked at each run in turn. It needs no margin, but three others.
    """
    if len(others) < _FEWEST_OTHERS:
        return None
    rest, n = mean_of(others), len(others)
    error = rest.error * sqrt(n + 1)  # of one more value about the mean of the others
    p = Mean(value - rest.value, error, n - 1).p_value() * (n + 1)
    if p > _OUTLIER:
        return None
    return (
        f"Its mean over these steps is {value - rest.value:+.4f} nats from that of the {n} others, whose "
        f"standard deviation is {rest.error * sqrt(n):.4f}: p = {p:.1g} (t, {n - 1} degrees of freedom, "
        f"corrected for {n + 1} runs)."
    )


def _flop(group: Sequence[RunRecords]) -> Iterator[tuple[str, Finding]]:
    """A FLOP per token that differs among logs of one configuration, by more than their digits leave open."""
    counts: list[tuple[RunRecords, float, NumberRange]] = []  # each with what it can be, by its digits
    for log in group:
        printed = log.run.imported.printed
        if value := printed.get("flop_per_token"):
            counts.append((log, value, NumberRange(printed[LOW], printed[HIGH])))
    if len(counts) < 2:
        return
    apart = [
        [
            (other.name, value)
            for other, value, theirs in counts
            if own.low > theirs.high or theirs.low > own.high
        ]
        for _, _, own in counts
    ]
    values = [value for _, value, _ in counts]
    if not any(apart):
        middle = median(values)
        name, unit = flop_unit(middle)
        sentence = f"The {len(counts)} logs that imply a FLOP per token agree: {middle / unit:.3f} {name}."
        evidence = {"flop_per_token": fmean(values)}
        alike = Finding(check="flop_per_token", level="note", sentence=sentence, evidence=evidence)
        yield from ((log.run.run_id, alike) for log, _, _ in counts)
    for (log, value, _), others in zip(counts, apart, strict=True):
        if others:
            in_flop, unit = flop_unit(value, *(other for _, other in others))
            listed = ", ".join(f"{name} {other / unit:.2f}" for name, other in others)
            sentence = (
                f"{log.name}: it counts {value / unit:.2f} {in_flop} per token, but others of the same "
                f"configuration do not ({listed}): their MFU and TFLOP/s are not comparable."
            )
            by_name = {"printed": value, "others": dict(others)}
            error = Finding(check="flop_per_token", level="error", sentence=sentence, evidence=by_name)
            yield log.run.run_id, error


WhatWasDone = Literal["imported", "unchanged", "updated"]


@dataclass(frozen=True)
class Written:
    """A run of the study and what this import did with it."""

    log: RunRecords
    done: WhatWasDone


@dataclass(frozen=True)
class ImportDesign:
    """How the runs of an import are compared. What is empty stays as the import before stated it."""

    margins: dict[str, float]
    baseline: dict[str, Scalar] | None = None


def write_runs(root: Path, study: str, new: Sequence[RunRecords], design: ImportDesign) -> list[Written]:
    """Write new runs beside those that were imported before, and bring the findings of all up to date.

    A run's id follows from the content of its log, so that importing it again changes nothing, unless the
    mapping says something else now.

    Raises:
        UserError: the study has runs of its own, no run is the baseline, or the root cannot be written to.
        Refused: a run is another one once more, or is called as another one.
    """
    folder = root / study
    if planned := [name for name in folders(folder) if not name.startswith(PREFIX)]:
        raise UserError(
            f"study '{study}' has {counted(len(planned), 'run')} of its own; choose another name for these "
            "logs"
        )
    old = {log.run.run_id: log for log in imported_runs(root, study)}

    # One log would count as two runs, and two runs of one name as repeats.
    ids = {log.run.run_id for log in new}
    beside = [(other, _logged_values(other)) for run_id, other in old.items() if run_id not in ids]
    already_there = len(beside)
    for log in new:
        own = _logged_values(log)
        for place, (other, theirs) in enumerate(beside):
            if why := _not_beside(log, own, other, theirs):
                instead = "remove its folder to replace it" if place < already_there else "leave one out"
                raise Refused(f"{log.run.imported.file}: {why}: {instead}")
        beside.append((log, own))

    merged = dict(old)
    for log in new:
        run, run_id = log.run, log.run.run_id
        if before := old.get(run_id):  # the same log keeps the date, file and version of its first import
            first = {name: getattr(before.run.imported, name) for name in ("file", "imported_at", "version")}
            imported = run.imported.model_copy(update=first)
            run = run.model_copy(update={"imported": imported, "created_at": before.run.created_at})
        merged[run_id] = replace(log, run=run)
    runs = list(merged.values())

    earlier = next(iter(old.values()), None)
    margins = design.margins or (earlier.run.margins if earlier else {})
    stated = {"margins": margins, "baseline": design.baseline or (earlier.run.baseline if earlier else None)}
    wanted = design.baseline
    if wanted and not any(wanted.items() <= log.run.factors.items() for log in runs):
        valid = sorted({f"{name}={value}" for log in runs for name, value in log.run.factors.items()})
        text = ", ".join(f"{name}={value}" for name, value in wanted.items())
        raise UserError(f"--baseline {text}: no run of this study matches {did_you_mean(text, valid)}")

    findings = compare_runs(runs, margins.get("loss"))
    written = []
    for run_id, log in merged.items():
        final = with_findings(replace(log, run=log.run.model_copy(update=stated)), findings[run_id])
        written.append(Written(final, _write_run(folder / run_id, final, old.get(run_id))))
    return written


def imported_runs(root: Path, study: str) -> list[RunRecords]:
    """The runs of a study that were imported before. Raises Unreadable."""
    runs = []
    for name in folders(root / study):
        if not name.startswith(PREFIX):
            continue
        folder = RunFolder(root / study / name)
        attempt = folder.attempt(1)
        if attempt.manifest is None or attempt.result is None:
            raise Unreadable(f"{attempt.path}: incomplete; remove {folder.path} and import its log again")
        steps = read_lines(attempt.path / "steps.jsonl", ImportedStep)
        runs.append(RunRecords(folder.imported, attempt.manifest, steps, attempt.result))
    return runs


_Values = list[tuple[object, ...]]


def _not_beside(log: RunRecords, own: _Values, other: RunRecords, theirs: _Values) -> str:
    """Why two runs cannot be in one study, by their logged values too; empty if they can."""
    one, two = log.run.imported, other.run.imported
    records = counted(len(theirs), "record")
    place = f"{other.run.study}/{other.run.run_id}, imported from {two.file} with {records}"
    if one.sha256 == two.sha256:
        differs = (one.part is None) != (two.part is None)
        return f"it is the log of {place}, by a mapping without `run:` or with it" if differs else ""
    short = min(len(own), len(theirs))
    if short > 1 and own[:short] == theirs[:short]:
        if len(own) != len(theirs):
            return f"it {'continues' if len(own) > len(theirs) else 'is an older state of'} {place}"
        if any(step.time for step in log.steps):
            return f"it has the same records as {place}"
    if "log" in other.run.factors and other.run.factors == log.run.factors:
        return (
            f"it is called {log.name}, as {place}; import both with one command, tell them apart by the "
            "names of their files, with `file_name: (?P<source>.+)` in a mapping, or, if one is obsolete"
        )
    return ""


def _logged_values(log: RunRecords) -> _Values:
    return [(step.step, step.time, step.loss, step.step_seconds) for step in log.steps]


def _write_run(folder: Path, log: RunRecords, old: RunRecords | None) -> WhatWasDone:
    """Write a run if it is new or differs from what is there.

    A new folder is written under a temporary name, so that nobody reads a part of it.
    """
    if old and _texts(log) == _texts(old):
        return "unchanged"
    try:
        if old:
            _write(folder, log)
            return "updated"
        aside = temporary(folder)
        aside.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        try:
            _write(aside, log)
            aside.rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}; choose another place with --root") from error
    return "imported"


def _write(folder: Path, log: RunRecords) -> None:
    (folder / "attempt-1").mkdir(parents=True, exist_ok=True)
    for name, text in _texts(log).items():
        write_text(folder / name, text)


def _texts(log: RunRecords) -> dict[str, str]:
    """The content of each file of a run's folder."""
    return {
        "attempt-1/manifest.json": log.manifest.model_dump_json(indent=1) + "\n",
        "attempt-1/steps.jsonl": "".join(
            step.model_dump_json(exclude_none=True) + "\n" for step in log.steps
        ),
        "attempt-1/result.json": log.result.model_dump_json(indent=1) + "\n",
        "run.json": log.run.model_dump_json(indent=1) + "\n",
    }
