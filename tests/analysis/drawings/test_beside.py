"""Drawing in processes beside this one: the same files, and a fault there is a fault here."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from analysis import drawings
from analysis.drawings import beside
from model.record.errors import UserError
from tests.analysis.drawings.test_draw import SPEC


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """Two figures drawn in this process and in two others, and the digest that one of the others found."""
    here, there = (tmp_path_factory.mktemp(name) for name in ("here", "there"))
    for folder, processes in ((here, 0), (there, 2)):
        with drawings.drawer(folder, processes) as drawer:
            found = drawer.digest(SPEC)
            for name in ("a", "b"):
                drawer.write(name, SPEC, ("pdf", "png"))
    return here, there, found.result()


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
    made = beside._Beside(tmp_path, 1)
    try:
        made.children[0].kill()
        made.children[0].wait()
        for step in (made.check, made.finish, lambda: made.write("a", SPEC, ())):
            with pytest.raises(UserError, match="was killed"):
                step()
    finally:
        made.close()


def test_a_process_that_is_ended_while_it_draws_is_noticed_and_leaves_none_behind(tmp_path: Path) -> None:
    made = beside._Beside(tmp_path, 1)
    try:
        os.kill(made.children[0].pid, signal.SIGSTOP)  # it has begun no figure yet, and will end none
        drawn = made.digest(SPEC)
        made.children[0].kill()
        with pytest.raises(UserError, match="was killed"):
            made.finish()
        assert isinstance(drawn.exception(), UserError)
    finally:
        made.close()
    assert made.children[0].poll() is not None


def test_few_runs_are_drawn_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert beside.processes(49) == 0
    assert beside.processes(50) == 4
    monkeypatch.setattr(beside.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert beside.processes(50) == 1, "the other core is this process's"
    monkeypatch.setattr(beside.os, "sched_getaffinity", lambda _: {0}, raising=False)
    assert beside.processes(10_000) == 0
