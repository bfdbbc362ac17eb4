"""Processes on this machine: which one started a run, whether it is alive, and which GPU it holds."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from model.record.errors import UserError
from model.record.records import LedgerEvent, Manifest
from runner.state import gpus


def started(pid: int) -> float | None:
    """When a process on this machine started, in seconds since boot; None if there is no such process.

    Seconds since boot do not change when the clock is set. Seconds since 1970 do: the kernel computes them
    from the boot time.
    """
    fields = _stat(pid)
    return int(fields[19]) / os.sysconf("SC_CLK_TCK") if fields and fields[0] != "Z" else None


def is_running(pid: int, pid_started: float | None) -> bool:
    """Whether the process that a record names is still running; its PID may have been reused."""
    running_since = started(pid)
    if running_since is None or pid_started is None:
        return False
    return abs(running_since - pid_started) < 0.005


def is_suspended(pid: int) -> bool:
    """Whether a process on this machine was suspended, as by Ctrl-Z."""
    fields = _stat(pid)
    return bool(fields and fields[0] == "T")


def alive(process: Manifest | LedgerEvent) -> bool | None:
    """Whether a recorded process is still running; None if it belongs to another machine."""
    if process.host != socket.gethostname():
        return None
    return process.pid is not None and is_running(process.pid, process.pid_started)


def terminate(process: Manifest, by: signal.Signals = signal.SIGTERM) -> bool:
    """Send a signal to a recorded process on this machine; returns False if it is not running.

    A stopped process is continued so that it receives the signal, with the others of its run; Slurm does the
    same.

    Raises:
        UserError: it belongs to another user.
    """
    if process.pid is None or not alive(process):
        return False
    try:
        os.kill(process.pid, by)
        resume_group(process.pid)
    except ProcessLookupError:
        return False
    except PermissionError as error:
        raise UserError(
            f"run {process.run_id} was started by another user, who alone can cancel it"
        ) from error
    return True


def resume_group(pid: int) -> None:
    """Continue the stopped processes of a run on this machine, if any are left.

    They can save only together, and share a process group. A trial has its own, and rank 0 kills it.

    Raises:
        PermissionError: they belong to another user.
    """
    with suppress(ProcessLookupError):  # a signal sent just before may have ended them
        try:
            group = os.getpgid(pid)
        except ProcessLookupError:  # the others may still be there
            group = pid
        os.killpg(group, signal.SIGCONT)


def own_identity() -> dict[str, Any]:
    """The fields that identify this process in records: `host`, `pid`, `pid_started`."""
    return _identity(os.getpid())


@cache
def _identity(pid: int) -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": pid, "pid_started": started(pid) or 0.0}


def hold_gpu(uuid: str | None) -> socket.socket | None:
    """Reserve a GPU for this process for as long as the returned socket is open; None if there is no GPU.

    Two runs that share a GPU would distort each other's timings. The socket's name is in Linux's abstract
    namespace: it leaves no file behind, and is released when the process ends.

    Raises:
        UserError: another run on this machine holds the GPU.
    """
    if uuid is None:
        return None
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind(f"\0assay-gpu-{uuid}")
    except OSError as error:
        held.close()
        whose = "by another run on this machine, or by another process of this one"
        variable = gpus.variable(os.environ)
        bind = f"with {variable} for each launch, or on Slurm `srun_args: [--gpus-per-task=1]`"
        text = f"GPU {uuid} is in use {whose}: give each its own, {bind}"
        raise UserError(f"{text}; or lower max_parallel") from error
    return held


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat, starting with the process state; None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
