"""Training learns, repeats itself exactly, and records what it did."""

import math
import os
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from model import attention
from model.record import backends
from model.record.errors import Diverged, Unsupported, UserError
from model.record.text import Source, _stamp
from model.record.tokenizer import Bytes
from model.training import data
from model.training.certify import certify_case
from model.training.feed import Feed
from model.training.loss import cross_entropy
from model.training.meter import Meter
from model.training.optim import AdamW, clip_divisor, learning_rate
from model.training.trainer import build_model, train
from tests.model.conftest import run_config


def records(config, corpus):
    step_records = []
    train(config, Source(corpus), step_records.append)
    return step_records


@pytest.fixture(scope="module")
def reference(corpus):
    return records(run_config(), corpus)


def test_the_loss_starts_near_chance_and_falls(reference):
    # Random weights are 0.1 to 0.3 nats worse than chance, depending on the seed and on which text comes first.
    assert reference[0].loss == pytest.approx(math.log(300), abs=0.5)
    assert reference[-1].loss < reference[0].loss - 1


def test_a_run_on_the_cpu_leaves_the_machines_gpus_alone(reference, corpus, monkeypatch):
    """Not even a context, which takes memory and makes the run a user of the GPU."""

    def used():
        pytest.fail("a run on the CPU uses a GPU")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "_lazy_init", used)
    assert [record.loss for record in records(run_config(), corpus)] == [record.loss for record in reference]
    assert certify_case("math", run_config().attention_case).verdict == "right"


def test_steps_are_recorded_at_the_first_every_nth_and_the_last(reference, corpus):
    assert [record.step for record in reference] == [1, 5, 10, 15, 20, 25, 30]
    assert [record.steps for record in reference] == [1, 4, 5, 5, 5, 5, 5]
    assert all(record.tokens == record.training_tokens == 128 * record.steps for record in reference)
    assert all(record.step_seconds > 0 and record.memory_bytes > 0 for record in reference)
    assert [record.step for record in records(run_config(steps=3), corpus)] == [1, 3]


def test_the_same_seed_gives_the_same_losses_and_another_seed_others(reference, corpus):
    repeated = records(run_config(), corpus)
    assert [record.loss for record in repeated] == [record.loss for record in reference]
    assert [record.loss for record in records(run_config(seed=1), corpus)] != [
        record.loss for record in reference
    ]


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in backends.names()
        if not attention.load(name).unsupported_reasons(run_config().attention_case)
    ],
)
def test_every_backend_that_runs_here_trains_to_the_same_losses(name, reference, corpus):
    losses = [record.loss for record in records(run_config(name), corpus)]
    assert losses == pytest.approx([record.loss for record in reference], rel=5e-3)


def test_the_learning_rate_warms_up_in_a_line_and_stays():
    config = run_config(learning_rate=1.0, warmup_steps=3).train
    assert [learning_rate(config, step) for step in (1, 2, 3, 4, 5, 99)] == [0.25, 0.5, 0.75, 1, 1, 1]


def test_padding_counts_as_tokens_and_not_as_training_tokens(tmp_path):
    path = tmp_path / "text.parquet"
    pq.write_table(pa.table({"text": ["a" * 10, "b" * 100]}), path)
    config = run_config(mode="pad", sequence_length=50, batch_size=1, steps=4, log_every=1)
    step_records = records(config, path)
    assert all(record.tokens == 50 for record in step_records)
    begin_and_end = 2  # the first of them is no label
    assert (
        sorted(record.training_tokens for record in step_records) == [10 + begin_and_end - 1] * 2 + [50] * 2
    )


@pytest.mark.fault
def test_a_loss_that_is_not_finite_stops_the_run_after_its_record(corpus):
    step_records = []
    with pytest.raises(Diverged, match="at step"):
        train(run_config(learning_rate=1e30), Source(corpus), step_records.append)
    assert step_records[-1].loss is None or step_records[-1].grad_norm is None


@pytest.mark.refused
def test_a_backend_that_cannot_run_is_refused_and_nothing_takes_its_place(corpus):
    with pytest.raises(Unsupported, match="NVIDIA GPU"):
        train(run_config("custom"), Source(corpus), lambda record: pytest.fail("it trained"))


