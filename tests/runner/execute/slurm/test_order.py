"""The arrays of a launch: which blocks they hold, what each waits for, and how many jobs run at once."""

import random
from collections import Counter, defaultdict
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from model.disk.folder import RunFolder
from runner.execute.slurm import client, submit
from runner.spec.profile import Profile
from runner.state import ledger
from runner.state.tasks import Shape, Task


def arrays(blocks, cap, size=1001):
    """The arrays that a launch submits. Of each block, in order, the numbers of processes of its runs."""
    order = [(block, processes) for block, runs in blocks.items() for processes in runs]
    tasks = [
        Task(RunFolder(Path(f"r{n}")), 1, "", 5, Shape(None, 60, 1, processes), position=n, block=block)
        for n, (block, processes) in enumerate(order)
    ]
    keys = {"max_parallel": cap, "processes_per_node": 8, "slurm": {}}
    profile, found = Profile.model_validate({"executor": "slurm", **keys}), {}

    def accepted(array, _profile, _folder):
        found[str(len(found))] = array
        return str(len(found) - 1)

    with (
        patch.object(submit, "_submit", accepted),
        patch.object(submit, "_require_own"),
        patch.object(client, "max_array_size", lambda: size),
        patch.object(ledger, "claim", lambda *_: True),
    ):
        submit.submit(tasks, profile, Path(), "tiny")
    assert sorted(task.position for array in found.values() for task in array.tasks) == list(
        range(len(tasks))
    )
    return found


def simulated(found, picks):
    """Run the arrays as Slurm may; yields at each start the block that starts, and all jobs that run then.

    Args:
        picks: which of the jobs that may start or end does so next.
    """
    waiting = {array: len(each.packs) for array, each in found.items()}
    running, started = Counter(), Counter()
    while sum(waiting.values()) + running.total():
        ended = {array for array in found if not waiting[array] and not running[array]}
        may_start = [
            ("start", array)
            for array, each in found.items()
            if waiting[array]
            and running[array] < each.limit
            and ended.issuperset(each.after.ended)
            and not any(waiting[other] for other in each.after.started)
        ]
        what, array = picks.choice(may_start + [("end", array) for array in running])
        running[array] += 1 if what == "start" else -1
        running += Counter()
        if what == "start":
            waiting[array] -= 1
            started[found[array].tasks[0].block] += 1
            yield found[array].tasks[0].block, dict(started), running.total()


@given(
    blocks=st.dictionaries(
        st.integers(1, 6), st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=7), min_size=1
    ).map(lambda found: dict(sorted(found.items()))),
    cap=st.integers(1, 20),
    size=st.sampled_from([1, 2, 1001]),
    seed=st.randoms(use_true_random=False),
)
@example({1: [1, 2], 2: [1, 2]}, 16, 1001, random.Random(0))
def test_a_block_starts_when_all_of_the_block_before_has_and_no_more_run_than_the_cap(
    blocks, cap, size, seed
):
    found = arrays(blocks, cap, size)
    several = len({processes for runs in blocks.values() for processes in runs}) > 1
    for block, started, running in simulated(found, seed):
        assert running <= cap
        if several:
            earlier = {each: len(runs) for each, runs in blocks.items() if each < block}
            assert {each: started.get(each, 0) for each in earlier} == earlier


@given(blocks=st.integers(1, 5), runs=st.lists(st.sampled_from([1, 2]), min_size=1, max_size=6))
def test_under_a_cap_that_all_runs_fit_under_no_run_waits_for_another_to_end(blocks, runs):
    found = arrays(dict.fromkeys(range(1, blocks + 1), runs), cap=blocks * len(runs))
    assert not any(array.after.ended for array in found.values())


def test_runs_of_one_shape_share_an_array_whatever_their_blocks():
    (array,) = arrays({1: [1, 1], 2: [1, 1], 3: [1]}, cap=2).values()
    assert (len(array.packs), array.limit, str(array.after)) == (5, 2, "")


@given(cap=st.integers(1, 40), count=st.integers(1, 100))
def test_arrays_of_one_run_each_leave_nothing_of_the_cap_unused(cap, count):
    """Each that waits takes the place of one array, which no other waits for."""
    found = arrays({None: [1] * count}, cap, size=1)
    waits = [array.after.ended for array in found.values()]
    assert [len(each) for each in waits] == [0] * min(cap, count) + [1] * (count - min(cap, count))
    assert max(Counter(array for each in waits for array in each).values(), default=1) == 1


@pytest.mark.parametrize(
    ("cap", "waits"),
    [
        (4, ["", "", "after:0:1", "after:0:1"]),
        (2, ["", "", "afterany:0,after:1", "afterany:1,after:0"]),
        (1, ["", "afterany:0", "afterany:1,after:0", "afterany:2,after:0:1"]),
    ],
)
def test_what_sbatch_is_told_about_two_blocks_of_two_shapes(cap, waits):
    found = arrays({1: [1, 2], 2: [1, 2]}, cap)
    assert [str(array.after) for array in found.values()] == waits


def test_the_rest_of_a_block_is_submitted_before_the_next_block():
    """Where arrays are short, a block has several of one shape."""
    found = arrays({1: [1, 1, 1, 2], 2: [2, 1]}, cap=3, size=2)
    per_block = defaultdict(int)
    for array in found.values():
        per_block[array.tasks[0].block] += len(array.tasks)
        assert array.tasks[0].block == max(per_block), "no block comes back"
    assert per_block == {1: 4, 2: 2}
