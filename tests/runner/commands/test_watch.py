"""`report --watch` builds while runs end, and leaves an ordinary report however it ends."""

import re

import pytest
from typer.testing import CliRunner

from analysis.report.live import awaited
from model.record.errors import UserError
from runner.cli import run
from runner.cli.app import app
from runner.commands.report import PAGES_LOOK_SECONDS, watch
from tests.analysis.fabricate import Folder, completed, plan


class Builds:
    """Stands for building a report: remembers what was asked."""

    def __init__(self, path):
        self.path, self.asked = path, []

    def __call__(self, *, reload_seconds=None):
        self.asked.append(reload_seconds)
        self.path.parent.mkdir(exist_ok=True)
        (self.path.parent / "live.js").write_text('window.reportVersion = "1";\n')
        return self.path


@pytest.fixture
def builds(tmp_path):
    return Builds(tmp_path / "out" / "index.html")


@pytest.fixture
def running(root):
    """A run that is under way beside one that completed."""
    completed(root, "done", study="tiny")
    folder = Folder(root, plan("open", study="tiny", steps=10))
    folder.start()
    return folder


@pytest.fixture
def root(tmp_path):
    return tmp_path / "runs"


def steps(*actions):
    """A pause that does one thing after another in place of waiting."""
    remaining = list(actions)

    def pause(seconds):
        assert seconds == 7
        remaining.pop(0)()

    return pause


def interrupt():
    raise KeyboardInterrupt


def test_it_builds_at_first_then_when_something_changed_and_ends_with_the_last_run(root, running, builds):
    pause = steps(lambda: None, lambda: running.step(5), lambda: None, running.end)
    watch(root, "tiny", builds, 7, pause)
    assert builds.asked == [PAGES_LOOK_SECONDS] * 2


def test_while_it_waits_its_pages_are_told_that_it_lives(root, running, builds):
    signs = []

    def pause(_):
        signs.append((builds.path.parent / "live.js").read_text())
        (builds.path.parent / "live.js").write_text('window.reportVersion = "1";\n')
        if len(signs) == 2:
            interrupt()

    with pytest.raises(KeyboardInterrupt):
        watch(root, "tiny", builds, 7, pause)
    assert all(re.search(r"reportSign = \[\d+, 7\];", sign) for sign in signs)


def test_a_study_that_is_over_is_built_once_and_never_reloads(root, builds):
    completed(root, "done", study="tiny")
    watch(root, "tiny", builds, 7, lambda _: pytest.fail("waited"))
    assert builds.asked == []


def test_a_run_that_was_not_started_yet_is_waited_for(root, builds):
    completed(root, "done", study="tiny")
    Folder(root, plan("planned", study="tiny"))
    with pytest.raises(KeyboardInterrupt):
        watch(root, "tiny", builds, 7, steps(interrupt))
    assert awaited(root, "tiny") == (1, 2)


@pytest.mark.fault
def test_whatever_stops_it_the_report_that_it_leaves_does_not_reload(root, running, builds):
    def broken():
        raise UserError("the disk is full")

    for stop, error in ((interrupt, KeyboardInterrupt), (broken, UserError)):
        builds.asked.clear()
        with pytest.raises(error):
            watch(root, "tiny", builds, 7, steps(stop))
        assert builds.asked == [PAGES_LOOK_SECONDS, None]


@pytest.mark.fault
def test_without_a_root_the_report_stays_as_it_was_and_does_not_reload(root, running, tmp_path, monkeypatch):
    unmarked = []
    monkeypatch.setattr("analysis.report.live.unmark", unmarked.append)

    def build(*, reload_seconds=None):
        if reload_seconds is None:
            raise UserError("no database")
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "live.js").write_text('window.reportVersion = "1";\n')
        return tmp_path / "out" / "index.html"

    with pytest.raises(KeyboardInterrupt):
        watch(root, "tiny", build, 7, steps(interrupt))
    assert unmarked == [tmp_path / "out"]


def test_ctrl_c_leaves_an_ordinary_report_and_ends_with_130(root, running, builds, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "analysis.report.build.build_report",
        lambda *_, **options: builds(reload_seconds=options.get("reload_seconds")),
    )
    monkeypatch.setattr("time.sleep", lambda _: interrupt())
    assert run.run(["--root", str(root), "report", "tiny", "--watch"]) == 130
    assert builds.asked == [PAGES_LOOK_SECONDS, None]


def test_an_interval_below_a_second_is_refused():
    answer = CliRunner().invoke(app, ["report", "x", "--watch", "--every", "0"])
    assert answer.exit_code == 2
