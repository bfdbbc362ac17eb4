"""How much host memory is left before the kernel, or Slurm through it, ends a process; how many it ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
# By version of control groups: the files of limit and use, and the statistic of what can be given up.
_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
# The file that counts `oom_kill`, since Linux 4.13.
_KILLS = {"": "memory.events", "memory": "memory.oom_control"}


def left() -> int | None:
    """The fewest bytes left in the machine and in each of the process's control groups; None if unknown.

    What the kernel can give up counts as free: `MemAvailable` of the machine (proc(5)), and a group's
    inactive files (memory.stat, cgroups(7)), as Kubernetes counts them.
    """
    found = [*_of_machine(), *_of_groups()]
    return min(found, default=None)


def data() -> int:
    """Bytes of this process's heap, private mappings and threads' stacks, which RLIMIT_DATA limits."""
    return dict(_numbers(PROC / "self/status")).get("VmData:", 0) * 1024


def oom_kills() -> int:
    """Number of processes of this one's control group that the kernel's OOM killer has ended.

    Where no group counts them, it is the number of the whole machine since boot, and includes other
    jobs, which exceed limits of their own.
    """
    for kind, (own, *_) in _groups():
        if (found := dict(_numbers(own / _KILLS[kind])).get("oom_kill")) is not None:
            return found
    return dict(_numbers(PROC / "vmstat")).get("oom_kill", 0)


def _of_machine() -> Iterator[int]:
    for name, value in _numbers(PROC / "meminfo"):
        if name == "MemAvailable:":
            yield value * 1024


def _of_groups() -> Iterator[int]:
    for kind, folders in _groups():
        yield from (room for folder in folders for room in _of_group(folder, *_FILES[kind]))


def _groups() -> Iterator[tuple[str, list[Path]]]:
    """The version of the control groups that count memory, and their folders, the process's own first."""
    for line in _text(PROC / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        kind = "memory" if "memory" in controllers.split(",") else controllers
        if kind in _FILES:
            top = CGROUPS / kind
            own = top / path.lstrip("/")
            yield kind, [each for each in (own, *own.parents) if each == top or top in each.parents]


def _of_group(folder: Path, limit: str, usage: str, of_files: str) -> Iterator[int]:
    most, used = _text(folder / limit).strip(), _text(folder / usage).strip()
    if most.isdecimal() and used.isdecimal():
        files = dict(_numbers(folder / "memory.stat")).get(of_files, 0)
        yield max(0, int(most) - int(used) + files)


def _numbers(path: Path) -> Iterator[tuple[str, int]]:
    for line in _text(path).splitlines():
        name, number, *_ = (*line.split(), "", "")
        if number.isdecimal():
            yield name, int(number)


def _text(path: Path) -> str:
    """Empty if there is no such file: not every machine has control groups, nor every group a limit."""
    try:
        return path.read_text()
    except OSError:
        return ""
