"""A run of several processes that stops and resumes is, bit for bit, the run that did not stop."""

import errno
import os
import signal
from pathlib import Path
from threading import Event

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model.record.config import RunConfig
from model.record.errors import Interrupted
from model.record.text import Source
from model.training import checkpoint
from model.training.keeper import Checkpoints, Keeper
from model.training.parallel.world import ALONE
from model.training.trainer import train
from tests.conftest import PATIENCE_SECONDS
from tests.model.conftest import run_config
from tests.model.training.parallel.processes import together

STEPS, STOP = 6, 3
TOLERANCE = 2e-5  # as of losses on other numbers of processes
WAYS = {
    "DDP": {"replicate": 2},
    "FSDP2": {"shard": 2},
    "TP with FSDP2": {"shard": 2, "tensor": 2},
    "context": {"context": 2},
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "text.parquet"
    pq.write_table(pa.table({"text": [f"{i} " * (i % 13 + 1) for i in range(40)]}), path)
    return path


def config(world):
    base = run_config("math", steps=STEPS, log_every=1, warmup_steps=1).model_dump()
    return RunConfig.model_validate({**base, "parallel": world.parallel.model_dump()})


def attempt(world, texts, folder, stop_after=0, resume=None):
    """The losses that the first process recorded, and what ended the attempt, in every process."""
    records, remaining, ending = [], [stop_after], None
    if world.is_first:
        folder.mkdir(exist_ok=True)

    def should_stop():
        remaining[0] -= world.place.rank == world.place.size - 1  # one process is asked to stop, and all do
        return remaining[0] == 0 and stop_after > 0

    world.most(0)
    try:
        train(
            config(world),
            Source(texts),
            records.append,
            Checkpoints(folder, None, should_stop, resume),
            world=world,
        )
    except (Interrupted, OSError) as error:
        ending = str(error)
    return [record.loss for record in records], ending


def stopped_and_resumed(world, texts, folder):
    whole_losses, _ = attempt(world, texts, folder / "whole")
    first, ending = attempt(world, texts, folder / "attempt-1", stop_after=STOP)
    second, _ = attempt(world, texts, folder / "attempt-2", resume=folder / "attempt-1")
    return whole_losses, first + second, ending


@pytest.mark.parametrize("way", WAYS)
def test_a_run_of_several_processes_goes_on_bit_for_bit(way, texts, tmp_path):
    """On as many processes; on one it goes on too, with losses that are the same up to rounding."""
    (whole_losses, resumed, _), *others = answers = together(
        stopped_and_resumed, texts, tmp_path, **WAYS[way]
    )
    assert len(whole_losses) == STEPS
    assert resumed == whole_losses
    assert [(losses, resumed_losses) for losses, resumed_losses, _ in others] == [([], [])] * len(others)
    assert all(f"saved at step {STOP}" in ending for *_, ending in answers)
    assert checkpoint.inspect(tmp_path / "attempt-1" / "checkpoint") == STOP
    single_losses, _ = attempt(ALONE, texts, tmp_path / "attempt-3", resume=tmp_path / "attempt-1")
    assert single_losses == pytest.approx(whole_losses[STOP:], rel=TOLERANCE)


def no_space(descriptor):
    raise OSError(
        errno.ENOSPC, os.strerror(errno.ENOSPC), str(Path(f"/proc/self/fd/{descriptor}").readlink())
    )


def with_a_full_disk(world, texts, folder, stop_after):
    """A checkpoint at step 2, and then one process has no space left; when it is asked for, all fail."""
    due, log = Keeper.due, folder / f"said-{world.place.rank}"
    with pytest.MonkeyPatch.context() as patch:
        keep = Keeper.keep

        def full_after_the_first(self, step, position):
            self._settle()
            if step > 2 and world.place.rank == 1:
                patch.setattr(os, "fsync", no_space)
            keep(self, step, position)

        patch.setattr(Keeper, "keep", full_after_the_first)
        patch.setattr(Keeper, "due", lambda self, step: due(self, step) or step in (2, 4))
        patch.setattr("sys.stderr", log.open("w", buffering=1))
        losses, ending = attempt(world, texts, folder / "attempt-1", stop_after)
        patch.undo()
    return len(losses), ending, log.read_text(), checkpoint.inspect(folder / "attempt-1" / "checkpoint")


@pytest.mark.fault
def test_a_full_disk_of_one_process_stops_no_training_and_leaves_the_checkpoint_before(texts, tmp_path):
    first, second = together(with_a_full_disk, texts, tmp_path, 0, shard=2)
    assert "could not save a checkpoint at step 4; training continues" in first[2]
    assert "No space left on device (rank 1)" in first[2]
    assert (first[0], first[1], first[3]) == (STEPS, None, 2)
    assert second[1:3] == (None, ""), "one process says it for all"


@pytest.mark.fault
def test_a_full_disk_of_one_process_fails_the_checkpoint_that_was_asked_for_on_all(texts, tmp_path):
    for _, ending, _, step in together(with_a_full_disk, texts, tmp_path, 4, shard=2):
        assert "No space left on device (rank 1)" in ending
        assert str(Path("attempt-1") / "checkpoint.part" / "state-4-1.safetensors") in ending
        assert step == 2


# Checkpoints that are written while training goes on.


def with_a_slow_disk(world, texts, folder, stop_after=0):
    """Saves after step 2; the last process's disk is slow until step 4 is done or somebody waits for it."""
    due, settle, path_open, go_on = Keeper.due, Keeper._settle, Path.open, Event()
    is_slow = world.place.rank == world.place.size - 1

    def opens(path, *mode, **options):
        if is_slow and mode == ("wb",):
            assert go_on.wait(PATIENCE_SECONDS), "nothing went on while the disk was slow"
        return path_open(path, *mode, **options)

    def saves(self, step):
        if step == 4 and is_slow and not stop_after:
            assert not (folder / "attempt-1" / "checkpoint").exists()
            go_on.set()
        return step == 2 or due(self, step)

    def settles(self):
        if self._writing:
            go_on.set()
        settle(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", opens)
        patch.setattr(Keeper, "due", saves)
        patch.setattr(Keeper, "_settle", settles)
        losses, ending = attempt(world, texts, folder / "attempt-1", stop_after)
    return losses, ending, checkpoint.inspect(folder / "attempt-1" / "checkpoint")


def slow_and_stopped(world, texts, folder):
    """The losses of the run, and of one that goes on from its checkpoint; the step of that."""
    whole_losses, _, step = with_a_slow_disk(world, texts, folder)
    attempt(world, texts, folder / "stopped", stop_after=2)
    resumed_losses, _ = attempt(world, texts, folder / "attempt-2", resume=folder / "attempt-1")
    return whole_losses, resumed_losses, step


@pytest.mark.parametrize("way", WAYS)
def test_a_slow_disk_of_one_process_holds_up_no_step_and_gets_the_state_of_the_step_that_it_was_given(
    way, texts, tmp_path
):
    """Byte for byte what a run writes that stops after that step."""
    (whole_losses, resumed_losses, step), *_ = together(slow_and_stopped, texts, tmp_path, **WAYS[way])
    assert (len(whole_losses), step) == (STEPS, 2)
    assert resumed_losses == whole_losses[2:]
    written, stopped = (contents(tmp_path / name / "checkpoint") for name in ("attempt-1", "stopped"))
    assert written == stopped


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.fault
def test_processes_that_are_asked_to_stop_during_a_save_wait_for_it_and_save_once_more(texts, tmp_path):
    """The process that is asked does not count step 2, at which it saves in any case."""
    for _, ending, step in together(with_a_slow_disk, texts, tmp_path, 3, shard=2):
        assert "saved at step 4" in ending
        assert step == 4


def killed_while_it_writes(world, texts, folder):
    """A checkpoint at step 2; at step 4 all have a copy, and one process is killed when it has written its own."""
    fsync = os.fsync

    def syncs(descriptor):
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == "state-4-1.safetensors":
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(descriptor)

    os.fsync = syncs
    Keeper.due = lambda self, step: step in (2, 4)
    attempt(world, texts, folder)


def resumed(world, texts, folder):
    whole_losses, _ = attempt(world, texts, folder / "whole")
    resumed_losses, _ = attempt(world, texts, folder / "attempt-2", resume=folder / "attempt-1")
    return whole_losses, resumed_losses


@pytest.mark.fault
def test_a_process_that_is_killed_while_it_writes_leaves_the_checkpoint_before(texts, tmp_path):
    with pytest.raises(AssertionError, match="it died"):
        together(killed_while_it_writes, texts, tmp_path / "attempt-1", shard=2)
    assert checkpoint.inspect(tmp_path / "attempt-1" / "checkpoint") == 2
    (whole_losses, resumed_losses), _ = together(resumed, texts, tmp_path, shard=2)
    assert resumed_losses == whole_losses[2:]
