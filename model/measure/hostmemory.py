"""Host memory: how much is left until the kernel ends a process, and limits on what a run's processes use."""

from __future__ import annotations

import errno
import os
import resource
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread

from model.record.units import size

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
# By version of control groups: the files of limit and use, and the statistic of what can be given up.
_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
# The file that counts `oom_kill`, since Linux 4.13.
_KILLS = {"": "memory.events", "memory": "memory.oom_control"}
_PEAKS = {"": "memory.peak", "memory": "memory.max_usage_in_bytes"}
# The file that limits memory and swap together, or swap alone.
_SWAP = {"": ("memory.swap.max", 0), "memory": ("memory.memsw.limit_in_bytes", 1)}
_POLL_SECONDS = 0.1
_REMOVALS = 20  # attempts to remove a group
_NEARLY = 2**24  # bytes below its limit at which a group that the kernel ends may be
_UNLIMITED = 2**62  # version 1 writes no limit as a number of this size
# Bytes that a process may map and not use, beside its cores' threads, however long nobody looks. Most seen on
# CPUs, in a run of 16 processes: 0.3 GiB (torch 2.13).
_SPARE = 2**30
_ON_A_GPU = 2 * 2**30  # that CUDA maps at once and does not use: 1.7 GiB on an H100 (torch 2.11, CUDA 13.0)
_LITTLE = 2**28  # bytes left of a limit that may have been too few for a thread's stack, or for CUDA


class Limit:
    """A limit on the host memory that this process, and those that it starts, have in use.

    In use are pages of no file, pages shared in memory, and swapped ones. What is mapped and never touched
    does not count: threads' stacks and libraries' buffers, which grow with a machine's cores. `watch` looks
    ten times a second, or later on a busy machine. In between, the processes can map what is left of the
    limit, and as much more as they are known not to use (RLIMIT_DATA): an allocation larger than that fails
    at once, a smaller one that exceeds the limit ends them as they use it.

    Args:
        most: bytes; None for no limit.
        source: where the limit comes from, for messages.
        gpu: whether the process uses one.
        apart: returns the pids of started processes that do not count: they have limits of their own.
    """

    def __init__(
        self,
        most: int | None,
        source: str,
        gpu: bool = False,
        apart: Callable[[], Collection[int]] = lambda: (),
    ) -> None:
        self.most, self.source, self._apart = most, source, apart
        stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
        stack = 2**23 if stack == resource.RLIM_INFINITY else stack
        self._spare = _SPARE + stack * (os.cpu_count() or 1) + (_ON_A_GPU if gpu else 0)
        self._before = resource.getrlimit(resource.RLIMIT_DATA)
        self._held = False
        self._children: list[int] = []
        self._not_counted: Collection[int] = ()  # the pids that were left out of them
        self._look_again = 0.0  # for children, on the time.monotonic() clock
        self._released = False

    def watch(self, end: Callable[[str], None]) -> None:
        """Call `end` with the reason, from another thread and repeatedly, while the limit is exceeded."""

        def look() -> None:
            while not self._released:
                began = time.thread_time()  # a busy machine makes a look late, not costly
                if reason := self.exceeded():
                    end(reason)
                time.sleep(max(_POLL_SECONDS, 20 * (time.thread_time() - began)))

        if self.most is not None:
            Thread(target=look, name="memory limit", daemon=True).start()

    def hold(self) -> None:
        """Let allocations fail from now on that would exceed the limit; call it after the large imports."""
        self._held = True
        self.exceeded()

    def release(self) -> None:
        """Lift the limit, for what is left to do when it was exceeded."""
        self._released = True
        if self._held:
            resource.setrlimit(resource.RLIMIT_DATA, self._before)

    def exceeded(self) -> str | None:
        """The reason why the processes must end; None while they are within the limit."""
        if self.most is None:
            return None
        pids = [os.getpid(), *self._started()]
        of_processes = {pid: dict(_numbers(PROC / f"{pid}/status")) for pid in pids}
        used = sum(map(_in_use, of_processes.values()))
        if used > self.most and len(pids) > 1:  # forked processes share pages, which were counted twice
            used = min(used, sum(map(_own_share, pids)))
        if used > self.most:
            return f"out of host memory: {self._state(used)}"
        if self._held and not self._released:
            given, hard = self._before
            for pid, numbers in of_processes.items():
                most = numbers.get("VmData:", 0) * 1024 + self.most - used + self._spare
                most = most if given == resource.RLIM_INFINITY else min(most, given)
                with suppress(ProcessLookupError, PermissionError, ValueError):
                    resource.prlimit(pid, resource.RLIMIT_DATA, (most, hard))
        return None

    def short(self) -> str | None:
        """Say what is in use, if so little is left that it explains a failure that has other causes, too."""
        state = dict(_numbers(PROC / "self/status"))
        used, mapped = _in_use(state), state.get("VmData:", 0) * 1024
        most, _ = resource.getrlimit(resource.RLIMIT_DATA)
        tight = self._held and most != resource.RLIM_INFINITY and mapped > most - _LITTLE
        full = self.most is not None and used > self.most - _LITTLE
        return self._state(used) if tight or full else None

    def state(self) -> str | None:
        """Say what this process has in use, of how much, and whose limit that is; None if there is none."""
        return self._state(in_use()) if self.most is not None else None

    def _state(self, used: int) -> str:
        return f"{size(used)} of {size(self.most or 0)} in use ({self.source})"

    def _started(self) -> list[int]:
        """Pids of the processes below this one that count; a list that is a second old, or two."""
        began, apart = time.thread_time(), frozenset(self._apart())
        if time.monotonic() >= self._look_again or apart != self._not_counted:
            self._children, self._not_counted = [], apart
            with suppress(ChildProcessError):  # it has none, and the tasks below need not be read
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                self._children = _below(os.getpid(), apart)
            # Reading takes some milliseconds where there are hundreds of threads.
            self._look_again = time.monotonic() + max(1.0, 100 * (time.thread_time() - began))
        return self._children


