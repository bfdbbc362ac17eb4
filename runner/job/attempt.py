"""One attempt of one run: reads run.json, writes the attempt's files, and records the outcome."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Lock

from model import attention
from model.measure import machine
from model.measure.hostmemory import Limit
from model.record.errors import Interrupted, Unsupported
from model.record.files import write
from model.record.folder import Attempt, RunFolder
from model.record.outcome import Outcome
from model.record.records import Result, RunRecord, now
from model.record.units import say
from runner.job import admission, phase, slurm
from runner.job.clocks import clocks
from runner.job.manifest import device_facts, first_manifest, resumption
from runner.job.ranks.first import LEAVE_SECONDS, Lost, Ranks, join_as_first, lead
from runner.job.ranks.meeting import of_rank_0
from runner.job.stop import Stop, deadline
from runner.job.tasks import Afterwards, Progress, TaskContext, load, memory_limit, prepare, unchanged
from runner.state import ledger, process
from runner.state.code import snapshot
from runner.state.endings import UNWRITTEN, Ending, Terminated, ending_of_exception, with_memory_need


def run_attempt(
    folder: RunFolder, number: int, fellows: Sequence[RunFolder] = (), slot: int | None = None
) -> str:
    """Run one attempt of a run and return its outcome. If the run has several processes, this is rank 0.

    Args:
        fellows: the other runs in the same job.
        slot: the run's place in its Slurm job, whose tasks are its other processes; None: this process
            starts them.
    """
    attempt = folder.attempt(number)
    run, several = attempt.planned, attempt.planned.config.processes > 1
    # What can end it: its time, a signal, or a launcher that cancels it alone.
    job_ends = slurm.job_end()
    withdrawn = (lambda: is_withdrawn(folder.attempt(number))) if fellows else None
    stop = Stop(deadline(job_ends, run.grace_seconds), withdrawn)
    stop.listen()
    # What is known of it before torch is imported.
    os.environ.update(machine.thread_limits(run.cpus, run.config.processes if slot is None else 1))
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # its own pool maps 1 GiB at once
    manifest = first_manifest(run.run_id, number, 1 if slot is None else slurm.nodes_of_job())
    manifest = manifest.model_copy(update={"parallel": attempt.parallel, **resumption(folder, number)})
    progress = Progress(manifest)
    write(attempt.path / "manifest.json", manifest)

    ranks: Ranks | None = None
    limit = memory_limit(run, apart=lambda: {*(ranks.pids() if ranks else ()), *progress.apart})
    conclusion = Conclusion(folder, run, progress, stop, job_ends, limit)

    def out_of_memory(reason: str) -> None:
        ending = Ending(Outcome.OOM_HOST, reason)
        conclusion.end_at_once(of_rank_0(ending) if several else ending)

    afterwards = None
    try:
        limit.watch(out_of_memory)
        if several:
            ranks = lead(
                folder, number, run, snapshot.own_options(), slot, lambda: stop.steps, conclusion.end_at_once
            )
        afterwards = do_task(run, folder, progress, stop, ranks, limit)
        if ranks:
            ranks.wait_until_done()
        ending = Ending(Outcome.COMPLETED)
    except BaseException as error:
        ending = ending_of(error, stop, job_ends, run.config.device, limit)
        if ending.reason and isinstance(error, Unsupported):
            ending = replace(ending, reason=run.config.section.in_own_words(ending.reason))
        if ranks:
            ending = ranks.root_cause(ending, error)
        if ending.outcome is Outcome.FAILED:
            say(traceback.format_exc().rstrip())
    conclusion.record(ending)
    if afterwards and not stop.requested():
        if ranks:
            ranks.continue_after_result()
        afterwards()
        if ranks:
            with suppress(Lost):
                ranks.wait_until_done()
    if ranks:
        ranks.close()
    if progress.gpu:
        progress.gpu.close()
    conclusion.requeue_if_useful(ending)
    return ending.outcome.value


def do_task(
    run: RunRecord,
    folder: RunFolder,
    progress: Progress,
    stop: Stop,
    ranks: Ranks | None,
    limit: Limit,
) -> Afterwards | None:
    """Certify the run's backend here, then do its task; returns what to do once the result is on disk."""
    config = run.config
    source = run.source and unchanged(run, run.source)
    task = prepare(config)
    limit.hold()
    options = snapshot.own_options()
    context = TaskContext(run, folder, progress, stop, options, source)
    context.note(**device_facts(progress.manifest, config, run.peak_flops_override))
    progress.gpu = process.hold_gpu(progress.manifest.gpu_uuid)
    if not task.admits:
        with phase.shown(context.attempt) as tell:
            context.note(certificate=require_certificate(run, folder, options, tell))
    if not task.leaves_gpu:
        context.note(device_users=machine.device_users(config.device))
    if ranks:
        context = replace(context, meet=partial(join_as_first, ranks, context.note, progress, config))
    return task.run(context)


