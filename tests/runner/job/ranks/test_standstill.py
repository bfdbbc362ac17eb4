"""A run hangs if nothing moves and nobody is at work, whoever it is that stands still."""

import pytest

from runner.job.ranks.standstill import Silence, Standstill, Whereabouts

AT_WORK, LATER = Whereabouts(6, "trainer.py:80", waits=False), Whereabouts(6, "trainer.py:81", waits=False)
WAITS = Whereabouts(7, "world.py:60", waits=True)
NODES = {0: "n1", 1: "n2"}


@pytest.mark.parametrize(
    ("places", "hangs_after"),
    [
        ({0: WAITS, 1: None}, 10),
        ({0: WAITS, 1: WAITS}, 10),
        ({0: WAITS, 1: AT_WORK}, 60),
        ({0: AT_WORK, 1: AT_WORK}, None),
    ],
    ids=["one does not answer", "all wait", "one stands at work", "all are at work"],
)
def test_a_hang_is_that_nothing_moves_and_nobody_works(places, hangs_after):
    still = Standstill(hang_seconds=10, limit_seconds=60)
    assert still.reason(0.0, places, NODES) is None
    if hangs_after is None:
        assert still.reason(1e6, places, NODES) is None
        return
    assert still.reason(hangs_after - 0.1, places, NODES) is None
    assert still.reason(hangs_after + 0.1, places, NODES).startswith(
        f"hangs: nothing has moved for {hangs_after} s"
    )


def test_a_slow_step_is_no_hang():
    still = Standstill(hang_seconds=10, limit_seconds=60)
    for now in range(0, 1000, 5):
        assert still.reason(now, {0: WAITS, 1: (AT_WORK, LATER)[now // 5 % 2]}, NODES) is None


def test_a_run_that_is_to_stop_and_does_not_move_has_less_time():
    still = Standstill(hang_seconds=60, stop_seconds=10, limit_seconds=600)
    places = {0: WAITS, 1: None}
    assert still.reason(0.0, places, NODES, stopping=True) is None
    assert still.reason(10.1, places, NODES) is None
    assert still.reason(10.1, places, NODES, stopping=True).startswith("hangs: nothing has moved for 10 s")
    at_work = {0: WAITS, 1: AT_WORK}  # as one that writes its part of a checkpoint
    assert still.reason(20.0, at_work, NODES, stopping=True) is None
    assert still.reason(80.0, at_work, NODES, stopping=True) is None


def test_a_hang_names_first_who_did_not_come():
    still = Standstill(hang_seconds=10, limit_seconds=60)
    still.reason(0.0, {0: WAITS, 1: AT_WORK}, NODES)
    assert still.reason(61.0, {0: WAITS, 1: AT_WORK}, NODES) == (
        "hangs: nothing has moved for 61 s; rank 1 on n2 is after step 6, at trainer.py:80; "
        "rank 0 on n1 waits for the others after step 7, at world.py:60"
    )


def test_a_hang_of_many_names_those_at_one_place_together():
    still, nodes = Standstill(), {rank: f"n{rank // 4 + 1}" for rank in range(16)}
    places = dict.fromkeys(range(16), WAITS) | {4: AT_WORK, 6: None, 7: None, 12: None}
    still.reason(0.0, places, nodes)
    assert still.reason(121.0, places, nodes) == (
        "hangs: nothing has moved for 121 s; rank 4 on n2 is after step 6, at trainer.py:80; "
        "ranks 6-7, 12 on n2, n4 do not answer; "
        "ranks 0-3, 5, 8-11, 13-15 on n1, n2, n3, n4 wait for the others after step 7, at world.py:60"
    )


@pytest.mark.parametrize(("begun", "turns"), [(True, 24), (False, 108)], ids=["trains", "loads libraries"])
def test_rank_0_hangs_if_it_says_nothing_while_another_process_stands_still(begun, turns):
    silence = Silence(begun=begun)
    assert [silence.turn(WAITS) for _ in range(turns + 1)] == [False] * turns + [True]
    assert silence.seconds == 5 * turns


def test_rank_0_does_not_hang_while_it_asks_or_the_process_that_listens_moves():
    silence = Silence(begun=True)
    for _ in range(100):
        silence.heard = True
        assert not silence.turn(WAITS)
    assert not any(silence.turn((AT_WORK, LATER)[turn % 2]) for turn in range(100))
