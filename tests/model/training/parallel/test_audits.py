"""Audits of a run of several processes: one of them takes the copies, of its own call, and judges them."""

import pytest
import torch

from model import attention
from model.attention import Backend, Launches
from model.attention.verify import accuracy
from model.attention.verify.accuracy import judge
from model.attention.verify.audited import Audit, Taken
from model.attention.verify.numbers import Deviation
from model.record.errors import AuditFailed
from model.record.text import Source
from model.training import audit
from model.training.audit import every
from model.training.llama import Block
from model.training.trainer import train
from tests.model.attention.verify import test_context as planted
from tests.model.training.parallel.processes import together
from tests.model.training.parallel.test_equality import config, texts  # noqa: F401  a fixture

WAYS = {
    "FSDP2": {"shard": 2},
    "TP with FSDP2": {"shard": 2, "tensor": 2},
    "CP": {"context": 2},
    "CP with TP": {"context": 2, "tensor": 2},
}
MORE = {"accumulate": 2, "checkpoint_activations": True}


def audited(world, texts, config):  # noqa: F811
    """How often this process judged, and what reached it of all audits."""
    audit.every = lambda config: 1
    tensor_names, verdicts = [], []

    def look(taken):
        tensor_names.append(sorted(taken.tensors))
        return judge(taken)

    train(config, Source(texts), lambda record: None, judge=look, audited=verdicts.append, world=world)
    return tensor_names, [
        (verdict.passed, verdict.first_row, verdict.rows, verdict.where) for verdict in verdicts
    ]


@pytest.mark.parametrize("way", WAYS)
def test_each_audit_is_made_by_one_process_and_kept_by_the_first(way, texts):  # noqa: F811
    settings = {} if "tensor" in WAYS[way] else MORE  # blocks of TP that are computed again are audited below
    answers = together(audited, texts, config(WAYS[way], steps=12, **settings), **WAYS[way])
    assert sum(len(tensor_names) for tensor_names, _ in answers) == 12
    assert all(len(tensor_names) < 12 for tensor_names, _ in answers)
    assert all(
        tensors == ["dk", "do", "dq", "dv", "k", "o", "q", "v"]
        for tensor_names, _ in answers
        for tensors in tensor_names
    )
    (_, verdicts), *others = answers
    assert not any(records for _, records in others)
    assert [passed for passed, *_ in verdicts] == [True] * 12
    rows = 32 // (2 * WAYS[way]["context"]) if "context" in WAYS[way] else 32
    assert {size for _, _, size, _ in verdicts} == {rows}
    assert {first for _, first, *_ in verdicts} == set(range(0, 32, rows))
    assert all(f"rows {first} to {first + rows - 1}" in location for _, first, _, location in verdicts)


def audited_in_graphs(world, texts, config):  # noqa: F811
    from torch._dynamo import reset
    from torch._dynamo.utils import counters

    reset()  # what the tests before compiled in other shapes would make these sizes symbols
    trace = Block.compile
    Block.compile = lambda block: trace(block, backend="aot_eager")
    tensor_names, verdicts = audited(world, texts, config)
    return len(tensor_names), len(verdicts), counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("way", ["TP", "CP"])
@pytest.mark.filterwarnings("default")  # Dynamo looks at what warns
def test_a_compiled_block_that_is_audited_makes_the_collectives_that_its_other_processes_make(way, texts):  # noqa: F811
    """Computed again, a compiled block sums its output once more, and one that is not compiled does not."""
    axes = {"TP": {"tensor": 2}, "CP": {"context": 2}}[way]
    compiled_config = config(axes, steps=3, compile=True, **MORE)
    first, second = together(audited_in_graphs, texts, compiled_config, **axes)
    assert first[0] + second[0] == first[1] == 3
    assert first[2] > 0 and second[1] == 0


def off_in_one_head(q_BTHD, k_BTKD, v_BTKD, causal):
    """Wrong in the last of a process's heads alone."""
    o_BTHD = attention.load("math").attend(q_BTHD, k_BTKD, v_BTKD, causal)
    return torch.cat([o_BTHD[:, :, :-1], o_BTHD[:, :, -1:] * 1.1], 2)


def ended(world, texts, config, attend):  # noqa: F811
    audit.every = lambda config: 1
    attention.require = lambda name, case: Backend(
        summary="wrong", attend=attend, unsupported_reasons=lambda case: [], launches=Launches()
    )
    verdicts = []
    try:
        train(config, Source(texts), lambda record: None, judge=judge, audited=verdicts.append, world=world)
    except AuditFailed as error:
        return str(error), len(verdicts)


@pytest.mark.parametrize("way", WAYS)
def test_what_one_process_finds_wrong_ends_all_of_them(way, texts):  # noqa: F811
    endings = together(ended, texts, config(WAYS[way], steps=12), off_in_one_head, **WAYS[way])
    assert len({text for text, _ in endings}) == 1
    assert "attention is wrong in step" in endings[0][0]
    assert [bool(verdict_count) for _, verdict_count in endings] == [True] + [False] * (len(endings) - 1)


PARTS = (planted.the_first_query_at_the_first_key, planted.one_key_too_many, planted.one_dk_too_large)


@pytest.mark.parametrize("wrong", PARTS, ids=lambda fault: fault.__name__)
def test_one_that_is_wrong_for_later_parts_alone_is_found_by_the_first_audit_of_one(
    wrong,
    texts,  # noqa: F811
    monkeypatch,
):
    context_config = config({"context": 2}, steps=12)
    endings = together(ended, texts, context_config, planted.of(wrong).attend, context=2)
    monkeypatch.setattr(audit, "every", lambda config: 1)
    parts = [audit.audit_of(context_config, step)[0].part for step in range(1, 13)]
    step = next(step for step, part in enumerate(parts, 1) if part)
    assert endings[0][0].startswith(f"attention is wrong in step {step},")
    assert endings == [(endings[0][0], step), (endings[0][0], 0)]


def test_rows_of_a_part_are_named_by_their_positions_in_the_sample():
    taken = Taken(Audit(1, 0, 0, kv_head=1, part=2), heads=2)
    taken.tensors = {"q": torch.zeros(1, 8, 2, 4), "k": torch.zeros(1, 24, 1, 4)}
    deviation = Deviation(2.0, 1.0, "batch 0, row 3, head 0", 0.1)
    assert accuracy._place(taken, "o", deviation) == "row 19, head 2"
    assert accuracy._place(taken, "dk", deviation) == "row 3, key head 1"
    assert (
        accuracy._place(taken, "dq", deviation._replace(where="batch 0, head 1, rows from 0"))
        == "head 3, rows from 16"
    )


def test_audits_are_as_much_rarer_as_processes_wait():
    settings = {"sequence_length": 65536, "batch_size": 8}
    alone, four, shared = (config(parallel, **settings) for parallel in ({}, {"shard": 4}, {"context": 4}))
    assert every(four) == pytest.approx(4 * every(alone), rel=0.01)
    last_of_eight = 1 / 8 * (1 - 1 / 16) / (1 / 2)  # of the whole's scores
    assert every(shared) == pytest.approx(last_of_eight * every(four), rel=0.01)
