"""A mapping says which column of a log is which quantity, in which unit, and what the log does not say."""

from __future__ import annotations

import re
from math import log
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from model.record.config import Dtype, Frozen, ModelConfig, Positive, Strict
from model.record.records import NAME

Quantity = Literal[
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


class Column(Frozen):
    """A column and the unit of its values."""

    column: str = Field(min_length=1, description="Its name in the log.")
    unit: str | None = Field(None, description="Unit of its values, such as ms, fraction, bits, GiB.")


def _column(given: Any) -> Any:
    return {"column": given} if isinstance(given, str) else given


# Its name alone will do. The schema is written out: pydantic knows nothing of what _column takes.
Named = Annotated[
    Column,
    BeforeValidator(_column),
    WithJsonSchema({"anyOf": [{"type": "string", "minLength": 1}, Column.model_json_schema()]}),
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
        found = self.model_dump(exclude_none=True)
        return {key: value for key, value in found.items() if value}


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

    columns: dict[Quantity, Named] = Field(
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
    def _known_units(cls, columns: dict[Quantity, Column]) -> dict[Quantity, Column]:
        for quantity, column in columns.items():
            valid = UNITS.get(quantity, {})
            if column.unit is not None and column.unit not in valid:
                choices = ", ".join(valid) or "none"
                raise ValueError(f"{quantity} has no unit '{column.unit}' (valid: {choices})")
        return columns

    @field_validator("file_name")
    @classmethod
    def _pattern(cls, pattern: str | None) -> str | None:
        _check_pattern(pattern)
        return pattern

    def column(self, quantity: Quantity) -> str | None:
        """The name of a quantity's column."""
        found = self.columns.get(quantity)
        return found.column if found else None

    def unit(self, quantity: Quantity) -> str:
        """The unit of a quantity's column."""
        found = self.columns.get(quantity)
        return (found and found.unit) or next(iter(UNITS.get(quantity, {"": 1.0})))

    def factor(self, quantity: Quantity) -> float:
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


def _check_pattern(pattern: str | None) -> None:
    if pattern is None:
        return
    try:
        names = re.compile(pattern).groupindex
    except re.error as error:
        raise ValueError(f"file_name is not a regular expression: {error}") from error
    if not names:
        raise ValueError("file_name has no named group, such as (?P<attention>.+)")
    if wrong := [name for name in names if not NAME.fullmatch(name)]:
        raise ValueError(f"file_name: '{wrong[0]}' cannot name a factor")
