"""Shared by the benchmarks: timed commands, and a table of medians with their spread."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple


class Taken(NamedTuple):
    """Seconds. `cpu` is for a process and its children, and hardly depends on the machine's other load."""

    wall: float
    cpu: float | None = None


Times = dict[str, list[Taken]]


def run(command: Iterable[object], cwd: Path | None = None) -> Taken:
    """Time a whole process; raises RuntimeError if it fails."""
    words = [str(word) for word in command]
    before, start = _cpu(), time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=cwd)
    taken = Taken(time.perf_counter() - start, _cpu() - before)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return taken


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def python(code: str) -> Taken:
    return run([sys.executable, "-c", code])


def runner(root: Path, *arguments: object) -> Taken:
    """Time one `runner` command."""
    return run([sys.executable, "-P", "-m", "runner", "--root", root, *arguments])


def add(times: Times, found: Mapping[str, Taken]) -> None:
    for what, taken in found.items():
        times.setdefault(what, []).append(taken)


def machine() -> str:
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{os.cpu_count()} CPU cores, load {load}, Python {platform.python_version()}"


def show(times: Times, base: str | None = None) -> None:
    """Print a line per measurement; with a base, also the ratio of CPU seconds to the base's."""
    for what, taken in times.items():
        wall = [one.wall for one in taken]
        spread = f"min {min(wall):6.2f}  max {max(wall):6.2f}  n {len(wall)}"
        print(f"{what:44} wall {median(wall):6.2f} s  {spread}  {_cpu_text(times, what, base)}", flush=True)


def _cpu_text(times: Times, what: str, base: str | None) -> str:
    if None in (cpu := [one.cpu for one in times[what]]):
        return ""
    own = median(one for one in cpu if one is not None)
    unit = median(one.cpu or 0.0 for one in times[base]) if base else None
    return f"CPU {own:6.2f} s" + (f"  x {own / unit:.1f}" if unit else "")
