"""Draws figures in processes beside this one, while the rest of a report is made.

The library that draws holds Python's lock while it does, so threads would gain nothing. A process starts
in the time of a few figures: a small report is drawn in this process.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from analysis.drawings import bundle, draw
from analysis.drawings.draw import Format
from analysis.drawings.version import vega_version
from model.record.errors import UserError

_MANY = 50  # runs, from which on processes of their own save time
_MOST = 4  # processes
_ENDED = "a process that draws figures was killed: it may need more memory"
_PACKAGES = Path(__file__).parents[2]  # the folder that `analysis` and `model` lie in


class Drawer(Protocol):
    """Draws figures for one report."""

    def write(self, name: str, spec: Mapping[str, Any], formats: Iterable[Format]) -> None:
        """Have a figure's files written, by the end of the context at the latest."""

    def digest(self, spec: Mapping[str, Any]) -> Future[str]:
        """SHA-256 of a figure as SVG."""

    def script(self) -> Future[str]:
        """The script that draws the figures of pages."""

    def check(self) -> None:
        """Raise what went wrong so far, as `drawer` does, so that the rest is not built in vain."""


def processes(runs: int) -> int:
    """How many processes are worth their start for the figures of so many runs; 0 for none.

    One core is left to the process that asks: on two cores a second process would only add its start.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores - 1, _MOST) if runs >= _MANY else 0


@contextmanager
def drawer(folder: Path, processes: int) -> Iterator[Drawer]:
    """Draw figures into a folder; when the body ends, all of them are there.

    Args:
        processes: how many to draw in; 0 draws each figure in this process, at once.

    Raises:
        UserError: a process was ended from outside, or may not map what drawing reserves.
        RuntimeError: a figure could not be drawn.
    """
    draw.require_room()
    if not processes:
        yield _Here(folder)
        return
    made = _Beside(folder, processes)
    try:
        yield made
        made.finish()
    finally:
        made.close()


class _Here:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, spec: Mapping[str, Any], formats: Iterable[Format]) -> None:
        draw.write(self.folder, name, spec, formats)

    def digest(self, spec: Mapping[str, Any]) -> Future[str]:
        return _known(digest(spec))

    def script(self) -> Future[str]:
        return _known(bundle.script())

    def check(self) -> None:
        """Errors were raised when each figure was drawn."""


class _Beside:
    def __init__(self, folder: Path, processes: int) -> None:
        self.folder = folder
        self.children = [_start() for _ in range(processes)]
        self.idle: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()
        for child in self.children:
            self.idle.put(child)
        self.threads = ThreadPoolExecutor(processes + 1)  # each waits for one child at a time
        self.tasks: list[Future[str]] = []

    def write(self, name: str, spec: Mapping[str, Any], formats: Iterable[Format]) -> None:
        self._add({"folder": str(self.folder), "name": name, "spec": spec, "formats": list(formats)})

    def digest(self, spec: Mapping[str, Any]) -> Future[str]:
        return self._add({"spec": spec})

    def script(self) -> Future[str]:
        """The script, bundled in a process of its own, as it takes as long as most figures together."""
        if text := bundle.kept():
            return _known(text)
        child = _start()
        self.children.append(child)
        task = json.dumps({"script": vega_version()})
        return self._submit(lambda: bundle.keep(_answer(child, task)))

    def _add(self, task: dict[str, Any]) -> Future[str]:
        self.check()
        text = json.dumps(task | {"version": vega_version()})  # now, since the caller may change it
        return self._submit(lambda: self._done(text))

    def _submit(self, work: Callable[[], str]) -> Future[str]:
        self.tasks.append(self.threads.submit(work))
        return self.tasks[-1]

    def _done(self, task: str) -> str:
        child = self.idle.get()
        try:
            return _answer(child, task)
        finally:
            self.idle.put(child)

    def check(self) -> None:
        for task in self.tasks:
            if task.done():
                task.result()
        if any(child.poll() is not None for child in self.children):
            raise UserError(_ENDED)

    def finish(self) -> None:
        """Wait for all, or until one fails; raises its error."""
        wait(self.tasks, return_when=FIRST_EXCEPTION)
        self.check()

    def close(self) -> None:
        """End the processes; figures that are not begun are not drawn."""
        for child in self.children:
            child.kill()
        self.threads.shutdown(cancel_futures=True)
        for child in self.children:
            child.communicate()


def _known(text: str) -> Future[str]:
    found: Future[str] = Future()
    found.set_result(text)
    return found


def _start() -> subprocess.Popen[str]:
    """A process that imports from where this one does, and that Ctrl-C leaves to us to end."""
    path = os.pathsep.join([str(_PACKAGES), *(each for each in sys.path if each)])
    return subprocess.Popen(
        [sys.executable, "-S", "-P", "-m", "analysis.drawings.child"],
        env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        start_new_session=True,
    )


def _answer(child: subprocess.Popen[str], task: str) -> str:
    """Hand a task to a process, and wait for its answer."""
    assert child.stdin and child.stdout, "both are pipes"
    try:
        child.stdin.write(task + "\n")
        child.stdin.flush()
        said = child.stdout.readline()
    except OSError:
        said = ""
    if not said:
        raise UserError(_ENDED)
    answer: dict[str, str] = json.loads(said)
    if "error" in answer:
        raise RuntimeError(f"a figure could not be drawn: {answer['error']}")
    return answer["made"]


def digest(spec: Mapping[str, Any], version: str | None = None) -> str:
    """SHA-256 of a figure as SVG."""
    return hashlib.sha256(draw.drawing(spec, "svg", version=version)).hexdigest()
