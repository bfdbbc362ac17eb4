"""One attempt of one run: reads run.json, writes the attempt's files, and records the outcome."""

from __future__ import annotations

import gc
import resource
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Any

from model import attention
from model.audit import Taken
from model.disk.checkpoint import inspect
from model.disk.files import Unreadable, append, write
from model.disk.folder import Attempt, RunFolder
from model.disk.record import Manifest, Outcome, Result, RunRecord, StepRecord, now
from model.errors import AuditFailed, Interrupted, Unsupported, UserError
from model.measure import machine
from model.text import Source
from runner.job import admission, ceilings, phase, profile
from runner.job.clocks import clocks
from runner.job.manifest import first_manifest, with_device
from runner.job.slurm import KILL_SECONDS, job_end, requeue
from runner.job.stop import Stop, deadline
from runner.state import ledger, process
from runner.state.code import snapshot
from runner.state.endings import Ending, Terminated, of_exception
from runner.state.slurm import SchedulerError
from runner.state.tasks import jobs_folder

if TYPE_CHECKING:
    from model.measure.profile import Trained


@dataclass
class Progress:
    """Progress of the attempt so far, for its result.

    Attributes:
        gpu: keeps other runs off the GPU, also while the step is profiled.
    """

    manifest: Manifest
    steps: int = 0
    loss: float | None = None
    started: float = field(default_factory=time.monotonic)
    gpu: socket | None = None


def run_attempt(folder: RunFolder, number: int, fellows: Sequence[RunFolder] = ()) -> str:
    """Run one attempt of a run in this process and return its outcome.

    Args:
        fellows: the other runs in the same job.
    """
    attempt, run = folder.attempt(number).path, folder.run
    end = job_end()
    alone = (lambda: withdrawn(folder.attempt(number))) if fellows else None
    stop = Stop(deadline(end, run.grace_seconds), alone)
    stop.listen()
    progress = Progress(_first_manifest(folder, run, number))
    write(attempt / "manifest.json", progress.manifest)
    trained = None
    try:
        _limit_memory(run.memory_bytes)
        trained = _train(run, folder, progress, stop)
        ending = Ending(Outcome.COMPLETED)
    except BaseException as error:
        _limit_memory(None)  # writing the result needs some memory
        ending = _ending(error, stop, end)
        if ending.outcome is Outcome.FAILED:
            traceback.print_exc()
    write(attempt / "result.json", _result(progress, ending, machine.peak_memory_bytes(run.config.device)))
    if trained and not stop.requested():
        profile.keep(trained, progress.manifest, attempt)
    if progress.gpu:
        progress.gpu.close()
    if stop.cause == "deadline" and run.requeue and progress.steps > (progress.manifest.resumed_step or 0):
        _go_on_in_the_queue(folder, number, fellows, end)
    return ending.outcome.value


def _first_manifest(folder: RunFolder, run: RunRecord, number: int) -> Manifest:
    """The manifest, with the earlier attempt to resume from: the newest with a complete checkpoint.

    After a failed audit a run starts over.
    """
    found: dict[str, Any] = {}
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
    return first_manifest(run.run_id, number).model_copy(update=found)


def _not_trusted(attempt: Attempt) -> str | None:
    """Why no checkpoint of it or before it is used: nobody knows since when its backend was wrong."""
    try:
        failed = [audit for audit in attempt.audits if not audit.passed]
    except Unreadable as error:
        return str(error)
    return f"attempt {attempt.number} failed its audit of step {failed[0].step}" if failed else None


def _ending(error: BaseException, stop: Stop, end: float | None) -> Ending:
    """How an attempt ended by an exception.

    Args:
        end: of the job's time, on the time.monotonic() clock. A run that hangs until Slurm signals it at its
            limit was not cancelled.
    """
    late = end is not None and time.monotonic() >= end
    if late and isinstance(error, Terminated):
        return Ending(Outcome.TIMEOUT, "reached its time limit")
    if not isinstance(error, Interrupted):
        return of_exception(error)
    saved = f"a checkpoint was saved at step {error.step}"
    if stop.cause == "deadline":
        return Ending(Outcome.TIMEOUT, f"stopped before the time limit; {saved}")
    if late:
        return Ending(Outcome.TIMEOUT, f"reached its time limit; {saved}")
    return Ending(Outcome.CANCELLED, f"received SIGTERM; {saved}")


def withdrawn(attempt: Attempt) -> bool:
    """Whether a launcher cancelled this attempt alone, in a job that continues for other runs."""
    return any(event.event == "ended" and event.outcome is Outcome.CANCELLED for event in attempt.events)


