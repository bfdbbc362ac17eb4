"""A run's folder and its attempts, read lazily: the one place that knows how their files fit together.

Files are truth; database and reports are made of them.

    ROOT/STUDY/.study.json                     StudyRecord, written by each launch
    ROOT/STUDY/.reports/NAME/TABLE.parquet     the records of a report that was collected
    ROOT/STUDY/RUN_ID/run.json                 RunRecord, written by the launcher before anything is submitted
                                               (ImportedRun where RUN_ID begins with `log-`)
    ROOT/STUDY/RUN_ID/ledger.jsonl             LedgerEvent a line: what launchers and schedulers know
    ROOT/STUDY/RUN_ID/attempt-N/claim.json     LedgerEvent: who claimed it; the folder appears with this in it
                               /manifest.json  Manifest: where the attempt runs, with what
                               /steps.jsonl    StepRecord a line
                               /audits.jsonl   AuditRecord a line
                               /result.json    Result: how it ended, where it could still say so
                               /profile.json   StepProfile: where its steps spend their time, if it completed
                               /decode.jsonl   DecodeRecord a line, where tokens are decoded
                               /kernels.json   KernelTimes: attention alone, where that is the run's task
                               /frontier.json  Frontier: the largest value that fits, where that is sought
                               /phase.json    what it does before its first step; gone afterwards
                               /stdout.log, /stderr.log

Inside, paths are strings: over 10,000 runs, joining Path objects took as long as reading all files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from model.record.config import ParallelConfig
from model.record.files import Record, Unreadable, read, read_lines
from model.record.frontier import Frontier
from model.record.imported import PREFIX, ImportedRun
from model.record.kernels import KernelTimes
from model.record.outcome import Outcome
from model.record.records import (
    NAME,
    AuditRecord,
    DecodeRecord,
    LedgerEvent,
    Manifest,
    Result,
    RunRecord,
    StudyRecord,
)
from model.record.speed import StepProfile

STUDY = ".study.json"
DECODED = "decode.jsonl"
PROFILE = "profile.json"
KERNELS = "kernels.json"
FRONTIER = "frontier.json"
CLAIM = "claim.json"
_ATTEMPT = re.compile(r"attempt-[1-9][0-9]*")


class NoPlan(Unreadable):
    """The plan of an imported run was asked for; the text says so."""


class _Folder:
    """A folder, whose path is kept as a string."""

    def __init__(self, path: Path | str) -> None:
        self._path = os.fspath(path)

    def __fspath__(self) -> str:
        return self._path

    @cached_property
    def path(self) -> Path:
        """Where it is."""
        return Path(self._path)


class Attempt(_Folder):
    """One attempt of a run: what it wrote itself, and what launchers and schedulers noted about it.

    Each file is read once, when it is first asked for; that may raise Unreadable.
    """

    def __init__(self, run: RunFolder, number: int, ledger: Sequence[LedgerEvent] | None = None) -> None:
        super().__init__(f"{os.fspath(run)}/attempt-{number}")
        self.number, self._run, self._ledger = number, run, ledger

    @cached_property
    def noted(self) -> tuple[LedgerEvent, ...]:
        """Every line of the ledger about it, also from before its number was released.

        A launcher writes its claim into the attempt's folder, and then into the ledger. If it died in
        between, the claim is read from the folder.
        """
        ledger = self._run.ledger if self._ledger is None else self._ledger
        lines = tuple([event for event in ledger if event.attempt == self.number])
        start = _after_release(lines)
        if "claimed" in [event.event for event in lines[start:]]:
            return lines
        try:
            claim = self._if_there(CLAIM, LedgerEvent)
        except Unreadable:  # torn when the machine crashed
            claim = None
        return (*lines[:start], claim, *lines[start:]) if claim else lines

    @cached_property
    def events(self) -> tuple[LedgerEvent, ...]:
        """The lines about it since its number was last released: a released number can be claimed again."""
        return self.noted[_after_release(self.noted) :]

    @property
    def released(self) -> bool:
        """Whether its claim was given up before anything was started, and nobody has claimed it since."""
        return bool(self.noted) and self.noted[-1].event == "released"

    def holding(self, manifest: Manifest | None, result: Result | None) -> Attempt:
        """The same attempt with these records, whatever its files hold."""
        other = Attempt(self._run, self.number, self._ledger)
        other.manifest, other.result = manifest, result
        return other

    @property
    def parallel(self) -> ParallelConfig | None:
        """Its processes, if it was claimed with others than the run's own."""
        claimed = self.event("claimed")
        return claimed.parallel if claimed else None

    @property
    def planned(self) -> RunRecord:
        """The run as this attempt does it, on its own processes. Raises Unreadable, and NoPlan."""
        return self._run.run.on(self.parallel)

    @property
    def started(self) -> bool:
        """Whether it has said where it runs."""
        return os.path.exists(f"{self._path}/manifest.json")  # noqa: PTH110  strings

    @cached_property
    def manifest(self) -> Manifest | None:
        """Where it ran; None if it never started. Raises Unreadable."""
        return self._if_there("manifest.json", Manifest)

    @cached_property
    def result(self) -> Result | None:
        """How it says that it ended; None if it did not. Raises Unreadable."""
        return self._if_there("result.json", Result)

    @cached_property
    def audits(self) -> list[AuditRecord]:
        """Its audits so far; empty if nothing was audited. Raises Unreadable."""
        return read_lines(f"{self._path}/audits.jsonl", AuditRecord)

    @cached_property
    def decoded(self) -> list[DecodeRecord]:
        """The positions that it decoded; empty if it decodes nothing. Raises Unreadable."""
        return read_lines(f"{self._path}/{DECODED}", DecodeRecord)

    @cached_property
    def profile(self) -> StepProfile | None:
        """Where the time of its step goes; None if that was not looked at. Raises Unreadable."""
        return self._if_there(PROFILE, StepProfile)

    @cached_property
    def frontier(self) -> Frontier | None:
        """The largest value that fits; None if that was not sought. Raises Unreadable."""
        return self._if_there(FRONTIER, Frontier)

    @cached_property
    def kernels(self) -> KernelTimes | None:
        """Attention alone; None if that was not timed. Raises Unreadable."""
        return self._if_there(KERNELS, KernelTimes)

    def event(self, kind: str) -> LedgerEvent | None:
        """The newest of its events of this kind."""
        return next((event for event in reversed(self.events) if event.event == kind), None)

    @property
    def job_id(self) -> str | None:
        """The scheduler's id."""
        return next((event.job_id for event in reversed(self.events) if event.job_id), None)

    @property
    def executor(self) -> str | None:
        """Who started it: `local` or `slurm`; None if nobody has claimed it."""
        return next((event.executor for event in reversed(self.events) if event.executor), None)

    @property
    def settled(self) -> tuple[Outcome, str | None] | None:
        """Its outcome and reason; None while it is in flight."""
        return settle(self.result, self.events)

    @property
    def failed_nodes(self) -> set[str]:
        """The nodes whose failure ended it, as far as it noticed itself, or its launcher or the scheduler."""
        own = self.result.failed_nodes if self.result else ()
        return {*own, *(node for event in self.events for node in event.failed_nodes)}

    @property
    def started_at(self) -> datetime | None:
        """When it began to run; None if it never did."""
        record = self.manifest or self.result
        return record.started_at if record else None

    @property
    def ended_at(self) -> datetime | None:
        """When it says that it ended, or when somebody noticed; None while it is in flight."""
        if self.result:
            return self.result.ended_at
        noticed = [event.time for event in self.events if event.event == "ended" and event.outcome]
        return noticed[-1] if noticed else None

    def _if_there(self, name: str, kind: type[Record]) -> Record | None:
        path = f"{self._path}/{name}"
        try:
            return read(path, kind)
        except Unreadable:
            if os.path.exists(path):  # noqa: PTH110  strings
                raise
            return None


