"""Kinds of cells of the tables of values under figures."""

from __future__ import annotations

import re

from tests.oracle import kinds, series
from tests.oracle.frontiers import frontiers
from tests.oracle.kinds import NONE
from tests.oracle.listed.facts import QUANTITIES, certificates, how_made, shared_runs
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
from tests.oracle.listed.grids import saving
from tests.oracle.listing import Cell, Spot, cites, column, text
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
    if spot.page == "savings":
        return cites(match[0], len(saving(study)))
    if spot.page == "frontier":
        probes = sum(len(frontier.probes) for frontier in frontiers(study).values())
        return cites(match[0], probes if spot.figure.endswith("_memory") else len(study.groups))
    rows = {
        "certificates": [
            certificate["backend"]
            for certificate in certificates(study)
            if study.task == "attention" or certificate["backend"] in study.groups
        ]
    }.get(spot.page, study.measured)
    if spot.figure == "loss_difference":
        rows = list(difference_lines(study))
    if spot.page == "kernels":
        rows = series.rows(spot)
    if spot.page == "decoding":
        rows = [label for label in study.measured if kinds.over_decoded(study, label)]
    if spot.figure in ("ratios", "tokens_against_baseline"):
        rows = [label for label in study.measured if study.against(label) in study.measured]
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
            steps = len({step for line in ratios_over_steps(study).values() for step in line})
    return cites(match[0], len(rows), 5, steps)


@column(r"(?!.* (?:over|by) (?:batch size|dim)).*: values", "runs|n")
def runs_of_group(cell: Cell) -> str:
    if cell.spot.page == "kernels":
        return "as `series_cells` has it"
    if cell.spot.page == "scaling":
        base = next(iter(cell.spot.study.groups))
        return (
            NONE if cell.row["group"] == base else f"{shared_runs(cell.spot.study, cell.row['group'], base)}"
        )
    if cell.spot.page == "savings":
        return f"{len(kinds.pairs_of(cell.spot.study, cell.first))}"
    if cell.head == "n":
        return f"{ratio_size(cell.spot.study, cell.first)}"
    return f"{len(cell.spot.study.completed(cell.first))}"


def ratio_size(study: Study, label: str) -> str:
    """How many pairs of runs."""
    base = study.against(label) or ""
    if min(len(study.completed(label)), len(study.completed(base))) == 1:
        return "1 run each"
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
    return both_ends(kinds.told(value))


@column("Where the time goes: values", "(?P<part>.+), (?P<unit>seconds|minutes)")
def time_of_group(cell: Cell) -> str:
    part, _, unit = cell.head.rpartition(", ")
    parts, factor = times(cell.spot.study)[cell.first], {"seconds": 1, "minutes": 60}[unit]
    seconds = sum(value or 0.0 for value in parts.values()) if part == "whole" else parts[part]
    return NONE if seconds is None else f"{seconds / factor}"


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
    position = ("rate over the baseline's", "95 % interval", "verdict").index(cell.head)
    return ratio_row(cell.spot.study, cell.first)[position]


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
    gpus, rate = (
        study.completed(label)[0].gpus,
        study.over(label, lambda run, seconds: run.tokens / seconds).middle,
    )
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
    direction = cell.head.partition(",")[0].lower()
    share = "%" in cell.head
    return f"{(product_share if share else call_rate)(cell.spot.study, cell.first, direction)}"