class ControlGroup:
    """A control group in which the kernel limits what a run's processes have in use, all of them together.

    Attributes:
        folder: of the group; its parent is this process's own group.
    """

    def __init__(self, folder: Path, kind: str, most: int, source: str) -> None:
        self.folder, self._kind, self._most, self._source = folder, kind, most, source

    @classmethod
    def make(cls, name: str, most: int, source: str) -> ControlGroup | None:
        """Make one below this process's own; None where the system does not let us, as it mostly does not.

        Args:
            name: of its folder.
            most: bytes.
            source: where the limit comes from, for messages.
        """
        for kind, (own, *_) in groups("memory"):
            folder, (swap, total) = own / name, _SWAP[kind]
            try:
                folder.mkdir()
            except OSError:
                return None
            try:
                (folder / _FILES[kind][0]).write_text(str(most))
                if (folder / swap).exists():  # it does not if the kernel accounts for no swap
                    (folder / swap).write_text(str(most * total))
            except OSError:  # the group's parent hands no memory on
                with suppress(OSError):
                    folder.rmdir()
                return None
            return cls(folder, kind, most, source)
        return None

    def add(self, pid: int) -> bool:
        """Put a process into the group; those that it starts will be in it, too. False if that is refused."""
        try:
            (self.folder / "cgroup.procs").write_text(str(pid))
        except ProcessLookupError:  # it has ended already
            return True
        except OSError:  # as by a parent group that others manage
            return False
        return True

    def killed(self) -> str | None:
        """Say what was in use, and whose limit that is, if the kernel has ended a process of the group."""
        if not dict(_numbers(self.folder / _KILLS[self._kind])).get("oom_kill"):
            return None
        text = _text(self.folder / _PEAKS[self._kind]).strip()
        peak = min(int(text), self._most) if text.isdecimal() else None
        if peak is None or peak >= self._most - _NEARLY:
            used = f"{size(peak)} of " if peak is not None else ""
            return f"{used}{size(self._most)} in use ({self._source})"

        # Of the groups around this one, that with the lowest limit had no more; the machine if none has one.
        outer, limits = "this machine", dict[Path, int]()
        for folder in self.folder.parents:
            text = _text(folder / _FILES[self._kind][0]).strip()
            if text.isdecimal() and int(text) < _UNLIMITED:
                limits[folder] = int(text)
        if limits:
            lowest = min(limits, key=limits.__getitem__)
            outer = f"control group {lowest}, which allows {size(limits[lowest])} in all,"
        return f"{size(peak)} in use; {outer} had no more"

    def remove(self) -> None:
        """Remove the group, once nothing runs in it any more; what ends just now is waited for."""
        for _ in range(_REMOVALS):
            try:
                self.folder.rmdir()
            except OSError as error:
                if error.errno == errno.EBUSY:
                    time.sleep(_POLL_SECONDS)
                    continue
            break


