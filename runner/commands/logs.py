"""Print the output of a run's latest attempt, its loss at about every tenth of the run, and how it ended.

With --follow, print each step record as it is written, until the run ends.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from model.record.files import read_lines
from model.record.imported import ImportedStep
from model.record.records import StepRecord
from runner.commands._console import say, show
from runner.commands._options import RunName, Settings
from runner.commands._runs import step_text
from runner.state.attempts import jobs_folder
from runner.state.ledger import brief_state
from runner.state.runs import find, name_of
from runner.state.slurm import SchedulerError

POLL_SECONDS = 0.5
JOB_BYTES = 4000  # of each node's output


def command(
    run: RunName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the run ends.")] = False,
) -> None:
    from runner.execute.reconcile import Patience, orphaned, reconciled

    state, read, patience = find(Settings.root, run), dict[Path, int](), Patience()
    while True:
        over = state.phase == "ended"  # before the last output is read
        for name in ("stdout.log", "stderr.log"):
            _print_new(state.folder.attempt(state.attempt).path / name, read)
        # The step records since the last look; at the first look at an attempt, about ten.
        path = state.folder.attempt(state.attempt).path / "steps.jsonl"
        kind: type[StepRecord | ImportedStep] = ImportedStep if state.brief.imported else StepRecord
        records: Sequence[StepRecord | ImportedStep] = read_lines(path, kind)
        steps = state.brief.steps or max((record.step for record in records), default=1)
        if path in read:
            new = records[read[path] :]
        else:  # the first record, the first in each tenth of the run, and the last
            by_tenth = {10 * record.step // steps: record for record in reversed(records)}
            new = list(dict.fromkeys([*reversed(by_tenth.values()), *records[-1:]]))
        for record in new:
            show(step_text(record, steps))
        read[path] = len(records)
        if over or not follow:
            break
        time.sleep(POLL_SECONDS)
        # Record how the run ended if it could not do so itself. That reads the whole study, or asks Slurm.
        due = patience.due((state.attempt, state.phase, state.job_id))
        if due and (state.job_id or orphaned(state)):
            with suppress(SchedulerError):  # its output can still be followed
                reconciled(Settings.root, state.brief.study)
        state = brief_state(state.folder)
    if over and state.latest and state.latest.result is None:
        # The end of what its job wrote may say why nothing started.
        for path in sorted(jobs_folder(state.folder.path.parent).glob(f"{state.job_id}_*_log.err")):
            if size := path.stat().st_size:
                say(f"{path}:")
                _print_new(path, {path: max(0, size - JOB_BYTES)})
    reason = f": {state.reason}" if state.reason else ""
    say(f"{name_of(state)} attempt {state.attempt}: {state.outcome or state.phase}{reason}")


def _print_new(path: Path, read: dict[Path, int]) -> None:
    """Print what was written since the last call; `read` has the number of bytes printed of each file."""
    if path.is_file():
        with path.open("rb") as file:
            file.seek(read.get(path, 0))
            content = file.read()
        read[path] = read.get(path, 0) + len(content)
        sys.stdout.write(content.decode("utf-8", "replace"))
        sys.stdout.flush()
