"""A run of several processes goes on bit for bit from its checkpoint, on as many processes or on others."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from model import attention
from model.record.errors import UserError
from model.record.files import Unreadable
from model.record.text import Position
from model.training import checkpoint, optim, tensorfile
from model.training.parallel import shards
from model.training.parallel.world import ALONE
from model.training.trainer import build_model
from tests.model.conftest import run_config
from tests.model.training.parallel.processes import together

STEP, PLACE = 4, Position(epoch=1)
TENSOR = {
    "attention.query": ColwiseParallel,
    "attention.out": RowwiseParallel,
    "feed_forward.gate": ColwiseParallel,
    "feed_forward.down": RowwiseParallel,
}


def state(world, seed=0, config=None, data="data"):
    """A state of random numbers, split over the processes as the world says; vocabulary 301 is odd."""
    config = config or run_config()
    config = config.model_copy(update={"parallel": world.parallel})
    model = build_model(config, attention.load(config.attention))
    if world.parallel.tensor > 1:
        for block in model.blocks:
            parallelize_module(block, world.mesh["tensor"], {name: way() for name, way in TENSOR.items()})
    if world.parallel.shard > 1:
        axes = ("replicate", "shard") if world.parallel.replicate > 1 else "shard"
        for block in model.blocks:
            fully_shard(block, mesh=world.mesh[axes])
        fully_shard(model, mesh=world.mesh[axes])
    optimizer = optim.AdamW(model.named_parameters(), config.train.weight_decay)
    training_state = checkpoint.TrainingState(config, data, model, optimizer)
    generator = torch.Generator().manual_seed(seed)
    for tensor in checkpoint.trained(training_state).values():
        values = torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
        with torch.no_grad():
            tensor.copy_(split(values, tensor))
    torch.manual_seed(100 * seed + world.place.rank)
    return training_state


def split(values, template):
    """The same numbers, split like another tensor. The processes make the same ones."""
    if not isinstance(template, DTensor):
        return values
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(values, template.device_mesh, template.placements)


def local(tensor):
    """What this process has of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def same(loaded, expected):
    ours, theirs = checkpoint.trained(loaded), checkpoint.trained(expected)
    assert ours.keys() == theirs.keys()
    return all(torch.equal(local(tensor), local(theirs[name])) for name, tensor in ours.items())


def save(world, folder, seed, step=STEP):
    """Save random numbers on all processes."""
    shards.save(folder, state(world, seed), step, PLACE, world, shards.connect())


def save_and_load(world, folder):
    save(world, folder, 1)
    dice = torch.rand(3)
    return load(world, folder), torch.equal(torch.rand(3), dice)


def load(world, folder):
    """Whether the numbers of seed 1 come back in a model that had others, split as this world does it."""
    loaded = state(world, 2)
    return shards.load(folder, loaded, world) == (STEP, PLACE) and same(loaded, state(world, 1))


def files(folder):
    return sorted(path.name for path in folder.parent.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def of_four(tmp_path_factory):
    """What four processes saved, by FSDP and tensor parallelism, and loaded again."""
    folder = tmp_path_factory.mktemp("four") / "checkpoint"
    answers = together(save_and_load, folder, shard=2, tensor=2)
    assert answers == [(True, True)] * 4, "the same values, and each rank's random numbers go on"
    return folder


@pytest.fixture
def copy(of_four, tmp_path):
    return Path(shutil.copytree(of_four, tmp_path / "attempt" / "checkpoint"))


def test_a_checkpoint_has_a_file_of_each_process_and_a_record_of_all(of_four):
    assert files(of_four) == ["meta.json", *(f"state-4-{rank}.safetensors" for rank in range(4))]
    assert checkpoint.inspect(of_four) == STEP
    meta = json.loads((of_four / "meta.json").read_text())
    assert meta["parallel"] == {"replicate": 1, "shard": 2, "context": 1, "tensor": 2}
    assert [file["size"] for file in meta["files"]] == [
        (of_four / file["name"]).stat().st_size for file in meta["files"]
    ]


@pytest.mark.parametrize("parallel", [{"shard": 2}, {"tensor": 2}], ids=str)
def test_other_processes_load_the_same_values_split_in_their_way(of_four, parallel):
    assert together(load, of_four, **parallel) == [True, True]


def test_a_process_that_is_alone_loads_what_four_saved(of_four):
    assert load(ALONE, of_four)


def test_several_processes_go_on_from_what_one_saved(tmp_path):
    checkpoint.save(tmp_path / "checkpoint", state(ALONE, 1), STEP, PLACE)
    assert together(load, tmp_path / "checkpoint", shard=2) == [True, True]


def test_copies_of_a_model_are_saved_once_between_them(tmp_path):
    assert together(save_and_load, tmp_path / "checkpoint", replicate=2) == [(True, True)] * 2
    sizes = [path.stat().st_size for path in tmp_path.glob("checkpoint/state-*")]
    checkpoint.save(tmp_path / "alone", state(ALONE, 1), STEP, PLACE)
    (full_size,) = [path.stat().st_size for path in tmp_path.glob("alone/state-*")]
    assert sum(sizes) < 1.2 * full_size
    assert max(sizes) < 0.6 * full_size


def test_pytorchs_own_reader_reads_the_files(of_four):
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    tensors = {name: torch.zeros_like(value) for name, value in checkpoint.trained(state(ALONE)).items()}
    with pytest.warns(UserWarning, match="single process"):
        dcp.load(tensors, storage_reader=HuggingFaceStorageReader(str(of_four)), no_dist=True)
    expected = checkpoint.trained(state(ALONE, 1))
    assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors.items())