@pytest.mark.refused
def test_training_in_float16_is_refused_with_what_to_use(corpus):
    with pytest.raises(Unsupported, match="train.dtype=bfloat16, or on a GPU without bfloat16"):
        train(run_config("math", dtype="float16"), Source(corpus), lambda record: pytest.fail("it trained"))


WORDS = 400


def words(path, word):
    """Text of uncompressed bytes, in many row groups."""
    table = pa.table({"text": [(word + " ") * 20 + f"{i:04}" for i in range(WORDS)]})
    pq.write_table(table, path, row_group_size=20, compression="none", use_dictionary=False)


def rewritten(path):
    path.write_bytes(path.read_bytes().replace(b"aaaa aaaa", b"bbbb bbbb"))


def replaced(path):
    words(path.with_name("new"), "bbbb")
    path.with_name("new").replace(path)


@pytest.mark.fault
def test_a_run_stops_where_its_data_file_is_written_to(tmp_path):
    words(path := tmp_path / "t.parquet", "aaaa")
    step_records = []

    def report(record):
        step_records.append(record)
        if record.step == 5:
            rewritten(path)

    with pytest.raises(UserError, match="was changed while a run was reading it"):
        train(run_config("math", steps=9, log_every=1), Source(path), report)
    assert [record.step for record in step_records] == [1, 2, 3, 4, 5]


@pytest.mark.fault
@pytest.mark.parametrize("change", [replaced, lambda path: path.touch()])
def test_a_run_goes_on_with_the_text_that_it_opened(tmp_path, change):
    words(path := tmp_path / "t.parquet", "aaaa")
    os.utime(path, (0, 0))
    source = Source(path).checked("text")
    source = replace(source, content=source.content.model_copy(update={"stamp": _stamp(path.stat())}))
    config = run_config("math", steps=9, log_every=1)
    expected, losses = [], []
    train(config, source, expected.append)

    def report(record):
        losses.append(record.loss)
        if record.step == 2:
            change(path)

    train(config, source, report)
    assert losses == [record.loss for record in expected]


@pytest.mark.fault
def test_a_file_that_is_replaced_before_it_is_opened_is_not_trained_on(tmp_path, monkeypatch):
    words(path := tmp_path / "t.parquet", "aaaa")
    original = data.Batches
    monkeypatch.setattr(data, "Batches", lambda *arguments: replaced(path) or original(*arguments))
    with pytest.raises(UserError, match="was changed while a run was reading it"):
        records(run_config("math"), path)


@pytest.mark.fault
def test_a_parameter_without_a_gradient_ends_the_run_with_its_name(corpus, monkeypatch):
    backend = attention.load("math")
    planted = replace(backend, attend=lambda q, k, v, causal: backend.attend(q, k.detach(), v, causal))
    monkeypatch.setattr(attention, "require", lambda name, case: planted)
    with pytest.raises(
        UserError, match=r"no gradient reaches blocks.0.attention.key.weight and 1 more param"
    ):
        records(run_config("math"), corpus)


def test_every_recorded_step_is_finite_where_some_documents_have_no_tokens(tmp_path, monkeypatch):
    class NoSpaces(Bytes):
        begin = None

        def encode(self, text, limit=None):
            return super().encode("".join(text.split()), limit)

    monkeypatch.setattr(data, "load_tokenizer", lambda name: NoSpaces())
    pq.write_table(pa.table({"text": ["some text", " ", "\n"]}), tmp_path / "t.parquet")
    config = run_config(mode="pad", batch_size=1, steps=9, log_every=4)
    assert all(
        record.training_tokens == 8 * record.steps for record in records(config, tmp_path / "t.parquet")
    )


def test_the_recorded_norm_of_bfloat16_gradients_is_not_rounded_to_bfloat16(corpus):
    step_records = records(run_config("math", dtype="bfloat16", steps=6, log_every=1), corpus)
    norms = torch.tensor([record.grad_norm for record in step_records])
    assert (norms.bfloat16().float() != norms).any()


