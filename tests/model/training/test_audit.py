"""Audits find a backend that goes wrong while a run runs, accuse no honest one, and leave the run as it is."""

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest
import torch

from model import attention
from model.attention.verify.accuracy import judge
from model.record import backends
from model.record.config import ModelConfig
from model.record.errors import AssayError, Diverged, Interrupted
from model.record.text import Source
from model.training import audit, trainer
from model.training.audit import audit_of
from model.training.keeper import Checkpoints
from model.training.llama import Block
from model.training.trainer import train
from tests.model.conftest import run_config


class Found(AssayError):
    """An audit failed: what the judge of these tests raises."""


@pytest.fixture
def each_step(monkeypatch):
    """Audit every step: tiny runs are too short for more than one audit otherwise."""
    monkeypatch.setattr(audit, "every", lambda config: 1)


def audited(config, corpus, backend=None):
    """The audits of a run, up to the first that failed, and its step records."""
    verdicts, records = [], []

    def keep(taken):
        verdicts.append(judge(taken))
        if verdicts[-1] is not None and not verdicts[-1].passed:
            raise Found(verdicts[-1].reason)

    with pytest.MonkeyPatch.context() as patch:
        if backend:
            patch.setattr(attention, "require", lambda name, case: backend)
        with suppress(Found):
            train(config, Source(corpus), records.append, judge=keep)
    return verdicts, records


HERE = [
    name
    for name in backends.names()
    if not attention.load(name).unsupported_reasons(run_config().attention_case)
]


# ------------------------------------------------------------------------------------- wrong backends


