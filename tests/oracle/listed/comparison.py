"""Kinds of the comparison: its tables, their captions, and notes on verdicts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import sqrt
from statistics import fmean

from tests.oracle import calls, kinds
from tests.oracle.kinds import NONE
from tests.oracle.listed.facts import paired_records, shared_runs
from tests.oracle.listed.figures import pair_ratio
from tests.oracle.listed.values import ratio_size
from tests.oracle.listing import Cell, Spot, cites, column, text
from tests.oracle.truth import (
    Study,
    tiers,
)


@column("Tokens per second against .*", "Difference", "Verdict", "Interval", "n")
def comparison_cells(cell: Cell) -> str:
    study, label = cell.spot.study, cell.first
    word = kinds.verdict(study, label)[0]
    ratio = study.rate_ratio(label)
    if cell.head == "Verdict":
        return word
    if cell.head == "n":
        return ratio_size(study, label).split()[0]
    if word == "withheld":
        return NONE
    if cell.head == "Difference":
        return f"{100 * (ratio.middle - 1):+} %"
    assert ratio.ends
    prefix = "range " if ratio.is_range else ""
    return f"{prefix}{100 * (ratio.ends[0] - 1):+} to {100 * (ratio.ends[1] - 1):+} %"


STEPS = "Tokens per second with a setting against those of the group that lacks it and is otherwise the same"


@column(f"{STEPS}.*", "Added to", "Difference", "Verdict", "Interval", "n")
def step_cells(cell: Cell) -> str:
    study, base = cell.spot.study, cell.row["Added to"]
    if (cell.first, base) not in study.steps:
        return f"one of {study.steps}"
    label = study.steps[cell.first, base]
    ratio = study.rate_ratio(label, base)
    assert ratio.ends
    return {
        "Added to": base,
        "Difference": f"{100 * (ratio.middle - 1):+} %",
        "Verdict": kinds.step_verdict(study, label, base),
        "Interval": f"{100 * (ratio.ends[0] - 1):+} to {100 * (ratio.ends[1] - 1):+} %",
        "n": f"{shared_runs(study, label, base)}",
    }[cell.head]


@text(rf"{STEPS}.*", "caption")
def steps_caption(spot: Spot, match: re.Match[str]) -> str:
    margin = 100 * spot.study.design["margins"]["tokens_per_second"]
    return f"{STEPS}; the study states a margin of {margin} %. n: runs, or pairs of runs."


@column(
    "Loss over the last fifth .*", "Difference, nats", "Verdict", "Interval", "n", "Repeats differ by, nats"
)
def loss_cells(cell: Cell) -> str:
    study, label = cell.spot.study, cell.first
    base = study.against(label) or ""
    value = study.loss_difference(label)
    seeds = {run.key[0] for run in study.completed(label)} & {run.key[0] for run in study.completed(base)}
    return {
        "Difference, nats": f"{value.middle:+}",
        "Verdict": kinds.loss_verdict(study, label)[0],
        "Interval": f"{value.ends[0]:+} to {value.ends[1]:+}" if value.ends else NONE,
        "n": f"{len(seeds)}",
        "Repeats differ by, nats": f"{repeats_differ(study, (label, base))}",
    }[cell.head]


def repeats_differ(study: Study, labels: tuple[str, str]) -> float | str:
    """Standard deviation of the difference of two repeats of one seed, over the last fifth, pooled over groups."""
    squares, freedom = 0.0, 0
    for label in labels:
        seeds: dict[int | None, list[float]] = {}
        for run in study.completed(label):
            losses = [
                record["loss"] for _, record in run.steps if record["step"] > 0.8 * run.steps[-1][1]["step"]
            ]
            seeds.setdefault(run.key[0], []).append(fmean(losses))
        for means in seeds.values():
            squares += sum((mean - fmean(means)) ** 2 for mean in means)
            freedom += len(means) - 1
    return sqrt(2 * squares / freedom) if freedom else NONE


@column("Tiers by .*", "Tier", "Groups")
def tier_cells(cell: Cell) -> str:
    true_tiers, groups = tiers(cell.spot.study), cell.row["Groups"]
    labels = set(groups.split("; " if any("," in label for label in cell.spot.study.groups) else ", "))
    if labels not in true_tiers:
        return f"one of {true_tiers}"
    return groups if cell.head == "Groups" else f"{true_tiers.index(labels) + 1}"


@column(
    "Tokens per second of the first group against the second's.*", "Difference", "Interval", "p", "Verdict"
)
def pair_cells(cell: Cell) -> str:
    study, pair = cell.spot.study, frozenset((cell.row["Group"], cell.row["Against"]))
    ratio, p_value = pair_ratio(study, cell.row["Group"], cell.row["Against"]), study.holm[pair]
    assert ratio.ends
    return {
        "Difference": f"{100 * (ratio.middle - 1):+} %",
        "Interval": f"{100 * (ratio.ends[0] - 1):+} to {100 * (ratio.ends[1] - 1):+} %",
        "p": "< 0.0001" if p_value < 1e-4 else f"{p_value}",
        "Verdict": ("faster" if ratio.middle > 1 else "slower") if p_value <= 0.05 else "not told apart",
    }[cell.head]


@text(r"Every pair: \d+", "summary")
def pairs(spot: Spot, match: re.Match[str]) -> str:
    return f"Every pair: {len(spot.study.holm)}"


@text(
    r"Tokens per second against (?P<base>\S+|the baseline), in the study's order(?:; the study states a margin of [\d.]+ %)?\. n: .*",
    "caption",
)
def comparison_caption(spot: Spot, match: re.Match[str]) -> str:
    margin = spot.study.design["margins"].get("tokens_per_second")
    margin_text = f"; the study states a margin of {100 * margin} %" if margin else ""
    return f"Tokens per second against {spot.study.baseline or 'the baseline'}, in the study's order{margin_text}. n: runs, or pairs of runs."


@text(r"Loss over the last fifth of the steps minus .*", "caption")
def loss_table_caption(spot: Spot, match: re.Match[str]) -> str:
    margin = spot.study.design["margins"].get("loss")
    margin_text = f"; the study states a margin of {margin} nats" if margin else ""
    return f"Loss over the last fifth of the steps minus {spot.study.baseline or 'the baseline'}'s, paired by step between runs of one seed{margin_text}. n: seeds."


@text(
    r"Tokens per second of the first group against the second's, with the 95 % interval, and the p value of no difference at all, corrected for all pairs\.",
    "caption",
)
def pairs_caption(spot: Spot, match: re.Match[str]) -> str:
    return cites(match[0], 95)


@text(r"Not ranked, because they have a single completed run: .*\. With more they would be\.")
def not_ranked(spot: Spot, match: re.Match[str]) -> str:
    singles = [label for label in spot.study.measured if len(spot.study.completed(label)) == 1]
    return f"Not ranked, because they have a single completed run: {kinds.joined(singles)}. With more they would be."


@text(r".+", "dl.notes")
def note(spot: Spot, match: re.Match[str]) -> Iterator[str]:
    study = spot.study
    if spot.page == "comparison":
        for label in study.measured:
            if study.against(label):
                yield from comparison_notes(study, label)
        return
    of_calls = study.task == "attention"
    heads = (
        ("Outcome", "Speed over the fastest other")
        if of_calls
        else (
            *(("Prefill, ms", "Decoded token, ms") if study.task == "inference" else ("Tokens/s",)),
            *("Verdict", "Outcome", "Efficiency", "Final loss"),
        )
    )
    backends = sorted({row["attention"] for run in study.runs for row in run.kernels})
    for label in backends if of_calls else study.groups:
        for head in heads:
            ranked = head != "Speed over the fastest other" or (label in calls.at_main(study))
            if ranked and (head != "Final loss" or study.task == "training"):
                yield kinds.CELLS["backends" if of_calls else "groups"][head](study, label)[1]


def comparison_notes(study: Study, label: str) -> Iterator[str]:
    """Notes on the verdicts of a group, on how intervals were made, and on repeats."""
    base = study.against(label) or ""
    yield kinds.verdict(study, label)[1]
    single = min(len(study.completed(name)) for name in (label, base)) == 1
    if single:
        yield paired_records(study, label, base)
    elif study.design["margins"].get("tokens_per_second"):
        yield f"90 % t interval of the log ratio, paired over {shared_runs(study, label, base)} runs each: two one-sided tests at 5 %"
    else:
        correction = f" among {len(study.holm)} pairs" if len(study.holm) > 1 else ""
        yield f"95 % t interval of the log ratio, paired over {shared_runs(study, label, base)} runs each; test at 5 % after Holm{correction}"
    if study.task != "training":
        return
    margin = study.design["margins"].get("loss")
    if margin:
        yield kinds.loss_verdict(study, label)[1]
        yield f"{kinds.loss_verdict(study, label)[1]}: more seeds would narrow it"
    else:
        yield "no margin is stated: Declare margins: {loss: NATS} in the study before it runs."
    seeds = {run.key[0] for run in study.completed(label)} & {run.key[0] for run in study.completed(base)}
    run = study.completed(label)[0]
    steps = [record["step"] for _, record in run.steps if record["step"] > 0.8 * run.steps[-1][1]["step"]]
    widened = ", widened by the noise of repeats" if repeats_differ(study, (label, base)) != NONE else ""
    if len(seeds) > 1:
        yield f"90 % t interval of the mean difference over {len(seeds)} seeds, steps {steps[0]} to {steps[-1]}"
    if len(steps) < 24:
        yield f"no interval: one seed, {len(steps)} records, at least 24 needed, steps {steps[0]} to {steps[-1]}"
    yield f"90 % interval of the mean difference over {len(steps)} records of one seed{widened}, steps {steps[0]} to {steps[-1]}"
    yield "standard deviation of the difference of two repeats, pooled over both groups"
