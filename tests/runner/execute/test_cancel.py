"""`runner cancel` says only what is so."""

import os
import socket
import subprocess

import pytest

from model.record.folder import RunFolder
from runner.execute.cancel import cancel
from runner.state import ledger, process
from tests.analysis.fabricate import Folder, plan


@pytest.fixture
def local(root):
    """A run on this machine or another one, whose process is given."""

    def make(host, pid):
        folder = Folder(root, plan("r1"))
        folder.event("claimed", executor="local", host=host, pid=pid, pid_started=process.started(pid) or 1.0)
        folder.start(host=host, pid=pid, pid_started=process.started(pid) or 1.0)
        return ledger.state(RunFolder(folder.path))

    return make


@pytest.fixture
def sleeper():
    with subprocess.Popen(["sleep", "600"]) as child:
        yield child
        child.kill()


@pytest.mark.refused
def test_a_run_on_another_machine_is_not_called_cancelled(local, sleeper, caplog):
    assert cancel([local("another.host", sleeper.pid)]) == []
    assert "r1 is running on another.host: cancel it there" in caplog.text
    assert sleeper.poll() is None, "the process of that number on this machine is a stranger"


def test_a_run_on_this_machine_is_told(local, sleeper):
    assert len(cancel([local(socket.gethostname(), sleeper.pid)])) == 1
    assert sleeper.wait() == -15


@pytest.mark.fault
def test_a_process_that_ends_before_it_is_told_is_no_error(local, sleeper, monkeypatch, caplog):
    state = local(socket.gethostname(), sleeper.pid)

    def gone(pid, number):
        raise ProcessLookupError

    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", gone)
        assert cancel([state]) == []
    assert "is no longer running" in caplog.text


def test_a_run_that_is_only_starting_is_not_called_cancelled(root, caplog):
    run = RunFolder(Folder(root, plan("r1")).path)
    ledger.claim(run, 1, "local")
    assert cancel([ledger.state(run)]) == []
    assert "still starting" in caplog.text
