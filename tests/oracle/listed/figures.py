"""Kinds of captions and descriptions of figures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from math import exp

from tests.oracle import calls, kinds
from tests.oracle.kinds import NONE, listed
from tests.oracle.listed.facts import QUANTITIES, certificates, is_compared, quantity_of
from tests.oracle.listing import Spot, cites, text
from tests.oracle.pages import NUMBER, rounds
from tests.oracle.reported import described, hollow
from tests.oracle.titles import TITLES
from tests.oracle.truth import (
    Study,
    Value,
    log_ratio,
    loss_differences,
    middle_run,
    rates_over_steps,
    smoothed,
    t_quantile,
    time_parts,
    worded,
)


@text(r"Figure (?P<n>\d+)\. .*", "h2")
def headline(spot: Spot, match: re.Match[str]) -> str:
    if spot.figure.endswith("certificates"):
        number, study_certificates = (
            cites(match[0], int(match["n"])).partition(". ")[0],
            certificates(spot.study),
        )
        if backends := [
            str(certificate["backend"])
            for certificate in study_certificates
            if certificate["verdict"] == "wrong"
        ]:
            return f"{number}. Errors of {listed(backends)} exceed what is allowed"
        worst, name = max(
            (check["measured"] / check["tolerance"], certificate["backend"])
            for certificate in study_certificates
            for check in certificate["checks"]
            if check["tolerance"]
        )
        return (
            f"Figure {match['n']}. Every error is within what is allowed: at most {worst} times that ({name})"
        )
    return match[0] if spot.figure in TITLES else "a headline that test_titles.py compares"


@text(r"Settings whose value differs from that of most groups in the study\.")
@text(r".*\?", "ol.contents")
@text(
    r"What was run(?:; marked: .*)?\. Where groups differ, each value is followed by the groups that have it\."
)
@text(r"MFU is not shown: the peak FLOP/s of .* is not known, and never guessed\..*")
@text(r"Comparability\. Before any verdict, the runs are checked for differences in code, .*")
def words(spot: Spot, match: re.Match[str]) -> str:
    return match[0] if not NUMBER.search(match[0]) else "words without a number"


@text(r"Dot plot of (?P<what>[^.]+) by group\. Medians: .*", "figcaption")
def medians(spot: Spot, match: re.Match[str]) -> str:
    quantity = QUANTITIES[match["what"]]
    parts = [
        f"{label} {value.middle}" for label in spot.study.measured if (value := quantity(spot.study, label))
    ]
    return f"Dot plot of {match['what']} by group. Medians: {'; '.join(parts)}.{described(spot)}"


@text(r"Stacked bars of (?P<unit>seconds|minutes) by group\. .*", "figcaption")
def bars_of_time(spot: Spot, match: re.Match[str]) -> str:
    bars, factor = [], {"seconds": 1, "minutes": 60}[match["unit"]]
    for label, parts in times(spot.study).items():
        bars.append(
            f"{label}: "
            + ", ".join(
                f"{part} {NONE if seconds is None else seconds / factor}" for part, seconds in parts.items()
            )
        )
    return f"Stacked bars of {match['unit']} by group. {'; '.join(bars)}."


def times(study: Study) -> dict[str, dict[str, float | None]]:
    """Seconds of each part of each group's median run; of what no run lost nothing."""
    parts = {label: time_parts(middle_run(study, label)) for label in study.measured}
    lost = any(part_seconds.get("lost with an earlier attempt") for part_seconds in parts.values())
    names = [
        "start-up",
        "first step's extra",
        "steps",
        *(["lost with an earlier attempt"] if lost else []),
        "rest",
    ]
    return {label: {name: part_seconds.get(name) for name in names} for label, part_seconds in parts.items()}


PROFILED = ("products", "attention", "loss", "optimizer", "elementwise", "copies", "communication", "idle")


@text(r"Stacked bars of ms a step by group\. .*", "figcaption")
def bars_of_step(spot: Spot, match: re.Match[str]) -> str:
    numbers: list[float] = []
    for label in spot.study.measured:
        run = spot.study.completed(label)[0]
        numbers += [1e3 * run.profile.get(part, 0.0) for part in PROFILED]
        numbers.append(1e3 * run.floor("step"))
    return cites(match[0], *numbers)


