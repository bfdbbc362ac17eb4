"""Works out how an attempt ended, from what Slurm says of its job, its result, and what srun printed."""

from __future__ import annotations

import re
import signal
from dataclasses import replace

from model.record.folder import Attempt, RunFolder
from model.record.outcome import Outcome
from runner.state import slurm
from runner.state.attempts import jobs_folder
from runner.state.endings import Ending, ending_of_abort

# `srun: error: n1: task 0: Killed`, `srun: error: n1: tasks 0-1,3: Exited with exit code 1`
_ENDED = re.compile(r"^srun: error: (\S+): tasks? ([\d,-]+): (.+)$", re.MULTILINE)
# `srun: error: Node failure on n2`
_NODE = re.compile(r"^srun: error: Node failure on (\S+)", re.MULTILINE)
_ABORTED = re.compile(rf"exit code (?:\d+:{signal.SIGABRT:d}|{128 + signal.SIGABRT}:0)\b")  # as Slurm has it
# Begins a line that the batch script prints: a requeued job continues in the same file.
START = "the job starts, restart "


def actual_ending(ending: Ending, folder: RunFolder, number: int) -> Ending:
    """How an attempt ended, given what Slurm says about its job.

    An attempt that was stopped has recorded that, and what it saved; Slurm may know why. If it had several
    processes, the reason names the one that ended first, or the node that failed.

    Args:
        ending: of its job, by Slurm.
    """
    attempt = folder.attempt(number)
    own, rank, words = attempt.result, None, None
    aborted = ending.outcome is Outcome.FAILED and _ABORTED.search(ending.reason or "")
    if aborted and not own and (abort := ending_of_abort(attempt.path / "stderr.log")):
        return replace(abort, reason=f"{abort.reason} ({ending.reason})", nodes=ending.nodes)
    unexplained = not (ending.outcome.may_come_back or ending.outcome.out_of_memory)
    if attempt.manifest is None and unexplained:
        # Python did not begin: what the batch script or srun printed last, apart from a task's exit code.
        lines = [line.strip() for line in _ENDED.sub("", _srun_output(folder, attempt)).splitlines()]
        words = next(filter(None, reversed(lines)), None)
    if attempt.planned.config.processes > 1:
        ending = replace(ending, failed_nodes=_failed_nodes(ending, folder, attempt))
        rank, first = _first_to_end(ending, folder, attempt)
        words = first or words
    if own and (ending.outcome is Outcome.LOST or (ending.outcome is Outcome.FAILED and not rank)):
        return Ending(own.outcome, own.reason)  # Slurm only saw this process's exit code
    words = words or (own.reason if own else None)
    return replace(ending, reason=f"{words} ({ending.reason})") if words else ending


def _failed_nodes(ending: Ending, folder: RunFolder, attempt: Attempt) -> tuple[str, ...]:
    """The nodes that failed: the job's only one, or those that srun named, or that Slurm recorded as down."""
    if ending.outcome is not Outcome.NODE_FAILED or ending.failed_nodes:
        return ending.failed_nodes
    nodes = _NODE.findall(_srun_output(folder, attempt))
    if not nodes:
        submitted, manifest = attempt.event("submitted"), attempt.manifest
        since = manifest.started_at if manifest else submitted.time if submitted else None
        nodes = slurm.failed_nodes(ending.nodes, since) if ending.nodes and since else []
    return tuple(dict.fromkeys(nodes))


def _first_to_end(ending: Ending, folder: RunFolder, attempt: Attempt) -> tuple[int | None, str | None]:
    """The rank that ended first, if any, and how it or its node ended."""
    if ending.failed_nodes:
        return None, f"node failure on {', '.join(ending.failed_nodes)}"
    if not ending.outcome.of_one_process:
        return None, None

    # Runs that share a job have a range of its tasks each. The run's place in the job is recorded for the
    # attempt that the job started with.
    numbers = reversed([number for number in folder.numbers() if number <= attempt.number])
    intents = (folder.attempt(number).event("intent") for number in numbers)
    slot = next((intent.slot or 0 for intent in intents if intent), 0)
    processes = attempt.planned.config.processes
    own_tasks = range(slot * processes, (slot + 1) * processes)

    for node, tasks, words in _ENDED.findall(_srun_output(folder, attempt)):
        ends = [part.partition("-") for part in tasks.split(",") if part]  # of `0-1,3`
        spans = [range(int(low), int(high or low) + 1) for low, _, high in ends]
        if ended := [task for task in own_tasks if any(task in span for span in spans)]:
            rank, how = ended[0] - own_tasks[0], words.removesuffix(" (core dumped)").strip()
            signals = {signal.strsignal(number): number.name for number in signal.Signals}
            how = f"killed by {signals[how]}" if how in signals else f"{how[0].lower()}{how[1:]}"
            return rank, f"rank {rank} on {node}: {how}"
    return None, None


def _srun_output(folder: RunFolder, attempt: Attempt) -> str:
    """The output of srun since the attempt's job last started; empty if that is gone."""
    try:
        path = jobs_folder(folder.path.parent) / f"{attempt.job_id}_0_log.err"
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    if attempt.manifest is None:
        return text.rpartition(START)[2].partition("\n")[2]
    restart = attempt.manifest.slurm.get("SLURM_RESTART_COUNT", "0")
    return text.rpartition(f"{START}{restart}\n")[2].partition(START)[0]
