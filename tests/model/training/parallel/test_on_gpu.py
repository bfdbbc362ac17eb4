"""On GPUs, over NCCL: two processes train as one does, with everything that a GPU adds. Needs two GPUs."""

from contextlib import suppress

import pytest
import torch

from model.attention.verify.accuracy import judge
from model.record.config import RunConfig
from model.record.errors import AuditFailed, Interrupted
from model.record.text import Source
from model.training.keeper import Checkpoints, Keeper
from model.training.llama import Block
from model.training.parallel.world import ALONE
from model.training.trainer import train
from tests.model.training.parallel.processes import together
from tests.model.training.parallel.test_equality import config, texts  # noqa: F401  a fixture

pytestmark = [
    pytest.mark.gpu(2),
    pytest.mark.filterwarnings("default"),  # shown, not fatal: compilers warn about matters of their own
]
WAYS = {
    "DDP": {"replicate": 2},
    "FSDP2": {"shard": 2},
    "gathered once": {"shard": 2, "reshard": False},
    "TP": {"tensor": 2},
    "CP": {"context": 2},
}
BFLOAT16 = {"dtype": "bfloat16"}
ALL = {**BFLOAT16, "compile": True, "loss": "linear_cross_entropy", "optimizer": "adamw_one_pass"}
# Settings, and how far apart losses and norms may be, relative: in bfloat16 an update is rounded to 3 digits.
SETTINGS = {
    "float32": ({}, 1e-4),
    "in parts, recomputed": ({"accumulate": 2, "checkpoint_activations": True}, 1e-4),
    "bfloat16": (BFLOAT16, 3e-2),
    "all": (ALL, 3e-2),
    "all, recomputed": ({**ALL, "accumulate": 2, "checkpoint_activations": True}, 3e-2),
    "float8": ({**ALL, "float8": "rowwise"}, 6e-2),
}


def on_gpu(parallel, train):
    base = config(parallel, **train).model_dump()
    return RunConfig.model_validate({**base, "device": "cuda"})


def numbers(world, texts, config):  # noqa: F811
    """Loss and norm of each step, memory, and how many audits there were; audits must pass."""
    records, audits = [], []
    train(config, Source(texts), records.append, judge=judge, audited=audits.append, world=world)
    return [(entry.loss, entry.grad_norm) for entry in records], [entry.passed for entry in audits]


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("way", WAYS)
def test_two_gpus_train_as_one_does(way, name, texts):  # noqa: F811
    settings, tolerance = SETTINGS[name]
    if "float8" in settings:
        pytest.importorskip("torchao")
    gpu_config = on_gpu(WAYS[way], settings)
    if reasons := gpu_config.unsupported():
        pytest.skip("; ".join(reasons.values()))
    single, _ = numbers(ALONE, texts, on_gpu(None, settings))
    (values, audits), *_ = together(numbers, texts, gpu_config, device="cuda", **WAYS[way])
    for pair, expected in zip(values, single, strict=True):
        assert pair == pytest.approx(expected, rel=tolerance)
    assert audits == [True]


def held_up(world, texts, config):  # noqa: F811
    """The records of a run one of whose GPUs is slow: it does nothing for some 0.1 s in each block."""
    if world.place.rank == 1:
        forward = Block.forward

        def slow_forward(*arguments):
            torch.cuda._sleep(200_000_000)
            return forward(*arguments)

        Block.forward = slow_forward
    records = []
    train(config, Source(texts), records.append, world=world)
    return records


@pytest.mark.fault
@pytest.mark.parametrize("way", ["DDP", "FSDP2", "CP"])
def test_a_slow_gpu_is_found_and_named_by_marks_in_the_streams(way, texts):  # noqa: F811
    records, _ = together(held_up, texts, on_gpu(WAYS[way], BFLOAT16), device="cuda", **WAYS[way])
    for record in records[2:]:
        assert record.slowest_rank == 1
        assert record.other_ranks_seconds < record.slowest_rank_seconds / 2


def devices(world):
    return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)


def test_each_process_has_a_gpu_of_its_own():
    uuids = together(devices, device="cuda", shard=2)
    assert len(set(uuids)) == 2


def diverged(world, texts, config):  # noqa: F811
    try:
        train(
            config, Source(texts), lambda record: None, judge=lambda taken: wrong(judge(taken)), world=world
        )
    except AuditFailed as error:
        return str(error)


def wrong(record):
    return record.model_copy(update={"passed": False, "reason": "planted"})


def test_an_audit_that_fails_on_one_gpu_ends_the_run_on_both(texts):  # noqa: F811
    first, second = together(diverged, texts, on_gpu({"shard": 2}, {}), device="cuda", shard=2)
    assert first == second
    assert "planted" in first


def behind_and_stopped(world, texts, folder, config):  # noqa: F811
    """Two checkpoints of step 2: written while training goes on, and by a run that stops there."""
    torch.use_deterministic_algorithms(True)  # without them two runs may differ
    due, stops = Keeper.due, iter([False, True])
    for name, due_rule, stop_rule in (
        ("behind", lambda self, step: step == 2, lambda: False),
        ("stopped", due, lambda: next(stops)),
    ):
        Keeper.due = due_rule
        (folder / name).mkdir(exist_ok=True)
        world.most(0)
        with suppress(Interrupted):
            checkpoints = Checkpoints(folder / name, None, stop_rule, None)
            train(config, Source(texts), lambda record: None, checkpoints, world=world)


@pytest.mark.parametrize("way", WAYS)
def test_a_checkpoint_that_is_written_while_two_gpus_train_on_is_that_of_its_step(
    way,
    texts,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    """Byte for byte what a run writes that stops after that step."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    gpu_config = on_gpu(WAYS[way], BFLOAT16)
    together(behind_and_stopped, texts, tmp_path, gpu_config, device="cuda", **WAYS[way])
    behind, stopped = (
        {path.name: path.read_bytes() for path in (tmp_path / name / "checkpoint").iterdir()}
        for name in ("behind", "stopped")
    )
    assert len(behind) == 3
    assert behind == stopped
