"""The memory that a run will need is near what was measured, and launches say what will not fit."""

import pytest

from model.config import RunConfig
from model.measure.memory import is_counted, peak_memory

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


@pytest.mark.parametrize(("reshard", "measured"), [(True, 62.5), (False, 75.1)])
def test_what_each_of_two_gpus_needs_is_near_what_was_measured(reshard, measured):
    """Largest peak of two H200s that share 8B parameters, by the records of a run with torch 2.11.0+cu130."""
    train = {"batch_size": 4, "compile": True, "loss": "linear_cross_entropy"}
    given = {
        "attention": "flash",
        "data": {"path": "x"},
        "train": train,
        "parallel": {"shard": 2, "reshard": reshard},
    }
    assert peak_memory(RunConfig.model_validate(given)) / 2**30 == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize(
    ("task", "parallel", "known"),
    [
        ("training", {}, True),
        ("training", {"shard": 4, "reshard": False}, True),
        ("training", {"replicate": 2, "shard": 2}, False),
        ("training", {"context": 2}, False),
        ("inference", {"replicate": 2}, True),
    ],
)
def test_it_is_counted_where_processes_share_the_parameters_and_nothing_else(task, parallel, known):
    given = {"task": task, "data": {"path": "x"}, "train": {"batch_size": 4}, "parallel": parallel}
    assert is_counted(RunConfig.model_validate(given)) is known


@pytest.mark.parametrize(("attention", "model", "train", "mebibytes"), MEASURED)
def test_the_estimate_is_within_a_tenth_of_what_was_measured(attention, model, train, mebibytes):
    given = {"attention": attention, "model": model, "data": {"path": "x"}, "train": train}
    assert peak_memory(RunConfig.model_validate(given)) / 2**20 == pytest.approx(mebibytes, rel=0.1)


def test_math_at_full_scale_does_not_fit_the_largest_gpu():
    config = RunConfig.model_validate({"attention": "math", "data": {"path": "x"}})
    assert peak_memory(config) > 139 * 2**30
