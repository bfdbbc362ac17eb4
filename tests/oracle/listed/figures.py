"""Kinds of captions and descriptions of figures."""

from __future__ import annotations

import re
from math import exp

from tests.oracle import kinds
from tests.oracle.kinds import NONE, listed
from tests.oracle.listed.facts import QUANTITIES, certificates, quantity_of
from tests.oracle.listing import Spot, cites, text
from tests.oracle.pages import NUMBER, rounds
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
)


@text(r"Figure (?P<n>\d+)\. .*", "h2")
def headline(spot: Spot, match: re.Match[str]) -> str:
    if spot.figure.endswith("certificates"):
        wrong = [str(one["backend"]) for one in certificates(spot.study) if one["verdict"] == "wrong"]
        return (
            cites(match[0], int(match["n"])).partition(". ")[0]
            + f". Errors of {listed(wrong)} exceed what is allowed"
        )
    return match[0] if spot.figure in TITLES else "a headline that test_titles.py compares"


@text(r"Settings whose value differs from that of most groups in the study\.")
@text(r"Tokens per second and process, in percent of the first mark's, .*")
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
    return f"Dot plot of {match['what']} by group. Medians: {'; '.join(parts)}."


@text(r"Stacked bars of (?P<unit>seconds|minutes) by group\. .*", "figcaption")
def bars_of_time(spot: Spot, match: re.Match[str]) -> str:
    bars, factor = [], {"seconds": 1, "minutes": 60}[match["unit"]]
    for label, parts in times(spot.study).items():
        bars.append(
            f"{label}: "
            + ", ".join(f"{part} {NONE if took is None else took / factor}" for part, took in parts.items())
        )
    return f"Stacked bars of {match['unit']} by group. {'; '.join(bars)}."


def times(study: Study) -> dict[str, dict[str, float | None]]:
    """Seconds of each part of each group's median run; of what no run lost nothing."""
    parts = {label: time_parts(middle_run(study, label)) for label in study.measured}
    lost = any(own.get("lost with an earlier attempt") for own in parts.values())
    names = [
        "start-up",
        "first step's extra",
        "steps",
        *(["lost with an earlier attempt"] if lost else []),
        "rest",
    ]
    return {label: {name: own.get(name) for name in names} for label, own in parts.items()}


PROFILED = ("products", "attention", "loss", "optimizer", "elementwise", "copies", "communication", "idle")


@text(r"Stacked bars of ms a step by group\. .*", "figcaption")
def bars_of_step(spot: Spot, match: re.Match[str]) -> str:
    numbers: list[float] = []
    for label in spot.study.measured:
        run = spot.study.completed(label)[0]
        numbers += [1e3 * run.profile.get(part, 0.0) for part in PROFILED]
        numbers.append(1e3 * run.floor("step"))
    return cites(match[0], *numbers)


@text(r".* (?P<many>at most \d+ points a group).*", "figcaption")
def rate_caption(spot: Spot, match: re.Match[str]) -> str:
    warm = max(run.warmup for run in spot.study.done)
    within = spread_of_names(
        spot, {label: rates_over_steps(spot.study, label) for label in spot.study.measured}
    )
    return cites(match[0], 100, warm, *within)


@text(r"Tokens per second over those of .* at the same steps.*", "figcaption")
def rate_ratio_caption(spot: Spot, match: re.Match[str]) -> str:
    return cites(
        match[0],
        100,
        1,
        0.01,
        *spread_of_names(spot, ratios_over_steps(spot.study)),
        *arrows(spot, ratios_over_steps(spot.study)),
    )


def spread_of_names(spot: Spot, lines: dict[str, dict[int, float]]) -> list[float]:
    """What a caption says of lines with several names: how far apart they are at most."""
    if "A line with several names" not in spot.text:
        return []
    near = re.findall(r"stay within ([\d.,e-]*\d)", spot.text)[0]
    apart = [
        max(abs(one[step] - other[step]) for step in set(one) & set(other))
        for name, one in lines.items()
        for other_name, other in lines.items()
        if name < other_name
    ]
    return [next((value for value in apart if rounds(near, f"{value:.12f}")), min(apart))]


def arrows(spot: Spot, lines: dict[str, dict[int, float]]) -> list[float]:
    """What a caption says of lines beyond the axis: the value farthest out, and its step."""
    if "Arrows" not in spot.text:
        return []
    ((label, at),) = re.findall(r"Arrows: [^(]+\((.+), step ([\d,]+)\)", spot.text)
    step = int(at.replace(",", ""))
    ends = [end(values.values()) for values in lines.values() for end in (min, max)]
    assert any(abs(lines[label][step] - one) < 1e-9 for one in ends)
    return [lines[label][step], *(float(number.rstrip(",")) for number in NUMBER.findall(label)), step]


