"""From how something ended to its outcome: an exception in the job, a signal, a scheduler's state."""

from __future__ import annotations

import re
import signal
import traceback
from dataclasses import dataclass

from model.errors import AssayError, Diverged, Unsupported
from model.record import Outcome


class Terminated(BaseException):
    """SIGTERM reached the job: raised in its main thread, so that it can still say so."""


@dataclass(frozen=True)
class Ending:
    """An outcome, why, and the bytes asked for where memory ran out."""

    outcome: Outcome
    reason: str | None = None
    requested_bytes: int | None = None


_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
# What torch's CPU allocator and the C++ runtime say; they raise plain RuntimeErrors.
_HOST_MEMORY = re.compile(r"DefaultCPUAllocator|not enough memory|std::bad_alloc|Cannot allocate memory")
_REQUESTED = re.compile(r"(?i:tried to allocate) ([\d.]+) (bytes|[KMGT]iB)")


def of_exception(error: BaseException) -> Ending:
    """How a job that raised this ended."""
    text = str(error).strip()
    first = text.splitlines()[0] if text else type(error).__name__
    if isinstance(error, Unsupported):
        return Ending(Outcome.UNSUPPORTED, text)
    if isinstance(error, Diverged):
        return Ending(Outcome.DIVERGED, text)
    if isinstance(error, Terminated | KeyboardInterrupt):
        return Ending(
            Outcome.CANCELLED, "the job got " + ("SIGTERM" if isinstance(error, Terminated) else "SIGINT")
        )
    if type(error).__name__ == "OutOfMemoryError":  # torch's; this file does not import torch
        return Ending(Outcome.OOM_GPU, text.partition(" If ")[0], _requested(text))
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _HOST_MEMORY.search(text)):
        return Ending(Outcome.OOM_HOST, _host_memory(text), _requested(text))
    if isinstance(error, AssayError):
        return Ending(Outcome.FAILED, text)
    return Ending(Outcome.FAILED, f"{type(error).__name__}: {first} ({_where(error)})")


def _requested(text: str) -> int | None:
    match = _REQUESTED.search(text)
    return int(float(match[1]) * _UNITS[match[2]]) if match else None


def _host_memory(text: str) -> str:
    requested = _requested(text)
    return f"host memory ran out: asked for {size(requested)}" if requested else "host memory ran out"


def size(amount: int) -> str:
    """Bytes for a person: `4.0 GiB`."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024 * _UNITS[unit]:
            break
    return f"{amount} bytes" if unit == "bytes" else f"{amount / _UNITS[unit]:.1f} {unit}"


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "no traceback"


def of_exit(code: int, oom_killed: bool) -> Ending:
    """How a local process ended that left no result.

    Args:
        code: as subprocess gives it, negative for a signal.
        oom_killed: the kernel's out-of-memory killer was at work meanwhile.
    """
    if code == -signal.SIGKILL and oom_killed:
        return Ending(Outcome.OOM_HOST, "killed by the kernel: the machine ran out of memory")
    if code < 0:
        return Ending(Outcome.FAILED, f"killed by {signal.Signals(-code).name}")
    return Ending(Outcome.FAILED, f"exited with code {code} and left no result")


# Every final state that Slurm has (squeue's and sacct's manual pages, JOB STATE CODES).
_SLURM = {
    "BOOT_FAIL": Outcome.NODE_FAILED,
    "CANCELLED": Outcome.CANCELLED,
    "COMPLETED": Outcome.LOST,  # it left no result, so the exit code 0 proves nothing
    "DEADLINE": Outcome.TIMEOUT,
    "FAILED": Outcome.FAILED,
    "LAUNCH_FAILED": Outcome.NODE_FAILED,
    "NODE_FAIL": Outcome.NODE_FAILED,
    "OUT_OF_MEMORY": Outcome.OOM_HOST,
    "PREEMPTED": Outcome.PREEMPTED,
    "REVOKED": Outcome.CANCELLED,
    "TIMEOUT": Outcome.TIMEOUT,
}
# Slurm may start such a job again by itself (and a job that it preempts says `cancelled`).
MAY_COME_BACK = frozenset({Outcome.PREEMPTED, Outcome.NODE_FAILED, Outcome.TIMEOUT, Outcome.CANCELLED})
SLURM_ALIVE = frozenset({
    "PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED",
    "RESIZING", "RESV_DEL_HOLD", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED",
})  # fmt: skip


def of_slurm(state: str, exit_code: str, node: str = "") -> Ending | None:
    """How a Slurm job ended, None while it has not. A state that is not known is never success.

    Args:
        state: as sacct prints it, such as `CANCELLED by 1000`.
        exit_code: `CODE:SIGNAL`.
        node: where it ran.
    """
    word = state.partition(" ")[0].rstrip("+")
    if word in SLURM_ALIVE:
        return None
    where = f" on {node}" if node and node != "None assigned" else ""
    said = f"Slurm: {state}, exit code {exit_code}{where}"
    if word not in _SLURM:
        return Ending(Outcome.LOST, f"{said}, a state that is not known here")
    return Ending(_SLURM[word], f"{said}, and the attempt left no result" if word == "COMPLETED" else said)