@text(r"Of the steps up to each of at most \d+ points, .*", "figcaption")
def rate_caption(spot: Spot, match: re.Match[str]) -> str:
    lines = {label: rates_over_steps(spot.study, label) for label in spot.study.measured}
    return (
        "Of the steps up to each of at most 100 points, a group's runs together. Counted nowhere else: the warm-up "
        f"(shaded, to step {max(run.warmup for run in spot.study.done)}), the first step of a later attempt."
        + crowd(spot, lines, unit=" tokens/s")
    )


@text(r"At the same steps that count as .*", "figcaption")
def rate_ratio_caption(spot: Spot, match: re.Match[str]) -> str:
    return (
        f"At the same steps that count as {bases(spot.study)}, at most 100 points, a group's runs together. The axis "
        f"spans at least 0.01 either way.{crowd(spot, ratios_over_steps(spot.study))}"
    )


def bases(study: Study) -> str:
    """The groups that others are compared with."""
    return kinds.named(
        [label for label in study.measured if study.is_baseline(label) and is_compared(study, label)]
    )


def crowd(spot: Spot, lines: dict[str, dict[int, float]], subject: str = "lines", unit: str = "") -> str:
    """What a caption says of lines with several names, and of those beyond the axis, where it says so."""
    sentences = ""
    if tolerance_match := re.search(
        rf"Several names on a line: groups within ([\d.,e-]*\d){unit} of", spot.text
    ):
        distances = [
            max(abs(one[step] - other[step]) for step in set(one) & set(other))
            for (_, one), (_, other) in combinations(lines.items(), 2)
        ]
        distance = next(
            (value for value in distances if rounds(tolerance_match[1], f"{value:.12f}")), min(distances)
        )
        sentences += f" Several names on a line: groups within {distance:.12f}{unit} of each other."
    if arrow_match := re.search(r"Arrows: [^(]+\((.+), step ([\d,]+)\)", spot.text):
        ends = [end(values.values()) for values in lines.values() for end in (min, max)]
        value = lines[arrow_match[1]][int(arrow_match[2].replace(",", ""))]
        assert any(abs(value - one) < 1e-9 for one in ends)
        sentences += (
            f" Arrows: {subject} beyond the axis, up to {value} ({arrow_match[1]}, step {arrow_match[2]})."
        )
    return sentences


def ratios_over_steps(study: Study) -> dict[str, dict[int, float]]:
    """The rate over the baseline's in spans of steps that count."""
    lines = {}
    for label in study.measured:
        if (baseline := study.against(label)) in study.measured:
            own, base = (rates_over_steps(study, group, counted=True) for group in (label, baseline or ""))
            lines[label] = {step: own[step] / base[step] for step in own if step in base}
    return lines


@text(r"rate over that of (?:\S+|the baseline) over steps\. At the end: .*", "figcaption")
def rate_ratio_end(spot: Spot, match: re.Match[str]) -> str:
    ends = [f"{label} {line[max(line)]}" for label, line in ratios_over_steps(spot.study).items()]
    return f"rate over that of {spot.study.baseline or 'the baseline'} over steps. At the end: {'; '.join(ends)}."


@text(r"Baseline: .*", "figcaption")
def ratio_caption(spot: Spot, match: re.Match[str]) -> str:
    study = spot.study
    factors = ", ".join(f"{name} = {worded(value)}" for name, value in study.design["baseline"].items())
    text = f"Baseline: {factors}, all else equal. Above 1 is faster."
    verdicts = {
        label: kinds.verdict(study, label)[0]
        for label in study.measured
        if study.against(label) in study.measured
    }
    compared = [label for label, word in verdicts.items() if word != "withheld"]
    of_one, of_several = list[str](), list[str]()
    for label in compared:
        single = 1 in (len(study.completed(name)) for name in (label, study.against(label) or ""))
        (of_one if single else of_several).append(label)
    intervals = {label: at_95(study, label) for label in compared if at_95(study, label).ends}
    drawn = [label for label, value in intervals.items() if not kinds.vague(value)]
    if of_one:
        text += " Open marks: the medians of one run each"
        if set(of_one) & set(drawn):
            text += "; lines: how steady these two runs were, not what others give"
            ranges = [label for label in of_one if at_95(study, label).is_range]
            text += f"; of {listed(ranges)}, ranges" if ranges else ""
        text += "."
    if on_other_gpus := [label for label in of_one if kinds.gpus_apart(study, label)]:
        text += f" On another GPU than its baseline: {listed(on_other_gpus)}; such a ratio includes the difference of the GPUs."
    if of_several:
        intervals_text = "; lines: intervals over runs" if set(of_several) & set(drawn) else ""
        text += f" Filled marks: several runs, paired by seed and repeat where shared{intervals_text}."
    if "withheld" in verdicts.values():
        text += " Crosses: runs that are not comparable; the table says why."
    if len(drawn) < len(intervals):
        text += " An interval wider than its ratio is not drawn."
    if margin := study.design["margins"].get("tokens_per_second"):
        text += f" Shaded: the stated margin of {100 * margin} %."
        if of_several:
            text += (
                " Verdicts hold a 90 % interval against it; the lines here are of 95 %, and may cross an edge that "
                "theirs do not."
            )
    return text


