"""Two runs cannot share a GPU."""

import os
import subprocess
import sys

import pytest

from model.record.errors import UserError
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
