"""A periodic checkpoint is written while training goes on, and holds the state of the step that it names."""

import errno
import io
import multiprocessing
import os
import signal
import sys
from concurrent.futures import wait
from functools import partial
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
import torch

from model.record.errors import AssayError
from model.training import checkpoint
from model.training.keeper import Keeper
from model.training.staging import Staging
from tests.conftest import PATIENCE_SECONDS
from tests.model.attempts import Attempt, assert_same, attempt, files
from tests.model.conftest import run_config


@pytest.fixture
def slow(monkeypatch):
    """A disk that takes not a byte before it is told to go on."""
    disk, path_open = SimpleNamespace(reached=Event(), go_on=Event()), Path.open

    def opens(path, *mode, **options):
        if mode == ("wb",):
            disk.reached.set()
            assert disk.go_on.wait(PATIENCE_SECONDS), "nothing went on while the disk was slow"
        return path_open(path, *mode, **options)

    monkeypatch.setattr(Path, "open", opens)
    return disk


def contents(outcome):
    return {path.name: path.read_bytes() for path in (outcome.folder / "checkpoint").iterdir()}


def test_a_slow_disk_holds_up_no_step_and_gets_the_state_of_the_step_that_it_was_given(
    slow, tiny, tmp_path, monkeypatch
):
    """Byte for byte what a run writes that stops after that step."""
    assert_behind_as_stopped(run_config(), slow, tiny, tmp_path, monkeypatch)


def assert_behind_as_stopped(config, slow, text, folder, monkeypatch):
    slow.go_on.set()
    stopped = attempt(config, text, folder / "stopped", stop_after=4)
    slow.go_on.clear()

    def due(self, step):
        if step == 9:
            assert not (folder / "attempt-1" / "checkpoint").exists()
            slow.go_on.set()
        return step == 4

    monkeypatch.setattr(Keeper, "due", due)
    first = attempt(config, text, folder / "attempt-1")
    assert first.records[-1].step == 30
    assert contents(first) == contents(stopped)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # shown, not fatal: compilers warn about matters of their own
@pytest.mark.parametrize("optimizer", ["adamw", "adamw_one_pass"])  # one has some tensors on the host
def test_the_same_holds_on_a_gpu(optimizer, slow, corpus, tmp_path, monkeypatch):
    """With deterministic kernels: without them two runs may differ."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    config = run_config("math", dtype="bfloat16", optimizer=optimizer).model_copy(update={"device": "cuda"})
    torch.use_deterministic_algorithms(True)
    try:
        assert_behind_as_stopped(config, slow, corpus, tmp_path, monkeypatch)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.fixture
def events(slow, monkeypatch):
    """What happens, in order; the disk goes on when the main thread waits for it."""
    log = []
    settle, hold, publish = Keeper._settle, Staging.hold, checkpoint.publish

    def settles(self):
        if self._writing:
            assert slow.reached.wait(PATIENCE_SECONDS)
            log.append("waits")
            slow.go_on.set()
        settle(self)

    def holds(self, tensors):
        log.append("copied")
        slow.reached.clear()
        slow.go_on.clear()
        return hold(self, tensors)

    def publishes(folder, meta):
        publish(folder, meta)
        log.append(f"saved {meta.step}")

    monkeypatch.setattr(Keeper, "_settle", settles)
    monkeypatch.setattr(Staging, "hold", holds)
    monkeypatch.setattr(checkpoint, "publish", publishes)
    return log


def test_a_save_waits_for_the_one_before(events, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(Keeper, "due", lambda self, step: step in (4, 5))
    first = attempt(run_config(), tiny, tmp_path / "attempt-1")
    assert events == ["copied", "waits", "saved 4", "copied", "waits", "saved 5"]
    assert files(first) == ["meta.json", "state-5.safetensors"]


def test_a_run_that_ends_waits_for_the_save_under_way(events, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(Keeper, "due", lambda self, step: step == 29)
    attempt(run_config(), tiny, tmp_path / "attempt-1")
    assert events == ["copied", "waits", "saved 29"]


@pytest.mark.parametrize(("stop_after", "saves"), [(0, [4, 9]), (3, [3])], ids=["goes on", "stops"])
def test_records_are_put_on_disk_before_each_checkpoint_that_covers_them(
    tiny, tmp_path, monkeypatch, stop_after, saves
):
    log, publish = [], checkpoint.publish
    monkeypatch.setattr(
        checkpoint, "publish", lambda folder, meta: [log.append(meta.step), publish(folder, meta)]
    )
    if not stop_after:
        monkeypatch.setattr(Keeper, "due", lambda self, step: step in saves)
    before = partial(log.append, "records")
    attempt(run_config(), tiny, tmp_path / "attempt-1", stop_after, before=before)
    assert log == [event for step in saves for event in ("records", step)]


@pytest.mark.fault
def test_a_disk_that_has_no_room_to_say_so_either_ends_no_training(tiny, tmp_path, monkeypatch):
    def full(_kept, _meta):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "publish", full)
    monkeypatch.setattr(Keeper, "due", lambda self, step: step == 4)
    with Path("/dev/full").open("wb", buffering=0) as stderr:
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(stderr, write_through=True))
        assert attempt(run_config(), tiny, tmp_path / "attempt-1").records[-1].step == 30


@pytest.mark.fault
def test_a_run_that_is_asked_to_stop_during_a_save_waits_for_it_and_saves_once_more_without_a_copy(
    events,
    slow,
    tiny,
    reference,
    tmp_path,
    monkeypatch,
):
    due = Keeper.due

    def asked_while_the_disk_is_slow(self, step):
        if step == 4:
            return True
        assert step < 4 or slow.reached.wait(PATIENCE_SECONDS)
        return due(self, step)

    monkeypatch.setattr(Keeper, "due", asked_while_the_disk_is_slow)
    first = attempt(
        run_config(), tiny, tmp_path / "attempt-1", stop_after=5
    )  # asked once less: not in step 4
    assert first.stopped == checkpoint.inspect(first.folder / "checkpoint") == 6
    assert events == ["copied", "waits", "saved 4", "saved 6"]
    monkeypatch.undo()
    second = attempt(run_config(), tiny, tmp_path / "attempt-2", resume=first)
    assert_same(first.records + second.records, second, reference("pack", tiny))


@pytest.mark.fault
def test_without_host_memory_for_a_copy_training_waits_until_all_is_written_and_says_so(
    events, slow, tiny, tmp_path, monkeypatch, capsys
):
    def no_room(self, tensors):
        slow.go_on.set()
        raise MemoryError("host memory ran out after copying 1 GiB of it")

    monkeypatch.setattr(Staging, "hold", no_room)
    monkeypatch.setattr(Keeper, "due", lambda self, step: events.append(step) or step == 4)
    attempt(run_config(), tiny, tmp_path / "attempt-1")
    assert events[3:6] == [4, "saved 4", 5]
    assert capsys.readouterr().err == (
        "training waits until the checkpoint at step 4 is written: "
        "host memory ran out after copying 1 GiB of it\n"
    )


@pytest.mark.fault
def test_a_run_that_fails_during_a_save_waits_for_it(slow, tiny, tmp_path, monkeypatch):
    """Its checkpoint would otherwise change after the attempt's end is on record."""

    def due(self, step):
        if step == 6:
            slow.go_on.set()
            raise AssayError("of another cause")
        return step == 4

    monkeypatch.setattr(Keeper, "due", due)
    with pytest.raises(AssayError, match="of another cause"):
        attempt(run_config(), tiny, tmp_path / "attempt-1")
    assert checkpoint.inspect(tmp_path / "attempt-1" / "checkpoint") == 4
    assert not (tmp_path / "attempt-1" / "checkpoint.part").exists()


