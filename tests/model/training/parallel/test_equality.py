"""A run is the same on any number of processes: the same global batch gives the same losses and gradient norms."""

import gc
import sys
import weakref
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.nn import functional as F

from model import attention
from model.record.config import RunConfig
from model.record.errors import UserError
from model.record.text import Source
from model.training import step
from model.training.llama import Block
from model.training.loss import LOSSES
from model.training.optim import AdamW
from model.training.parallel.held import holders, local
from model.training.parallel.world import ALONE
from model.training.step import Objective
from model.training.trainer import build_model, train
from tests.model.conftest import run_config
from tests.model.training.parallel.processes import together

TOLERANCE = 2e-5  # relative, in float32: sums in another order, through a few steps of AdamW
WAYS = {
    "DDP": {"replicate": 2},
    "FSDP2": {"shard": 2},
    "FSDP2 on 4": {"shard": 4},
    "FSDP2, gathered once": {"shard": 2, "reshard": False},
    "HSDP": {"replicate": 2, "shard": 2},
    "TP": {"tensor": 2},
    "TP with FSDP2": {"shard": 2, "tensor": 2},
    "TP with replicas": {"replicate": 2, "tensor": 2},
    "CP": {"context": 2},
    "CP on 4": {"context": 4},
    "CP with FSDP2": {"shard": 2, "context": 2},
    "CP with TP": {"context": 2, "tensor": 2},
}
MORE = {"whole": {}, "in parts, recomputed": {"accumulate": 2, "checkpoint_activations": True}}
# With parts that are recomputed, each kind and each two kinds, but not all sizes of them.
PAIRS = [
    (way, more) for way in WAYS for more in MORE
    if more == "whole" or way not in ("FSDP2 on 4", "TP with replicas", "CP on 4")
]  # fmt: skip


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Short documents, which padding cuts into different numbers of labels."""
    path = tmp_path_factory.mktemp("texts") / "text.parquet"
    pq.write_table(pa.table({"text": [f"{i} " * (i % 13 + 1) for i in range(200)]}), path)
    return path


def config(parallel=None, **train):
    base = run_config(
        "math", **{"batch_size": 8, "steps": 4, "log_every": 1, "warmup_steps": 1, "mode": "pad", **train}
    )
    parts = base.model_dump()
    return RunConfig.model_validate({**parts, "parallel": parallel or {}})


def records(world, texts, config):
    step_records = []
    train(config, Source(texts), step_records.append, world=world)
    return step_records


@pytest.fixture(scope="module")
def alone(texts):
    """The records of one process, by what its steps are made of."""
    return {variant: records(ALONE, texts, config(**settings)) for variant, settings in MORE.items()}


@pytest.mark.parametrize(("way", "variant"), PAIRS)
def test_the_same_batches_give_the_same_losses_and_norms_on_any_number_of_processes(
    way, variant, alone, texts
):
    settings, alone = MORE[variant], alone[variant]
    first, *others = together(records, texts, config(WAYS[way], **settings), **WAYS[way])
    assert not any(others)  # the first process alone reports
    for name in ("loss", "grad_norm"):
        expected = [getattr(record, name) for record in alone]
        assert [getattr(record, name) for record in first] == pytest.approx(expected, rel=TOLERANCE)
    for name in ("tokens", "training_tokens", "steps"):
        assert [getattr(record, name) for record in first] == [getattr(record, name) for record in alone]


def compiled(world, texts, config):
    """The records of a run whose blocks are traced; to generate code for them would take most of a minute."""
    from torch._dynamo import reset
    from torch._dynamo.utils import counters

    reset()  # what the tests before compiled in other shapes would make these sizes symbols
    trace = Block.compile
    Block.compile = lambda block: trace(block, backend="aot_eager")
    return records(world, texts, config), counters["stats"]["unique_graphs"]


def joined(world, texts, config):
    """The records of a run whose loss is joined to the head, which on a CPU is computed by PyTorch."""

    def in_place(logits_NV, labels_N, count, ignore):
        with torch.enable_grad():
            logits = logits_NV.detach().clone().requires_grad_()
            loss = F.cross_entropy(logits, labels_N, ignore_index=ignore, reduction="sum") / count
            loss.backward()
        logits_NV.copy_(logits.grad)
        return loss.detach()

    sys.modules["model.training.kernels.cross_entropy"] = SimpleNamespace(loss_and_gradient=in_place)
    step.LOSSES = {"cross_entropy": LOSSES["linear_cross_entropy"]}
    return records(world, texts, config)


@pytest.mark.parametrize("way", ["DDP", "FSDP2", "FSDP2, gathered once"])
def test_a_loss_that_is_joined_to_the_head_is_the_same(way, texts):
    single_records = records(ALONE, texts, config())
    first, _ = together(joined, texts, config(WAYS[way]), **WAYS[way])
    for name in ("loss", "grad_norm"):
        expected = [getattr(record, name) for record in single_records]
        assert [getattr(record, name) for record in first] == pytest.approx(expected, rel=TOLERANCE)


@pytest.mark.parametrize("way", ["FSDP2", "TP", "CP"])
@pytest.mark.filterwarnings("default")  # Dynamo looks at what warns
def test_compiled_blocks_give_the_same(way, texts):
    settings = {**MORE["in parts, recomputed"], "steps": 2}
    single_records = records(ALONE, texts, config(**settings))
    (first, graphs), _ = together(compiled, texts, config(WAYS[way], compile=True, **settings), **WAYS[way])
    assert graphs > 0
    for name in ("loss", "grad_norm"):
        expected = [getattr(record, name) for record in single_records]
        assert [getattr(record, name) for record in first] == pytest.approx(expected, rel=TOLERANCE)


class Cycle:
    """Garbage that only the collector finds."""

    def __init__(self):
        self.itself = self


def littered(world, texts, config):
    """Whether the collector is on in each step of this process, whose garbage is left at the end, and if it is on then."""
    garbage, enabled = [], []
    loss = step.LOSSES["cross_entropy"]

    def littering(*arguments):
        garbage.append(weakref.ref(Cycle()))
        enabled.append(gc.isenabled())
        return loss(*arguments)

    step.LOSSES = {"cross_entropy": littering}
    records(world, texts, config)
    return enabled, [reference() is not None for reference in garbage], gc.isenabled()


@pytest.mark.parametrize("way", ["DDP", "FSDP2"])
def test_in_every_process_the_collector_runs_at_records_and_never_in_a_step(way, texts):
    """One that collects garbage in a step keeps the others waiting for it."""
    answers = together(littered, texts, config(WAYS[way], log_every=2), **WAYS[way])
    assert answers == [([False] * 4, [False] * 4, True)] * 2


def whole(model):
    """Its weights by name, as numbers that a pipe can carry."""
    tensors = (
        (name, getattr(tensor, "full_tensor", lambda tensor=tensor: tensor)())
        for name, tensor in model.named_parameters()
    )
    return {name: tensor.detach().numpy() for name, tensor in tensors}


def weights(world, config):
    model = build_model(config, attention.load("math"), world)
    Objective(config, model, world)
    sizes = sum(tensor.numel() for tensor in local(model.parameters()))
    return whole(model), sizes


@pytest.mark.parametrize("way", WAYS)
def test_every_process_keeps_its_piece_of_the_weights_that_one_process_draws(way):
    expected, size = weights(ALONE, config())
    pieces = WAYS[way].get("shard", 1) * WAYS[way].get("context", 1)
    for values, own_size in together(weights, config(WAYS[way]), **WAYS[way]):
        assert list(values) == list(expected)
        assert all(np.array_equal(values[name], expected[name]) for name in expected)
        assert own_size == size if way == "DDP" else own_size < size / pieces + 1


def stepped(world, config):
    """The weights after a step by gradients that depend on nothing but their place."""
    model = build_model(config, attention.load("math"), world)
    Objective(config, model, world)
    optimizer = AdamW(model.named_parameters(), 0.1, world)
    for parameter in model.parameters():
        parameter.grad = parameter.detach().clone()
    norms, norm = optimizer.clipped_step(0.1, 1.0)
    return norms.numpy(), norm.item(), whole(model)


@pytest.mark.parametrize("way", WAYS)
def test_a_step_of_the_pieces_is_the_step_of_the_whole(way):
    norms, norm, expected_weights = stepped(ALONE, config())
    for piece_norms, total_norm, values in together(stepped, config(WAYS[way]), **WAYS[way]):
        assert piece_norms == pytest.approx(norms, rel=TOLERANCE)
        assert total_norm == pytest.approx(norm, rel=TOLERANCE)
        for name, expected in expected_weights.items():
            assert (np.abs(values[name] - expected) <= np.maximum(1e-5 * np.abs(expected), 1e-6)).all(), name


def held_by(world, config):
    model = build_model(config, attention.load("math"), world)
    Objective(config, model, world)
    parameters = dict(model.named_parameters())
    names = ("blocks.0.attention.query.weight", "blocks.0.attention_norm.weight", "head.weight")
    return [holders(parameters[name], world.place.size) for name in names]


@pytest.mark.parametrize(
    ("way", "expected"), [("TP", [1, 2, 2]), ("TP with FSDP2", [1, 2, 2]), ("HSDP", [2, 2, 2])]
)
def test_a_piece_counts_once_however_many_processes_hold_it(way, expected):
    assert (
        together(held_by, config(WAYS[way]), **WAYS[way]) == [expected] * 4 if way != "TP" else [expected] * 2
    )


def unreached(world, texts, config):
    attention.require = lambda name, case: replace(
        attention.load("math"), attend=lambda q, k, v, causal: q.detach()
    )
    try:
        train(config, Source(texts), lambda record: None, world=world)
    except UserError as error:
        return str(error)


@pytest.mark.refused
@pytest.mark.parametrize("way", ["DDP", "FSDP2", "TP with FSDP2"])
def test_every_process_says_which_parameters_no_gradient_reaches(way, texts):
    expected = unreached_alone(texts)
    assert expected.startswith("no gradient reaches blocks.0.attention_norm.weight and")
    assert set(together(unreached, texts, config(WAYS[way]), **WAYS[way])) == {expected}


def unreached_alone(texts):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "require", attention.require)
        return unreached(ALONE, texts, config())