def softmax(q, k, v, change=lambda scores: scores):
    """Plain attention of grouped heads, with something done to the scores."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (
        tensor.transpose(1, 2) for tensor in (q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2))
    )
    scores = change(q @ k.mT * q.shape[-1] ** -0.5)
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return (scores.masked_fill(future, -torch.inf).softmax(-1) @ v).transpose(1, 2)


class Scaled(torch.autograd.Function):
    """The same numbers, whose gradient is a little too large where `where` says so."""

    @staticmethod
    def forward(ctx, x, where):
        ctx.save_for_backward(where)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        (where,) = ctx.saved_tensors
        return torch.where(where, grad * 1.01, grad), None


@dataclass
class After:
    """Right for so many calls, and then wrong in the way of `wrong`."""

    calls: int
    wrong: object
    made: int = 0

    def __call__(self, q, k, v, causal):
        self.made += 1
        return softmax(q, k, v) if self.made <= self.calls else self.wrong(q, k, v)


def forward_off(q, k, v):
    return softmax(q, k, v) * 1.001


def backward_off(q, k, v):
    return softmax(q, Scaled.apply(k, torch.tensor(True)), v)


def last_key_lost(q, k, v):
    return softmax(q, k, torch.cat((v[:, :-1], torch.zeros_like(v[:, -1:])), 1))


def clipped_where_large(q, k, v, causal):
    """Wrong only where a score exceeds what random numbers give, and training comes to."""
    return softmax(q, k, v, lambda scores: scores.clamp(max=2.0))


def backward_off_where_large(q, k, v, causal):
    return softmax(q, k, v, lambda scores: Scaled.apply(scores, scores > 2.0))


def confused_by_repeats(q, k, v, causal):
    """Wrong only where a token comes twice in a row, so that values are the same: it is counted once."""
    repeated = torch.nn.functional.pad((v[:, 1:] == v[:, :-1]).all(-1), (0, 0, 1, 0))
    return softmax(q, k, torch.where(repeated[..., None], 0.0, v))


def planted(attend):
    return replace(attention.load("math"), attend=attend)


@pytest.mark.fault
@pytest.mark.parametrize(("calls", "wrong"), [(1000, forward_off), (60, backward_off), (60, last_key_lost)])
def test_a_backend_that_goes_wrong_after_its_thousandth_call_is_found(calls, wrong, corpus, each_step):
    config = run_config("math", steps=2000, log_every=1, sequence_length=16, batch_size=2)
    verdicts, records = audited(config, corpus, planted(After(calls, wrong)))
    assert [verdict.passed for verdict in verdicts] == [True] * (calls // 2) + [
        False
    ]  # two layers call it in a step
    assert len(records) == len(verdicts)
    assert "roundings" in verdicts[-1].reason


@pytest.mark.fault
def test_a_backend_that_goes_wrong_is_found_by_the_audits_that_a_run_has_by_itself(corpus, monkeypatch):
    monkeypatch.setattr(audit, "LEAST", 20)
    verdicts, _ = audited(run_config("math", steps=200), corpus, planted(After(100, forward_off)))
    assert [verdict.passed for verdict in verdicts] == [True] * (len(verdicts) - 1) + [False]
    assert 50 < verdicts[-1].step <= 80


@pytest.mark.fault
@pytest.mark.parametrize("attend", [clipped_where_large, backward_off_where_large, confused_by_repeats])
def test_a_backend_that_is_wrong_only_on_data_that_training_meets_is_found(attend, corpus, each_step):
    config = run_config("math", steps=400, learning_rate=3e-2, sequence_length=64)
    verdicts, _ = audited(config, corpus, planted(attend))
    assert not verdicts[-1].passed
    if attend is not confused_by_repeats:
        assert verdicts[0].passed  # random weights give no such scores
    if attend is backward_off_where_large:
        assert verdicts[-1].tensors["o"].measured <= verdicts[-1].tensors["o"].tolerance


@pytest.mark.fault
def test_a_failed_audit_names_tensor_row_and_head_by_the_models_own_numbers(corpus, each_step):
    """Only row 7 of head 3 is wrong."""

    def attend(q, k, v, causal):
        o = softmax(q, k, v)
        offset = torch.zeros_like(o)
        offset[:, 7, 3] = 0.01
        return o + offset

    verdicts, _ = audited(run_config("math"), corpus, planted(attend))
    assert verdicts[-1].reason.startswith("o is off by ")
    assert "(row 7, head 3)" in verdicts[-1].reason
    assert (verdicts[-1].first_head, verdicts[-1].heads, verdicts[-1].rows) == (2, 2, 32)
    assert all(verdict.first_head == 0 for verdict in verdicts[:-1])
    assert "dq" not in verdicts[-1].reason.split("; ")[0]


# ------------------------------------------------------------------------------------ honest backends


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", HERE)
def test_an_honest_backend_is_never_accused(name, dtype, corpus, each_step):
    for seed in range(3):
        for settings in ({}, {"mode": "pad", "sequence_length": 80, "learning_rate": 5e-2}):
            config = run_config(name, seed=seed, dtype=dtype, **settings)
            if attention.load(name).unsupported_reasons(config.attention_case):
                continue
            verdicts, records = audited(config, corpus)
            assert len(verdicts) == 30
            assert all(verdict.passed for verdict in verdicts), [verdict.reason for verdict in verdicts]
            assert records[-1].step == 30


def test_audits_change_nothing_of_a_run(corpus, each_step):
    _, records = audited(run_config(), corpus)
    unaudited_records = []
    train(run_config(), Source(corpus), unaudited_records.append)
    assert [(record.step, record.loss, record.grad_norm) for record in records] == [
        (record.step, record.loss, record.grad_norm) for record in unaudited_records
    ]


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "computed again"])
@pytest.mark.parametrize("parts", [1, 2])
def test_the_copies_are_what_the_call_of_the_step_itself_got_and_gave(
    recompute, parts, corpus, each_step, monkeypatch
):
    """Held against what hooks on the projections around attention see, of which no audit knows."""
    hooked, original = defaultdict(list), trainer.build_model

    def build(*arguments):
        model = original(*arguments)
        for layer, block in enumerate(model.blocks):
            value, out = block.attention.value, block.attention.out
            value.register_forward_hook(lambda _m, _x, y, index=layer: hooked["v", index].append(y.detach()))
            out.register_forward_pre_hook(lambda _m, x, index=layer: hooked["o", index].append(x[0].detach()))
            out.register_full_backward_hook(
                lambda _m, dx, _dy, index=layer: hooked["do", index].append(dx[0])
            )
            value.register_full_backward_hook(
                lambda _m, _dx, dy, index=layer: hooked["dv", index].append(dy[0])
            )
        return model

    monkeypatch.setattr(trainer, "build_model", build)
    places = []

    def look(taken):
        place = taken.audit
        part, row = divmod(place.sample, 4 // parts)
        for name in ("v", "o", "do", "dv"):
            calls = hooked[name, place.layer]
            assert len(calls) == parts * (2 if recompute and name in "vo" else 1)
            heads = calls[part * len(calls) // parts].unflatten(-1, (-1, 8))
            width = 2 if name in ("o", "do") else 1
            first_head = place.kv_head * width
            assert torch.equal(taken.tensors[name], heads[row : row + 1, :, first_head : first_head + width])
        assert set(taken.tensors) == {"q", "k", "v", "o", "dq", "dk", "dv", "do"}
        assert judge(taken).passed
        places.append(place)
        hooked.clear()

    config = run_config(log_every=1, checkpoint_activations=recompute, accumulate=parts)
    train(config, Source(corpus), lambda record: None, judge=look)
    assert {place.sample for place in places} == {0, 1, 2, 3}
    assert len(places) == 30


def test_a_run_that_diverges_is_not_an_audits_failure(corpus, each_step):
    config = run_config("math", learning_rate=1e30, log_every=1)
    verdicts = []
    with pytest.raises(Diverged):
        train(config, Source(corpus), lambda record: None, judge=lambda taken: verdicts.append(judge(taken)))
    assert all(verdict is None or verdict.passed for verdict in verdicts)


def test_a_run_that_resumes_has_the_audits_and_losses_of_one_that_did_not_stop(corpus, monkeypatch, tmp_path):
    monkeypatch.setattr(audit, "every", lambda config: 7)

    def part(number, stop_after, resume):
        verdicts, records, stops = [], [], iter([False] * stop_after + [True])
        folder = tmp_path / f"{number}"
        folder.mkdir()
        checkpoints = Checkpoints(folder, None, lambda: next(stops), resume)
        with suppress(Interrupted):
            train(
                run_config(),
                Source(corpus),
                records.append,
                checkpoints,
                lambda taken: verdicts.append(judge(taken)),
            )
        return [(entry.step, entry.layer, entry.tensors) for entry in verdicts], {
            entry.step: entry.loss for entry in records
        }

    uninterrupted, losses = part(0, 30, None)
    assert [step for step, *_ in uninterrupted] == [
        audit_of(run_config(), step)[0].step for step in (1, 8, 15, 22, 29)
    ]
    for stop in (
        uninterrupted[1][0] - 1,
        uninterrupted[1][0],
    ):  # right before an audited step, and right after it
        first, _ = part(2 * stop, stop - 1, None)
        second, later_losses = part(2 * stop + 1, 30, tmp_path / f"{2 * stop}")
        assert first + second == uninterrupted
        assert all(later_losses[step] == losses[step] for step in later_losses.keys() & losses.keys())


def test_nothing_of_an_audit_stays_in_the_model(corpus, monkeypatch):
    """Neither in a block nor in a copy that is kept: on a GPU that memory would be missing."""
    monkeypatch.setattr(audit, "every", lambda config: 1)
    models, original_build = [], trainer.build_model
    monkeypatch.setattr(
        trainer, "build_model", lambda *arguments: models.append(original_build(*arguments)) or models[0]
    )
    audits, original_audits = [], trainer.Audits
    monkeypatch.setattr(
        trainer, "Audits", lambda *arguments: audits.append(original_audits(*arguments)) or audits[0]
    )
    train(run_config(), Source(corpus), lambda record: None, judge=judge)
    assert all(block.attention.attend.func is attention.attend for block in models[0].blocks)
    assert all(block._compiled_call_impl is None for block in models[0].blocks)
    assert audits[0]._taken == []
    assert audits[0]._open is None


# ------------------------------------------------------------------------------------------- compiled


@pytest.fixture
def graphs(monkeypatch):
    """How many graphs Dynamo has made, as a function. To generate code for them would take most of a minute."""
    from torch._dynamo.utils import counters

    compiled = Block.compile
    monkeypatch.setattr(Block, "compile", lambda block: compiled(block, backend="aot_eager"))
    return lambda: counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("name", ["auto", "math", "tiled"])
@pytest.mark.filterwarnings("default")  # Dynamo looks at what warns
def test_an_audited_step_of_a_compiled_run_compiles_nothing_anew_and_accuses_nobody(
    name, corpus, each_step, graphs, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(audit, "every", lambda config: 10**9)
        torch._dynamo.reset()
        graphs_before = graphs()
        audited(run_config(name, compile=True, steps=12), corpus)
        graph_count = graphs() - graphs_before
    torch._dynamo.reset()
    graphs_before = graphs()
    verdicts, _ = audited(run_config(name, compile=True, steps=12), corpus)
    assert all(verdict.passed for verdict in verdicts)
    assert len(verdicts) == 12
    assert graphs() - graphs_before == graph_count > 0


@pytest.mark.fault
@pytest.mark.filterwarnings("default")
def test_a_wrong_backend_is_found_in_a_compiled_run(corpus, each_step, graphs):
    backend = planted(lambda q, k, v, causal: backward_off(q, k, v))
    verdicts, _ = audited(run_config("math", compile=True, steps=3), corpus, backend)
    assert not verdicts[-1].passed
    assert graphs() > 0


# ---------------------------------------------------------------------------------------------- GPU


@pytest.mark.gpu
@pytest.mark.parametrize("compile_", [False, True])
@pytest.mark.filterwarnings("default")
def test_audits_leave_no_memory_behind_on_a_gpu(compile_, corpus, each_step):
    model = ModelConfig(dim=512, layers=4, heads=8, kv_heads=2, ffn_dim=1024, vocab_size=512)
    config = run_config(
        compile=compile_, sequence_length=1024, dtype="bfloat16", steps=40, log_every=1
    ).model_copy(update={"device": "cuda", "model": model})
    allocations = []

    def look(taken):
        assert judge(taken).passed
        del taken
        allocations.append(torch.cuda.memory_allocated())

    train(config, Source(corpus), lambda record: None, judge=look)
    assert len(allocations) == 40
    assert max(allocations[10:]) <= max(allocations[:10])


@pytest.mark.gpu
@pytest.mark.parametrize("compile_", [False, True])
@pytest.mark.parametrize("name", backends.names())
@pytest.mark.filterwarnings("default")  # shown, not fatal: compilers warn about matters of their own
def test_an_honest_backend_is_never_accused_on_a_gpu(name, compile_, corpus, each_step):
    model = ModelConfig(dim=1024, layers=4, heads=8, kv_heads=2, ffn_dim=2048, vocab_size=512)
    config = run_config(
        name,
        compile=compile_,
        sequence_length=1024,
        batch_size=2,
        dtype="bfloat16",
        steps=100,
        learning_rate=1e-3,
    ).model_copy(update={"device": "cuda", "model": model})
    if reasons := attention.load(name).unsupported_reasons(config.attention_case):
        pytest.skip(reasons[0])
    verdicts, _ = audited(config, corpus)
    worst = {
        tensor: max(
            verdict.tensors[tensor].measured / verdict.tensors[tensor].tolerance for verdict in verdicts
        )
        for tensor in ("o", "dq", "dk", "dv")
    }
    print(name, {tensor: f"{share:.0%} of the tolerance" for tensor, share in worst.items()})  # noqa: T201
    assert len(verdicts) == 100
    assert all(verdict.passed for verdict in verdicts), verdicts[-1].reason
