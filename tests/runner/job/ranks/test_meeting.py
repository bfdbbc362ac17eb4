"""Where the processes of a run meet: found by the run's own user alone, and only while rank 0 is there."""

import json

import pytest

from runner.job import slurm
from runner.job.ranks import meeting
from runner.job.ranks.meeting import Meeting, NobodyCame, publish, wait_for_meeting
from runner.state.slurm import NoAnswer


def test_rank_0_is_found_by_its_user_alone_and_by_name(tmp_path):
    path = tmp_path / "12_0_0.meeting"
    with pytest.raises(NobodyCame, match=r"12_0_0\.meeting"):
        wait_for_meeting(path, 0.01)
    meeting = Meeting.at(2, "n1", 4711)
    publish(path, meeting)
    assert wait_for_meeting(path) == meeting
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text())["token"] == meeting.token


@pytest.mark.fault
def test_who_looks_for_a_rank_0_that_has_ended_has_nothing_left_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(meeting, "ASK_SECONDS", 0.0)
    calls = []
    assert (
        wait_for_meeting(
            tmp_path / "12_0_0.meeting", is_over=lambda: calls.append(1) or len(calls) > 1
        ).attempt
        == 0
    )
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("names", "resolves", "name"),
    [
        (("jwb0001.juwels", "other"), {"jwb0001i.juwels"}, "jwb0001i.juwels"),
        ((None, "jwb0001"), {"jwb0001i"}, "jwb0001i"),
        (("jwb0001", "other"), set(), "otheri"),
    ],
)
def test_nodes_meet_by_the_names_that_their_network_has(monkeypatch, names, resolves, name):
    """At JSC a node's name in the fast network ends in `i` (apps.fz-juelich.de, "Interconnect")."""

    def lookup(host, *_):
        if host not in resolves:
            raise OSError

    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    monkeypatch.setenv("ASSAY_HOST_SUFFIX", "i")
    monkeypatch.setattr("socket.gethostname", lambda: names[1])
    monkeypatch.setattr("socket.getaddrinfo", lookup)
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    if names[0]:
        monkeypatch.setenv("SLURMD_NODENAME", names[0])
    assert meeting.reachable_name() == name


LISTED = """\
PID      JOBID    STEPID   LOCALID GLOBALID
18811    7        0        1       1
18812    7        0        2       2
18815    7        0        -       -
"""


@pytest.mark.fault
@pytest.mark.parametrize(
    ("answer", "over"),
    [
        (LISTED, [True, False, False, True]),
        (LISTED.replace(" 2       2", " 0       0"), [False] * 4),  # it does not even list who asks
        ("", [False] * 4),
        (NoAnswer("scontrol is not on PATH"), [False] * 4),
    ],
    ids=["listed", "not the one that asks", "nothing", "no answer"],
)
def test_a_task_has_ended_if_its_node_no_longer_lists_it_beside_the_one_that_asks(answer, over, monkeypatch):
    def ask(*command):
        assert command == ("scontrol", "listpids", "7.0", "n1")
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(slurm, "ask", ask)
    for name, value in {"JOB_ID": "7", "STEP_ID": "0", "LOCALID": "2"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    assert [slurm.has_task_ended(task) for task in range(4)] == over