def _after_release(lines: Sequence[LedgerEvent]) -> int:
    """Where the lines since the last release begin."""
    kinds = [line.event for line in lines]
    return len(kinds) - kinds[::-1].index("released") if "released" in kinds else 0


def settle(result: Result | None, events: Sequence[LedgerEvent]) -> tuple[Outcome, str | None] | None:
    """An attempt's outcome and reason, from its own result and the ledger; None while it is in flight.

    The attempt's own result counts, except for `cancelled`: a process that gets SIGTERM cannot tell a user's
    cancel from preemption or a time limit, so the scheduler's record is preferred.

    Args:
        events: the ledger's lines for this attempt.
    """
    ended = [event for event in events if event.event == "ended" and event.outcome]
    if result and (result.outcome is not Outcome.CANCELLED or not ended):
        return result.outcome, result.reason
    if ended and ended[-1].outcome:
        return ended[-1].outcome, ended[-1].reason
    return None


class RunFolder(_Folder):
    """A run's folder."""

    @property
    def is_imported(self) -> bool:
        """Whether its name is that of an imported run."""
        return os.path.basename(self._path).startswith(PREFIX)  # noqa: PTH119  strings

    @property
    def run(self) -> RunRecord:
        """The plan. Raises Unreadable, and NoPlan for a run that has none."""
        if self.is_imported:
            imported = self.imported
            raise NoPlan(
                f"{imported.study}/{imported.run_id} was imported from {imported.imported.file}: "
                "it was not planned here, and cannot be started or repeated"
            )
        try:
            return read(f"{self._path}/run.json", RunRecord)
        except Unreadable as error:
            cause = error.__cause__
            strange = isinstance(cause, ValidationError) and cause.errors(include_url=False)[0]
            if not strange or strange["type"] != "extra_forbidden":
                raise
            key = ".".join(map(str, strange["loc"]))
            raise Unreadable(
                f"{self._path}/run.json: unknown key '{key}': another version of assay planned the run. "
                "CHANGELOG.md says how it stays readable ('When you update a checkout'); or launch its study "
                "anew with another --root"
            ) from error

    @property
    def imported(self) -> ImportedRun:
        """The record of an imported run. Raises Unreadable."""
        return read(f"{self._path}/run.json", ImportedRun)

    @property
    def ledger(self) -> list[LedgerEvent]:
        """What launchers wrote. Raises Unreadable."""
        return read_lines(f"{self._path}/ledger.jsonl", LedgerEvent)

    def attempt(self, number: int) -> Attempt:
        """One attempt, whether it is there or not."""
        return Attempt(self, number)

    def attempts(self) -> list[Attempt]:
        """The attempts that have a folder, in order; the ledger is read once for all. Raises Unreadable."""
        ledger = self.ledger
        return [Attempt(self, number, ledger) for number in self.numbers()]

    def numbers(self) -> list[int]:
        """Numbers of the attempts that have a folder, in order; `attempt-02` is not a valid name."""
        names = os.listdir(self._path)  # noqa: PTH208  strings are enough
        return sorted([int(name[8:]) for name in names if _ATTEMPT.fullmatch(name)])


def study_record(root: Path, study: str) -> StudyRecord | None:
    """What the study's last launch left; None of imported runs. Raises Unreadable."""
    path = root / study / STUDY
    return read(path, StudyRecord) if os.path.lexists(path) else None


def run_folders(root: Path, study: str | None = None) -> Iterator[RunFolder]:
    """Every run folder under the root, or under one study, in name order."""
    for name in [study] if study else folders(root):
        if NAME.fullmatch(name) and (root / name).is_dir():
            yield from (RunFolder(f"{root}/{name}/{run}") for run in folders(root / name))


def folders(parent: Path) -> list[str]:
    """Names of folders in a folder that may be studies or runs, in order."""
    if not parent.is_dir():
        return []
    names = []
    with os.scandir(parent) as entries:
        for entry in entries:
            with suppress(OSError):  # a link that leads in a circle
                if NAME.fullmatch(entry.name) and entry.is_dir():
                    names.append(entry.name)
    return sorted(names)