def _go_on_in_the_queue(
    folder: RunFolder, number: int, fellows: Sequence[RunFolder], end: float | None
) -> None:
    """Claim the next attempt for this Slurm job, and requeue the job.

    A requeue ends every run in the job, so this first waits for the others, as long as time allows.
    """
    state = ledger.state(folder)
    if state.job_id and ledger.claim(folder, number + 1, "slurm"):
        ledger.submitted(folder, number + 1, state.job_id)
        while any(map(_at_work, fellows)) and (end is None or time.monotonic() < end - KILL_SECONDS):
            time.sleep(1)
        try:
            requeue(jobs_folder(folder.path.parent))
        except (SchedulerError, OSError) as error:
            ledger.release(folder, number + 1, str(error))


def _at_work(fellow: RunFolder) -> bool:
    """Whether a run's newest attempt has no result yet and its process is alive on this machine."""
    newest = fellow.attempts()[-1]
    return bool(newest.manifest and newest.result is None and process.alive(newest.manifest))


def _train(run: RunRecord, folder: RunFolder, progress: Progress, stop: Stop) -> Trained:
    source = _checked(run, Source(Path(run.data_file), run.tokenizer, run.data_content))
    gc.disable()  # torch's import makes many objects and no garbage: a sixth of its time
    import torch

    from model.keeper import Checkpoints
    from model.trainer import train

    gc.enable()
    attempt = folder.attempt(progress.manifest.attempt).path

    def report(record: StepRecord) -> None:
        append(
            attempt / "steps.jsonl", record, sync=True
        )  # records must be on disk before a later checkpoint
        progress.steps, progress.loss = record.step, record.loss

    def judged(taken: Taken) -> None:
        from model.verify.right import judge

        if record := judge(taken):
            append(attempt / "audits.jsonl", record, sync=True)
            if not record.passed:
                raise AuditFailed(f"attention is wrong in {record.where}: {record.reason}")

    if run.config.device == "cuda" and not torch.cuda.is_available():
        attention.require(run.config.attention, run.config.attention_case)
        raise Unsupported([f"no CUDA device is visible to torch {torch.__version__}"])
    progress.manifest = with_device(progress.manifest, run.config, run.peak_flops_override)
    write(attempt / "manifest.json", progress.manifest)
    progress.gpu = process.hold_gpu(progress.manifest.gpu_uuid)
    options = snapshot.options(folder.path.parent, run.provenance.code)
    with phase.shown(attempt) as tell:
        certificate = _certificate(run, folder, options, tell)
    facts = {"certificate": certificate, "device_users": machine.device_users(run.config.device)}
    facts |= vars(ceilings.known(run.config, progress.manifest, folder.path.parent, options))
    progress.manifest = progress.manifest.model_copy(update=facts)
    write(attempt / "manifest.json", progress.manifest)
    resumed = progress.manifest.resumed_attempt
    checkpoints = Checkpoints(
        folder=attempt,
        every_seconds=run.checkpoint_seconds,
        should_stop=stop.requested,
        resume_from=folder.attempt(resumed).path if resumed else None,
    )
    return train(run.config, _checked(run, source), report, checkpoints, judged)  # the trial took minutes


def _checked(run: RunRecord, source: Source) -> Source:
    """The text that the run was planned with; raises UserError if it has changed since."""
    if not source.recognised:  # else it is as the launch checked it
        source = source.checked(run.config.data.text_column)
    if not source.has(run.data_fingerprint):
        raise UserError(f"{run.data_file} or the tokenizer has changed since this run was planned")
    return source


def _certificate(
    run: RunRecord, folder: RunFolder, options: Sequence[str], tell: Callable[[phase.Stage], None]
) -> str:
    """Key of the certificate that allows the run to train."""
    backend, case = run.config.attention, run.config.attention_case
    attention.require(backend, case)
    return admission.admit(backend, case, folder.path.parent.parent, options, tell).key


def _result(progress: Progress, ending: Ending, peak_memory_bytes: int) -> Result:
    manifest = progress.manifest
    return Result(
        run_id=manifest.run_id,
        attempt=manifest.attempt,
        outcome=ending.outcome,
        reason=ending.reason,
        steps=progress.steps,
        final_loss=progress.loss,
        peak_memory_bytes=peak_memory_bytes,
        requested_bytes=ending.requested_bytes,
        load_after=machine.load(),
        clocks=clocks(manifest.gpu_uuid),
        started_at=manifest.started_at,
        ended_at=now(),
        wall_seconds=time.monotonic() - progress.started,  # immune to changes of the system clock
    )


def _limit_memory(limit: int | None) -> None:
    """Limit the process's data (heap and private mappings), so that torch can report what it requested."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard if limit is None else limit, hard))
