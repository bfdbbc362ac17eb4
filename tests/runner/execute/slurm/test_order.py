"""The arrays of a launch: which runs they hold, what each waits for, and how many jobs run at once."""

from collections import Counter
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.record.folder import RunFolder
from runner.execute.slurm import site, submit
from runner.execute.slurm.submit import Lanes
from runner.inputs.profile import Profile
from runner.state import ledger
from runner.state.attempts import JobShape, NextAttempt


def arrays(processes, cap, size=1001):
    """The arrays that a launch of runs of so many processes submits, by id."""
    tasks = [
        NextAttempt(RunFolder(Path(f"r{n}")), 1, "", 5, JobShape(None, 60, 1, count), position=n)
        for n, count in enumerate(processes)
    ]
    keys = {"max_parallel": cap, "processes_per_node": 8, "slurm": {}}
    profile, submitted = Profile.model_validate({"executor": "slurm", **keys}), {}

    def accepted(array, _profile, _folder):
        submitted[str(len(submitted))] = array
        return str(len(submitted) - 1)

    with (
        patch.object(submit, "_submit_array", accepted),
        patch.object(submit, "_require_own"),
        patch.object(site, "max_array_size", lambda: size),
        patch.object(ledger, "claim", lambda *_: True),
    ):
        submit.submit(tasks, profile, Path(), "tiny")
    assert sorted(task.position for array in submitted.values() for task in array.attempts) == list(
        range(len(tasks))
    )
    return submitted


@given(
    processes=st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=20),
    size=st.sampled_from([1, 2, 1001]),
)
def test_runs_that_run_alone_keep_their_order_across_arrays(processes, size):
    submitted = arrays(processes, cap=1, size=size)
    assert [task.position for array in submitted.values() for task in array.attempts] == list(
        range(len(processes))
    )
    assert all(array.limit == 1 for array in submitted.values())
    for number, array in enumerate(submitted.values()):
        assert array.after == [str(predecessor) for predecessor in range(number)], (
            "also where those between are cancelled"
        )


def test_runs_of_one_shape_that_run_alone_share_an_array():
    (array,) = arrays([1, 1, 1], cap=1).values()
    assert (len(array.packs), array.after) == (3, [])


def test_where_several_run_at_once_each_shape_has_one_array():
    submitted = arrays([1, 2, 1, 2, 2], cap=4)
    assert [len(array.packs) for array in submitted.values()] == [2, 3]
    assert not any(array.after for array in submitted.values())


@given(cap=st.integers(1, 40), arrays=st.integers(1, 100), elements=st.integers(1, 5))
def test_lanes_never_run_more_than_the_cap_and_leave_nothing_of_it_unused(cap, arrays, elements):
    """Simulated: each array runs its elements by its own limit, after the array it waits for."""
    lanes = Lanes(cap, arrays)
    limits, dependencies = {}, {}
    for number in range(arrays):
        limits[number], earlier = lanes.next()
        dependencies[number] = [*map(int, earlier)]
        lanes.last.append(str(number))
    chains = [number for number in range(arrays) if not dependencies[number]]
    assert sum(limits[number] for number in chains) <= cap
    assert sum(limits[number] for number in chains) == cap, "all of the cap is given out"
    assert min(limits.values()) >= 1
    for number, earlier in dependencies.items():
        assert all(
            predecessor < number and limits[predecessor] == limits[number] for predecessor in earlier
        ), "it takes its place"
    waits_for = [earlier[-1] for earlier in dependencies.values() if earlier]
    assert len(waits_for) == len(set(waits_for)), "one array follows another"


@pytest.mark.parametrize("cap", [1, 2])
def test_an_array_waits_for_those_before_the_last_of_its_lane_but_not_for_hundreds(cap):
    submitted = arrays([1] * 100, cap, size=1)
    waits = Counter(len(array.after) for array in submitted.values())
    assert max(waits) == 32
    assert submitted["99"].after[-2:] == [str(99 - 2 * cap), str(99 - cap)]
