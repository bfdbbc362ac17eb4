"""Drawing in processes beside this one: the same files, and a fault there is a fault here."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest

from analysis import drawings
from analysis.drawings import beside
from model.record.errors import UserError
from tests.analysis.drawings.test_draw import SPEC


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """Two figures drawn in this process and in two others, and the digest by one of the others."""
    own_folder, child_folder = (tmp_path_factory.mktemp(name) for name in ("here", "there"))
    for folder, processes in ((own_folder, 0), (child_folder, 2)):
        with drawings.drawer(folder, processes) as drawer:
            digest = drawer.digest(SPEC)
            for name in ("a", "b"):
                drawer.write(name, SPEC, ("pdf", "png"))
    return own_folder, child_folder, digest.result()


def test_figures_have_the_same_bytes_in_whichever_process_they_are_drawn(
    both: tuple[Path, Path, str],
) -> None:
    files = [
        {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".png"}
        for folder in both[:2]
    ]
    assert len(files[0]) == 6
    assert files[0] == files[1]


def test_the_digest_is_that_of_the_svg(both: tuple[Path, Path, str]) -> None:
    assert both[2] == drawings.digest(SPEC)


def test_a_figure_that_cannot_be_drawn_is_an_error_that_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="could not be drawn: FileNotFoundError"),
        drawings.drawer(tmp_path / "missing", 1) as drawer,
    ):
        drawer.write("a", SPEC, ())


def test_a_process_that_is_ended_from_outside_ends_the_build_at_once(tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match="was killed"),
        drawings.drawer(tmp_path, 1) as drawer,
    ):
        drawer.digest(SPEC).result()
        child = next(iter(multiprocessing.active_children()))
        child.kill()
        child.join()
        for step in (drawer.check, lambda: drawer.write("a", SPEC, ())):
            with pytest.raises(UserError, match="was killed"):
                step()
    assert not multiprocessing.active_children()


def test_a_process_that_is_ended_while_it_draws_is_noticed_and_leaves_none_behind(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="was killed"), drawings.drawer(tmp_path, 1) as drawer:
        for child in multiprocessing.active_children():
            os.kill(child.pid or 0, signal.SIGSTOP)  # it has begun no figure yet, and will end none
        future = drawer.digest(SPEC)
        for child in multiprocessing.active_children():
            child.kill()
        assert isinstance(future.exception(), BrokenProcessPool)
    assert not multiprocessing.active_children()


@pytest.mark.fault
@pytest.mark.parametrize("limit", [0, 1])
def test_a_machine_that_allows_few_processes_draws_in_this_one(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, starts = SpawnProcess.start, itertools.count(1)

    def start_or_refuse(process: SpawnProcess) -> None:
        if next(starts) > limit:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        start(process)

    monkeypatch.setattr(SpawnProcess, "start", start_or_refuse)
    with drawings.drawer(tmp_path, 2) as drawer:
        assert not multiprocessing.active_children()
        drawer.write("a", SPEC, ())
    assert (tmp_path / "a.svg").is_file()


def test_an_interrupt_ends_the_processes(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), drawings.drawer(tmp_path, 2):
        assert multiprocessing.active_children()
        raise KeyboardInterrupt
    assert not multiprocessing.active_children()


def test_few_runs_are_drawn_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert beside.processes(49) == 0
    assert beside.processes(50) == 4
    monkeypatch.setattr(beside.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert beside.processes(50) == 1, "the other core is this process's"
    monkeypatch.setattr(beside.os, "sched_getaffinity", lambda _: {0}, raising=False)
    assert beside.processes(10_000) == 0
