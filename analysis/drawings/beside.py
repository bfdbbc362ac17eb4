"""Draws figures in processes beside this one, while the rest of a report is made.

The library that draws holds Python's lock while it does, so threads would gain nothing. A process starts
in the time of a few figures: a small report is drawn in this process.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from analysis.drawings import bundle, draw
from analysis.drawings.draw import Format, vega_version
from model.record.errors import UserError

_MANY = 50  # runs, from which on processes of their own save time
_MOST = 4  # processes
_ENDED = "a process that draws figures was killed: it may need more memory"


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
        processes: how many to draw in; 0 draws each figure in this process, at once. So does a machine that
            allows no more processes.

    Raises:
        UserError: a process was ended from outside, or may not map what drawing reserves.
        RuntimeError: a figure could not be drawn.
    """
    draw.require_room()
    pool = _Pool(folder, processes) if processes else None
    if pool is None or not pool.start():
        yield _Here(folder)
        return
    try:
        yield pool
        pool.finish()
    finally:
        pool.close()


class _Here:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, spec: Mapping[str, Any], formats: Iterable[Format]) -> None:
        draw.write(self.folder, name, spec, formats)

    def digest(self, spec: Mapping[str, Any]) -> Future[str]:
        return _finished(digest(spec))

    def script(self) -> Future[str]:
        return _finished(bundle.script())

    def check(self) -> None:
        """Errors were raised when each figure was drawn."""


class _Pool:
    def __init__(self, folder: Path, processes: int) -> None:
        self.folder = folder
        self.kept_script = bundle.kept()
        # To bundle the script takes as long as most figures together: it has a process of its own.
        self.size = processes if self.kept_script else processes + 1
        # Not a fork, which in a process with threads, as DuckDB's, can wait for a lock that nobody holds.
        spawn = multiprocessing.get_context("spawn")
        # Ctrl-C reaches every process of a terminal, and is left to the process that asks.
        self.executor = ProcessPoolExecutor(
            self.size, spawn, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)
        )
        self.children: list[BaseProcess] = []
        self.tasks: list[Future[str]] = []

    def start(self) -> bool:
        """Start all processes; False, and none is left, where the machine allows fewer."""
        others = multiprocessing.active_children()
        started = False
        try:
            for _ in range(self.size):
                self.executor.submit(os.getpid)
            started = True
        except (OSError, RuntimeError):  # the latter where no thread can be started
            pass
        finally:
            self.children = [child for child in multiprocessing.active_children() if child not in others]
            if not started:
                self.close()
        return started

    def write(self, name: str, spec: Mapping[str, Any], formats: Iterable[Format]) -> None:
        # In JSON now, since the caller may change it before a process takes it.
        self._submit(_write, self.folder, name, json.dumps(spec), list(formats), vega_version())

    def digest(self, spec: Mapping[str, Any]) -> Future[str]:
        return self._submit(_digest, json.dumps(spec), vega_version())

    def script(self) -> Future[str]:
        if self.kept_script:
            return _finished(self.kept_script)
        return self._submit(bundle.bundled, vega_version())

    def _submit(self, work: Callable[..., str], *given: object) -> Future[str]:
        self.check()
        try:
            task = self.executor.submit(_draw_beside, work, *given)
        except BrokenProcessPool as error:
            raise UserError(_ENDED) from error
        self.tasks.append(task)
        return task

    def check(self) -> None:
        try:
            for task in self.tasks:
                if task.done():
                    task.result()
        except BrokenProcessPool as error:
            raise UserError(_ENDED) from error
        if not all(child.is_alive() for child in self.children):
            raise UserError(_ENDED)

    def finish(self) -> None:
        """Wait for all, or until one fails; raises its error."""
        wait(self.tasks, return_when=FIRST_EXCEPTION)
        self.check()

    def close(self) -> None:
        """End the processes; figures that are not begun are not drawn."""
        for child in self.children:
            child.kill()
        self.executor.shutdown(cancel_futures=True)


def digest(spec: Mapping[str, Any], version: str | None = None) -> str:
    """SHA-256 of a figure as SVG."""
    return hashlib.sha256(draw.drawing(spec, "svg", version=version)).hexdigest()


def _finished(text: str) -> Future[str]:
    future: Future[str] = Future()
    future.set_result(text)
    return future


def _draw_beside(work: Callable[..., str], *given: Any) -> str:
    """Do a task in a process beside; what it raises says that it was one of drawing."""
    try:
        return work(*given)
    except Exception as error:
        raise RuntimeError(f"a figure could not be drawn: {type(error).__name__}: {error}") from error


def _write(folder: Path, name: str, spec: str, formats: list[Format], version: str) -> str:
    draw.write(folder, name, json.loads(spec), formats, version)
    return name


def _digest(spec: str, version: str) -> str:
    return digest(json.loads(spec), version)