def in_use() -> int:
    """Bytes that this process has in use."""
    return _in_use(dict(_numbers(PROC / "self/status")))


def peak_in_use() -> int:
    """Most bytes that this process has had in use, at least: its largest resident size without files' pages.

    The kernel keeps no peak of pages of no file alone. Pages of files only become more.
    """
    numbers = dict(_numbers(PROC / "self/status"))
    return max(0, numbers.get("VmHWM:", 0) - numbers.get("RssFile:", 0)) * 1024


def left() -> int | None:
    """The fewest bytes left in the machine and in each of the process's control groups; None if unknown.

    What the kernel can give up counts as free: `MemAvailable` of the machine (proc(5)), and a group's
    inactive files (memory.stat, cgroups(7)), as Kubernetes counts them.
    """
    rooms = [value * 1024 for name, value in _numbers(PROC / "meminfo") if name == "MemAvailable:"]
    for kind, folders in groups("memory"):
        limit, usage, of_files = _FILES[kind]
        for folder in folders:
            most, used = _text(folder / limit).strip(), _text(folder / usage).strip()
            if most.isdecimal() and used.isdecimal():
                files = dict(_numbers(folder / "memory.stat")).get(of_files, 0)
                rooms.append(max(0, int(most) - int(used) + files))
    return min(rooms, default=None)


def address_space() -> str | None:
    """The limit on what a process may map, which a shell or a job may have set; None if there is none."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if most == resource.RLIM_INFINITY else f"`ulimit -v` allows {size(most)} to be mapped"


def oom_kills() -> int:
    """Number of processes of this one's control group that the kernel's OOM killer has ended.

    Where no group counts them, it is the number of the whole machine since boot, and includes other
    jobs, which exceed limits of their own.
    """
    for kind, (own, *_) in groups("memory"):
        if (kills := dict(_numbers(own / _KILLS[kind])).get("oom_kill")) is not None:
            return kills
    return dict(_numbers(PROC / "vmstat")).get("oom_kill", 0)


def groups(controller: str) -> Iterator[tuple[str, list[Path]]]:
    """The control groups of this process that may have a controller, in version 1 and in version 2.

    Yields the controller, or an empty text for version 2, and the groups' folders, the process's own first.
    """
    for line in _text(PROC / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        kind = controller if controller in controllers.split(",") else controllers
        if kind in ("", controller):
            top = CGROUPS / kind
            own = top / path.lstrip("/")
            yield kind, [folder for folder in (own, *own.parents) if folder == top or top in folder.parents]


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


def _below(pid: int, apart: Collection[int]) -> list[int]:
    """Pids of all processes below one, but for those apart and what is below them."""
    children = [
        int(child)
        for thread in (PROC / f"{pid}/task").glob("*/children")
        for child in _text(thread).split()
        if int(child) not in apart
    ]
    return children + [below for child in children for below in _below(child, apart)]


def _in_use(status: Mapping[str, int]) -> int:
    """Bytes that a process has in use, by its /proc/PID/status."""
    return sum(status.get(name, 0) for name in ("RssAnon:", "RssShmem:", "VmSwap:")) * 1024


def _own_share(pid: int) -> int:
    """Bytes that a process has in use, of shared pages its share."""
    numbers = dict(_numbers(PROC / f"{pid}/smaps_rollup"))
    return sum(numbers.get(name, 0) for name in ("Pss_Anon:", "Pss_Shmem:", "SwapPss:")) * 1024
