"""`runner logs -f` follows one run, and ends when the run has."""

import socket

import pytest

from runner.commands import logs
from runner.commands._options import Settings
from runner.state.runs import find
from tests.analysis.fabricate import Folder, plan

GONE = {"host": socket.gethostname(), "pid": 2**22 + 1, "pid_started": 1.0}  # over every pid


@pytest.fixture
def folder(root, monkeypatch):
    """A run whose launcher and process were killed; whoever looks at all runs twice is stopped."""
    folder = Folder(root, plan("r1"))
    folder.event("claimed", executor="local", **GONE)
    (folder.start(**GONE) / "stdout.log").write_text("hello\n")
    monkeypatch.setattr(Settings, "root", root)
    monkeypatch.setattr(logs, "POLL_SECONDS", 0.01)
    searches = []

    def once(*arguments):
        searches.append(arguments)
        assert len(searches) == 1, "all runs were read again"
        return find(*arguments)

    monkeypatch.setattr(logs, "find", once)
    return folder


@pytest.mark.fault
def test_following_ends_when_the_run_was_killed_with_its_launcher(folder, capsys):
    logs.command("r1", follow=True)
    output = capsys.readouterr()
    assert output.out == "hello\n"
    assert "r1 attempt 1: lost" in output.err


def test_following_shows_what_is_written_until_the_run_ends(folder, capsys, monkeypatch):
    monkeypatch.setattr("runner.state.process.is_running", lambda pid, started: True)
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        folder.step(len(pauses), steps=1)
        if len(pauses) == 3:
            (folder.path / "attempt-1" / "stdout.log").write_text("hello\nagain\n")
            folder.end()

    monkeypatch.setattr(logs.time, "sleep", pause)
    logs.command("r1", follow=True)
    output = capsys.readouterr()
    lines = [line.split(",")[0] for line in output.out.splitlines()]
    assert lines == ["hello", "step 1/100", "step 2/100", "again", "step 3/100"]
    assert "r1 attempt 1: completed" in output.err


def test_without_follow_the_output_so_far_is_shown(folder, capsys):
    logs.command("r1")
    assert capsys.readouterr().out == "hello\n"