def test_pieces_that_are_larger_than_the_buffer_round_trip(of_four, monkeypatch):
    monkeypatch.setattr(tensorfile, "PIECE", 100)
    assert load(ALONE, of_four)


# What can be wrong with a checkpoint.


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def swap(path):
    """The file of another rank, whole by itself."""
    shutil.copy(path.with_name("state-4-0.safetensors"), path)


def forget(path, instead=None):
    """A record that lacks a file, or names another, with a checksum that is right."""
    meta = checkpoint.read_meta(path.parent)
    entries = [] if instead is None else [meta.files[-1].model_copy(update={"name": instead})]
    damaged = meta.model_copy(update={"files": [*meta.files[:-1], *entries]}).sealed()
    path.write_text(damaged.model_dump_json())


DAMAGES = {
    "a bit": ("state-4-2.safetensors", flip),
    "gone": ("state-4-1.safetensors", Path.unlink),
    "cut": ("state-4-3.safetensors", lambda path: os.truncate(path, path.stat().st_size - 1)),
    "another's": ("state-4-1.safetensors", swap),
    "a bit of the record": ("meta.json", flip),
    "no record": ("meta.json", Path.unlink),
    "a file less": ("meta.json", forget),
    "elsewhere": ("meta.json", lambda path: forget(path, "../state-4-3.safetensors")),
}


@pytest.mark.fault
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_is_refused_by_the_name_of_the_file(name, copy):
    file, damage = DAMAGES[name]
    damage(copy / file)
    location = str(copy) if name == "a file less" else str(copy / file)
    if name != "a file less":
        with pytest.raises(Unreadable, match=location):
            checkpoint.inspect(copy)
    with pytest.raises(Unreadable, match=location):
        load(ALONE, copy)


def refusals(world, folder):
    """What each process says of a damaged file that another one verified, and of another run's checkpoint."""
    states = {"damaged": {}, "config": {"config": run_config(learning_rate=1.0)}, "data": {"data": "other"}}
    errors = {}
    for name, settings in states.items():
        with pytest.raises(UserError) as caught:
            shards.load(folder, state(world, **settings), world)
        errors[name] = (type(caught.value), str(caught.value))
    return errors


@pytest.mark.fault
@pytest.mark.refused
def test_all_processes_refuse_what_one_of_them_finds_wrong(copy):
    flip(copy / "state-4-1.safetensors")
    for errors in together(refusals, copy, shard=2):
        assert errors["damaged"][0] is Unreadable
        assert "state-4-1.safetensors" in errors["damaged"][1]
        assert errors["config"][0] is errors["data"][0] is UserError
        assert "another configuration" in errors["config"][1]
        assert "other data" in errors["data"][1]


# What can go wrong while it is saved.


class Crash(BaseException):
    """The process is gone at this instant."""


def crash_on_rank(world, folder, rank, cleans):
    """Crash one rank at each sync and rename in turn; give which checkpoints were found, and how many crashes."""
    first, second, group = state(world, 1), state(world, 2), shards.connect()
    steps, crashes = set(), 0
    while True:
        if world.is_first:
            shutil.rmtree(folder, ignore_errors=True)
        world.most(0)
        shards.save(folder, first, 1, PLACE, world, group)
        with pytest.MonkeyPatch.context() as patch:
            if world.place.rank == rank:
                crash_after(patch, crashes)
            if not cleans:
                patch.setattr(shutil, "rmtree", lambda *arguments, **options: None)
            try:
                shards.save(folder, second, 2, PLACE, world, group)
                break
            except Crash:
                crashes += 1
        loaded = state(world, 0)
        step, _ = shards.load(folder, loaded, world)
        assert same(loaded, first if step == 1 else second)
        assert checkpoint.inspect(folder) == step
        world.most(0)
        steps.add(step)
    return steps, crashes, files(folder)


def crash_after(patch, calls):
    remaining = [calls]

    def counted(call):
        def wrapped(*arguments, **options):
            if remaining[0] == 0:
                raise Crash
            remaining[0] -= 1
            return call(*arguments, **options)

        return wrapped

    for name in ("fsync", "replace", "mkdir"):
        patch.setattr(os, name, counted(getattr(os, name)))


@pytest.mark.fault
@pytest.mark.parametrize(("rank", "cleans"), [(0, True), (0, False), (1, False)])
def test_a_crash_of_a_process_at_any_instant_leaves_the_old_or_the_new_checkpoint(rank, cleans, tmp_path):
    """It is raised on the others too."""
    for steps, crashes, names in together(crash_on_rank, tmp_path / "checkpoint", rank, cleans, shard=2):
        assert steps == ({1, 2} if rank == 0 else {1})
        assert crashes >= (8 if rank == 0 else 2)
        assert names == ["meta.json", "state-2-0.safetensors", "state-2-1.safetensors"]


def no_space(descriptor):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "the disk")


def full_on_the_second(world, folder):
    save(world, folder, 1)
    with pytest.MonkeyPatch.context() as patch:
        if world.place.rank == 1:
            patch.setattr(os, "fsync", no_space)
        with pytest.raises(OSError, match="No space left on device .rank 1.: 'the disk'") as caught:
            save(world, folder, 2, step=9)
    return caught.value.errno, load(world, folder), files(folder)


@pytest.mark.fault
def test_a_disk_that_is_full_for_one_process_is_so_for_all_and_leaves_the_checkpoint_before(tmp_path):
    names = ["meta.json", "state-4-0.safetensors", "state-4-1.safetensors"]
    assert together(full_on_the_second, tmp_path / "checkpoint", shard=2) == [(errno.ENOSPC, True, names)] * 2
