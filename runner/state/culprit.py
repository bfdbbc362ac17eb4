"""How an attempt really ended that Slurm says has ended, from its own result and what srun printed."""

from __future__ import annotations

import re
import signal
from dataclasses import replace

from model.record.folder import Attempt, RunFolder
from model.record.outcome import Outcome
from runner.state import slurm
from runner.state.attempts import jobs_folder
from runner.state.endings import Ending, of_abort

# `srun: error: n1: task 0: Killed`, `srun: error: n1: tasks 0-1,3: Exited with exit code 1`
_ENDED = re.compile(r"^srun: error: (\S+): tasks? ([\d,-]+): (.+)$", re.MULTILINE)
# `srun: error: Node failure on n2`
_NODE = re.compile(r"^srun: error: Node failure on (\S+)", re.MULTILINE)
_ABORTED = re.compile(rf"exit code (?:\d+:{signal.SIGABRT:d}|{128 + signal.SIGABRT}:0)\b")  # as Slurm has it
# Begins a line that the batch script prints: a requeued job continues in the same file.
START = "the job starts, restart "


def true_of(ending: Ending, folder: RunFolder, number: int) -> Ending:
    """How an attempt ended, given what Slurm says about its job.

    An attempt that was stopped has recorded that, and what it saved; Slurm may know why. If it had several
    processes, the reason names the one that ended first, or the node that failed.
    """
    attempt = folder.attempt(number)
    own, rank, words = attempt.result, None, None
    aborted = ending.outcome is Outcome.FAILED and _ABORTED.search(ending.reason or "")
    if aborted and not own and (abort := of_abort(attempt.path / "stderr.log")):
        return replace(abort, reason=f"{abort.reason} ({ending.reason})", nodes=ending.nodes)
    unexplained = not (ending.outcome.may_come_back or ending.outcome.out_of_memory)
    if attempt.manifest is None and unexplained:
        # Python did not begin: what the batch script or srun printed last, apart from a task's exit code.
        lines = [line.strip() for line in _ENDED.sub("", _printed(folder, attempt)).splitlines()]
        words = next(filter(None, reversed(lines)), None)
    if attempt.planned.config.processes > 1:
        ending = replace(ending, failed_nodes=_failed_nodes(ending, folder, attempt))
        rank, first = _culprit(ending, folder, attempt)
        words = first or words
    if own and (ending.outcome is Outcome.LOST or (ending.outcome is Outcome.FAILED and not rank)):
        return Ending(own.outcome, own.reason)  # Slurm only saw this process's exit code
    words = words or (own.reason if own else None)
    return replace(ending, reason=f"{words} ({ending.reason})") if words else ending


def _culprit(ending: Ending, folder: RunFolder, attempt: Attempt) -> tuple[int | None, str | None]:
    """The rank that ended first, if any, and how it or its node ended."""
    if ending.failed_nodes:
        return None, f"node failure on {', '.join(ending.failed_nodes)}"
    processes = attempt.planned.config.processes
    first = _slot(folder, attempt) * processes  # runs that share a job have a range of its tasks each
    mine = range(first, first + processes)
    if ending.outcome.of_one_process and (task := _first(_printed(folder, attempt), mine)):
        rank = task[0] - first
        return rank, f"rank {rank} on {task[1]}: {task[2]}"
    return None, None


def _failed_nodes(ending: Ending, folder: RunFolder, attempt: Attempt) -> tuple[str, ...]:
    """The nodes that failed: the job's only one, or those that srun named, or that Slurm recorded as down."""
    if ending.outcome is not Outcome.NODE_FAILED or ending.failed_nodes:
        return ending.failed_nodes
    return tuple(dict.fromkeys(_NODE.findall(_printed(folder, attempt)) or _down(ending, attempt)))


def _down(ending: Ending, attempt: Attempt) -> list[str]:
    """The nodes of a job that have gone down since the attempt began, as Slurm recorded it."""
    submitted, manifest = attempt.event("submitted"), attempt.manifest
    since = manifest.started_at if manifest else submitted.time if submitted else None
    return slurm.failed_nodes(ending.nodes, since) if ending.nodes and since else []


def _slot(folder: RunFolder, attempt: Attempt) -> int:
    """The run's place in its job, which is recorded for the attempt that the job started with."""
    numbers = reversed([number for number in folder.numbers() if number <= attempt.number])
    meant = (folder.attempt(number).event("intent") for number in numbers)
    return next((intent.slot or 0 for intent in meant if intent), 0)


def _printed(folder: RunFolder, attempt: Attempt) -> str:
    """What srun printed since the attempt's job last started; nothing if that is gone."""
    try:
        path = jobs_folder(folder.path.parent) / f"{attempt.job_id}_0_log.err"
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    if attempt.manifest is None:
        return text.rpartition(START)[2].partition("\n")[2]
    restart = attempt.manifest.slurm.get("SLURM_RESTART_COUNT", "0")
    return text.rpartition(f"{START}{restart}\n")[2].partition(START)[0]


def _first(printed: str, own_tasks: range) -> tuple[int, str, str] | None:
    """The first of these tasks that ended, its node, and how."""
    for node, tasks, words in _ENDED.findall(printed):
        if ended := sorted(set(own_tasks) & _numbers(tasks)):
            return ended[0], node, _in_own_words(words)
    return None


def _numbers(tasks: str) -> set[int]:
    """The numbers in a list such as `0-1,3`."""
    ends = [part.partition("-") for part in tasks.split(",") if part]
    return {number for low, _, high in ends for number in range(int(low), int(high or low) + 1)}


def _in_own_words(words: str) -> str:
    text = words.removesuffix(" (core dumped)").strip()
    signals = {signal.strsignal(number): number.name for number in signal.Signals}
    return f"killed by {signals[text]}" if text in signals else f"{text[0].lower()}{text[1:]}"
