"""One attempt of one run: reads run.json, writes the attempt's files, and records the outcome."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from model import attention
from model.measure import machine
from model.measure.hostmemory import Limit
from model.record.errors import Interrupted, Unsupported, UserError
from model.record.files import Unreadable, write
from model.record.folder import Attempt, RunFolder
from model.record.outcome import Outcome
from model.record.records import Manifest, Result, RunRecord, now
from model.record.stderr import say
from model.training.checkpoint import inspect
from runner.job import admission, phase, slurm
from runner.job.clocks import clocks
from runner.job.manifest import first_manifest, with_device
from runner.job.ranks.first import LEAVE_SECONDS, Lost, Ranks, of_rank_0
from runner.job.ranks.meet import lead, met
from runner.job.slurm import is_preempted, job_end, nodes_of_job
from runner.job.stop import Stop, deadline
from runner.job.tasks import Afterwards, Given, Progress, checked, load, memory_limit, prepared
from runner.state import ledger, process
from runner.state.attempts import jobs_folder
from runner.state.code import snapshot
from runner.state.endings import UNWRITTEN, Ending, Terminated, of_exception, with_need


def run_attempt(
    folder: RunFolder, number: int, fellows: Sequence[RunFolder] = (), slot: int | None = None
) -> str:
    """Run one attempt of a run and return its outcome. If the run has several processes, this is rank 0.

    Args:
        fellows: the other runs in the same job.
        slot: the run's place in its Slurm job, whose tasks are its other processes; None: this process
            starts them.
    """
    attempt, run = folder.attempt(number).path, folder.attempt(number).planned
    end = job_end()
    alone = (lambda: withdrawn(folder.attempt(number))) if fellows else None
    stop = Stop(deadline(end, run.grace_seconds), alone)
    stop.listen()
    os.environ.update(machine.thread_limits(run.cpus, run.config.processes if slot is None else 1))
    progress = Progress(_first_manifest(folder, run, number, 1 if slot is None else nodes_of_job()))
    write(attempt / "manifest.json", progress.manifest)
    ranks: Ranks | None = None
    limit = memory_limit(run, apart=lambda: ranks.pids() if ranks else ())
    afterwards, conclusion = None, _Conclusion(run, attempt, progress, limit)
    mine = of_rank_0 if run.config.processes > 1 else lambda ending: ending

    def go_on(ending: Ending) -> None:
        ending = _with_cause(ending, folder, number)
        if run.requeue and load(run.config.task).resumes and _is_to_go_on(ending, stop, progress, folder):
            _go_on_in_the_queue(folder, number)

    def lost(ending: Ending) -> None:
        """End the attempt, whatever its main thread does: it may wait for a process that will not come."""
        if ending.outcome is Outcome.CANCELLED and _is_over(end):
            ending = replace(ending, outcome=Outcome.TIMEOUT)
        if conclusion.record(ending):
            go_on(ending)
            os._exit(1)
        if time.monotonic() - conclusion.recorded > LEAVE_SECONDS:  # it waits in what follows the result
            os._exit(0)

    try:
        limit.watch(lambda reason: lost(mine(Ending(Outcome.OOM_HOST, reason))))
        if run.config.processes > 1:
            ranks = lead(folder, number, run, snapshot.same(), slot, lambda: stop.steps, lost)
        afterwards = _work(run, folder, progress, stop, ranks, limit)
        if ranks:
            ranks.finished()
        ending = Ending(Outcome.COMPLETED)
    except BaseException as error:
        ending = _ending(error, stop, end, run.config.device, limit)
        if ending.reason and isinstance(error, Unsupported):
            ending = replace(ending, reason=run.config.in_own_words(ending.reason))
        if ranks:
            ending = ranks.true_of(ending, error)
        if ending.outcome is Outcome.FAILED:
            say(traceback.format_exc().rstrip())
    conclusion.record(ending)
    if afterwards and not stop.requested():
        _and_then(afterwards, ranks)
    if ranks:
        ranks.close()
    if progress.gpu:
        progress.gpu.close()
    go_on(ending)
    return ending.outcome.value


class _Conclusion:
    """Writes an attempt's result once, from the main thread or from the one that watches other processes."""

    def __init__(self, run: RunRecord, attempt: Path, progress: Progress, limit: Limit) -> None:
        self._config, self._attempt, self._progress = run.config, attempt, progress
        self._limit = limit
        self._lock, self.recorded = Lock(), 0.0  # when, on the time.monotonic() clock

    def record(self, ending: Ending) -> bool:
        """Write the result; returns False if another thread has. Ends this process if that fails."""
        with self._lock:
            if self.recorded:
                return False
            self._limit.release()  # writing needs some memory
            peak, ending = machine.peak_memory_bytes(self._config.device), with_need(ending, self._config)
            try:
                write(self._attempt / "result.json", _result(self._progress, ending, peak))
            except OSError as error:  # exit, because the main thread may be stuck
                reason = f": {ending.reason}" if ending.reason else ""
                say(f"could not write the result ({error.strerror}), which is {ending.outcome.value}{reason}")
                os._exit(UNWRITTEN)
            self.recorded = time.monotonic()
            return True


