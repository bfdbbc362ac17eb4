"""What a sweep can show of a cell: a quantity with its unit, and how it is estimated from the cell's runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from analysis import stats
from analysis.charts._values import fitting
from analysis.verdicts.groups import final_loss, peak_memory_gib

if TYPE_CHECKING:
    from analysis.charts import Row

Estimates = dict[str, stats.Estimate]
PEAK_KEY = "The profile states it as peak_tflops, as does an import's mapping."


@dataclass(frozen=True)
class CellQuantity:
    """One number of a run.

    Attributes:
        name: what it is called.
        unit: in which it is; empty where the name says it.
        number: format, which d3 and Python read alike.
        what: what it is and how it is measured, in sentences.
        estimates: completed runs -> the estimate by label, of those that have the number.
        zero: whether an axis starts at zero.
        gone: what a cross below the axis stands for.
        numbers: what a mark is, or a number in a heat map.
    """

    name: str
    unit: str
    number: str
    what: str
    estimates: Callable[[list[Row]], Estimates]
    zero: bool = True
    gone: str = "runs that did not complete there"
    numbers: str = "the median of a cell's runs"

    @property
    def title(self) -> str:
        """With its unit, as an axis says it."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    @property
    def suffix(self) -> str:
        """Its unit after a number: ` %`, ` ms`; empty where the name says it."""
        return " %" if self.unit == "percent" else f" {self.unit}" if self.unit else ""


def with_decimals(quantity: CellQuantity, estimates: Iterable[stats.Estimate]) -> CellQuantity:
    """The quantity with as many decimals as the smallest of these needs."""
    return replace(quantity, number=fitting(quantity.number, (estimate.median for estimate in estimates)))


def _rate(column: str) -> Callable[[list[Row]], Estimates]:
    return lambda rows: _timed([row for row in rows if row[column] is not None], stats.rate(column))


def _timed(rows: list[Row], value: stats.Quantity) -> Estimates:
    estimated = stats.estimates([row for row in rows if row["step_seconds"]], value)
    return {label: estimate.telling for label, estimate in estimated.items()}


def _of_groups(estimate: Callable[[list[Row]], stats.Estimate | None]) -> Callable[[list[Row]], Estimates]:
    return lambda rows: {
        label: estimated.telling
        for label, runs in stats.by_label(rows).items()
        if (estimated := estimate(runs))
    }


TOKENS = CellQuantity(
    "tokens per second", "", ",.0f",
    "A step's tokens, padding included, over the median seconds of a run's steps.",
    _rate("tokens_per_second"),
)  # fmt: skip
MFU = CellQuantity(
    "MFU", "percent", ".1f",
    "(6 N + 12 L H Q T) FLOP a token over the device's dense peak; no causal discount, no recomputation.",
    _rate("mfu"),
)  # fmt: skip
TFLOPS = CellQuantity(
    "model TFLOP/s", "", ".3g",
    "Of one device: (6 N + 12 L H Q T) FLOP a token; no causal discount, no recomputation.",
    _rate("tflops"),
)  # fmt: skip
STEP_SECONDS = CellQuantity(
    "seconds per step", "", ".3g",
    "Of a run, the median of its steps.",
    lambda rows: _timed(rows, lambda _row, seconds: seconds),
)  # fmt: skip
PEAK_MEMORY = CellQuantity(
    "peak memory", "GiB", ",.2f",
    "Over the whole run, allocated by PyTorch on one GPU, or resident memory of the process on a CPU.",
    _of_groups(peak_memory_gib),
)  # fmt: skip
ENERGY = CellQuantity(
    "energy per token", "mJ", ",.3g",
    "All GPUs of a run, by NVML, over its steps' tokens, padding included. Pauses between steps count.",
    _of_groups(lambda runs: stats.over_runs([1000 * run["joules_per_token"] for run in runs])),
)  # fmt: skip
FINAL_LOSS = CellQuantity(
    "final loss", "nats per token", ".3f",
    "Loss of the last step: the median over seeds; repeats of a seed count once, as their mean.",
    _of_groups(final_loss),
    zero=False,
)  # fmt: skip


def utilisation(rows: list[Row]) -> tuple[CellQuantity, str]:
    """MFU, or the rate that it would divide by the peak where no run's peak is known, and then why."""
    measured = [row for row in rows if row["tflops"] is not None]
    if not measured or any(row["mfu"] is not None for row in rows):
        return MFU, ""
    devices = ", ".join(sorted({row["device"] or "an unnamed device" for row in measured}))
    return (
        TFLOPS,
        f"MFU is not shown: the peak FLOP/s of {devices} at this precision is not known. {PEAK_KEY}",
    )
