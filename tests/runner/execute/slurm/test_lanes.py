"""How runs share jobs, and jobs a cap; and that two runs cannot share a GPU."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.errors import UserError
from runner.execute.slurm.submit import Lanes
from runner.state import process


@given(cap=st.integers(1, 40), arrays=st.integers(1, 100), elements=st.integers(1, 5))
def test_lanes_never_run_more_than_the_cap_and_leave_nothing_of_it_unused(cap, arrays, elements):
    """Simulated: each array runs its elements by its own limit, after the array it waits for."""
    lanes = Lanes(cap, arrays)
    limits, after = {}, {}
    for number in range(arrays):
        limits[number], earlier = lanes.next()
        after[number] = None if earlier is None else int(earlier)
        lanes.last.append(str(number))
    chains = [number for number in range(arrays) if after[number] is None]
    assert sum(limits[number] for number in chains) <= cap
    assert sum(limits[number] for number in chains) == cap, "all of the cap is given out"
    assert min(limits.values()) >= 1
    for number, earlier in after.items():
        assert earlier is None or (earlier < number and limits[earlier] == limits[number]), (
            "it takes its place"
        )
    waits_for = [earlier for earlier in after.values() if earlier is not None]
    assert len(waits_for) == len(set(waits_for)), "one array follows another"


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
