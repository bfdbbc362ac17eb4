"""Which column of a log is which quantity, in which unit, and what the log does not say.

A mapping states it. Where neither a mapping nor a format names a column, its own name can say what it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from math import inf, isfinite, log
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from analysis.importers._table import LogTable, Refused, mapping_example
from model.record.config import Dtype, Frozen, ModelConfig, Positive, Strict
from model.record.records import NAME

LogQuantity = Literal[
    "step", "time", "loss", "learning_rate", "grad_norm",
    "step_seconds", "interval_seconds", "elapsed_seconds",
    "tokens", "total_tokens", "training_tokens", "training_tokens_percentage",
    "tokens_per_second", "training_tokens_per_second", "mfu", "tflops", "memory_bytes",
]  # fmt: skip
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0}
_TOKENS = {"tokens": 1.0, "ktokens": 1e3, "Mtokens": 1e6}
_RATES = {f"{name}/s": factor for name, factor in _TOKENS.items()}
_SHARE = {"percent": 1.0, "fraction": 100.0}
# The first unit is the default, in which the quantity is kept.
UNITS: dict[str, dict[str, float]] = {
    "time": {"iso": 1.0, "s": 1.0, "ms": 1e-3},
    "loss": {"nats": 1.0, "bits": log(2)},
    "step_seconds": _SECONDS,
    "interval_seconds": _SECONDS,
    "elapsed_seconds": _SECONDS,
    "tokens": _TOKENS,
    "total_tokens": _TOKENS,
    "training_tokens": _TOKENS,
    "training_tokens_percentage": _SHARE,
    "tokens_per_second": _RATES,
    "training_tokens_per_second": _RATES,
    "mfu": _SHARE,
    "tflops": {"TFLOP/s": 1.0, "GFLOP/s": 1e-3, "PFLOP/s": 1e3, "FLOP/s": 1e-12},
    "memory_bytes": {
        "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30,
    },
}  # fmt: skip


class MappedColumn(Frozen):
    """A column and the unit of its values."""

    column: str = Field(min_length=1, description="Its name in the log.")
    unit: str | None = Field(None, description="Unit of its values, such as ms, fraction, bits, GiB.")


# Its name alone will do. The schema is written out: pydantic knows nothing of what a validator takes.
Named = Annotated[
    MappedColumn,
    BeforeValidator(lambda given: {"column": given} if isinstance(given, str) else given),
    WithJsonSchema({"anyOf": [{"type": "string", "minLength": 1}, MappedColumn.model_json_schema()]}),
]


class Shape(Strict):
    """The shape of a llama, from which its FLOP per token follow."""

    dim: Positive = Field(description="Width of the residual stream.")
    layers: Positive = Field(description="Number of transformer blocks.")
    heads: Positive = Field(description="Query heads; the head dim is dim / heads.")
    kv_heads: Positive = Field(description="Key and value heads.")
    ffn_dim: Positive = Field(description="Inner width of the SwiGLU feed-forward.")
    vocab_size: Positive = Field(description="Number of token ids.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self.model_config_of()
        return self

    def model_config_of(self) -> ModelConfig:
        """The same as a model's configuration. Raises ValueError if heads and widths do not fit."""
        return ModelConfig(**self.model_dump())


class Training(Strict):
    """How the run was trained, as far as it is known."""

    steps: Positive | None = Field(None, description="Optimizer steps that were planned.")
    sequence_length: Positive | None = Field(None, description="Tokens per sample.")
    batch_size: Positive | None = Field(None, description="Samples per step, over all GPUs.")
    learning_rate: float | None = Field(None, gt=0, description="Highest learning rate.")
    warmup_steps: int | None = Field(None, ge=0, description="Steps of the learning rate's warm-up.")
    dtype: Dtype | None = Field(None, description="Precision of the parameters.")
    compile: bool | None = Field(None, description="Whether the model was compiled.")


class Known(Strict):
    """Settings of the runs that are known, as in a study's `base`."""

    model: Shape | None = Field(None, description="The llama's shape.")
    train: Training = Field(default=Training(), description="The training loop.")

    def nested(self) -> dict[str, Any]:
        """What is known, as a run's `config` has it."""
        stated = self.model_dump(exclude_none=True)
        return {key: value for key, value in stated.items() if value}