@text(r"Dot plot of the rate over the baseline's\. .*", "figcaption")
def ratio_description(spot: Spot, match: re.Match[str]) -> str:
    study, parts = spot.study, []
    for label in study.measured:
        if study.against(label) in study.measured:
            cells = ratio_row(study, label)
            ends = f" ({cells[1]})" if cells[1] != NONE else ""
            parts.append(f"{label} over {study.against(label)} {cells[0]}{ends}, {cells[2]}")
    return f"Dot plot of the rate over the baseline's. {'; '.join(parts)}."


def ratio_row(study: Study, label: str) -> tuple[str, str, str]:
    """A ratio, its 95 % interval, and a word for the verdict on both sides of one."""
    word = kinds.verdict(study, label)[0]
    word = {"faster": "different", "slower": "different"}.get(word, word)
    ratio = at_95(study, label)
    ends = NONE if word == "withheld" else both_ends(ratio)
    return f"{ratio.middle}", ends, word


def both_ends(value: Value) -> str:
    """Of an interval, or of a range, which is none."""
    prefix = "range " if value.is_range else ""
    return f"{prefix}{value.ends[0]} to {value.ends[1]}" if value.ends else NONE


def at_95(study: Study, label: str) -> Value:
    """The ratio with its interval at 95 %, whatever the study's margins."""
    if min(len(study.completed(name)) for name in (label, study.against(label) or "")) == 1:
        return study.rate_ratio(label)
    return pair_ratio(study, label, study.against(label) or "")


def pair_ratio(study: Study, label: str, base: str) -> Value:
    """The rate of a group over another's, with its 95 % interval."""
    mean, error, freedom = log_ratio(study.per_token(label), study.per_token(base))
    half_width = t_quantile(0.975, freedom) * error
    return Value(exp(mean), (exp(mean - half_width), exp(mean + half_width)))


@text(r"Faint: .*", "figcaption")
def loss_caption(spot: Spot, match: re.Match[str]) -> str:
    study, lines = spot.study, kinds.smoothed_losses(spot.study)
    text = (
        "Faint: each run, means of the steps up to each of at most 200 points. Solid: means over a group's runs, "
        f"smoothed over {2 * (max(map(len, lines.values())) // 40) + 1} points; final losses are not."
        + crowd(spot, lines, "solid lines", " nats")
    )
    if any(run.steps and run.outcome not in ("completed", None) for run in study.runs):
        text += " Crosses: ends of runs that did not complete."
    seeds = {frozenset(run.key[0] for run in runs if run.steps) for runs in study.groups.values()}
    if len(seeds - {frozenset()}) > 1:
        text += " The groups have different seeds, and so different orders of the text: that alone can separate lines."
    return text


@text(r"Training loss over steps\. Last loss of the solid line: .*", "figcaption")
def last_losses(spot: Spot, match: re.Match[str]) -> str:
    lines = kinds.smoothed_losses(spot.study)
    ends = [f"{label} {lines[label][max(lines[label])]}" for label in sorted(lines)]
    return f"Training loss over steps. Last loss of the solid line: {'; '.join(ends)}."


@text(r"Of runs that differ only in attention, .*", "figcaption")
def difference_caption(spot: Spot, match: re.Match[str]) -> str:
    lines = {
        label: smoothed(line, 10)
        for label in spot.study.measured
        if (line := loss_differences(spot.study, label))
    }
    text = (
        "Of runs that differ only in attention, at the same steps: means over runs, smoothed over "
        f"{2 * (max(map(len, lines.values())) // 20) + 1} points."
    )
    if margin := 0.02 if spot.study.imported else spot.study.design["margins"].get("loss"):
        text += f" Shaded: the stated margin of {margin} nats, of the mean over the last fifth of the steps, not of single steps."
    return f"{text} The axis spans at least 0.01 nats either way.{crowd(spot, lines, unit=' nats')}"


@text(r"Loss difference over steps\. At the end: .*", "figcaption")
def last_differences(spot: Spot, match: re.Match[str]) -> str:
    lines = difference_lines(spot.study)
    return f"Loss difference over steps. At the end: {'; '.join(f'{label} {settled(line[max(line)]):+}' for label, line in lines.items())}."