def require_certificate(run: RunRecord, folder: RunFolder, options: Sequence[str], tell: phase.Tell) -> str:
    """Key of the certificate that allows the run to start."""
    backend, case = run.config.attention, run.config.attention_case
    attention.require(backend, case)
    return admission.admit(backend, case, folder.path.parent.parent, options, tell).key


def ending_of(
    error: BaseException,
    stop: Stop,
    job_ends: float | None,
    device: str = "cpu",
    limit: Limit | None = None,
) -> Ending:
    """How an attempt ended, by its exception.

    Args:
        job_ends: on the time.monotonic() clock. A run that hangs until Slurm signals it at its limit was not
            cancelled.
        device, limit: as in `ending_of_exception`.
    """
    late = job_ends is not None and time.monotonic() >= job_ends
    if late and isinstance(error, Terminated):
        return Ending(Outcome.TIMEOUT, "reached its time limit")
    if not isinstance(error, Interrupted):
        return ending_of_exception(error, device, limit)
    if stop.cause == "deadline":
        return Ending(Outcome.TIMEOUT, f"stopped before the time limit; {error.kept}")
    if late:
        return Ending(Outcome.TIMEOUT, f"reached its time limit; {error.kept}")
    return Ending(Outcome.CANCELLED, f"received SIGTERM; {error.kept}")


class Conclusion:
    """How an attempt ends: its result, what the ledger says about it, and a next job if the run goes on.

    The main thread concludes, or the one that watches other processes and memory; the first one counts.

    Args:
        job_ends: on the time.monotonic() clock; None without a limit.
    """

    def __init__(
        self,
        folder: RunFolder,
        run: RunRecord,
        progress: Progress,
        stop: Stop,
        job_ends: float | None,
        limit: Limit,
    ) -> None:
        self._folder, self._run, self._progress = folder, run, progress
        self._stop, self._job_ends, self._limit = stop, job_ends, limit
        self._lock, self._recorded = Lock(), 0.0  # when, on the time.monotonic() clock

    def record(self, ending: Ending) -> bool:
        """Write the result; returns False if another thread has. Ends this process if that fails."""
        with self._lock:
            if self._recorded:
                return False
            self._limit.release()  # writing needs some memory
            progress, manifest = self._progress, self._progress.manifest
            peak_bytes = machine.peak_memory_bytes(self._run.config.device)
            ending = with_memory_need(ending, self._run.config)
            try:
                result = Result(
                    run_id=manifest.run_id,
                    attempt=manifest.attempt,
                    outcome=ending.outcome,
                    reason=ending.reason,
                    failed_nodes=ending.failed_nodes,
                    steps=progress.steps,
                    final_loss=progress.loss,
                    peak_memory_bytes=max(peak_bytes, progress.memory_bytes),
                    requested_bytes=ending.requested_bytes,
                    load_after=machine.load(),
                    clocks=clocks(manifest.gpu_uuid),
                    started_at=manifest.started_at,
                    ended_at=now(),
                    wall_seconds=time.monotonic() - progress.started,  # immune to changes of the clock
                )
                write(self._folder.attempt(manifest.attempt).path / "result.json", result)
            except OSError as error:  # exit, because the main thread may be stuck
                reason = f": {ending.reason}" if ending.reason else ""
                say(f"could not write the result ({error.strerror}), which is {ending.outcome.value}{reason}")
                os._exit(UNWRITTEN)
            self._recorded = time.monotonic()
            return True

    def requeue_if_useful(self, ending: Ending) -> None:
        """Have the ledger say why Slurm ended the attempt, and go back into the queue if that is of use."""
        number = self._progress.manifest.attempt
        if ending.outcome is Outcome.CANCELLED and slurm.is_preempted():
            # The result, which is written before Slurm is asked, says `cancelled`.
            ending = replace(ending, outcome=Outcome.PREEMPTED)
            ledger.record_end(self._folder, number, ending)
        if not (self._run.chain and load(self._run.config.task).resumes):
            return
        if slurm.should_go_on(ending, self._stop.cause == "deadline", self._progress, self._folder):
            slurm.claim_next_job(self._folder, number)

    def end_at_once(self, ending: Ending) -> None:
        """End this process, whatever its main thread does: it may wait for one that will not come."""
        late = self._job_ends is not None and time.monotonic() >= self._job_ends
        if ending.outcome is Outcome.CANCELLED and late:
            ending = replace(ending, outcome=Outcome.TIMEOUT)
        if self.record(ending):
            self.requeue_if_useful(ending)
            os._exit(1)
        if time.monotonic() - self._recorded > LEAVE_SECONDS:  # it waits in what follows the result
            os._exit(0)


def is_withdrawn(attempt: Attempt) -> bool:
    """Whether a launcher cancelled this attempt alone, in a job that continues for other runs."""
    return any(event.event == "ended" and event.outcome is Outcome.CANCELLED for event in attempt.events)
