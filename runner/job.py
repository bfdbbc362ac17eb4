"""One attempt of one run, in a process of its own: `python -m runner.job RUN_FOLDER ATTEMPT LAUNCHER_PID`.

Reads run.json, writes the attempt's files, and always says how it ended, unless it is killed.
"""

from __future__ import annotations

import os
import resource
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from model import attention, machine
from model.checkpoint import inspect
from model.data import Source, fingerprint
from model.errors import Interrupted, Unsupported, UserError
from model.files import Unreadable, append, write
from model.record import Manifest, Outcome, Result, RunFolder, RunRecord, StepRecord, now
from runner import gate, ledger, scheduler, snapshot
from runner.outcomes import Ending, of_exception
from runner.stopping import KILL_SECONDS, Stop, deadline, die_with, requeue, slurm_end

# How an attempt ends that Slurm's requeue, or the time limit, has stopped.
STOPPED = frozenset({Outcome.CANCELLED, Outcome.TIMEOUT, Outcome.PREEMPTED, Outcome.NODE_FAILED})


@dataclass
class Progress:
    """What the attempt has done so far, for its result."""

    manifest: Manifest
    steps: int = 0
    loss: float | None = None
    started: float = field(default_factory=time.monotonic)


def run_attempt(run_folder: str, number: int, fellows: Sequence[RunFolder] = ()) -> str:
    """Run one attempt to its end, and give its outcome.

    Called in the job's process; submitit pickles a function that calls it by name, and folders and numbers
    alone, so that code which is edited before the job starts cannot change what was planned.

    Args:
        fellows: the runs that share its job.
    """
    folder = RunFolder(Path(run_folder))
    attempt, run = folder.attempt(number), folder.run
    end = slurm_end()
    alone = partial(withdrawn, folder, number) if fellows else None
    stop = Stop(deadline(end, run.grace_seconds), alone)
    stop.listen()
    progress = Progress(_first_manifest(folder, run, number))
    write(attempt / "manifest.json", progress.manifest)
    try:
        _limit_memory(run.memory_bytes)
        _train(run, folder, progress, stop)
        ending = Ending(Outcome.COMPLETED)
    except BaseException as error:
        _limit_memory(None)  # saying how it ended takes a little memory
        ending = _ending(error, stop)
        if ending.outcome is Outcome.FAILED:
            traceback.print_exc()
    write(attempt / "result.json", _result(progress, ending, machine.peak_memory_bytes(run.config.device)))
    if stop.cause == "deadline" and run.requeue and progress.steps > (progress.manifest.resumed_step or 0):
        _go_on_in_the_queue(folder, number, fellows, end)
    return ending.outcome.value


def _first_manifest(folder: RunFolder, run: RunRecord, number: int) -> Manifest:
    """Who runs, and which earlier attempt's checkpoint it goes on from: the newest one that is whole."""
    found: dict[str, Any] = {}
    for earlier in reversed([other for other in folder.attempts() if other < number]):
        path = folder.attempt(earlier) / "checkpoint"
        if path.exists():
            try:
                found |= {"resumed_attempt": earlier, "resumed_step": inspect(path)}
                break
            except Unreadable as error:
                found.setdefault("not_resumed", str(error))
    return machine.first_manifest(run.run_id, number).model_copy(update=found)


def _ending(error: BaseException, stop: Stop) -> Ending:
    if isinstance(error, Interrupted) and stop.cause == "deadline":
        return Ending(
            Outcome.TIMEOUT, f"stopped before the time limit; a checkpoint of step {error.step} is kept"
        )
    if isinstance(error, Interrupted):
        return Ending(Outcome.CANCELLED, f"the job got SIGTERM; a checkpoint of step {error.step} is kept")
    return of_exception(error)


def withdrawn(folder: RunFolder, number: int) -> bool:
    """Whether an attempt was cancelled by a launcher, in a job that goes on for the runs that share it."""
    ended = [event for event in folder.ledger if event.event == "ended" and event.attempt == number]
    return any(event.outcome is Outcome.CANCELLED for event in ended)