def settled(value: float) -> float:
    """Zero, where only the last bits of a mean say otherwise."""
    return value if abs(value) > 1e-12 else 0.0


def difference_lines(study: Study) -> dict[str, dict[int, float]]:
    """The smoothed loss differences of all groups but the baseline."""
    lines = {
        label: smoothed(line, 10) for label in study.measured if (line := loss_differences(study, label))
    }
    return {label: line for label, line in lines.items() if not study.is_baseline(label)}


def bars_of(of: str, study: Study) -> str:
    of_two = any(len(study.completed(label)) % 2 == 0 for label in study.measured)
    return f"Bars: the run of the median {of}{' (of two, the shorter)' if of_two else ''}. Marks: runs."


@text(r"Runs of \d+ steps, without pauses .*", "figcaption")
def time_caption(spot: Spot, match: re.Match[str]) -> str:
    (steps,) = {run.steps[-1][1]["step"] for run in spot.study.done}
    parts = times(spot.study)
    lost_text, gaps_text = "", ""
    if any("lost with an earlier attempt" in part_seconds for part_seconds in parts.values()):
        lost_text = " Lost: an earlier attempt's time after the last of its steps that counts."
    if unknown := sorted(
        label
        for label, part_seconds in parts.items()
        if None in (part_seconds["start-up"], part_seconds["rest"])
    ):
        gaps_text = f" Start-up or rest are not known of {', '.join(unknown)}."
    return (
        f"Runs of {steps} steps, without pauses between attempts. {bars_of('time', spot.study)} Start-up: to the first step, with the "
        "backend's certificate. First step's extra: beyond a median step; with the steps, it is the training time."
        f"{lost_text} Rest: records, audits, checkpoints, the end.{gaps_text}"
    )


@text(r"Bars: the run of the median timed .* Attention includes its products\. .*", "figcaption")
def profile_caption(spot: Spot, match: re.Match[str]) -> str:
    runs = [run for run in spot.study.done if run.profile]
    floors = {run: run.floor("step", "attention") for run in runs}
    short = [run for run in runs if run.profile["attention"] < floors[run]]
    amount = kinds.span([100 * (1 - run.profile["attention"] / floors[run]) for run in short])
    unlike = sum(abs(sum(run.profile.values()) / run.seconds - 1) > 0.1 for run in runs)
    wrong_labels = [run.label for run in short if run.profile["attention"] < 0.9 * floors[run]]
    return (
        f"{bars_of('timed step', spot.study)} Attention includes its products. Timed in a few steps after the last one of the run; idle: the "
        "rest of a step without the profiler. Floor: at rates measured on the device, no strict limit: products and "
        "causal attention at those of products, the rest at the memory bandwidth. Shorter than their floor: attention "
        f"in {len(short)} of {len(runs)} runs, by {amount} %. In {unlike} of {len(spot.study.measured)} groups these took "
        f"over 10 % longer or shorter than the timed ones. Wrong for {', '.join(wrong_labels)}: attention would take less than "
        "it can, so some kernels count as other parts."
    )


@text(r"(?:Of one device: )?\((?:6 N|2 M) .*, N the .*|\(2 M .*, E the .*", "figcaption")
def mfu_caption(spot: Spot, match: re.Match[str]) -> str:
    manifest = spot.study.done[0].measured.manifest
    flop = "(6 N + 12 L H Q T), N the parameters without the input embedding,"
    if "inference" in spot.study.runs[0].config:
        flop = (
            "(2 M + 2 E / T + 4 L H Q T), E the parameters of the output head, M those without it and the input "
            "embedding,"
        )
    flop += " FLOP a token, no causal discount, no recomputation"
    if not manifest["peak_flops"]:
        return f"Of one device: {flop}. {marks(spot)}"
    peak = f"{spot.study.done[0].device}: {manifest['peak_flops'] / 1e12} TFLOP/s ({manifest['peak_source']})"
    return f"{flop}, over the dense peak of {peak}. {marks(spot)}"


def marks(spot: Spot) -> str:
    """What the marks, bars and lines of a figure of runs are."""
    return _marks(spot) + hollow(spot)


