"""Processes of this machine: who started a run, whether it still lives, and which GPU it holds."""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from model.disk.record import LedgerEvent, Manifest
from model.errors import UserError


def started(pid: int) -> float | None:
    """When a process of this machine started, in seconds since boot; None where there is no such process.

    Seconds since boot do not move with the clock. Seconds since 1970 do: the kernel derives them from boot.
    """
    found = _stat(pid)
    return int(found[19]) / os.sysconf("SC_CLK_TCK") if found and found[0] != "Z" else None


def runs(pid: int, pid_started: float | None) -> bool:
    """Whether the process that a record names still runs; another one may have its number by now."""
    found = started(pid)
    if found is None or pid_started is None:
        return False
    if pid_started > 1e9:  # written by an earlier version: seconds since 1970
        return abs(found + psutil.boot_time() - pid_started) < 1
    return abs(found - pid_started) < 0.005


def alive(process: Manifest | LedgerEvent) -> bool | None:
    """Whether a recorded process of this machine still runs; None if it ran on another machine."""
    if process.host != socket.gethostname():
        return None
    return process.pid is not None and runs(process.pid, process.pid_started)


@cache
def me() -> dict[str, Any]:
    """This process as records name it: `host`, `pid`, `pid_started`."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "pid_started": started(os.getpid()) or 0.0}


def hold_gpu(uuid: str | None) -> socket.socket | None:
    """Hold a GPU for this process alone, as long as the returned socket is open; None without a GPU.

    Two runs that share a GPU would spoil each other's timings. The name is in Linux's abstract namespace: it
    leaves no file, and is free again when the process ends.

    Raises:
        UserError: another run on this machine holds it.
    """
    if uuid is None:
        return None
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind(f"\0assay-gpu-{uuid}")
    except OSError as error:
        held.close()
        bind = "give each its own, such as `srun_args: [--gpus-per-task=1]`, or lower max_parallel"
        raise UserError(f"GPU {uuid} is in use by another run on this machine: {bind}") from error
    return held


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
