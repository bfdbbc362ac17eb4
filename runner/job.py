"""One attempt of one run, in a process of its own: `python -m runner.job RUN_FOLDER ATTEMPT LAUNCHER_PID`.

Reads run.json, writes the attempt's files, and always says how it ended, unless it is killed.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from model import machine
from model.data import Source, fingerprint
from model.errors import Unsupported, UserError
from model.record import Manifest, Outcome, Result, RunFolder, RunRecord, StepRecord, append, now, write
from runner.outcomes import Ending, Terminated, of_exception

_PR_SET_PDEATHSIG = 1


@dataclass
class Progress:
    """What the attempt has done so far, for its result."""

    steps: int = 0
    loss: float | None = None
    manifest: Manifest | None = field(default=None, repr=False)


def run_attempt(run_folder: str, number: int) -> str:
    """Run one attempt to its end, and give its outcome.

    Called in the job's process; submitit pickles this function by name and these two arguments alone, so
    that code which is edited before the job starts cannot change what was planned.
    """
    folder = RunFolder(Path(run_folder))
    attempt = folder.attempt(number)
    run = folder.run
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # submitit's warning before the time limit
    progress = Progress(manifest=machine.first_manifest(run.run_id, number))
    assert progress.manifest
    write(attempt / "manifest.json", progress.manifest)
    try:
        _limit_memory(run.memory_bytes)
        _train(run, attempt, progress)
        ending = Ending(Outcome.COMPLETED)
    except BaseException as error:
        _limit_memory(None)  # saying how it ended takes a little memory
        ending = of_exception(error)
        if ending.outcome is Outcome.FAILED:
            traceback.print_exc()
    write(attempt / "result.json", _result(progress, ending, machine.peak_memory_bytes(run.config.device)))
    return ending.outcome.value


def _train(run: RunRecord, attempt: Path, progress: Progress) -> None:
    source = Source(Path(run.data_file), run.tokenizer)
    if fingerprint(source, run.config.data.text_column) != run.data_fingerprint:
        raise UserError(f"{run.data_file} or the tokenizer is not what it was when this run was planned")
    import torch

    from model.trainer import train

    def report(record: StepRecord) -> None:
        append(attempt / "steps.jsonl", record)
        progress.steps, progress.loss = record.step, record.loss

    if run.config.device == "cuda" and not torch.cuda.is_available():
        from model import attention

        attention.require(run.config.attention, run.config.attention_case)
        raise Unsupported([f"no CUDA device is visible to torch {torch.__version__}"])
    assert progress.manifest
    progress.manifest = machine.with_device(progress.manifest, run.config, run.peak_flops_override)
    write(attempt / "manifest.json", progress.manifest)
    train(run.config, source, report)


def _result(progress: Progress, ending: Ending, peak_memory_bytes: int) -> Result:
    manifest = progress.manifest
    assert manifest
    ended = now()
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
        ended_at=ended,
        wall_seconds=(ended - manifest.started_at).total_seconds(),
    )


def _limit_memory(limit: int | None) -> None:
    """Limit the process's own data (heap and private mappings), so that torch can say what it asked for."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard if limit is None else limit, hard))


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    raise Terminated


def main() -> None:
    """Run an attempt for the local queue, and die with it: no orphan may spoil the next timing."""
    run_folder, number, launcher = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(launcher):
        sys.exit("the launcher is gone")
    run_attempt(run_folder, int(number))


if __name__ == "__main__":
    main()
