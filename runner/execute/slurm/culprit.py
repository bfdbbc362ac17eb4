"""Which of a run's processes ended first, judging by what srun printed about its tasks."""

from __future__ import annotations

import re
import signal
from dataclasses import replace
from pathlib import Path

from model.disk.record import Outcome
from runner.state.endings import Ending
from runner.state.ledger import RunState
from runner.state.tasks import jobs_folder

# `srun: error: n1: task 0: Killed`, `srun: error: n1: tasks 0-1,3: Exited with exit code 1`
_ENDED = re.compile(r"^srun: error: (\S+): tasks? ([\d,-]+): (.+)$", re.MULTILINE)
_OWN = frozenset({Outcome.FAILED, Outcome.OOM_HOST})  # endings of one process


def named(ending: Ending, state: RunState) -> Ending:
    """The ending of a job whose run left no result; names the rank that ended first and its node."""
    processes = state.folder.attempt(state.attempt).planned.config.processes
    if processes == 1 or ending.outcome not in _OWN:
        return ending
    meant = state.event("intent")
    first = ((meant and meant.slot) or 0) * processes  # runs that share a job have a range of its tasks each
    path = jobs_folder(state.folder.path.parent) / f"{state.job_id}_0_log.err"
    if said := _first(path, range(first, first + processes)):
        task, node, words = said
        return replace(ending, reason=f"rank {task - first} on {node}: {words} ({ending.reason})")
    return ending


def _first(path: Path, mine: range) -> tuple[int, str, str] | None:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # removed, or never written
        return None
    for node, tasks, words in _ENDED.findall(text):
        if found := sorted(set(mine) & _numbers(tasks)):
            return found[0], node, _in_own_words(words)
    return None


def _numbers(tasks: str) -> set[int]:
    """The numbers in a list such as `0-1,3`."""
    ends = [part.partition("-") for part in tasks.split(",") if part]
    return {number for low, _, high in ends for number in range(int(low), int(high or low) + 1)}


def _in_own_words(words: str) -> str:
    said = words.removesuffix(" (core dumped)").strip()
    signals = {signal.strsignal(number): number.name for number in signal.Signals}
    return f"killed by {signals[said]}" if said in signals else f"{said[0].lower()}{said[1:]}"
