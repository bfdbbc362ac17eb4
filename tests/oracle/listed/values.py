"""Kinds of cells of the tables of values under figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from tests.oracle import kinds
from tests.oracle.frontiers import frontiers
from tests.oracle.kinds import NONE
from tests.oracle.listed.facts import QUANTITIES, how_made, shared_records, shared_runs
from tests.oracle.listed.figures import (
    both_ends,
    call_rate,
    difference_lines,
    pair_ratio,
    product_share,
    ratio_row,
    ratios_over_steps,
    settled,
    times,
)
from tests.oracle.listing import Cell, Spot, cites, column, text
from tests.oracle.pages import NUMBER
from tests.oracle.truth import (
    Study,
    Value,
    median,
    rates_over_steps,
)


@text(
    r"Values: \d+ rows?(?P<some>, at \d+ of the \d+ (?P<what>steps|positions) of the lines; the CSV has all|, at)?",
    "summary",
)
def size_of_table(spot: Spot, match: re.Match[str]) -> str:
    study = spot.study
    if spot.page == "sweeps":
        return cites(match[0], len(study.groups))
    if spot.page == "frontier":
        probes = sum(len(one.probes) for one in frontiers(study).values())
        return cites(match[0], probes if spot.figure.endswith("_memory") else len(study.groups))
    rows = {
        "certificates": [
            label for label in study.groups if any(map(study.certificate, study.completed(label)))
        ]
    }.get(spot.page, study.measured)
    if spot.figure == "loss_difference":
        rows = list(difference_lines(study))
    if spot.page == "kernels":
        rows = kinds.at_main_shape(study)
    if spot.page == "decoding":
        rows = [label for label in study.measured if kinds.over_decoded(study, label)]
    if spot.figure in ("ratios", "tokens_against_baseline"):
        rows = [label for label in study.measured if label != study.baseline]
    if not match["some"] or match["some"] == ", at":
        return cites(match[0], len(rows))
    if match["what"] == "positions":
        return cites(match[0], len(rows), 5, max(len(run.decoded) for run in study.done))
    if spot.figure.startswith("loss"):
        steps = max(len(run.steps) for run in study.done)
    else:
        lines = [
            set(rates_over_steps(study, label, spot.figure == "tokens_against_baseline"))
            for label in study.measured
        ]
        steps = len(set().union(*lines))
        if spot.figure == "tokens_against_baseline":
            base = rates_over_steps(study, study.baseline or "", counted=True)
            steps = len(
                {step for label in rows for step in rates_over_steps(study, label, counted=True)} & set(base)
            )
    return cites(match[0], len(rows), 5, steps)


@column(r"(?!.* over batch size).*: values", "runs|n")
def runs_of_group(cell: Cell) -> str:
    if cell.spot.page == "scaling":
        base = next(iter(cell.spot.study.groups))
        return (
            NONE if cell.row["group"] == base else f"{shared_runs(cell.spot.study, cell.row['group'], base)}"
        )
    if cell.head == "n":
        return f"{ratio_size(cell.spot.study, cell.first)}"
    return f"{len(cell.spot.study.completed(cell.first))}"


def ratio_size(study: Study, label: str) -> str:
    """How many pairs of runs, or of records of one pair."""
    base = study.baseline or ""
    if min(len(study.completed(label)), len(study.completed(base))) == 1:
        return f"{shared_records(study, label, base)} records of one run each"
    return f"{shared_runs(study, label, base)} pairs of runs"


@column(r".*: values", "median, .*")
def median_of_group(cell: Cell) -> str:
    value = QUANTITIES[cell.head.partition(", ")[2]](cell.spot.study, cell.first)
    assert value
    return f"{value.middle}"


@column(r".*: values", "interval", "how the interval was made")
def interval_of_group(cell: Cell) -> str:
    head = next(head for head in cell.row if head.startswith("median, "))
    value = QUANTITIES[head.partition(", ")[2]](cell.spot.study, cell.first)
    assert value
    if cell.head == "how the interval was made":
        return how_made(cell.spot.study, cell.first, value)
    return NONE if kinds.vague(value) else both_ends(value)


@column("Where the time goes: values", "(?P<part>.+), (?P<unit>seconds|minutes)")
def time_of_group(cell: Cell) -> str:
    part, _, unit = cell.head.rpartition(", ")
    parts, factor = times(cell.spot.study)[cell.first], {"seconds": 1, "minutes": 60}[unit]
    took_ = sum(value or 0.0 for value in parts.values()) if part == "whole" else parts[part]
    return NONE if took_ is None else f"{took_ / factor}"


@column("Where the time of a step goes: values", ".+, ms", "floor, % of the timed step")
def step_of_group(cell: Cell) -> str:
    run, part = cell.spot.study.completed(cell.first)[0], cell.head.removesuffix(", ms")
    special = {
        "whole": sum(run.profile.values()),
        "timed step": run.seconds,
        "floor": run.floor("step"),
        "floor, % of the timed step": run.floor("step") / run.seconds / 10,
    }
    name = {"matrix products": "products", "norms and elementwise": "elementwise"}.get(part, part)
    seconds = special.get(part, run.profile.get(name))
    return NONE if seconds is None else f"{1e3 * seconds}"


@column("Training loss: values", r"step [\d,]+")
def loss_at_step(cell: Cell) -> str:
    return f"{kinds.smoothed_losses(cell.spot.study)[cell.first][step_of(cell)]}"


def step_of(cell: Cell) -> int:
    """The step or position in the head of a column."""
    return int(cell.head.split()[1].replace(",", ""))


@column("Loss against the other backends: values", r"step [\d,]+")
def loss_difference_at_step(cell: Cell) -> str:
    value = difference_lines(cell.spot.study)[cell.first][step_of(cell)]
    return f"{settled(value):+.9e}"


@column("Tokens per second over the run: values", r"step [\d,]+")
def rate_at_step(cell: Cell) -> str:
    value = rates_over_steps(cell.spot.study, cell.first).get(step_of(cell))
    return NONE if value is None else f"{value}"


@column("Tokens per second against the baseline: values", r"step [\d,]+")
def rate_ratio_at_step(cell: Cell) -> str:
    value = ratios_over_steps(cell.spot.study)[cell.first].get(step_of(cell))
    return NONE if value is None else f"{value}"


@column("Decoding latency over positions: values", r"position [\d,]+")
def decoded_at_position(cell: Cell) -> str:
    length = cell.spot.study.runs[0].config["inference"]["prompt_length"]
    return f"{1e3 * median(run.decoded[step_of(cell) - length] for run in cell.spot.study.completed(cell.first))}"


@column("Comparison: values", "rate over the baseline's", "95 % interval", "verdict")
def ratio_cells(cell: Cell) -> str:
    where = ("rate over the baseline's", "95 % interval", "verdict").index(cell.head)
    return ratio_row(cell.spot.study, cell.first)[where]


SWEPT: dict[str, Callable[[Study, str], Value | None]] = {
    "Tokens per second": QUANTITIES["tokens per second"],
    "MFU, percent": kinds.mfu_of,
    "Seconds per step": QUANTITIES["seconds per step"],
    "Peak memory, GiB": kinds.peak_of,
    "Final loss, nats per token": kinds.final_loss,
}


@column(r".* over batch size: values", ".+")
def sweep_cells(cell: Cell) -> str:
    study, rate, batch = cell.spot.study, cell.first.removeprefix("learning rate "), cell.row["Batch size"]
    label = f"batch_size={batch}, learning_rate={rate}"
    if cell.head in ("Group", "Batch size"):
        return cell.row[cell.head] if label in study.groups else "of no group"
    head, done = list(cell.row)[2], study.completed(label)
    value = SWEPT[head](study, label) if done else None
    return {
        head: NONE if value is None else f"{value.middle}",
        "Interval": f"{value.ends[0]} {NONE} {value.ends[1]}" if value and value.ends else NONE,
        "n": f"{len(done)}",
        "Not completed": NONE if done else "OOM",
    }[cell.head]


@text(r"Line plot over batch size: (?P<what>.+) from .* to .*\. 1 cell has no value\.", "figcaption")
def sweep_description(spot: Spot, match: re.Match[str]) -> Iterator[str]:
    study = spot.study
    quantity = next(SWEPT[name] for name in SWEPT if name.lower() == match["what"].lower())
    values = {label: value.middle for label in study.measured if (value := quantity(study, label))}
    low, high = (
        [
            f"{value} (learning rate {rate}, batch size {batch})"
            for label, value in values.items()
            if value == end(values.values())
            for batch, rate in [NUMBER.findall(label)]
        ]
        for end in (min, max)
    )
    for one in low:
        yield from (
            f"Line plot over batch size: {match['what']} from {one} to {other}. 1 cell has no value."
            for other in high
        )


@text(r"\(6 N \+ 12 L H Q T\) FLOP a token over the device's dense peak; .*", "figcaption")
def sweep_mfu_caption(spot: Spot, match: re.Match[str]) -> str:
    study = spot.study
    values = [value for label in study.measured if (value := kinds.mfu_of(study, label))]
    drawn = [value for value in values if value.ends and not kinds.vague(value)]
    ranges = " or ranges of a run's records" if any(value.is_range for value in drawn) else ""
    bars = (
        f" Bars: intervals{ranges}{' where there is one' if len(drawn) < len(values) else ''}."
        if drawn
        else ""
    )
    lost = {
        run.outcome for label in study.groups for run in study.runs if run.label == label and not run.done
    }
    gone = " Crosses below the axis: runs that did not complete there." if lost else ""
    return (
        "(6 N + 12 L H Q T) FLOP a token over the device's dense peak; no causal discount, no recomputation. Marks: "
        f"the median of a cell's runs.{bars} Side by side: one value. Logarithmic: batch size.{gone}"
        + (" OOM: out of memory." if "oom_gpu" in lost else "")
    )


@column(".*", "[Gg]roup|[Bb]ackend|Against|baseline|scaling")
def name_of_group(cell: Cell) -> str:
    study, imported = cell.spot.study, " (imported)" if cell.spot.study.imported else ""
    names = {
        f"{label}{imported}{' wrong in its log' if label in study.wrong else ''}" for label in study.groups
    }
    names |= {*study.groups, "replicated (DDP)"}
    return cell.row[cell.head] if cell.row[cell.head] in names else "of no group"


@column(
    "Scaling: values",
    "GPUs",
    "tokens per second",
    "ratio to the first",
    "95 % interval",
    "efficiency, %",
    "what it is",
)
def scaling_cells(cell: Cell) -> str:
    study, label = cell.spot.study, cell.row["group"]
    base = next(iter(study.groups))
    gpus, rate = study.completed(label)[0].gpus, study.over(label, lambda run, s: run.tokens / s).middle
    ratio = pair_ratio(study, label, base) if label != base else Value(1)
    limits = f"finding. The clock and power limits of {label} and {base} were not recorded. Runs of auto have no valid certificate."
    return {
        "GPUs": f"{gpus}",
        "tokens per second": f"{rate}",
        "ratio to the first": f"{ratio.middle}",
        "95 % interval": f"{ratio.ends[0]} to {ratio.ends[1]}" if ratio.ends else NONE,
        "efficiency, %": f"{100 * ratio.middle / gpus}",
        "what it is": limits if ratio.ends else "the first",
    }[cell.head]


@column("Efficiency at one shape: values", "(?:Forward|Backward), .*")
def efficiency_cells(cell: Cell) -> str:
    way = cell.head.partition(",")[0].lower()
    share = "%" in cell.head
    return f"{(product_share if share else call_rate)(cell.spot.study, cell.first, way)}"
