"""The memory that a run will need is near what was measured, and launches say what will not fit."""

import gc

import pytest
import torch

from model.attention import require
from model.measure.memory import inference_memory, peak_memory, trained_memory
from model.measure.profiler import most_allocated
from model.record.config import RunConfig
from model.record.text import START
from model.training.feed import Ready
from model.training.step import TrainingStep
from model.training.trainer import build_model

LARGE = {"dim": 4096, "heads": 32, "kv_heads": 8, "ffn_dim": 14336, "vocab_size": 131072}
SMALL = {"dim": 2048, "heads": 16, "kv_heads": 16, "ffn_dim": 5632, "vocab_size": 32000}
TINY = {"dim": 1024, "heads": 16, "kv_heads": 4, "ffn_dim": 4096, "vocab_size": 32000}
# torch.cuda.max_memory_allocated() of a training step in MiB, on one H200 with torch 2.11.0+cu130.
MEASURED = [
    ("cudnn", LARGE | {"layers": 4}, {}, 20036),
    ("cudnn", LARGE | {"layers": 8}, {}, 27655),
    ("cudnn", LARGE | {"layers": 4}, {"batch_size": 2}, 28871),
    ("cudnn", LARGE | {"layers": 4}, {"sequence_length": 8192}, 28873),
    ("cudnn", LARGE | {"layers": 4}, {"compile": True}, 19588),
    ("cudnn", LARGE | {"layers": 8}, {"compile": True}, 26759),
    ("cudnn", LARGE | {"layers": 4}, {"batch_size": 2, "compile": True}, 27975),
    ("cudnn", LARGE | {"layers": 4}, {"compile": True, "loss": "linear_cross_entropy"}, 15556),
    ("cudnn", LARGE | {"layers": 8}, {"compile": True, "loss": "linear_cross_entropy"}, 22727),
    ("cudnn", LARGE | {"layers": 4}, {"loss": "linear_cross_entropy"}, 16004),
    ("auto", LARGE | {"layers": 4}, {}, 20036),
    ("flash", LARGE | {"layers": 4}, {}, 20036),
    ("efficient", LARGE | {"layers": 4}, {}, 20228),
    ("flex", LARGE | {"layers": 4}, {}, 20036),
    ("math", LARGE | {"layers": 4}, {}, 29618),
    ("custom", LARGE | {"layers": 4}, {}, 20164),
    ("tiled", LARGE | {"layers": 4}, {}, 20036),
    ("math", LARGE | {"layers": 4}, {"sequence_length": 2048, "compile": True}, 17729),
    ("math", LARGE | {"layers": 4}, {"sequence_length": 2048}, 17953),
    ("cudnn", LARGE | {"layers": 4}, {"checkpoint_activations": True}, 17538),
    ("cudnn", LARGE | {"layers": 8}, {"sequence_length": 8192, "checkpoint_activations": True}, 29125),
    ("cudnn", LARGE | {"layers": 4}, {"checkpoint_activations": True, "compile": True, "loss": "linear_cross_entropy"}, 15017),
    ("cudnn", SMALL | {"layers": 8}, {"sequence_length": 2048, "batch_size": 8}, 19039),
    ("cudnn", SMALL | {"layers": 8}, {"sequence_length": 2048, "batch_size": 8, "compile": True, "loss": "linear_cross_entropy"}, 12885),
    ("math", TINY | {"layers": 4}, {"sequence_length": 1024, "dtype": "float32"}, 2542),
    ("cudnn", LARGE | {"layers": 4}, {"float8": "tensorwise", "compile": True, "loss": "linear_cross_entropy"}, 15019),
    ("cudnn", LARGE | {"layers": 4}, {"float8": "rowwise", "compile": True, "loss": "linear_cross_entropy"}, 15019),
    ("cudnn", LARGE | {"layers": 32}, {"compile": True, "loss": "linear_cross_entropy"}, 65749),
    ("cudnn", LARGE | {"layers": 32}, {"compile": True, "loss": "linear_cross_entropy", "float8": "tensorwise"}, 61613),
]  # fmt: skip