def _and_then(afterwards: Afterwards, ranks: Ranks | None) -> None:
    """Do what follows the result, together with all processes of the run."""
    if ranks:
        ranks.more()
    afterwards()
    if ranks:
        with suppress(Lost):
            ranks.finished()


def _first_manifest(folder: RunFolder, run: RunRecord, number: int, nodes: int = 1) -> Manifest:
    """The manifest, with the attempt to resume from: the newest that has a complete checkpoint.

    A run whose audit failed starts over.
    """
    found: dict[str, Any] = {"parallel": folder.attempt(number).parallel}
    for earlier in reversed([other for other in folder.numbers() if other < number]):
        if reason := _not_trusted(folder.attempt(earlier)):
            found.setdefault("not_resumed", reason)
            break
        path = folder.attempt(earlier).path / "checkpoint"
        if path.exists():
            try:
                found |= {"resumed_attempt": earlier, "resumed_step": inspect(path)}
                break
            except Unreadable as error:
                found.setdefault("not_resumed", str(error))
    return first_manifest(run.run_id, number, nodes).model_copy(update=found)


def _not_trusted(attempt: Attempt) -> str | None:
    """Why no checkpoint up to this attempt is used: it is unknown since when its backend was wrong."""
    try:
        failed = [audit for audit in attempt.audits if not audit.passed]
    except Unreadable as error:
        return str(error)
    return f"attempt {attempt.number} failed its audit of step {failed[0].step}" if failed else None


def _ending(
    error: BaseException, stop: Stop, end: float | None, device: str = "cpu", limit: Limit | None = None
) -> Ending:
    """How an attempt ended, by its exception.

    Args:
        device, limit: as in `of_exception`.
        end: of the job's time, on the time.monotonic() clock. A run that hangs until Slurm signals it at its
            limit was not cancelled.
    """
    late = _is_over(end)
    if late and isinstance(error, Terminated):
        return Ending(Outcome.TIMEOUT, "reached its time limit")
    if not isinstance(error, Interrupted):
        return of_exception(error, device, limit)
    if stop.cause == "deadline":
        return Ending(Outcome.TIMEOUT, f"stopped before the time limit; {error.kept}")
    if late:
        return Ending(Outcome.TIMEOUT, f"reached its time limit; {error.kept}")
    return Ending(Outcome.CANCELLED, f"received SIGTERM; {error.kept}")


def _is_over(end: float | None) -> bool:
    """Whether the job's time, on the time.monotonic() clock, is over."""
    return end is not None and time.monotonic() >= end


def withdrawn(attempt: Attempt) -> bool:
    """Whether a launcher cancelled this attempt alone, in a job that continues for other runs."""
    return any(event.event == "ended" and event.outcome is Outcome.CANCELLED for event in attempt.events)


