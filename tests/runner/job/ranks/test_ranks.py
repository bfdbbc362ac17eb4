"""The processes of a run find each other, and the end of one is the end of all, with its cause."""

import errno
import json
import os
import signal
import socket
import subprocess
import threading
import time
from contextlib import closing
from queue import Queue
from types import SimpleNamespace

import pytest

from model.record.config import RunConfig
from model.record.errors import Diverged, Interrupted, OfAnotherProcess, UserError
from model.record.folder import RunFolder
from model.record.outcome import Outcome
from runner.job.ranks import first, meeting, others
from runner.job.ranks.first import Lost, Ranks, lead, require_own_gpus
from runner.job.ranks.follower import Follower, Leader
from runner.job.ranks.meeting import (
    Connection,
    Meeting,
    NobodyCame,
    Vanished,
    is_echo,
    node_name,
    show_own_gpu,
)
from runner.job.ranks.standstill import Standstill, Whereabouts
from runner.state import gpus
from runner.state.endings import Ending
from runner.state.endings import ending_of_exception as ending_of
from tests.conftest import until

GLOO = RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:40391")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(first, "OWN_SECONDS", 0.0)
    monkeypatch.setattr(first, "ECHO_SECONDS", 0.0)
    monkeypatch.setattr(first, "LEAVE_SECONDS", 0.0)
    monkeypatch.setattr(others, "DEATH_SECONDS", 0.0)


@pytest.fixture
def endings():
    """What the watching thread has concluded."""
    return []


@pytest.fixture
def ranks(endings):
    """Rank 0 of three."""
    handler = signal.signal(signal.SIGTERM, lambda *_: None)
    with closing(Ranks(3, 7, meeting.HERE, lambda: 5, endings.append)) as group:
        yield group
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def join(ranks):
    """Connects a process of a rank, or its Slurm task; it has left when the connection ends."""
    leaders = []

    def connect(rank, kind="rank"):
        departure = threading.Event()
        leaders.append(Leader(ranks.meeting, rank, kind, steps=lambda: 10 * rank, leave=departure.set))
        leaders[-1].left = departure
        return leaders[-1]

    yield connect
    for leader in leaders:
        leader._connection.close()


def gone(leader):
    leader._connection.close()
    assert leader.left.wait(60)


def concluded(endings):
    ending = until(lambda: endings and endings[0], 0.01)
    return ending.outcome.value, ending.reason


def test_all_begin_when_all_are_ready_and_end_with_rank_0(ranks, join):
    one, two = join(1), join(2)
    one.report_ready("GPU-1")
    two.report_ready(None)
    assert [(other.rank, other.node, other.gpu_uuid) for other in ranks.wait_until_ready()] == [
        (1, node_name(), "GPU-1"),
        (2, node_name(), None),
    ]
    address, listening = ranks.begin(manifest={"attempt": 7})
    with listening, pytest.raises(OSError, match="in use"):  # nobody can take the port before torch has it
        socket.create_server(listening.getsockname())
    for leader in (one, two):
        assert leader.next_order(60) == {"say": "go", "address": address, "manifest": {"attempt": 7}}
        leader.report_done()
    ranks.wait_until_done()
    ranks.continue_after_result()
    assert one.next_order(60) == {"say": "more"}
    ranks.close()
    assert one.left.wait(60)
    assert two.left.wait(60)


@pytest.mark.parametrize(
    "greeting",
    [
        b"GET / HTTP/1.1\n",
        b'{"say": "hello"}\n',
        b'{"say": "hello", "token": "wrong", "rank": 1, "kind": "rank", "node": "n"}\n',
        b'["hello"]\n',
    ],
)
def test_who_does_not_know_the_token_is_no_process_of_the_run(ranks, greeting):
    with socket.create_connection((ranks.meeting.host, ranks.meeting.port)) as stranger:
        stranger.sendall(greeting)
        assert stranger.recv(1) == b""
    assert not any(other.connection for other in ranks._others.by_rank.values())


@pytest.mark.fault
def test_who_comes_when_rank_0_has_left_is_sent_away(ranks, join):
    with ranks._others.changed:
        leader = join(1)  # whose greeting is not heard before
        ranks._others._closed = True
    assert leader.left.wait(60)
    assert ranks._others.by_rank[1].connection is None