# Largest peak of a process in MiB by the records in reports/published, on H200s with torch 2.11.0+cu130.
EIGHT = LARGE | {"layers": 32}
JOINED = {"compile": True, "loss": "linear_cross_entropy"}
LONG = {"sequence_length": 65536, "checkpoint_activations": True}
PUBLISHED = [
    *[(name, {}, {}, 73365) for name in ("auto", "cudnn", "flash", "flash4", "flex", "tiled")],
    ("custom", {}, {}, 74389),
    ("efficient", {}, {}, 74901),
    ("flash3", {}, {}, 74389),
    ("cudnn", {}, {"optimizer": "adamw_one_pass"}, 73385),
    ("cudnn", {}, {"compile": True}, 69903),
    ("cudnn", {}, {"loss": "linear_cross_entropy"}, 69353),
    ("cudnn", {}, JOINED, 65871),
    ("cudnn", {}, JOINED | {"checkpoint_activations": True}, 61631),
    ("cudnn", {}, JOINED | {"float8": "tensorwise"}, 61633),
    ("custom", {}, JOINED | {"batch_size": 2}, 84592),
    ("custom", {"shard": 2}, JOINED | {"batch_size": 4}, 64015),
    ("custom", {"shard": 2, "reshard": False}, JOINED | {"batch_size": 4}, 76912),
    ("custom", {"replicate": 2}, JOINED | {"batch_size": 4}, 106897),
    ("custom", {"context": 2}, JOINED | LONG, 44067),
]


@pytest.mark.parametrize(("attention", "parallel", "train", "mebibytes"), PUBLISHED)
def test_the_estimate_is_near_every_peak_that_is_published(attention, parallel, train, mebibytes):
    """Of 8B parameters on one GPU and on two."""
    settings = {
        "attention": attention,
        "model": EIGHT,
        "data": {"path": "x"},
        "train": train,
        "parallel": parallel,
    }
    assert peak_memory(RunConfig.model_validate(settings)) / 2**20 == pytest.approx(mebibytes, rel=0.03)


MIDDLE = {"dim": 2048, "heads": 16, "kv_heads": 8, "ffn_dim": 8192, "vocab_size": 65536}
NARROW = {"dim": 1024, "heads": 16, "kv_heads": 8, "ffn_dim": 4096, "vocab_size": 32000}
# The same of the process that needs most, after three steps on two and on four H100s.
OF_SEVERAL = [
    ("flash", MIDDLE | {"layers": 20}, {"replicate": 2}, {"batch_size": 4}, 32654),
    ("flash", MIDDLE | {"layers": 20}, {"shard": 2}, {"batch_size": 8}, 46914),
    (
        "flash",
        LARGE | {"layers": 12},
        {"replicate": 2},
        {"batch_size": 2, "loss": "linear_cross_entropy"},
        38281,
    ),
    ("flash", LARGE | {"layers": 32}, {"shard": 2}, {"batch_size": 2, "loss": "linear_cross_entropy"}, 49172),
    ("flash", MIDDLE | {"layers": 20}, {"replicate": 2}, {"batch_size": 16, "accumulate": 4}, 35568),
    ("flash", MIDDLE | {"layers": 20}, {"shard": 2, "reshard": False}, {"batch_size": 4}, 28374),
    ("flash", NARROW | {"layers": 16}, {"replicate": 2}, {"batch_size": 2, "sequence_length": 512}, 3043),
    (
        "flash",
        MIDDLE | {"layers": 20},
        {"shard": 2, "reshard": False},
        {"batch_size": 16, "accumulate": 4, "loss": "linear_cross_entropy"},
        25063,
    ),
    ("flash", LARGE | {"layers": 12}, {"tensor": 2}, {"batch_size": 2}, 35530),
    (
        "flash",
        MIDDLE | {"layers": 20},
        {"context": 2},
        {"batch_size": 2, "sequence_length": 8192, "loss": "linear_cross_entropy"},
        22610,
    ),
    ("math", NARROW | {"layers": 16}, {"shard": 2}, {"batch_size": 4, "sequence_length": 2048}, 14289),
    (
        "flash",
        MIDDLE | {"layers": 20},
        {"context": 2, "reshard": False},
        {"batch_size": 1, "sequence_length": 16384},
        29664,
    ),
    ("flash", MIDDLE | {"layers": 20}, {"shard": 4}, {"batch_size": 16}, 44730),
    (
        "flash",
        LARGE | {"layers": 32},
        {"shard": 4, "reshard": False},
        {"batch_size": 4, "loss": "linear_cross_entropy"},
        50548,
    ),
    (
        "flash",
        MIDDLE | {"layers": 20},
        {"replicate": 2, "shard": 2},
        {"batch_size": 8, "loss": "linear_cross_entropy"},
        21326,
    ),
    (
        "flash",
        LARGE | {"layers": 12},
        {"replicate": 2, "shard": 2, "reshard": False},
        {"batch_size": 4, "loss": "linear_cross_entropy"},
        28137,
    ),
    (
        "flash",
        LARGE | {"layers": 12},
        {"context": 4},
        {
            "batch_size": 1,
            "sequence_length": 65536,
            "loss": "linear_cross_entropy",
            "checkpoint_activations": True,
        },
        15433,
    ),
]