def _with_cause(ending: Ending, folder: RunFolder, number: int) -> Ending:
    """The ending of an attempt, which is `preempted` instead of `cancelled` if it makes room for another job.

    The result, which is written before Slurm is asked, says `cancelled`; the ledger then says why.
    """
    if ending.outcome is not Outcome.CANCELLED or not is_preempted():
        return ending
    ending = replace(ending, outcome=Outcome.PREEMPTED)
    ledger.ended(folder, number, ending)
    return ending


def _is_to_go_on(ending: Ending, stop: Stop, progress: Progress, folder: RunFolder) -> bool:
    """Whether a stopped run goes back into the queue.

    Without a new step it would start over, again and again. It does so only if a node failed or another job
    came first, and not if the attempt before ended in the same way. With its node, Slurm ends a job that it
    may not start again.
    """
    if ending.outcome is Outcome.NODE_FAILED and not slurm.is_requeued():
        return False
    farther = progress.steps > (progress.manifest.resumed_step or 0)
    if not ending.outcome.is_taken:
        return stop.cause == "deadline" and farther
    number = progress.manifest.attempt
    return farther or number == 1 or not _taken_before_a_step(folder.attempt(number - 1))


def _taken_before_a_step(attempt: Attempt) -> bool:
    """Whether an attempt lost its node, or had to make room, before it recorded a step."""
    taken = attempt.settled is not None and attempt.settled[0].is_taken
    return taken and not (attempt.path / "steps.jsonl").exists()


def _go_on_in_the_queue(folder: RunFolder, number: int) -> None:
    """Claim the next attempt for a next job, and ask for that job."""
    if not ledger.claim(folder, number + 1, "slurm", folder.attempt(number).parallel):
        return
    try:
        slurm.go_on(jobs_folder(folder.path.parent), folder, number + 1)
    except (OSError, UserError) as error:
        ledger.release(folder, number + 1, str(error))


def _work(
    run: RunRecord,
    folder: RunFolder,
    progress: Progress,
    stop: Stop,
    ranks: Ranks | None,
    limit: Limit,
) -> Afterwards | None:
    """Certify the run's backend here, then do its task."""
    config = run.config
    source = run.source and checked(run, run.source)
    work = prepared(config)
    limit.hold()
    options = snapshot.same()
    given = Given(run, folder, progress, stop, options, source)
    given.note(**with_device(progress.manifest, config, run.peak_flops_override))
    progress.gpu = process.hold_gpu(progress.manifest.gpu_uuid)
    if not work.admits:
        with phase.shown(given.attempt) as tell:
            given.note(certificate=_certificate(run, folder, options, tell))
    given.note(device_users=machine.device_users(config.device))
    if ranks:
        given = replace(given, meet=partial(met, ranks, given.note, progress, config))
    return work.run(given)


def _certificate(
    run: RunRecord, folder: RunFolder, options: Sequence[str], tell: Callable[[phase.Stage], None]
) -> str:
    """Key of the certificate that allows the run to start."""
    backend, case = run.config.attention, run.config.attention_case
    attention.require(backend, case)
    try:
        return admission.admit(backend, case, folder.path.parent.parent, options, tell).key
    except admission.Killed:
        os.kill(os.getpid(), signal.SIGKILL)  # as the OOM killer would, so that the run's outcome shows it
        raise


def _result(progress: Progress, ending: Ending, peak_memory_bytes: int) -> Result:
    manifest = progress.manifest
    return Result(
        run_id=manifest.run_id,
        attempt=manifest.attempt,
        outcome=ending.outcome,
        reason=ending.reason,
        failed_nodes=ending.failed_nodes,
        steps=progress.steps,
        final_loss=progress.loss,
        peak_memory_bytes=max(peak_memory_bytes, progress.memory_bytes),
        requested_bytes=ending.requested_bytes,
        load_after=machine.load(),
        clocks=clocks(manifest.gpu_uuid),
        started_at=manifest.started_at,
        ended_at=now(),
        wall_seconds=time.monotonic() - progress.started,  # immune to changes of the system clock
    )