def test_what_one_process_says_of_its_failure_is_the_outcome_of_the_attempt(ranks, join, endings):
    torch_says = "rank 2 on " + node_name() + ": CUDA out of memory. Tried to allocate 20 GiB."
    join(2).report_ending(
        Ending(Outcome.OOM_GPU, "CUDA out of memory. Tried to allocate 20 GiB.", 20 * 2**30), echo=False
    )
    assert concluded(endings) == ("oom_gpu", torch_says)
    assert endings[0].requested_bytes == 20 * 2**30
    assert ranks.root_cause(ending_of(GLOO), GLOO) == endings[0]
    with pytest.raises(Lost, match="Tried to allocate"):
        ranks.wait_until_done()


def test_a_rank_0_that_goes_on_after_all_says_what_was_said_of_it(join, endings):
    hangs = "hangs: nothing has moved for 120 s; rank 0 on n1 does not answer"
    join(2).report_ending(Ending(Outcome.FAILED, hangs), echo=False, of_all=True)
    assert concluded(endings) == ("failed", hangs)


def test_an_echo_gives_way_to_its_cause_and_is_the_outcome_only_where_there_is_none(ranks, join, endings):
    join(1).report_ending(ending_of(GLOO), echo=True)
    outcome, reason = concluded(endings)
    assert outcome == "failed"
    assert f"rank 1 on {node_name()}: RuntimeError: [gloo" in reason
    assert f"rank 0 on {node_name()} is after step 5, at " in reason
    join(2).report_ending(Ending(Outcome.OOM_HOST, "out of host memory"), echo=False)
    until(lambda: endings[-1].outcome == "oom_host" or ranks._cause, 0.01)
    assert ranks.root_cause(ending_of(GLOO), GLOO).reason == f"rank 2 on {node_name()}: out of host memory"


def test_rank_0_names_itself_where_the_failure_is_its_own_and_only_there(ranks):
    own = RuntimeError("a hook raised")
    assert ranks.root_cause(ending_of(own), own).reason.startswith(
        f"rank 0 on {node_name()}: RuntimeError: a hook"
    )
    all_saw = Diverged("the loss is nan")
    assert ranks.root_cause(ending_of(all_saw), all_saw).reason == "the loss is nan"


def test_a_process_that_was_killed_is_named_with_what_its_slurm_task_saw(ranks, join, endings):
    task, rank = join(1, "task"), join(1)
    task.report_death(-9, oom=True)
    gone(rank)
    assert concluded(endings) == (
        "oom_host",
        f"rank 1 on {node_name()}: killed by the kernel's OOM killer: the machine ran out of memory",
    )


def test_a_process_that_ends_before_it_says_who_it_is_ends_the_attempt_too(join, endings):
    join(2, "task").report_death(1, oom=False)
    assert concluded(endings) == ("failed", f"rank 2 on {node_name()}: exited with code 1 without a result")


def test_a_process_that_is_killed_before_it_says_who_it_is_was_where_rank_0_started_it(ranks, endings):
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        ranks.note_start(1, child)
        child.kill()
        assert concluded(endings) == ("failed", f"rank 1 on {node_name()}: killed by SIGKILL")


def test_where_process_and_slurm_task_are_gone_and_slurm_ends_nobody_the_node_has_failed(join, endings):
    task, rank = join(1, "task"), join(1)
    gone(task)
    gone(rank)
    assert concluded(endings) == (
        "node_failed",
        f"rank 1 on {node_name()}: both it and its Slurm task are gone",
    )


def test_where_slurm_ends_the_others_as_well_the_process_was_killed(join, endings, monkeypatch):
    monkeypatch.setattr(others, "DEATH_SECONDS", 1e9)
    gone(join(1))
    os.kill(os.getpid(), signal.SIGTERM)
    assert concluded(endings) == (
        "failed",
        f"rank 1 on {node_name()} was killed, and its Slurm task with it",
    )


def test_a_host_that_no_longer_answers_is_noticed_in_less_than_15_seconds(ranks, join, endings, monkeypatch):
    leader = join(1)
    channel = until(lambda: ranks._others.by_rank[1].connection)._channel
    asks = [
        channel.getsockopt(socket.IPPROTO_TCP, name)
        for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    ]
    assert channel.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert asks[0] + asks[1] * asks[2] < 15
    assert asks[3] < 15_000

    class Silent:
        def recv(self, _size):
            raise TimeoutError(110, "Connection timed out")

    monkeypatch.setattr(Connection, "__init__", lambda self, channel: setattr(self, "_channel", channel))
    with pytest.raises(Vanished, match="timed out"):
        next(Connection(Silent()).messages())
    other = ranks._others.by_rank[1]
    gone(leader)
    with ranks._others.changed:
        other.vanished = True
    ending = other.death(0.0, False, False)
    assert (ending.outcome, ending.failed_nodes) == ("node_failed", (node_name(),))


