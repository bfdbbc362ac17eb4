"""A run that stops and resumes is, bit for bit, the run that did not stop; a torn checkpoint is never used."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from model.record.errors import UserError
from model.record.files import Unreadable
from model.record.text import Source
from model.training import checkpoint, keeper, meter, tensorfile
from model.training.keeper import Checkpoints, Keeper
from model.training.loss import LOSSES
from model.training.trainer import train
from tests.model.attempts import Attempt, assert_same, attempt, files
from tests.model.conftest import run_config


# Every step with either mode and either text, which also meet.
@pytest.mark.parametrize(
    ("text", "mode", "step"),
    [
        (text, mode, step)
        for place, step in enumerate((1, 4, 5, 13, 29))
        for text, mode in ((("tiny", "pad"), ("corpus", "pack")), (("tiny", "pack"), ("corpus", "pad")))[
            place % 2
        ]
    ],
)
def test_a_run_that_was_stopped_goes_on_bit_for_bit(text, mode, step, reference, request, tmp_path):
    """At the first step, on and off a log boundary, before the last step; over epochs or in long documents."""
    path, config = request.getfixturevalue(text), run_config(mode=mode)
    first = attempt(config, path, tmp_path / "attempt-1", stop_after=step)
    assert first.stopped == checkpoint.inspect(first.folder / "checkpoint") == step
    assert first.records[-1].step == step, "the steps before the checkpoint have their record"
    second = attempt(config, path, tmp_path / "attempt-2", resume=first)
    assert_same(first.records + second.records, second, reference(mode, path))


@pytest.mark.parametrize("mode", ["pad", "pack"])
@pytest.mark.fault
def test_two_interruptions_in_a_row_change_nothing(mode, tiny, reference, tmp_path):
    config = run_config(mode=mode)
    first = attempt(config, tiny, tmp_path / "attempt-1", stop_after=7)
    second = attempt(config, tiny, tmp_path / "attempt-2", stop_after=1, resume=first)
    assert second.stopped == 8, "each attempt makes progress"
    third = attempt(config, tiny, tmp_path / "attempt-3", stop_after=9, resume=second)
    last = attempt(config, tiny, tmp_path / "attempt-4", resume=third)
    records = first.records + second.records + third.records + last.records
    assert_same(records, last, reference(mode, tiny))


def test_a_run_asked_to_stop_at_its_last_step_is_complete_and_needs_no_checkpoint(tiny, reference, tmp_path):
    outcome = attempt(run_config(), tiny, tmp_path / "attempt-1", stop_after=30, every=1e9)
    assert outcome.stopped is None
    assert not (outcome.folder / "checkpoint").exists()
    assert_same(outcome.records, outcome, reference("pack", tiny))


@pytest.mark.fault
def test_a_killed_run_goes_on_from_its_last_periodic_checkpoint(tiny, reference, tmp_path, monkeypatch):
    """Killed at step 19: what it recorded after the checkpoint of step 17 is not kept, and is done again."""
    config = run_config(log_every=10)
    due = Keeper.due
    monkeypatch.setattr(Keeper, "due", lambda self, step: step in (3, 17) or killed_at(step))

    def killed_at(step):
        if step == 19:
            raise KeyboardInterrupt
        return False

    first = Attempt(tmp_path / "attempt-1")
    first.folder.mkdir()
    with pytest.raises(KeyboardInterrupt):
        train(
            config,
            Source(tiny),
            first.records.append,
            Checkpoints(first.folder, None, lambda: False, None),
        )
    assert [(record.step, record.steps) for record in first.kept] == [(1, 1), (3, 2), (10, 7), (17, 7)]
    monkeypatch.setattr(Keeper, "due", due)
    second = attempt(config, tiny, tmp_path / "attempt-2", resume=first)
    assert [(record.step, record.steps) for record in second.records] == [(20, 3), (30, 10)]
    assert_same(first.kept + second.records, second, reference("pack", tiny))


@pytest.mark.fault
def test_records_after_the_last_periodic_checkpoint_are_done_again_and_not_kept_twice(
    tiny, reference, tmp_path, monkeypatch
):
    config = run_config()
    monkeypatch.setattr(Keeper, "due", lambda self, step: step == 12)
    first = attempt(config, tiny, tmp_path / "attempt-1")
    assert [record.step for record in first.records] == [1, 5, 10, 12, 15, 20, 25, 30]
    monkeypatch.undo()
    second = attempt(config, tiny, tmp_path / "attempt-2", resume=first)
    assert [(record.step, record.steps) for record in second.records][:2] == [(15, 3), (20, 5)]
    assert_same(first.kept + second.records, second, reference("pack", tiny))


def test_periodic_checkpoints_come_by_the_clock_and_their_time_is_no_step_time(tiny, tmp_path, monkeypatch):
    clock = [0.0]
    timer = SimpleNamespace(monotonic=lambda: clock[0], perf_counter=lambda: clock[0])
    for module in (keeper, meter):
        monkeypatch.setattr(module, "time", timer)
    saved = []

    def save(folder, state, step, position, hold):
        saved.append(step)
        clock[0] += 1000.0

    monkeypatch.setattr(checkpoint, "save", save)
    loss = LOSSES["cross_entropy"]

    def one_second(*arguments):
        clock[0] += 1.0
        return loss(*arguments)

    monkeypatch.setattr("model.training.step.LOSSES", {"cross_entropy": one_second})
    outcome = attempt(run_config(), tiny, tmp_path / "attempt-1", every=7.0)
    assert saved == [7, 14, 21, 28]
    assert {record.step_seconds for record in outcome.records} == {1.0}


def test_the_random_numbers_of_a_resumed_run_go_on_too(tiny, tmp_path, monkeypatch):
    """The llama draws none while it trains; a model with dropout would."""
    loss = LOSSES["cross_entropy"]
    noisy = {"cross_entropy": lambda *arguments: loss(*arguments) * (1 + torch.rand(()))}
    monkeypatch.setattr("model.training.step.LOSSES", noisy)
    config = run_config(log_every=1)
    reference = attempt(config, tiny, tmp_path / "whole")
    first = attempt(config, tiny, tmp_path / "attempt-1", stop_after=11)
    torch.rand(5)
    second = attempt(config, tiny, tmp_path / "attempt-2", resume=first)
    assert_same(first.records + second.records, second, reference)


@pytest.mark.parametrize("options", [{"accumulate": 2}, {"checkpoint_activations": True}])
def test_a_run_with_options_resumes_bit_for_bit(options, tiny, tmp_path):
    config = run_config(log_every=1, **options)
    reference = attempt(config, tiny, tmp_path / "whole")
    first = attempt(config, tiny, tmp_path / "attempt-1", stop_after=7)
    second = attempt(config, tiny, tmp_path / "attempt-2", resume=first)
    assert_same(first.records + second.records, second, reference)


def test_half_precision_resumes_bit_for_bit(tiny, tmp_path):
    config = run_config("math", dtype="bfloat16", log_every=1)
    reference = attempt(config, tiny, tmp_path / "whole")
    first = attempt(config, tiny, tmp_path / "attempt-1", stop_after=6)
    second = attempt(config, tiny, tmp_path / "attempt-2", resume=first)
    assert_same(first.records + second.records, second, reference)


# One checkpoint, and what can happen to it.


@pytest.fixture(scope="module")
def stopped(tiny, tmp_path_factory):
    return attempt(run_config(), tiny, tmp_path_factory.mktemp("stopped"), stop_after=7)


@pytest.fixture
def copy(stopped, tmp_path):
    shutil.copytree(stopped.folder, tmp_path / "attempt-1")
    return replace(stopped, folder=tmp_path / "attempt-1")


def test_a_checkpoint_is_two_files(stopped):
    assert files(stopped) == ["meta.json", "state-7.safetensors"]
    assert [path.name for path in stopped.folder.iterdir()] == ["checkpoint"]


def truncate(share):
    return lambda path: os.truncate(path, int(share * path.stat().st_size))


def flip(share):
    def damage(path):
        content = bytearray(path.read_bytes())
        content[int(share * (len(content) - 1))] ^= 1
        path.write_bytes(content)

    return damage


def edit(**values):
    return lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | values))


DAMAGES = {
    "state empty": ("state-7.safetensors", truncate(0)),
    "state cut early": ("state-7.safetensors", truncate(0.01)),
    "state cut late": ("state-7.safetensors", truncate(0.99)),
    "state longer": ("state-7.safetensors", lambda path: path.write_bytes(path.read_bytes() + b"\0")),
    "state gone": ("state-7.safetensors", Path.unlink),
    "first bit": ("state-7.safetensors", flip(0)),
    "a bit of the optimizer's": ("state-7.safetensors", flip(0.6)),
    "last bit": ("state-7.safetensors", flip(1)),
    "meta gone": ("meta.json", Path.unlink),
    "meta empty": ("meta.json", truncate(0)),
    "meta cut": ("meta.json", truncate(0.5)),
    "meta no UTF-8": ("meta.json", lambda path: path.write_bytes(b"\xff" + path.read_bytes())),
    "another schema": ("meta.json", edit(schema_version=1)),
    "another step": ("meta.json", edit(step=8)),
    "another position": ("meta.json", edit(position={"epoch": 0, "row": 3, "used": 0})),
    "a folder for a file": ("state-7.safetensors", lambda path: (path.unlink(), path.mkdir())),
    "a pipe for a file": ("state-7.safetensors", lambda path: (path.unlink(), os.mkfifo(path))),
    "a pipe for meta": ("meta.json", lambda path: (path.unlink(), os.mkfifo(path))),
}


@pytest.mark.fault
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_is_refused_and_no_step_is_trained(name, copy, tiny, tmp_path):
    file, damage = DAMAGES[name]
    damage(copy.folder / "checkpoint" / file)
    with pytest.raises(Unreadable, match=str(copy.folder / "checkpoint" / file)):
        checkpoint.inspect(copy.folder / "checkpoint")
    generator = torch.get_rng_state()
    with pytest.raises(Unreadable, match=file):
        train(
            run_config(),
            Source(tiny),
            lambda record: pytest.fail("it trained"),
            Checkpoints(tmp_path, None, lambda: False, copy.folder),
        )
    torch.set_rng_state(generator)


@pytest.mark.fault
def test_a_link_to_another_attempts_checkpoint_is_replaced_and_that_one_stays(copy, tiny, tmp_path):
    second = tmp_path / "attempt-2"
    second.mkdir()
    (second / "checkpoint").symlink_to(copy.folder / "checkpoint")
    names = files(copy)
    attempt(run_config(), tiny, second, stop_after=3, resume=copy)
    assert files(copy) == names
    assert checkpoint.inspect(copy.folder / "checkpoint") == 7
    assert checkpoint.inspect(second / "checkpoint") == 10


@pytest.mark.refused
@pytest.mark.parametrize(
    "settings",
    [
        {"steps": 31},
        {"seed": 1},
        {"learning_rate": 2e-2},
        {"mode": "pad"},
        {"attention": "math", "dtype": "bfloat16"},
    ],
)
def test_a_checkpoint_of_another_configuration_is_refused(settings, copy, tiny, tmp_path):
    with pytest.raises(UserError, match="another configuration") as caught:
        attempt(run_config(**settings), tiny, tmp_path / "attempt-2", resume=copy)
    assert not isinstance(caught.value, Unreadable), "it is a good checkpoint, of something else"


@pytest.mark.refused
def test_a_checkpoint_of_a_run_on_other_data_is_refused(copy, corpus, tmp_path):
    with pytest.raises(UserError, match="other data"):
        attempt(run_config(), corpus, tmp_path / "attempt-2", resume=copy)


def test_resuming_leaves_the_earlier_checkpoint_as_it_was(copy, tiny, tmp_path):
    content = {path: path.read_bytes() for path in copy.folder.rglob("*") if path.is_file()}
    attempt(run_config(), tiny, tmp_path / "attempt-2", every=0.0, resume=copy)
    assert {path: path.read_bytes() for path in copy.folder.rglob("*") if path.is_file()} == content


def test_state_that_is_larger_than_one_piece_round_trips(tiny, reference, tmp_path, monkeypatch):
    monkeypatch.setattr(tensorfile, "PIECE", 1000)
    first = attempt(run_config(), tiny, tmp_path / "attempt-1", stop_after=7)
    second = attempt(run_config(), tiny, tmp_path / "attempt-2", resume=first)
    assert_same(first.records + second.records, second, reference("pack", tiny))


# On a GPU.


FAST = {"loss": "linear_cross_entropy", "optimizer": "adamw_one_pass"}
ON_A_GPU = {
    "math": ("math", {}),
    "flash": ("flash", {}),
    "math, compiled": ("math", {"compile": True}),
    "flash, compiled": ("flash", {"compile": True}),
    "fast": ("flash", FAST),
    "all": ("flash", {**FAST, "compile": True, "checkpoint_activations": True, "accumulate": 2}),
    "float8": ("flash", {**FAST, "compile": True, "float8": "tensorwise"}),
    "float8 by row": ("flash", {**FAST, "compile": True, "float8": "rowwise"}),
}


@pytest.mark.gpu
@pytest.mark.parametrize("options", ON_A_GPU)
@pytest.mark.filterwarnings("default")  # shown, not fatal: compilers warn about matters of their own
def test_a_run_on_a_gpu_goes_on_bit_for_bit(options, corpus, tmp_path, monkeypatch):
    """With deterministic kernels: without them two runs that never stopped may differ too."""
    if "float8" in options:
        pytest.importorskip("torchao")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        backend, train = ON_A_GPU[options]
        config = run_config(backend, dtype="bfloat16", log_every=1, **train)
        config = config.model_copy(update={"device": "cuda"})
        reference = attempt(config, corpus, tmp_path / "whole")
        first = attempt(config, corpus, tmp_path / "attempt-1", stop_after=13)
        torch.rand(5, device="cuda")
        second = attempt(config, corpus, tmp_path / "attempt-2", resume=first)
    finally:
        torch.use_deterministic_algorithms(False)
    assert_same(first.records + second.records, second, reference)
