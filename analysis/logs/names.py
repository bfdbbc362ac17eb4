"""Columns whose names say what they are: used where neither a format nor a mapping names any."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from math import isfinite
from typing import Any

from analysis.logs.mapping import Column, Mapping, Quantity
from analysis.logs.points import example
from analysis.logs.table import Refused, Table

# Spellings of Weights & Biases, Lightning, Hugging Face's Trainer, torchtitan, nanoGPT and others, as
# `_plain` gives them. Names that do not say their unit, or whether they count one GPU or all, are not here.
# Of several lists of steps the first counts in which a name is: programs that do not log each step to Weights
# & Biases have a column for the step beside `_step`, which counts what was logged.
_STEP = (
    ("trainer_global_step", "train_global_step"),
    ("step", "global_step", "iteration", "iter", "iter_num", "it", "train_step", "steps"),
    ("_step",),
)
_NAMES: dict[Quantity, dict[str, str | None]] = {  # name -> unit, if it is not the default
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
        **dict.fromkeys(("step_time_ms", "ms_per_step", "iter_time_ms", "time_per_step_ms", "step_ms"), "ms"),
    },
    "interval_seconds": dict.fromkeys(("interval_seconds", "time_delta")),
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


def by_name(table: Table, given: Mapping, beside: Mapping) -> Mapping:
    """The columns whose names say what they are.

    Args:
        given: the user's mapping. If it names columns, only the step is looked for.
        beside: what the format says itself. If it knows the loss, it knows all that its logs have.

    Raises:
        Refused: two columns that differ could be the same quantity.
    """
    there: dict[str, list[str]] = {}
    for name in table.columns():
        there.setdefault(_plain(name), []).append(name)
    taken = given.columns.keys() | beside.columns.keys()
    columns: dict[Quantity, Column] = {}
    for names in _STEP if "step" not in taken else ():
        if "step" not in columns and (column := _one(table, there, names, "step")):
            columns["step"] = Column(column=column)
    if given.columns or "loss" in beside.columns:
        return Mapping(columns=columns)
    for quantity, units in _NAMES.items():
        if quantity in taken or not (column := _one(table, there, tuple(units), quantity)):
            continue
        unit = units[_plain(column)]
        if quantity == "mfu" and not unit and not (unit := _percent(table, column)):
            continue
        columns[quantity] = Column(column=column, unit=unit)
    if "time" not in taken:
        for name in (name for plain in _TIMES for name in there.get(plain, ())):
            if "time" not in columns and (unit := _clock(table, name)):
                columns["time"] = Column(column=name, unit=unit)
    return Mapping(columns=columns, run=given.run or table.run or next(_runs(table, there), None))


def _plain(name: str) -> str:
    """The name in small letters and underscores: `MFU (%)` is `mfu_percent`, `Tokens/sec` is `tokens_sec`."""
    words = re.sub(r"[^a-z0-9]+", "_", name.casefold().replace("%", " percent ")).rstrip("_")
    return words if name.startswith("_") else words.lstrip("_")


def _one(table: Table, there: dict[str, list[str]], names: Sequence[str], quantity: str) -> str | None:
    """The one column that has one of these names; of several with the same values the first."""
    candidates = [name for plain in names for name in there.get(plain, ())]
    if len(candidates) > 1 and any(
        row.values.get(candidates[0]) != row.values.get(name) for row in table.rows for name in candidates[1:]
    ):
        choices = " or ".join(f"'{name}'" for name in candidates)
        raise Refused(f"{table.file}:1: which column is the {quantity}, {choices}? {example(table)}")
    return candidates[0] if candidates else None


def _numbers(table: Table, name: str) -> Iterator[float]:
    for row in table.rows:
        try:
            if isfinite(number := float(row.values.get(name) or "nan")):
                yield number
        except (TypeError, ValueError):
            continue


def _percent(table: Table, name: str) -> str | None:
    """The unit of an MFU: nothing is above a fraction of 1. Below, it may be either."""
    return "percent" if max(_numbers(table, name), default=0.0) > 1 else None


def _clock(table: Table, name: str) -> str | None:
    """The unit of a column of moments, by its first value; None if that is none."""
    first: Any = next(
        (value for row in table.rows if (value := row.values.get(name)) not in (None, "")), None
    )
    try:
        if isinstance(first, datetime):
            return "iso"
        number = float(first)
        return "s" if 1e8 < number < 1e10 else "ms" if 1e11 < number < 1e13 else None
    except (TypeError, ValueError):
        pass
    try:
        return "iso" if datetime.fromisoformat(str(first)) else None
    except ValueError:
        return None


def _runs(table: Table, there: dict[str, list[str]]) -> Iterator[str]:
    """Columns that name runs, of which there are several."""
    for name in (name for plain in _RUNS for name in there.get(plain, ())):
        if len({str(row.values.get(name)) for row in table.rows}) > 1 and not any(_numbers(table, name)):
            yield name


def sentence(mapping: Mapping) -> str | None:
    """What was taken by its name, for the user to see; None if nothing was."""
    parts = [
        f"{quantity} = '{column.column}'" + (f" ({column.unit})" if column.unit else "")
        for quantity, column in mapping.columns.items()
    ]
    parts += [f"run = '{mapping.run}'"] if mapping.run else []
    return ", ".join(parts) or None
