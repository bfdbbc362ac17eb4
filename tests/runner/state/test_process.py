"""Two runs cannot share a GPU, and a process that was sent a signal counts as told."""

import os
import socket
import subprocess
import sys

import pytest

from model.record.errors import UserError
from model.record.records import Manifest
from runner.state import process


def test_a_gpu_is_one_runs_alone_until_its_process_is_gone():
    """Another process cannot take it, and can once the first has gone."""
    one, other = f"GPU-{os.getpid()}", f"GPU-{os.getpid()}-other"  # not those of tests beside these
    take = f"from runner.state import process; held = process.hold_gpu('{one}'); "
    waits = [sys.executable, "-c", take + "print('held', flush=True); input()"]
    with subprocess.Popen(waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == "held\n"
        with pytest.raises(
            UserError,
            match=f"{one} is in use by another run.*, or by another process of this one.*CUDA_VISIBLE_DEVICES for each launch",
        ):
            process.hold_gpu(one)
        with process.hold_gpu(other):
            pass
        first.kill()
        first.wait()
    with process.hold_gpu(one):
        pass


def test_without_a_gpu_there_is_nothing_to_hold():
    assert process.hold_gpu(None) is None


def test_a_process_that_ends_as_soon_as_it_is_told_to_was_told(monkeypatch):
    program = subprocess.Popen(["sleep", "600"])
    manifest = Manifest.model_construct(
        run_id="r1", host=socket.gethostname(), pid=program.pid, pid_started=process.started(program.pid)
    )
    kill = os.kill

    def kill_and_reap(pid, by):
        kill(pid, by)
        program.wait()

    monkeypatch.setattr(os, "kill", kill_and_reap)
    assert process.terminate(manifest)
    assert not process.terminate(manifest)