class Constants(Strict):
    """What is the same in all records."""

    attention: str | None = Field(None, min_length=1, description="Attention backend.")
    seed: int | None = Field(None, ge=0, description="Seed of weights and data.")
    gpu: str | None = Field(None, min_length=1, description="Name of the GPU as its driver reports it.")
    gpus: Annotated[int, Field(ge=0)] | None = Field(None, description="Number of GPUs; 0 on a CPU.")
    nodes: Positive | None = Field(None, description="Number of nodes.")
    host: str | None = Field(None, min_length=1, description="Host name.")
    tokens_per_step: Positive | None = Field(None, description="Tokens per step, padding included, all GPUs.")
    flop_per_token: Annotated[int, Field(gt=0, lt=2**53)] | None = Field(
        None, description="FLOP per token of a training step; with `config.model` it is computed instead."
    )
    peak_tflops: float | None = Field(None, gt=0, description="Dense peak of one GPU in TFLOP/s.")
    software: dict[str, str] = Field(default={}, description="Version by package.")


class Mapping(Frozen):
    """The keys of a mapping's YAML file."""

    columns: dict[LogQuantity, Named] = Field(
        default={}, description="Column by quantity; `{column: NAME, unit: UNIT}` if its unit differs."
    )
    run: str | None = Field(
        None, min_length=1, description="Column that tells the runs of one file apart, such as `run_name`."
    )
    file_name: str | None = Field(
        None,
        description="Regular expression for a file's name without its ending; its named groups are factors "
        "of the run, such as (?P<attention>.+)_lr(?P<lr>.+).",
    )
    constants: Constants = Field(default=Constants(), description="What the log does not say.")
    config: Known = Field(default=Known(), description="Known settings of the runs.")

    @field_validator("columns")
    @classmethod
    def _known_units(cls, columns: dict[LogQuantity, MappedColumn]) -> dict[LogQuantity, MappedColumn]:
        for quantity, column in columns.items():
            valid = UNITS.get(quantity, {})
            if column.unit is not None and column.unit not in valid:
                choices = ", ".join(valid) or "none"
                raise ValueError(f"{quantity} has no unit '{column.unit}' (valid: {choices})")
        return columns

    @field_validator("file_name")
    @classmethod
    def _pattern(cls, pattern: str | None) -> str | None:
        if pattern is None:
            return None
        try:
            names = re.compile(pattern).groupindex
        except re.error as error:
            raise ValueError(f"file_name is not a regular expression: {error}") from error
        if not names:
            raise ValueError("file_name has no named group, such as (?P<attention>.+)")
        if wrong := [name for name in names if not NAME.fullmatch(name)]:
            raise ValueError(f"file_name: '{wrong[0]}' cannot name a factor")
        return pattern

    def column(self, quantity: LogQuantity) -> str | None:
        """The name of a quantity's column."""
        mapped = self.columns.get(quantity)
        return mapped.column if mapped else None

    def unit(self, quantity: LogQuantity) -> str:
        """The unit of a quantity's column."""
        mapped = self.columns.get(quantity)
        return (mapped and mapped.unit) or next(iter(UNITS.get(quantity, {"": 1.0})))

    def factor(self, quantity: LogQuantity) -> float:
        """What a value of a quantity's column is multiplied with."""
        return UNITS.get(quantity, {"": 1.0})[self.unit(quantity)]

    def over(self, other: Mapping) -> Mapping:
        """This mapping, and what it does not say from another one, which a format brings."""
        own = self.model_dump(exclude_unset=True)
        merged: dict[str, Any] = _merged(other.model_dump(exclude_unset=True), own)
        return Mapping.model_validate(merged)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` over `below`; what both nest is merged."""
    both = {
        key: _merged(below[key], value)
        for key, value in above.items()
        if isinstance(value, dict) and isinstance(below.get(key), dict) and "column" not in value
    }
    return below | above | both


# Spellings of Weights & Biases, Lightning, Hugging Face's Trainer, torchtitan, nanoGPT and others, as
# `_plain` gives them. Names that do not say their unit, or whether they count one GPU or all, are not here.
# Of several lists of steps the first counts in which a name is: programs that do not log each step to Weights
# & Biases have a column for the step beside `_step`, which counts what was logged.
_STEP = (
    ("trainer_global_step", "train_global_step"),
    ("step", "global_step", "iteration", "iter", "iter_num", "it", "train_step", "steps"),
    ("_step",),
)
_NAMES: dict[LogQuantity, dict[str, str | None]] = {  # name -> unit, if it is not the default
    "loss": dict.fromkeys((
        "loss", "train_loss", "training_loss", "loss_train", "train_loss_step", "lm_loss", "ce_loss",
        "train_ce_loss", "loss_metrics_global_avg_loss",
    )),
    "learning_rate": dict.fromkeys((
        "learning_rate", "lr", "train_learning_rate", "train_lr", "lr_adamw", "lr_adam", "lr_sgd",
    )),
    "grad_norm": dict.fromkeys(("grad_norm", "train_grad_norm", "gradient_norm", "gradnorm")),
    "step_seconds": {
        **dict.fromkeys((
            "step_seconds", "seconds_per_step", "sec_per_step", "s_per_step", "step_time_s", "step_time_sec",
            "step_time_seconds", "time_per_step_s", "time_metrics_end_to_end_s",
        )),
        **dict.fromkeys((
            "step_time_ms", "ms_per_step", "iter_time_ms", "time_per_step_ms", "step_ms",
            "elapsed_time_per_iteration_ms",
        ), "ms"),
    },
    "interval_seconds": dict.fromkeys(("interval_seconds",)),
    "elapsed_seconds": dict.fromkeys(("elapsed_seconds", "elapsed_s", "_runtime")),
    "total_tokens": dict.fromkeys((
        "total_tokens", "n_tokens_seen", "tokens_seen", "num_tokens_seen", "num_input_tokens_seen",
        "train_num_input_tokens_seen", "consumed_tokens",
    )),
    "training_tokens_percentage": dict.fromkeys((
        "training_tokens_percentage", "training_tokens_percent", "train_tokens_percent",
        "train_token_percent",
    )),
    "tokens_per_second": dict.fromkeys((
        "tokens_per_second", "tokens_per_sec", "tokens_sec", "tokens_s", "tok_s", "tok_sec", "toks_s",
        "tokens_second",
        "train_tokens_per_second", "train_tokens_per_sec", "throughput_tokens_s", "throughput_tokens_per_sec",
        "throughput_tokens_per_second",
    )),
    "training_tokens_per_second": dict.fromkeys(("training_tokens_per_second",)),
    "mfu": {"mfu": None, "train_mfu": None, "mfu_percent": "percent", "mfu_fraction": "fraction"},
    "tflops": dict.fromkeys((
        "tflops", "tflop_s", "tflops_s", "tflops_per_gpu", "tflops_gpu", "tflops_per_second",
        "throughput_per_gpu_tflop_s_gpu",
    )),
    "memory_bytes": {
        **dict.fromkeys(("memory_bytes", "peak_memory_bytes", "max_memory_bytes")),
        **dict.fromkeys((
            "memory_gib", "peak_memory_gib", "max_memory_gib", "memory_max_reserved_gib", "peak_gib",
        ), "GiB"),
    },
}  # fmt: skip
_TIMES = ("timestamp", "_timestamp", "wall_time", "datetime", "time", "date")
_RUNS = ("run", "run_name", "run_id", "model", "method", "backend", "attention")


def mapping_by_name(table: LogTable, given: Mapping, beside: Mapping) -> Mapping:
    """The columns whose names say what they are.

    Args:
        given: the user's mapping. If it names columns, only the step is looked for.
        beside: what the format says itself. If it knows the loss, it knows all that its logs have.

    Raises:
        Refused: two columns that differ could be the same quantity.
    """
    there: dict[str, list[str]] = {}
    for name in table.columns():
        there.setdefault(_plain_name(name), []).append(name)
    taken = given.columns.keys() | beside.columns.keys()
    columns: dict[LogQuantity, MappedColumn] = {}
    for names in _STEP if "step" not in taken else ():
        if "step" not in columns and (column := _only_column(table, there, names, "step")):
            columns["step"] = MappedColumn(column=column)
    if given.columns or "loss" in beside.columns:
        return Mapping(columns=columns)
    for quantity, units in _NAMES.items():
        if quantity in taken or not (column := _only_column(table, there, tuple(units), quantity)):
            continue
        unit = units[_plain_name(column)]
        if quantity == "mfu" and not unit:  # nothing is above a fraction of 1; below, it may be either
            if max(_numbers_of(table, column), default=inf) <= 1:
                continue
            unit = "percent"
        columns[quantity] = MappedColumn(column=column, unit=unit)
    if "time" not in taken:
        for name in (name for plain in _TIMES for name in there.get(plain, ())):
            if "time" not in columns and (unit := _clock_unit(table, name)):
                columns["time"] = MappedColumn(column=name, unit=unit)
    return Mapping(columns=columns, run=given.run or table.run or _run_column(table, there))


def _run_column(table: LogTable, there: dict[str, list[str]]) -> str | None:
    """The column that tells runs apart by its name; of several that tell the same runs apart the first."""
    values = {
        name: [str(row.values.get(name)) for row in table.rows]
        for plain in _RUNS
        for name in there.get(plain, ())
        if not any(_numbers_of(table, name))
    }
    values = {name: texts for name, texts in values.items() if len(set(texts)) > 1}
    most = max((len(set(texts)) for texts in values.values()), default=0)
    if len(set(zip(*values.values(), strict=True))) > most:
        choices = " or ".join(f"'{name}'" for name in values)
        raise Refused(
            f"{table.file}:1: which column tells runs apart, {choices}? Name one that does as `run:` in a "
            "mapping; add it if no column tells all apart"
        )
    return next((name for name, texts in values.items() if len(set(texts)) == most), None)


def _plain_name(name: str) -> str:
    """The name in small letters and underscores: `MFU (%)` is `mfu_percent`, `Tokens/sec` is `tokens_sec`."""
    words = re.sub(r"[^a-z0-9]+", "_", name.casefold().replace("%", " percent ")).rstrip("_")
    return words if name.startswith("_") else words.lstrip("_")


def _only_column(
    table: LogTable, there: dict[str, list[str]], names: Sequence[str], quantity: str
) -> str | None:
    """The one column that has one of these names; of several with the same values the first."""
    candidates = [name for plain in names for name in there.get(plain, ())]
    if len(candidates) > 1 and any(
        row.values.get(candidates[0]) != row.values.get(name) for row in table.rows for name in candidates[1:]
    ):
        choices = " or ".join(f"'{name}'" for name in candidates)
        raise Refused(f"{table.file}:1: which column is the {quantity}, {choices}? {mapping_example(table)}")
    return candidates[0] if candidates else None


def _numbers_of(table: LogTable, name: str) -> Iterator[float]:
    for row in table.rows:
        try:
            if isfinite(number := float(row.values.get(name) or "nan")):
                yield number
        except (TypeError, ValueError):
            continue


def _clock_unit(table: LogTable, name: str) -> str | None:
    """The unit of a column of moments, by its first value; None if that is none."""
    first: Any = next(
        (value for row in table.rows if (value := row.values.get(name)) not in (None, "")), None
    )
    try:
        if isinstance(first, datetime):
            return "iso"
        number = float(first)
        return "s" if 1e9 < number < 1e10 else "ms" if 1e12 < number < 1e13 else None  # from 2001 on
    except (TypeError, ValueError):
        pass
    try:
        return "iso" if datetime.fromisoformat(str(first)) and ":" in str(first) else None  # not a day alone
    except ValueError:
        return None


def columns_sentence(mapping: Mapping) -> str | None:
    """What was taken by its name, for the user to see; None if nothing was."""
    parts = [
        f"{quantity} = '{column.column}'" + (f" ({column.unit})" if column.unit else "")
        for quantity, column in mapping.columns.items()
    ]
    parts += [f"run = '{mapping.run}'"] if mapping.run else []
    return ", ".join(parts) or None