def test_a_run_that_is_stopped_ends_when_all_have_saved(ranks, join):
    for leader in (join(1), join(2)):
        leader.report_done()
    ending = Ending(Outcome.CANCELLED, "received SIGTERM; a checkpoint was saved at step 7")
    assert ranks.root_cause(ending, Interrupted(7)) == ending


def test_processes_that_do_not_come_are_named(ranks, join, monkeypatch):
    monkeypatch.setattr(first, "PATIENCE_SECONDS", 0.1)
    join(2).report_ready(None)
    with pytest.raises(NobodyCame, match=r"did not start within 0.1 s: 1"):
        until(lambda: ranks._others.by_rank[2].ready)
        ranks.wait_until_ready()


@pytest.mark.parametrize(
    ("error", "echo"),
    [
        (GLOO, True),
        (RuntimeError("NCCL communicator was aborted on rank 1."), True),
        (RuntimeError("Timed out waiting 1800000ms for recv operation to complete"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("connection closed"), False),
        (OfAnotherProcess(errno.ENOSPC, "No space left on device (rank 1)"), True),
        (OSError(errno.ENOSPC, "No space left on device (rank 0)"), False),
    ],
)
def test_an_error_may_be_an_echo_if_it_says_that_a_partner_is_gone_or_failed(error, echo):
    assert is_echo(error) == echo


@pytest.mark.fault
def test_a_process_hears_that_rank_0_has_stopped(monkeypatch):
    monkeypatch.setattr("runner.job.ranks.follower.TURN_SECONDS", 0.0)
    reports = Queue()
    with meeting.listen(meeting.HERE) as listener:
        at = Meeting.at(1, meeting.HERE, listener.getsockname()[1])
        leader = Leader(at, 1, leave=lambda: None, silent=lambda *report: reports.put(report))
        with listener.accept()[0] as channel:
            channel.sendall(b'{"say": "go"}\n')
            assert leader.next_order(60) == {"say": "go"}
            sender, place, seconds = reports.get(timeout=60)
            leader._connection.close()
    assert (sender, place.waits, seconds >= 120) == (leader, False, True)


def test_a_process_that_does_not_answer_while_the_others_wait_ends_the_attempt_as_a_hang(
    ranks, join, endings
):
    join(2)
    with socket.create_connection((ranks.meeting.host, ranks.meeting.port)) as connection:
        hello = {"say": "hello", "token": ranks.meeting.token, "rank": 1, "kind": "rank", "node": "n2"}
        connection.sendall(json.dumps(hello).encode() + b"\n")
        until(lambda: ranks._others.by_rank[1].connection)
        ranks._standstill = Standstill(hang_seconds=0.0)
        ranks.begin()[1].close()
        outcome, reason = concluded(endings)
    assert outcome == "failed"
    assert reason.startswith("hangs: nothing has moved for ")
    assert "rank 1 on n2 does not answer" in reason


@pytest.mark.fault
def test_a_run_of_which_all_processes_were_stopped_for_a_while_goes_on(ranks, join, endings, monkeypatch):
    """As by `scontrol suspend`: rank 0 looks before another process can have answered."""
    clock = SimpleNamespace(sleep=time.sleep, ahead=0.0)
    clock.monotonic = lambda: time.monotonic() + clock.ahead
    monkeypatch.setattr(first, "time", clock)
    monkeypatch.setattr(first, "whereabouts", lambda _: Whereabouts(7, "world.py:60", waits=True))
    monkeypatch.setattr(others.Other, "now_at", None)
    ranks._standstill = Standstill(hang_seconds=1000.0)
    ranks.begin()[1].close()
    since = until(lambda: ranks._standstill.since, 0.01)
    clock.ahead = 5000.0
    until(lambda: endings or ranks._standstill.since >= since + 5000, 0.01)
    assert not endings


def test_a_run_that_hangs_when_it_is_told_to_stop_was_cancelled(ranks, join, endings):
    join(2)
    with socket.create_connection((ranks.meeting.host, ranks.meeting.port)) as connection:
        hello = {"say": "hello", "token": ranks.meeting.token, "rank": 1, "kind": "rank", "node": "n2"}
        connection.sendall(json.dumps(hello).encode() + b"\n")
        until(lambda: ranks._others.by_rank[1].connection)
        ranks._standstill = Standstill(stop_seconds=0.0)
        ranks.begin()[1].close()
        ranks._terminations._heard = True
        outcome, reason = concluded(endings)
    assert outcome == "cancelled"
    assert reason.startswith("received SIGTERM; hangs: nothing has moved for ")


def test_a_process_says_where_its_main_thread_stands(ranks, join, monkeypatch):
    """A follower is asked by rank 0, and answers while its main thread is stuck."""
    world = {"__name__": "model.training.parallel.world", "until": until, "ranks": ranks}
    exec("def gather(): return until(lambda: ranks._others.by_rank[2].now_at, 0.01)", world)
    monkeypatch.setattr(first, "ASK_SECONDS", 0.0)
    join(2)
    place = world["gather"]()
    assert (place.steps, place.waits) == (20, True)


@pytest.fixture
def shown(tmp_path, monkeypatch):
    """Shows a process the GPU of its place, given what its environment shows it; returns what it sees then."""
    monkeypatch.setattr(gpus, "DEVICES", tmp_path)  # whatever this machine has

    def show(local_rank, devices):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
        show_own_gpu(RunConfig(data={"path": "x"}, device="cuda"), local_rank)
        return os.environ["CUDA_VISIBLE_DEVICES"]

    return show


@pytest.mark.parametrize(
    ("local_rank", "devices", "own"),
    [(1, "4,5", "5"), (0, "GPU-a,GPU-b", "GPU-a"), (3, "0", "0"), (0, "", "")],
)
def test_a_process_leaves_itself_the_gpu_of_its_place(shown, local_rank, devices, own):
    """One that sees a single GPU has been given it by Slurm."""
    assert shown(local_rank, devices) == own


def test_each_process_that_rank_0_starts_beside_itself_has_a_gpu_of_its_own(tmp_path, monkeypatch, shown):
    """They inherit what rank 0 sees, which has to be all of the run's GPUs until they have started."""
    values = []

    def start(_follower):
        values.append(os.environ["CUDA_VISIBLE_DEVICES"])
        return subprocess.Popen(["true"])

    monkeypatch.setattr(Follower, "start", start)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    handler = signal.getsignal(signal.SIGTERM)
    shared = {"data": {"path": "x"}, "device": "cuda", "train": {"batch_size": 3}, "parallel": {"shard": 3}}
    run = SimpleNamespace(config=RunConfig.model_validate(shared))
    with closing(lead(RunFolder(tmp_path), 1, run, [], None, lambda: 0, lambda _: None)):
        pass
    signal.signal(signal.SIGTERM, handler)
    own = [
        os.environ["CUDA_VISIBLE_DEVICES"],
        *(shown(rank, inherited) for rank, inherited in enumerate(values, 1)),
    ]
    assert own == ["4", "5", "6"]


def test_a_process_takes_no_gpu_that_its_user_hid(tmp_path, monkeypatch):
    (tmp_path / "nvidia0").touch()
    (tmp_path / "nvidia1").touch()
    monkeypatch.setattr(gpus, "DEVICES", tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    show_own_gpu(RunConfig(data={"path": "x"}, device="cuda"), 1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_on_amd_gpus_hip_shows_each_process_its_own_of_those_that_slurm_gave_the_job(tmp_path, monkeypatch):
    """PyTorch counts by ROCR_VISIBLE_DEVICES alone, and not by CUDA's, where HIP's is not set."""
    monkeypatch.setattr(gpus, "DEVICES", tmp_path)
    monkeypatch.setattr(gpus, "NODES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "4,5,6,7")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0,1,2,3")  # also so that it is as before afterwards
    show_own_gpu(RunConfig(data={"path": "x"}, device="cuda"), 3)
    assert os.environ["HIP_VISIBLE_DEVICES"] == "3"
    assert os.environ["ROCR_VISIBLE_DEVICES"] == "4,5,6,7"


def test_two_processes_on_one_gpu_are_refused():
    require_own_gpus(["GPU-a", "GPU-b", None, None])
    with pytest.raises(UserError, match="ranks 0, 2 share GPU GPU-a"):
        require_own_gpus(["GPU-a", "GPU-b", "GPU-a"])