def _marks(spot: Spot) -> str:
    quantity = QUANTITIES[quantity_of(spot)]
    values = [value for label in spot.study.measured if (value := quantity(spot.study, label))]
    estimates = {
        label: estimate
        for label in spot.study.measured
        if (value := quantity(spot.study, label)) and (estimate := kinds.told(value)).ends
    }
    ranges = [label for label, value in estimates.items() if value.is_range]
    lines = []
    if len(estimates) > len(ranges):
        lines.append("intervals where there is one" if len(estimates) < len(values) else "intervals")
    several = {label for label in ranges if len(spot.study.completed(label)) > 1}
    for kind, labels in (
        ("records", [label for label in ranges if label not in several]),
        ("runs", [label for label in ranges if label in several]),
    ):
        location = f" in {listed(labels)}" if len(labels) < len(values) else ""
        lines += [f"ranges of the {kind}{location}"] if labels else []
    text = "Marks: runs. Bars: their medians."
    return f"{text} Lines: {'; '.join(lines)}." if lines else text


@text(r"One token of each sample \(batch \d+\).*", "figcaption")
def decode_caption(spot: Spot, match: re.Match[str]) -> str:
    return (
        f"One token of each sample (batch {spot.study.runs[0].config['inference']['batch_size']}), with a cache: the "
        "median of a run's positions. Blocks run eagerly: launches can take longer than kernels. "
        + marks(spot)
    )


@text(
    r"Medians over a group's runs, at most 200 points a line\. A token at position p attends to p \+ 1 keys\. The first one waits for the host, too\."
)
def positions_caption(spot: Spot, match: re.Match[str]) -> str:
    return match[0]


@text(r"Each mark is the worst check of a tensor; .*", "figcaption")
def certificates_caption(spot: Spot, match: re.Match[str]) -> str:
    checks = [
        check["measured"] / check["tolerance"]
        for certificate in certificates(spot.study)
        for check in certificate["checks"]
        if check["tolerance"]
    ]
    remark = " Marks beyond the axis are drawn at 2." if max(checks) > 2 else ""
    return f"Each mark is the worst check of a tensor; up to 1 it passes.{remark}"


@text(r"The product: a large one, .*", "figcaption")
@text(r"Dot plot of percent of a large product's rate by backend and pass, .*", "figcaption")
def efficiency_caption(spot: Spot, match: re.Match[str]) -> str:
    study, timed = spot.study, calls.at_main(spot.study)
    shape = calls.main(study).said
    if match[0].startswith("Dot"):
        shares = [
            f"{name} {direction} {product_share(study, name, direction)}"
            for name in timed
            for direction in ("forward", "backward")
        ]
        return f"Dot plot of percent of a large product's rate by backend and pass, {shape}. {'; '.join(shares)}."
    backends = sorted({row["attention"] for run in study.runs for row in run.kernels})
    backends_without_time = [
        f"{name} ({kinds.CELLS['backends']['Outcome'](study, name)[0]})"
        for name in backends
        if name not in timed
    ]
    return (
        "The product: a large one, in the same process and precision. Not comparable with MFU. Replayed from CUDA "
        f"graphs: {shape}, the largest shape with the most backends."
        + (f" Without a time there: {', '.join(backends_without_time)}." if backends_without_time else "")
    )


def call_rate(study: Study, name: str, direction: str) -> float:
    """TFLOP/s of causal attention."""
    value = calls.rate(study, calls.main(study), name, direction)
    return value.middle if value else 0.0


def product_share(study: Study, name: str, direction: str) -> float:
    """Percent of the 700 TFLOP/s that a large product reached."""
    return 100 * call_rate(study, name, direction) / calls.PRODUCT


@text(
    r"Line plot of efficiency, percent over the number of GPUs\. replicated \(DDP\): .* at \d+\.",
    "figcaption",
)
def scaling_description(spot: Spot, match: re.Match[str]) -> str:
    _, label = spot.study.groups
    return cites(
        match[0], 100 * kinds.efficiency(spot.study, label).middle, spot.study.completed(label)[0].gpus
    )


@text(r"Tokens/s of a process over those of a line's first mark; .*", "figcaption")
def scaling_caption(spot: Spot, match: re.Match[str]) -> Iterator[str]:
    runs = spot.study.done
    shares = {run.config["train"]["batch_size"] / run.gpus for run in runs}
    is_complete = all("clocks" in run.measured.manifest and spot.study.certificate(run) for run in runs)
    if len(shares) == 1 and not is_complete and min(map(len, spot.study.groups.values())) > 1:
        yield (
            "Tokens/s of a process over those of a line's first mark; the batch grows with the processes. Dashed: ideal. "
            "Filled marks: several runs; lines: intervals over runs. The table names what else differs."
        )
