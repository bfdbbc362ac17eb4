"""Processes of a run meet, and hear each other."""

import torch
from torch import distributed
from torch.distributed import device_mesh

from model.record.config import RunConfig
from model.training.parallel.world import ALONE
from tests.conftest import until
from tests.model.training.parallel.processes import together


def exchange(world):
    position = (world.sample_rank, world.context_rank, world.is_first)
    votes = bool(world.most(world.place.rank == 2)), bool(world.most(0))
    return position, votes, world.gather(world.place.rank), world.total(torch.tensor(2.0)).item()


def test_processes_know_their_parts_and_hear_each_other():
    answers = together(exchange, shard=2, context=2)
    assert [position for position, *_ in answers] == [
        (0, 0, True),
        (0, 1, False),
        (1, 0, False),
        (1, 1, False),
    ]
    assert {tuple(map(str, rest)) for _, *rest in answers} == {("(True, False)", "[0, 1, 2, 3]", "8.0")}


def finish(world, marker):
    """Of the first pair, whose own part of the run is over."""
    if world.is_first:
        marker.touch()
    return world.place.rank


def test_a_process_that_joins_late_finds_the_others_although_they_have_answered(tmp_path, monkeypatch):
    """By the store of rank 0, which goes with its process."""
    init_mesh, meshes, marker = device_mesh.init_device_mesh, [], tmp_path / "ended"

    def late_init(*arguments, **options):
        meshes.append(arguments)
        if distributed.get_rank() == 3 and len(meshes) == 2:
            until(marker.exists)
        return init_mesh(*arguments, **options)

    monkeypatch.setattr(device_mesh, "init_device_mesh", late_init)
    assert together(finish, marker, shard=2, context=2) == [0, 1, 2, 3]


def test_what_torchrun_left_in_the_shell_is_not_of_this_run(monkeypatch):
    for name, value in {"USE_AGENT_STORE": "True", "RESTART_COUNT": "1"}.items():
        monkeypatch.setenv(f"TORCHELASTIC_{name}", value)
    for name, value in {
        "RANK": "7",
        "WORLD_SIZE": "64",
        "MASTER_ADDR": "nowhere",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    assert [position for position, *_ in together(exchange, shard=2)] == [(0, 0, True), (1, 0, False)]


def test_a_process_that_is_alone_hears_itself():
    assert exchange(ALONE) == ((0, 0, True), (False, False), [0], 2.0)


def test_a_run_of_one_process_is_recorded_as_runs_always_were():
    config = RunConfig(data={"path": "x.parquet"}, parallel={"shard": 1})
    assert "parallel" not in config.model_dump()
    several = RunConfig(data={"path": "x.parquet"}, train={"batch_size": 2}, parallel={"shard": 2})
    assert several.model_dump()["parallel"] == {"replicate": 1, "shard": 2, "context": 1, "tensor": 1}
    assert (several.parallel.processes, several.parallel.samples) == (2, 2)
