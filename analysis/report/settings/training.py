"""The model, the training and the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from analysis.report import models
from analysis.report.settings import inference
from analysis.report.settings.values import Of, Row, Setting, changed, plain, setting, value, whole
from analysis.verdicts.values import task
from model.record.units import counted

_UNSAID = "the logs do not say"
_SHAPE = ("model.dim", "model.layers", "model.heads", "model.kv_heads", "model.ffn_dim", "model.vocab_size")
_Topic = tuple[str, Of, tuple[str, ...]]  # what it is called, what a run has of it, the settings behind it


def settings(runs: Sequence[Row], infers: bool) -> Iterator[Setting]:
    """The three parts, in this order."""
    started = [run for run in runs if run["device"] or run["imported"]]
    padded = [run for run in started if run["training_tokens_percentage"] is not None or run["imported"]]
    training = [("Training", _TRAINING, runs), ("Training", _DONE, started)]
    for topics, of in ((_SEVERAL, _reduced), (_SHARDED, _gathered)):
        mine = [run for run in runs if of(run)]
        training += [("Training", topics, mine)] if mine else []
    for part, topics, mine in (
        ("Model", _MODEL, runs),
        *((("Inference", inference.TOPICS, runs),) if infers else training),
        ("Data", _DATA, runs),
        *(() if infers else (("Data", _PADDING, padded),)),
    ):
        for topic, of, behind in topics:
            yield Setting(topic, value(mine, of, _why(runs)), changed(runs, behind), part)


def _why(runs: Sequence[Row]) -> str:
    return _UNSAID if any(run["imported"] for run in runs) else "not recorded"


def _parameters(run: Row) -> str | None:
    count, counted = models.parameters(run["config"]), models.without_embedding(run["config"])
    return None if count is None else f"{count:,d}, of which {counted:,d} are not the input embedding"


def _heads(run: Row) -> str | None:
    queries, keys, dim = (setting("model", each)(run) for each in ("heads", "kv_heads", "dim"))
    if None in (queries, keys, dim):
        return None
    return f"{queries} query heads and {keys} key/value heads, each of dimension {dim // queries}"


def _flop(run: Row) -> str | None:
    count = run["flop_per_token"] or models.flop(run["config"], run["sequence_length"])
    passes = "forward and backward" if task(run) == "training" else "forward only, of a prompt"
    return None if count is None else f"{count / 1e9:,.4g} GFLOP, {passes}"


def _tokens(run: Row) -> str | None:
    sizes = (run["batch_size"], run["sequence_length"])
    return None if None in sizes else f"{sizes[0] * sizes[1]:,d}"


def _batch(run: Row) -> str | None:
    samples, parts = (
        run["batch_size"],
        setting("train", "accumulate")(run) or 1,
    )  # older records have no such key
    if samples is None or parts == 1:
        return whole(lambda run: run["batch_size"])(run)
    return f"{samples:,d}, in {parts:,d} parts whose gradients are added up"


def _compiled(run: Row) -> str | None:
    found = setting("train", "compile")(run)
    return None if found is None else "yes, block by block" if found else "no"


def _loss(run: Row) -> str | None:
    if run["imported"]:
        return None
    joined = setting("train", "loss")(run) == "linear_cross_entropy"  # older records have no such key
    return f"cross-entropy{', joined with the output head' if joined else ' of the logits in float32'}"


def _learning_rate(run: Row) -> str | None:
    found = plain(setting("train", "learning_rate"))(run)
    if found is None and run["imported"] and run.get("highest_learning_rate") is not None:
        return f"{run['highest_learning_rate']:g} at the highest, by the records"
    return found


def _warm_up(run: Row) -> str | None:
    steps, planned = setting("train", "warmup_steps")(run), run["planned_steps"]
    if steps is None or planned is None:
        return None
    if steps == 0:
        return "none: constant from the first step"
    if planned <= steps:
        return f"linear over {counted(steps, 'step')}: all {planned:,d} steps lie inside it"
    return f"linear over the first {steps:,d} of {planned:,d} steps, then constant"


def _steps(run: Row) -> str | None:
    if run["steps"] is None or run["planned_steps"] is None:
        return None if run["steps"] is None else f"{run['steps']:,d} of an unknown number"
    return f"{run['steps']:,d} of {run['planned_steps']:,d} planned"


def _optimizer(run: Row) -> str | None:
    decay, clip = setting("train", "weight_decay")(run), setting("train", "clip_norm")(run)
    if None in (decay, clip):
        return None
    one_pass = setting("train", "optimizer")(run) == "adamw_one_pass"
    by = " by this project's one-pass kernels" if one_pass else ""
    return f"AdamW{by}, weight decay {decay:g}, gradients clipped to norm {clip:g}"


def _reduced(run: Row) -> str | None:
    if run["imported"] or not (run["config"] or {}).get("parallel"):
        return None
    wide = setting("train", "reduce")(run) == "float32"
    return "added up in float32" if wide else "added up in the precision of the parameters"


def _gathered(run: Row) -> str | None:
    parallel = (run["config"] or {}).get("parallel") or {}
    if run["imported"] or parallel.get("shard", 1) * parallel.get("context", 1) == 1:
        return None
    again = parallel.get("reshard", True)
    return "gathered for each pass of a block" if again else "gathered once a step, and kept meanwhile"


def _activations(run: Row) -> str | None:
    if run["imported"]:
        return None
    if setting("train", "checkpoint_activations")(run):  # older records have no such key
        return "of each block recomputed in the backward pass, from the block's input (checkpointing)"
    return "kept for the backward pass; none are recomputed (no checkpointing)"


def _precision(run: Row) -> str | None:
    dtype, scaling = setting("train", "dtype")(run), setting("train", "float8")(run) or "none"
    return dtype if scaling == "none" else f"{dtype}, products of the blocks in float8 ({scaling} scaling)"


def _text(run: Row) -> str | None:
    path = setting("data", "path")(run)
    return None if path is None else f"`{PurePath(path).name}`"


def _samples(run: Row) -> str | None:
    return {
        "pad": "one document per sample, truncated or padded",
        "pack": "documents joined and cut into full samples",
    }.get(setting("data", "mode")(run))


def _tokenizer(run: Row) -> str | None:
    found = run["tokenizer"] or setting("data", "tokenizer")(run)
    if found is None:
        return None
    return "bytes: one token per byte" if found == "bytes" else f"`{PurePath(found).name}`"


def _padding(run: Row) -> str | None:
    if run["training_tokens_percentage"] is None:
        return None
    return f"{100 - run['training_tokens_percentage']:.1f} % of the tokens, which tokens per second include"


_MODEL: tuple[_Topic, ...] = (
    ("Parameters", _parameters, ()),
    ("Layers", whole(setting("model", "layers")), ("model.layers",)),
    ("Dimension", whole(setting("model", "dim")), ("model.dim",)),
    ("Attention heads", _heads, ("model.heads", "model.kv_heads")),
    ("Feed-forward dimension", whole(setting("model", "ffn_dim")), ("model.ffn_dim",)),
    ("Vocabulary", whole(setting("model", "vocab_size")), ("model.vocab_size",)),
    ("FLOP per token", _flop, ()),
)
_TRAINING: tuple[_Topic, ...] = (
    ("Sequence length", whole(lambda run: run["sequence_length"]), ("train.sequence_length",)),
    ("Batch", _batch, ("train.batch_size", "train.accumulate")),
    ("Tokens per step", _tokens, ()),
    ("Precision", _precision, ("train.dtype", "train.float8")),
    ("Loss", _loss, ("train.loss",)),
    ("Optimizer", _optimizer, ("train.optimizer", "train.weight_decay", "train.clip_norm")),
    ("Learning rate", _learning_rate, ("train.learning_rate",)),
    ("Learning-rate warm-up", _warm_up, ("train.warmup_steps",)),
    ("`torch.compile`", _compiled, ("train.compile",)),
    ("Activations", _activations, ("train.checkpoint_activations",)),
)
_SEVERAL: tuple[_Topic, ...] = (("Gradients of several processes", _reduced, ("train.reduce",)),)
_SHARDED: tuple[_Topic, ...] = (("Sharded parameters", _gathered, ("parallel.reshard",)),)
_DONE: tuple[_Topic, ...] = (("Steps", _steps, ("train.steps",)),)
_DATA: tuple[_Topic, ...] = (
    ("Text", _text, ("data.path", "data.text_column")),
    ("Fingerprint", lambda run: run["data_fingerprint"] and f"`{run['data_fingerprint']}`", ()),
    ("Tokenizer", _tokenizer, ("data.tokenizer",)),
    ("Samples", _samples, ("data.mode",)),
)
_PADDING: tuple[_Topic, ...] = (("Padding", _padding, ()),)