@pytest.mark.parametrize(("attention", "model", "parallel", "train", "mebibytes"), OF_SEVERAL)
def test_the_estimate_is_near_the_peaks_of_several_gpus(attention, model, parallel, train, mebibytes):
    settings = {
        "attention": attention,
        "device": "cuda",
        "model": model,
        "data": {"path": "x"},
        "train": train,
        "parallel": parallel,
    }
    assert peak_memory(RunConfig.model_validate(settings)) / 2**20 == pytest.approx(mebibytes, rel=0.06)


@pytest.mark.parametrize(
    ("parallel", "parts"),
    [
        ({}, 1),
        ({"replicate": 4}, 1),
        ({"shard": 4}, 4),
        ({"replicate": 2, "shard": 2}, 2),
        ({"context": 2, "shard": 2}, 4),
        ({"tensor": 2}, 1.765),  # embedding and head stay whole
    ],
)
def test_parameters_gradients_and_states_are_shared_as_the_run_says(parallel, parts):
    settings = {"data": {"path": "x"}, "train": {"batch_size": 4}, "model": EIGHT, "parallel": parallel}
    assert trained_memory(RunConfig.model_validate(settings)) / 2**20 == pytest.approx(
        4 * 15361 / parts, rel=0.02
    )


@pytest.mark.parametrize(("attention", "model", "train", "mebibytes"), MEASURED)
def test_the_estimate_is_within_a_tenth_of_what_was_measured(attention, model, train, mebibytes):
    settings = {"attention": attention, "model": model, "data": {"path": "x"}, "train": train}
    assert peak_memory(RunConfig.model_validate(settings)) / 2**20 == pytest.approx(mebibytes, rel=0.1)


MATH_STEPS = [
    ({"dim": 256, "layers": 1, "heads": 8, "kv_heads": 8, "ffn_dim": 704}, {"sequence_length": 512}),
    ({"dim": 128, "layers": 4, "heads": 4, "kv_heads": 2, "ffn_dim": 352}, {"sequence_length": 1024}),
    (
        {"dim": 256, "layers": 2, "heads": 8, "kv_heads": 8, "ffn_dim": 704},
        {"sequence_length": 512, "batch_size": 2, "accumulate": 2},
    ),
    (
        {"dim": 256, "layers": 2, "heads": 8, "kv_heads": 8, "ffn_dim": 704},
        {"sequence_length": 512, "batch_size": 2, "dtype": "bfloat16"},
    ),
]


@pytest.mark.parametrize(("model", "train"), MATH_STEPS)
def test_the_estimate_knows_the_gradients_of_weights_where_nothing_needs_more(model, train):
    """Of plain attention whose scores outweigh the logits: its peak is in the softmax's backward."""
    settings = {
        "attention": "math",
        "device": "cpu",
        "model": model | {"vocab_size": 512},
        "data": {"path": "x"},
        "train": {"steps": 2, "warmup_steps": 0, "dtype": "float32"} | train,
    }
    config = RunConfig.model_validate(settings)

    def steps():
        training_step = TrainingStep(config, build_model(config, require("math", config.attention_case)))
        shape = config.train.batch_size, config.train.sequence_length
        for step in (1, 2):
            tokens = torch.zeros(shape, dtype=torch.long)
            training_step(Ready(tokens, tokens, tokens.numel(), START, None), step).loss.item()

    assert peak_memory(config) == pytest.approx(most_allocated(steps), rel=0.03)


@pytest.mark.parametrize("row", [row for row in MEASURED if row[0] == "math"])
def test_on_a_gpu_the_softmax_has_a_third_array_in_its_backward(row):
    """Without it the first of these would be 2.8 % too low: its scores are as large as the loss's arrays."""
    attention, model, train, mebibytes = row
    settings = {"attention": attention, "model": model, "data": {"path": "x"}, "train": train}
    assert peak_memory(RunConfig.model_validate(settings)) / 2**20 == pytest.approx(mebibytes, rel=0.01)