def ratios_over_steps(study: Study) -> dict[str, dict[int, float]]:
    """The rate over the baseline's in spans of steps that count."""
    base = rates_over_steps(study, study.baseline or "", counted=True)
    lines = {
        label: rates_over_steps(study, label, counted=True)
        for label in study.measured
        if label != study.baseline
    }
    return {
        label: {step: own[step] / base[step] for step in own if step in base} for label, own in lines.items()
    }


@text(r"rate over that of \S+ over steps\. At the end: .*", "figcaption")
def rate_ratio_end(spot: Spot, match: re.Match[str]) -> str:
    ends = [f"{label} {line[max(line)]}" for label, line in ratios_over_steps(spot.study).items()]
    return f"rate over that of {spot.study.baseline} over steps. At the end: {'; '.join(ends)}."


@text(
    r"Tokens per second over those of the baseline, .* a 90 % interval against the margin: the 95 % .*",
    "figcaption",
)
def ratio_caption(spot: Spot, match: re.Match[str]) -> str:
    rest = match[0].replace("attention = auto: above 1", "")
    start = match[0].partition("above 1")[0]
    return (
        start
        + "above 1"
        + cites(
            rest[len(start) - len("attention = auto: ") :],
            100 * spot.study.design["margins"]["tokens_per_second"],
            90,
            95,
        )
    )


@text(
    r"Tokens per second over those of the baseline, attention = (?P<base>\S+): above 1 is faster.*",
    "figcaption",
)
def ratio_caption_without_margin(spot: Spot, match: re.Match[str]) -> str:
    assert match["base"] == spot.study.baseline
    return cites(match[0], 1)


@text(r"Dot plot of the rate over the baseline's\. .*", "figcaption")
def ratio_description(spot: Spot, match: re.Match[str]) -> str:
    study, parts = spot.study, []
    for label in study.measured:
        if label != study.baseline:
            cells = ratio_row(study, label)
            ends = f" ({cells[1]})" if cells[1] != NONE else ""
            parts.append(f"{label} over {study.baseline} {cells[0]}{ends}, {cells[2]}")
    return f"Dot plot of the rate over the baseline's. {'; '.join(parts)}."


def ratio_row(study: Study, label: str) -> tuple[str, str, str]:
    """A ratio, its 95 % interval, and a word for the verdict on both sides of one."""
    word = kinds.verdict(study, label)[0]
    word = {"faster": "different", "slower": "different"}.get(word, word)
    ratio = at_95(study, label)
    ends = NONE if ratio.ends is None or word == "withheld" else f"{ratio.ends[0]} to {ratio.ends[1]}"
    return f"{ratio.middle}", ends, word


def at_95(study: Study, label: str) -> Value:
    """The ratio with its interval at 95 %, whatever the study's margins."""
    if min(len(study.completed(name)) for name in (label, study.baseline or "")) == 1:
        return study.rate_ratio(label)
    return pair_ratio(study, label, study.baseline or "")


def pair_ratio(study: Study, one: str, other: str) -> Value:
    """The rate of a group over another's, with its 95 % interval."""
    mean, error, freedom = log_ratio(study.per_token(one), study.per_token(other))
    half = t_quantile(0.975, freedom) * error
    return Value(exp(mean), (exp(mean - half), exp(mean + half)))