def test_a_compiled_model_alone_keeps_its_backend_out_of_graphs_as_that_asks():
    math = attention.load("math")
    plain, compiled = (build_model(run_config("math", compile=flag), math) for flag in (False, True))
    assert plain.blocks[0].attention.attend.args[0] is math
    assert compiled.blocks[0].attention.attend.args[0].attend is not math.attend


def test_bfloat16_trains_to_the_losses_of_float32(reference, corpus):
    """Rounded weights: 8 bits of them, where a step changes the ninth."""
    step_records = records(run_config("math", dtype="bfloat16"), corpus)
    assert [record.loss for record in step_records] == pytest.approx(
        [record.loss for record in reference], rel=0.02
    )


@pytest.mark.parametrize("mode", ["pack", "pad"])
@pytest.mark.parametrize("parts", [2, 4])
def test_a_batch_in_parts_gives_what_it_gives_at_once(corpus, mode, parts):
    """Also where the parts differ in padding, which a mean of their means would not survive."""
    whole_records, summed_records = (
        records(run_config("math", mode=mode, steps=12, accumulate=count), corpus) for count in (1, parts)
    )
    for whole_record, part_record in zip(whole_records, summed_records, strict=True):
        assert (whole_record.step, whole_record.tokens, whole_record.training_tokens) == (
            part_record.step,
            part_record.tokens,
            part_record.training_tokens,
        )
        assert part_record.loss == pytest.approx(whole_record.loss, rel=1e-5)
        assert part_record.grad_norm == pytest.approx(whole_record.grad_norm, rel=1e-3)


def test_recomputed_activations_change_no_loss_and_keep_less(reference, corpus):
    recomputed = records(run_config(checkpoint_activations=True), corpus)
    assert [record.loss for record in recomputed] == [record.loss for record in reference]
    sizes = [_kept(run_config(checkpoint_activations=flag)) for flag in (False, True)]
    assert sizes[1] < sizes[0] / 2


def _kept(config):
    """Bytes that the blocks keep for the backward pass, parameters aside."""
    model, sizes = build_model(config, attention.load("math")), {}
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        sizes.update({storage.data_ptr(): storage.nbytes()} if storage.data_ptr() not in parameters else {})
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = model.hidden(torch.zeros((4, 32), dtype=torch.long))
    assert hidden.requires_grad
    return sum(sizes.values())


def test_training_leaves_the_default_precision_alone(corpus):
    records(run_config("math", dtype="bfloat16", steps=2), corpus)
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.gpu
@pytest.mark.parametrize("compile_", [False, True])
@pytest.mark.filterwarnings("default")  # shown, not fatal: compilers warn about matters of their own
def test_training_on_the_gpu_learns_as_on_the_cpu(corpus, compile_, reference):
    """Not the same losses: a GPU draws other weights from the same seed."""
    config = run_config(compile=compile_).model_copy(update={"device": "cuda"})
    step_records = records(config, corpus)
    assert [record.step for record in step_records] == [record.step for record in reference]
    assert step_records[-1].loss == pytest.approx(reference[-1].loss, rel=0.2)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # the mode warns of being a prototype
def test_a_step_on_the_gpu_waits_for_the_device_only_where_it_is_recorded_and_takes_no_new_memory(corpus):
    """Copies from pageable memory, for one, wait until the device has done all that was asked before."""
    config = run_config("math", dtype="bfloat16", accumulate=2).model_copy(update={"device": "cuda"})
    model = build_model(config, attention.load("math"))
    optimizer = AdamW(model.named_parameters(), 0.01)
    device = torch.device("cuda")
    meter, stream = Meter(device), Feed(data.Batches(config, Source(corpus)), device)

    def step():
        batch = meter.count(next(stream))
        for part in batch.parts(2):
            cross_entropy(model(part.inputs_BT), part.labels_BT, batch.training_tokens).backward()
        norm = torch.linalg.vector_norm(optimizer.gradient_norms())
        optimizer.step(1e-3, clip_divisor(norm, 1.0))
        optimizer.zero_grad()
        meter.done()
        return norm

    for _ in range(4):  # loads libraries, and takes the memory
        step()
    allocations = torch.cuda.memory_stats()["num_device_alloc"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        norms = [step() for _ in range(3)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.stack(norms).isfinite().all()
    assert torch.cuda.memory_stats()["num_device_alloc"] == allocations