def test_math_at_full_scale_does_not_fit_the_largest_gpu():
    config = RunConfig.model_validate({"attention": "math", "data": {"path": "x"}})
    assert peak_memory(config) > 139 * 2**30


GROUPED = {"dim": 256, "layers": 2, "heads": 8, "kv_heads": 2, "ffn_dim": 1024, "vocab_size": 2000}
SLIM = {"dim": 256, "layers": 6, "heads": 4, "kv_heads": 4, "ffn_dim": 512, "vocab_size": 500}
TWO = {"prompt_length": 512, "new_tokens": 64, "batch_size": 2}
ONE_LONG = {"prompt_length": 1024, "new_tokens": 0, "batch_size": 1}
FOUR_LAYERS = {"dim": 4096, "layers": 4, "heads": 32, "kv_heads": 8, "ffn_dim": 14336, "vocab_size": 131072}


def inference_config(attention, model, inference, device="cpu", dtype="float32"):
    settings = {
        "attention": attention,
        "device": device,
        "task": "inference",
        "data": {"path": "x"},
        "model": model,
    }
    return RunConfig.model_validate(settings | {"inference": inference | {"dtype": dtype}})


@torch.inference_mode()
def read(config):
    """Everything that a run allocates for its first prompts."""
    from model.inference import infer
    from model.training.llama import Cache

    inference, model = config.inference, infer.built(config)
    cache = Cache.empty(config.model, inference.batch_size, inference.room, model.embedding.weight)
    shape = (inference.batch_size, inference.prompt_length)
    model.extend(cache, torch.zeros(shape, dtype=torch.long, device=config.device))


@pytest.mark.parametrize("attention", ["flash", "math", "tiled"])
@pytest.mark.parametrize("model", [GROUPED, SLIM], ids=["grouped", "narrow"])
@pytest.mark.parametrize("inference", [TWO, ONE_LONG], ids=["two prompts", "long"])
def test_the_estimate_is_within_a_tenth_of_what_prefills_allocate(attention, model, inference):
    config = inference_config(attention, model, inference)
    assert inference_memory(config) == pytest.approx(most_allocated(lambda: read(config)), rel=0.1)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("attention", ["auto", "cudnn", "efficient", "flash", "math", "portable"])
@pytest.mark.parametrize(
    "inference", [{"prompt_length": 4096, "batch_size": 1}, {"prompt_length": 2048, "batch_size": 4}]
)
def test_the_estimate_is_within_a_tenth_of_what_prefills_allocate_on_a_gpu(attention, inference):
    config = inference_config(attention, FOUR_LAYERS, inference, "cuda", "bfloat16")
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    baseline = torch.cuda.memory_allocated()  # what a failed test's traceback holds
    read(config)
    torch.cuda.synchronize()
    assert inference_memory(config) == pytest.approx(torch.cuda.max_memory_allocated() - baseline, rel=0.1)


def test_what_flash1_holds_in_float32_while_it_runs_counts_where_nothing_needs_more():
    """dQ, and of heads that share keys dK and dV of each head; in a prefill the output."""
    model = {"dim": 256, "layers": 2, "heads": 4, "kv_heads": 2, "ffn_dim": 64, "vocab_size": 16}

    def surplus(forecast, dtype, kv_heads=2, **sections):
        plain, flash1 = (
            RunConfig.model_validate(
                {
                    "attention": name,
                    "model": model | {"kv_heads": kv_heads},
                    "data": {"path": "x"},
                    **{section: settings | {"dtype": dtype} for section, settings in sections.items()},
                }
            )
            for name in ("cudnn", "flash1")
        )
        return forecast(flash1) - forecast(plain)

    tokens, train = 2 * 4096, {"sequence_length": 4096, "batch_size": 2}
    loss = 12 * tokens * 16
    assert surplus(peak_memory, "bfloat16", train=train) == tokens * (4 + 8) * 256 - loss
    assert surplus(peak_memory, "bfloat16", kv_heads=4, train=train) == tokens * 4 * 256 - loss
    assert surplus(peak_memory, "float32", kv_heads=4, train=train) == 0