def _go_on_in_the_queue(
    folder: RunFolder, number: int, fellows: Sequence[RunFolder], end: float | None
) -> None:
    """Claim the next attempt for this same Slurm job, and put the job back into the queue.

    That ends every run in it, so the runs that share it are waited for, as long as there is time.
    """
    state = ledger.state(folder)
    if state.job_id and ledger.claim(folder, number + 1, "slurm"):
        ledger.submitted(folder, number + 1, state.job_id)
        while any(map(_at_work, fellows)) and (end is None or time.monotonic() < end - KILL_SECONDS):
            time.sleep(1)
        try:
            requeue(folder.path.parent / ".submitit")
        except OSError as error:
            ledger.release(folder, number + 1, str(error))


def _at_work(fellow: RunFolder) -> bool:
    """Whether the process of a run's newest attempt on this machine lives and has not said how it ended."""
    newest = fellow.attempts()[-1]
    manifest = fellow.manifest(newest)
    return bool(manifest and fellow.result(newest) is None and ledger.alive(manifest))


def attempt_of_restart(folder: RunFolder, number: int) -> int | None:
    """The attempt that a job which Slurm has started again works on; None where there is nothing left for it.

    It is the one that was claimed when the job put itself back into the queue; where Slurm did so, for a
    failed node or a preemption, a new one. A run that was stopped, and did not end, goes on.
    """
    newest, job_id = folder.attempts()[-1], _job_of(folder, number) or os.environ.get("SLURM_JOB_ID", "")
    state = ledger.state(folder)
    if state.outcome is Outcome.COMPLETED or (newest != number and _job_of(folder, newest) != job_id):
        return None  # done, or another job's
    if folder.manifest(newest) is None:
        return newest
    if not state.in_flight and (state.outcome not in STOPPED or withdrawn(folder, newest)):
        return None
    if state.in_flight:
        ledger.ended(folder, newest, scheduler.ending_before_restart(state.job_id))
    if not ledger.claim(folder, newest + 1, "slurm"):
        return None
    ledger.submitted(folder, newest + 1, job_id)
    return newest + 1


def _job_of(folder: RunFolder, number: int) -> str | None:
    return next((event.job_id for event in folder.ledger if event.attempt == number and event.job_id), None)


def _train(run: RunRecord, folder: RunFolder, progress: Progress, stop: Stop) -> None:
    source = Source(Path(run.data_file), run.tokenizer)
    if fingerprint(source, run.config.data.text_column) != run.data_fingerprint:
        raise UserError(f"{run.data_file} or the tokenizer is not what it was when this run was planned")
    import torch

    from model.keeper import Checkpoints
    from model.trainer import train

    attempt = folder.attempt(progress.manifest.attempt)

    def report(record: StepRecord) -> None:
        append(attempt / "steps.jsonl", record, sync=True)  # a checkpoint's records must be as safe as it is
        progress.steps, progress.loss = record.step, record.loss

    if run.config.device == "cuda" and not torch.cuda.is_available():
        attention.require(run.config.attention, run.config.attention_case)
        raise Unsupported([f"no CUDA device is visible to torch {torch.__version__}"])
    progress.manifest = machine.with_device(progress.manifest, run.config, run.peak_flops_override)
    write(attempt / "manifest.json", progress.manifest)
    _gpu = machine.hold_gpu(progress.manifest.gpu_uuid)
    progress.manifest = progress.manifest.model_copy(update={"certificate": _certificate(run, folder)})
    write(attempt / "manifest.json", progress.manifest)
    resumed = progress.manifest.resumed_attempt
    checkpoints = Checkpoints(
        folder=attempt,
        every_seconds=run.checkpoint_seconds,
        should_stop=stop.requested,
        resume_from=folder.attempt(resumed) if resumed else None,
    )
    train(run.config, source, report, checkpoints)


def _certificate(run: RunRecord, folder: RunFolder) -> str:
    """Key of the certificate under which the run may train."""
    backend, case = run.config.attention, run.config.attention_case
    attention.require(backend, case)
    options = snapshot.options(folder.path.parent, run.provenance.code)
    return gate.admit(backend, case, folder.path.parent.parent, options).key


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
        started_at=manifest.started_at,
        ended_at=now(),
        wall_seconds=time.monotonic() - progress.started,  # the clock of started_at can be set back
    )


def _limit_memory(limit: int | None) -> None:
    """Limit the process's own data (heap and private mappings), so that torch can say what it asked for."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard if limit is None else limit, hard))


def main() -> None:
    """Run an attempt for the local queue, and die with it: no orphan may spoil the next timing."""
    run_folder, number, launcher = sys.argv[1:]
    die_with(int(launcher))
    run_attempt(run_folder, int(number))


if __name__ == "__main__":
    main()