@text(r"Loss of a training batch\. .*", "figcaption")
def loss_caption(spot: Spot, match: re.Match[str]) -> str:
    lines = kinds.smoothed_losses(spot.study)
    count = max(map(len, lines.values()))
    within, out = spread_of_names(spot, lines), arrows(spot, lines)
    return cites(match[0], 200, 2 * (count // 40) + 1, *within, *out)


@text(r"Training loss over steps\. Last loss of the solid line: .*", "figcaption")
def last_losses(spot: Spot, match: re.Match[str]) -> str:
    lines = kinds.smoothed_losses(spot.study)
    ends = [f"{label} {lines[label][max(lines[label])]}" for label in sorted(lines)]
    return f"Training loss over steps. Last loss of the solid line: {'; '.join(ends)}."


@text(r"Loss minus .*", "figcaption")
def difference_caption(spot: Spot, match: re.Match[str]) -> str:
    lines = {
        label: smoothed(line, 10)
        for label in spot.study.measured
        if (line := loss_differences(spot.study, label))
    }
    margin = (
        (0.02 if spot.study.imported else spot.study.design["margins"].get("loss"))
        if "Shaded" in match[0]
        else None
    )
    points = 2 * (max(map(len, lines.values())) // 20) + 1
    return cites(match[0], points, *([margin] if margin else []), 0.01, *spread_of_names(spot, lines))


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
    return {label: line for label, line in lines.items() if label != study.baseline}


@text(r"The time of a run of \d+ steps; .*", "figcaption")
def time_caption(spot: Spot, match: re.Match[str]) -> str:
    return cites(match[0], max(run.steps[-1][1]["step"] for run in spot.study.done))


@text(r"The bar is the group's median run .*", "figcaption")
def profile_caption(spot: Spot, match: re.Match[str]) -> str:
    runs = [run for run in spot.study.done if run.profile]
    short = [
        100 * (1 - run.profile["attention"] / run.floor("step", "attention"))
        for run in runs
        if run.profile["attention"] < run.floor("step", "attention")
    ]
    unlike = sum(abs(sum(run.profile.values()) / run.seconds - 1) > 0.1 for run in runs)
    return cites(match[0], len(short), len(runs), max(short), unlike, len(spot.study.measured), 10)


@text(r"(?P<start>.*?)(?P<peak>Peak of .+: [\d.]+ TFLOP/s \([^)]+\)\.)(?P<marks>.*)", "figcaption")
def mfu_caption(spot: Spot, match: re.Match[str]) -> str:
    manifest = spot.study.done[0].measured.manifest
    source = manifest["peak_source"]
    peak = f"Peak of {spot.study.done[0].device}: {manifest['peak_flops'] / 1e12} TFLOP/s ({source})."
    if "inference" in spot.study.runs[0].config:
        start = cites(match["start"], 2, 2, 4)
    else:
        start = cites(match["start"], 6, 12)
    return start + peak + axis_start(spot, match["marks"])


@text(r"Model TFLOP/s of one device: \(6 N \+ 12 L H Q T\).*", "figcaption")
def tflops_caption(spot: Spot, match: re.Match[str]) -> str:
    return axis_start(spot, match[0])


@text(r"[^\d]*The axis starts at [\d.,]+, not at zero\.", "figcaption")
def marks_caption(spot: Spot, match: re.Match[str]) -> str:
    return axis_start(spot, match[0])


def axis_start(spot: Spot, caption: str) -> str:
    """The same text, where an axis that does not start at zero starts below the least mark, and not far below."""
    at = re.search(r"The axis starts at ([\d.,]+), not at zero", caption)
    if not at:
        return caption
    least, most = ends_of_marks(spot)
    start = float(at[1].replace(",", ""))
    low = least - max(most - least, 0.02 * least)
    return caption if low <= start <= least else caption.replace(at[1], f"{low} to {least}")


def ends_of_marks(spot: Spot) -> tuple[float, float]:
    """The least and the largest value of runs and ends of intervals in a figure."""
    quantity, values = QUANTITIES[quantity_of(spot)], list[float]()
    for label in spot.study.measured:
        if value := quantity(spot.study, label):
            values += [value.middle, *(value.ends or ())]
            single = Study.__new__(Study)
            for run in spot.study.completed(label):
                single.__dict__.update(spot.study.__dict__ | {"groups": {label: [run]}})
                one = quantity(single, label)
                values += [one.middle] if one else []
    return min(values), max(values)


@text(r"Milliseconds to decode one token of each sample \(batch \d+\).*", "figcaption")
def decode_caption(spot: Spot, match: re.Match[str]) -> str:
    before, batch, rest = re.split(r"(\(batch \d+\))", match[0])
    return (
        before + cites(batch, spot.study.runs[0].config["inference"]["batch_size"]) + axis_start(spot, rest)
    )


@text(
    r"The median over the runs of a group, and over neighbouring positions where there are more than 200\. A token at position p attends to p \+ 1 keys\."
)
@text(
    r"Each mark is the worst check of a tensor: its error as a fraction of the allowed one\. A check passes up to the line at 1\. Marks beyond the axis are drawn at 2\."
)
def rules_of_figures(spot: Spot, match: re.Match[str]) -> str:
    return match[0]


@text(r"Kernel TFLOP/s in percent of a large matrix product's.*", "figcaption")
@text(r"Dot plot of percent of a large product's rate by backend and pass, .*", "figcaption")
def efficiency_caption(spot: Spot, match: re.Match[str]) -> str:
    length = kinds.main_shape(spot.study)
    numbers: list[float] = [1, length, 16, 128]
    if match[0].startswith("Dot"):
        numbers = [1, length, 16, 128]
        numbers += [
            product_share(spot.study, name, way)
            for name in kinds.at_main_shape(spot.study)
            for way in ("forward", "backward")
        ]
    return cites(match[0].replace("bfloat16", "bfloat"), *numbers).replace("bfloat", "bfloat16")


def call_rate(study: Study, name: str, way: str) -> float:
    """TFLOP/s of causal attention."""
    flop = 4 * 16 * kinds.main_shape(study) ** 2 * 128 / 2 * {"forward": 1, "backward": 2.5}[way]
    return flop / (kinds.call_time(study, name, way).middle / 1e3) / 1e12


def product_share(study: Study, name: str, way: str) -> float:
    """Percent of the 700 TFLOP/s that a large product reached."""
    return 100 * call_rate(study, name, way) / 700


@text(
    r"Line plot of efficiency, percent over the number of GPUs\. replicated \(DDP\): .* at \d+\.",
    "figcaption",
)
def scaling_description(spot: Spot, match: re.Match[str]) -> str:
    _, many = spot.study.groups
    return cites(
        match[0], 100 * kinds.efficiency(spot.study, many).middle, spot.study.completed(many)[0].gpus
    )