@pytest.mark.fault
@pytest.mark.parametrize("step", [4, 29], ids=["on the way", "at the end"])
def test_what_goes_wrong_in_a_save_apart_from_the_disk_ends_the_run(step, tiny, tmp_path, monkeypatch):
    def fails(folder, meta):
        raise RuntimeError("not the disk")

    def after_the_save(self, current):
        steps.append(current)
        if self._writing:
            wait([self._writing], PATIENCE_SECONDS)
        return due(self, current) or current == step

    steps, due = [], Keeper.due
    monkeypatch.setattr(checkpoint, "publish", fails)
    monkeypatch.setattr(Keeper, "due", after_the_save)
    with pytest.raises(RuntimeError, match="not the disk"):
        attempt(run_config(), tiny, tmp_path / "attempt-1")
    assert steps[-1] == step + 1, "it is raised at the next step"


def killed_while_it_writes(text, folder):
    """A first checkpoint; killed when the second is copied and its file is written, but not in its place."""
    fsync = os.fsync

    def sync(descriptor):
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == "state-12.safetensors":
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(descriptor)

    os.fsync = sync
    Keeper.due = lambda self, step: step in (4, 12)
    torch.set_num_threads(1)
    attempt(run_config(), text, folder)


@pytest.mark.fault
def test_a_kill_between_the_copy_and_its_publication_leaves_the_checkpoint_before(
    tiny,
    reference,
    tmp_path,
):
    folder = tmp_path / "attempt-1"
    child = multiprocessing.get_context("fork").Process(target=killed_while_it_writes, args=(tiny, folder))
    child.start()
    child.join(PATIENCE_SECONDS)
    assert child.exitcode == -signal.SIGKILL
    assert files(Attempt(folder)) == ["meta.json", "state-12.safetensors", "state-4.safetensors"]
    assert checkpoint.inspect(folder / "checkpoint") == 4
    second = attempt(run_config(), tiny, tmp_path / "attempt-2", resume=Attempt(folder))
    weights = reference("pack", tiny).weights
    assert all(torch.equal(second.weights[name], weight) for name, weight in weights.items())
