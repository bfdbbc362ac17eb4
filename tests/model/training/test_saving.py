"""Whatever ends the saving of a checkpoint, the one before or the new one is whole."""

import errno
import os
import shutil
import subprocess

import pytest
import torch

from model import attention
from model.record.files import Unreadable
from model.record.text import Position
from model.training import checkpoint, optim
from model.training.keeper import Keeper
from model.training.trainer import build_model
from tests.model.attempts import assert_same, attempt, files
from tests.model.conftest import run_config


class Crash(BaseException):
    """The process is gone at this instant."""


def state(weight, config=None):
    """A state whose tensors all hold one number."""
    config = config or run_config()
    model = build_model(config, attention.load(config.attention))
    optimizer = optim.AdamW(model.named_parameters(), config.train.weight_decay)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step(config.train.learning_rate)
    with torch.no_grad():
        for tensor in (*model.parameters(), *optimizer.means):
            tensor.fill_(weight)
    return checkpoint.TrainingState(config, "data", model, optimizer)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_state_is_a_file_that_the_library_safetensors_reads(dtype, tmp_path):
    from safetensors.torch import load_file

    saved = state(1.5, run_config("math", dtype=dtype))
    checkpoint.save(tmp_path / "checkpoint", saved, 4, Position())
    loaded, expected = load_file(tmp_path / "checkpoint" / "state-4.safetensors"), checkpoint._tensors(saved)
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor), name


@pytest.mark.refused
def test_a_checkpoint_of_other_tensors_is_refused(tmp_path, monkeypatch):
    checkpoint.save(tmp_path / "checkpoint", state(1.0), 1, Position())
    tensors = checkpoint._tensors
    monkeypatch.setattr(
        checkpoint, "_tensors", lambda training_state: dict(reversed(tensors(training_state).items()))
    )
    with pytest.raises(Unreadable, match="its tensors are not those of this version's model"):
        checkpoint.load(tmp_path / "checkpoint", state(0.0))


@pytest.mark.fault
@pytest.mark.parametrize("cleans", [True, False], ids=["exception", "killed"])
def test_a_crash_at_any_sync_rename_or_removal_leaves_the_old_or_the_new_checkpoint(
    cleans, tmp_path, monkeypatch
):
    folder, steps, crashes = tmp_path / "checkpoint", set(), 0
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        checkpoint.save(folder, state(1.0), 1, Position())
        remaining = [crashes]
        with monkeypatch.context() as patch:
            for name in ("fsync", "replace", "rename", "unlink"):
                patch.setattr(os, name, crash_when_none_is_left(remaining, getattr(os, name)))
            if not cleans:
                patch.setattr(shutil, "rmtree", lambda *arguments, **options: None)
            try:
                checkpoint.save(folder, state(2.0), 2, Position(epoch=1))
                break
            except Crash:
                crashes += 1
        loaded = state(0.0)
        step, position = checkpoint.load(folder, loaded)
        assert checkpoint.inspect(folder) == step
        assert position.epoch == step - 1
        values = [*loaded.model.parameters(), *loaded.optimizer.means]
        assert {value.unique().item() for value in values} == {float(step)}
        steps.add(step)
        checkpoint.save(folder, state(3.0), 3, Position())
        assert checkpoint.inspect(folder) == 3
        assert sorted(path.name for path in tmp_path.rglob("*")) == [
            "checkpoint",
            "meta.json",
            "state-3.safetensors",
        ]
    assert steps == {1, 2}
    assert crashes >= 8


def crash_when_none_is_left(remaining, call):
    def wrapped(*arguments, **options):
        if remaining[0] == 0:
            raise Crash
        remaining[0] -= 1
        return call(*arguments, **options)

    return wrapped


@pytest.mark.fault
def test_a_first_save_that_is_cut_off_leaves_no_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "replace", crash_when_none_is_left([2], os.replace))
    with pytest.raises(Crash):
        checkpoint.save(tmp_path / "checkpoint", state(1.0), 1, Position())
    with pytest.raises(Unreadable, match="meta.json: No such file"):
        checkpoint.inspect(tmp_path / "checkpoint")


@pytest.fixture
def full_disk(tmp_path, monkeypatch):
    """A folder on a disk that has space for one checkpoint and not for two."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=800k", "assay-test", str(folder)]
    if os.getuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0:
        yield folder / "attempt-1"
        subprocess.run(["umount", str(folder)], check=True)
        return
    fsync = os.fsync

    def full(descriptor):
        if (folder / "attempt-1" / "checkpoint").exists() and os.fstat(descriptor).st_size > 100_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    yield folder / "attempt-1"


@pytest.mark.fault
def test_a_full_disk_stops_no_training_and_leaves_the_checkpoint_before(
    full_disk, tiny, reference, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(Keeper, "due", lambda self, step: step in (4, 12))
    first = attempt(run_config(), tiny, full_disk)
    assert first.records[-1].step == 30
    messages = capsys.readouterr().err.splitlines()
    assert len(messages) == 1
    assert messages[0].startswith("could not save a checkpoint at step 12")
    assert "No space left" in messages[0]
    assert files(first) == ["meta.json", "state-4.safetensors"]
    assert [path.name for path in full_disk.iterdir()] == ["checkpoint"], "what did not fit is gone"
    assert_same(first.records, first, reference("pack", tiny))
    monkeypatch.undo()
    second = attempt(run_config(), tiny, tmp_path / "attempt-2", resume=first)
    assert_same(first.kept + second.records, second, reference("pack", tiny))


@pytest.mark.fault
def test_a_full_disk_fails_the_checkpoint_that_was_asked_for(full_disk, tiny):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Keeper, "due", lambda self, step: step == 4)
        attempt(run_config(), tiny, full_disk)
    with pytest.raises(OSError, match="No space left"):
        attempt(run_config(), tiny, full_disk, stop_after=9)
    assert checkpoint.inspect(full_disk / "checkpoint") == 4
