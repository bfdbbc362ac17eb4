"""Kinds of every page: names, what is left out, sizes of tables, and the facts under figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from tests.oracle import calls, kinds, series
from tests.oracle.kinds import span
from tests.oracle.listing import Spot, cites, text
from tests.oracle.truth import (
    Log,
    Run,
    Study,
    Value,
    gpu_effect,
)


@text(r".+", "h1")
@text(r".+", "title")
def name_of_page(spot: Spot, match: re.Match[str]) -> Iterator[str]:
    if spot.run:
        wrong = " wrong in its log" if spot.run.label in spot.study.wrong else ""
        imported = " (imported)" if spot.study.imported else ""
        yield f"{spot.run.label}{imported}{wrong}, {start_of(spot.run)}"
        yield f"{spot.run.label}, {start_of(spot.run)} \N{EN DASH} Study {spot.study.name}"


def start_of(run: Run) -> str:
    """`seed 0, repeat 2`."""
    seed, repeat = run.key
    return f"seed {'unknown' if seed is None else seed}{f', repeat {repeat}' if repeat > 1 else ''}"


@text(r"(?P<name>.+?), (?P<start>seed [^(]+) \((?P<id>\S+)\): (?P<how>.+)", "li")
def left_out_run(spot: Spot, match: re.Match[str]) -> Iterator[str]:
    for run in spot.study.runs:
        if match["id"] == run.id or (spot.study.imported and match["name"] == run.label):
            outcome = outcome_of(run)
            if run.done:
                outcome += f", {lacks(spot)}"
            elif run.outcome:
                outcome += f" \N{EN DASH} {run.measured.result['reason']}"
            yield f"{run.label}, {start_of(run)} ({match['id']}): {outcome}"


def outcome_of(run: Run) -> str:
    """How it ended, and whether that was expected."""
    if run.outcome is None:
        return "not started"
    expected = run.expected
    if isinstance(run, Log) and "steps" not in run.config["train"]:
        return "unknown"  # whether it went on
    if run.outcome == "completed" == expected:
        return "completed"
    return f"{run.outcome} as expected" if run.outcome == expected else f"{run.outcome} expected {expected}"


@text(r"(?P<start>Left out: )?\d+ (?:completed|failed|oom_gpu|not ended).*", "summary")
def left_out(spot: Spot, match: re.Match[str]) -> Iterator[str]:
    reason = lacks(spot)
    ends: dict[str, list[Run]] = {}
    for run in spot.study.runs:
        if not run.done or not shown_on(spot, run):
            end = f"completed, {reason}" if run.done else run.outcome or "not ended"
            ends.setdefault(end, []).append(run)
    order = sorted(ends, key=lambda end: (not end.startswith("completed"), end == "not ended", end))
    names = {}
    for end in order:
        labels = list(dict.fromkeys(run.label for run in ends[end]))
        names[end] = kinds.joined(labels)
    for limit, ordered in product((1000, 100), (order, order[::-1])):  # a long list of names is left out
        parts = [
            f"{len(ends[end])} {end}" + (f" ({names[end]})" if len(names[end]) < limit else "")
            for end in ordered
        ]
        yield (match["start"] or "") + "; ".join(parts)


def lacks(spot: Spot) -> str:
    """What a completed run lacks that a figure does not show."""
    if spot.figure == "ratios":
        return "without a rate, or a completed counterpart in the baseline"
    if spot.page == "savings":
        return "without a completed counterpart in the baseline, or not comparable with it"
    return "at a shape that the figure does not show" if spot.page == "kernels" else "without a value for it"


def is_compared(study: Study, label: str) -> bool:
    """Whether it and its baseline have values, or it is the baseline of such a group."""
    return study.against(label) in study.measured or any(
        study.against(other) == label for other in study.measured
    )


COMPARED = ("ratios", "tokens_against_baseline", "loss_difference")


def shown_on(spot: Spot, run: Run) -> bool:
    """Whether a figure, or the figures of a page, show a completed run."""
    of_pairs = spot.figure in COMPARED or spot.page == "savings"
    if of_pairs and spot.study.baseline is None and spot.study.design.get("baseline"):
        return is_compared(spot.study, run.label)
    if spot.page == "certificates":
        return names_certificate(spot.study, run)
    if spot.page == "kernels":
        return calls_in(spot, run)
    if spot.page == "decoding":
        return bool(run.decoded)
    return True


def calls_in(spot: Spot, run: Run) -> bool:
    """Whether a figure of attention alone shows a run."""
    return bool(run.kernels) and calls.case_of(run) in series.shown(spot)


@text(r"Runs: n = .*", "dl.facts")
def sizes(spot: Spot, match: re.Match[str]) -> Iterator[str]:
    study = spot.study
    if spot.page == "kernels":
        shown_runs = [run for run in study.done if shown_on(spot, run)]
        groups = len({run.label for run in shown_runs})
        yield f"Runs: n = {len(shown_runs) // groups}" + (
            f" in each of {groups} groups" if groups > 1 else ""
        )
        return
    if spot.page == "frontier":
        yield f"Runs: n = 1 in each of {len(study.groups)} groups"
        return
    measured = list(study.groups) if study.task == "attention" else study.measured
    labels = [label for label in measured if any(shown_on(spot, run) for run in study.completed(label))]
    if spot.figure.startswith("step_profile"):
        labels = [label for label in labels if any(run.profile for run in study.completed(label))]
    if spot.figure == "loss_difference" and not study.imported and not study.design.get("baseline"):
        labels = []
    counts: dict[int, list[str]] = {}
    for label in labels:
        counts.setdefault(len(study.completed(label)), []).append(label)
    ordered = sorted(counts, reverse=True)
    if len(ordered) == 1:
        yield f"Runs: n = {ordered[0]}" + (f" in each of {len(labels)} groups" if len(labels) > 1 else "")
        return
    for limit in (1000, 150):  # a long list of names is left out
        names_by_count = {n: names if len(names := kinds.joined(counts[n])) < limit else "" for n in ordered}
        yield "Runs: " + "; ".join(
            f"n = {n} in {len(counts[n])}" + (f" ({names_by_count[n]})" if names_by_count[n] else "")
            for n in ordered
        )


QUANTITIES: dict[str, Callable[[Study, str], Value | None]] = {
    "tokens per second": lambda study, label: study.over(label, lambda run, s: run.tokens / s),
    "percent of the peak (MFU)": kinds.mfu_of,
    "model TFLOP/s": lambda study, label: study.over(
        label, lambda run, s: run.flop * run.tokens / s / (run.gpus or 1) / 1e12
    ),
    "seconds per step": lambda study, label: study.over(label, lambda _run, s: s),
    "GiB of memory at the peak": kinds.peak_of,
    "GiB per GPU of memory at the peak": kinds.peak_of,
    "millijoules per token": kinds.energy_of,
    "milliseconds per prefill": kinds.prefill_of,
    "milliseconds per decoded token": kinds.over_decoded,
    "final loss": kinds.final_loss,
}


BY_FIGURE = {
    "tokens_per_second": "tokens per second", "mfu": "percent of the peak (MFU)", "step_time": "seconds per step",
    "memory": "GiB of memory at the peak", "energy": "millijoules per token", "prefill_latency": "milliseconds per prefill",
    "decode_latency": "milliseconds per decoded token",
    "sweep_tokens": "tokens per second", "sweep_mfu": "percent of the peak (MFU)", "sweep_step_time": "seconds per step",
    "sweep_memory": "GiB of memory at the peak", "sweep_loss": "final loss",
}  # fmt: skip


RECORDS = "of one run, allowing for their autocorrelation: not what another run would give"
RANGE = "no interval, but the range of all"


def of_records(value: Value, count: int) -> str:
    """How the ends of one run's records were made."""
    if value.is_range:
        return f"{RANGE} {count} records of one run, whose autocorrelation allows none: not what another run would give"
    return f"95 % interval over {count} records {RECORDS}"


def how_made(study: Study, label: str, value: Value) -> str:
    """How the interval of a group's value was made."""
    n, runs = len(study.completed(label)), study.completed(label)
    if value.ends is None:
        return "no interval: one run"
    if kinds.vague(value):
        return f"{RANGE} {n} runs, as the interval is wider than the value"
    if n == 1:
        return of_records(value, len(runs[0].counted))
    if n < 6:
        return (
            f"95 % t interval of the geometric mean over {n} runs, which assumes that their logs are normal"
        )
    return f"95 % interval between order statistics of {n} runs"


@text(r"Interval: n = (?!.* cells\)).*", "dl.facts")
def intervals(spot: Spot, match: re.Match[str]) -> str:
    if spot.figure not in BY_FIGURE:
        return "of a figure without a mark for each run"
    study, quantity = spot.study, quantity_of(spot)
    labels_by_method: dict[tuple[int, str], list[str]] = {}
    for label in study.measured:
        if value := QUANTITIES[quantity](study, label):
            method = "no interval: one seed" if quantity == "final loss" else how_made(study, label, value)
            labels_by_method.setdefault((len(study.completed(label)), method), []).append(label)
    if len(labels_by_method) == 1:
        return "".join(f"Interval: n = {n}: {method}" for n, method in labels_by_method)
    return "Interval: " + "; ".join(
        f"n = {n} ({kinds.joined(sorted(labels_by_method[n, method]))}): {method}"
        for n, method in labels_by_method
    )


def quantity_of(spot: Spot) -> str:
    """What a figure with a mark for each run shows."""
    name = BY_FIGURE[spot.figure]
    unknown = name.endswith("(MFU)") and not any(
        kinds.mfu_of(spot.study, label) for label in spot.study.measured
    )
    return "model TFLOP/s" if unknown else name


@text(r"Interval: (?:runs|records).*", "dl.facts")
def ratio_intervals(spot: Spot, match: re.Match[str]) -> str:
    study = spot.study
    bases = {label: study.against(label) for label in study.measured}
    if not study.design.get("baseline"):
        bases = {label: next(iter(study.groups)) for label in list(study.groups)[1:]}
    methods = [
        ratio_interval(study, label, base) + (", of which 1 - 1 / ratio" if spot.page == "savings" else "")
        for label, base in bases.items()
        if base in study.measured
    ]
    return "Interval: " + "; ".join(dict.fromkeys(methods))


def ratio_interval(study: Study, label: str, base: str) -> str:
    """How the interval of a ratio of rates was made."""
    own, theirs = study.completed(label), study.completed(base)
    if min(len(own), len(theirs)) == 1:
        return f"records of one run each: {paired_records(study, label, base)}"
    return f"runs: 95 % t interval of the log ratio, paired over {shared_runs(study, label, base)} runs each"


def paired_records(study: Study, label: str, base: str) -> str:
    """How the interval of a ratio to the baseline was made from a run each."""
    counts = shared_records(study, label, base)
    method = of_records(study.rate_ratio(label), 0).replace("of one run", "of one run each")
    method = method.replace("the range of all 0", "the extremes of both runs' ends over 0")
    method = method.replace(
        ", whose autocorrelation allows none", ", as autocorrelation allows one of them none"
    )
    return method.replace("0 records", " and ".join(dict.fromkeys(map(str, counts))) + " records")


def shared_runs(study: Study, label: str, base: str) -> int:
    """Runs of the same seed and repeat."""
    return len(set(study.per_token(label)) & set(study.per_token(base)))


def shared_records(study: Study, label: str, base: str) -> tuple[int, int]:
    """Steps that count in either run of the first pair."""
    own, theirs = ({run.key: run for run in study.completed(group)} for group in (label, base))
    key = next(key for key in own if key in theirs)
    return len(own[key].counted), len(theirs[key].counted)


@text(r"Warm-up: left out: the first \d+ steps", "dl.facts")
def warm_up(spot: Spot, match: re.Match[str]) -> str:
    return cites(match[0], max(run.warmup for run in spot.study.done))


@text(r"Order: .*\d.*", "dl.facts")
def order_of_runs(spot: Spot, match: re.Match[str]) -> str:
    return f"Order: {order_of(spot.study)}"


def order_of(study: Study) -> str:
    """In which order the runs were started."""
    blocks = {run.plan.get("block") for run in study.runs} - {None}
    if blocks:
        return f"interleaved, {len(blocks)} blocks of one run of every group"
    return (
        "unknown: the records come from other programs, or predate starting orders"
        if study.imported
        else "as written"
    )


@text(r"Small numbers: .*", "p.note")
def what_intervals_are(spot: Spot, match: re.Match[str]) -> str:
    steps = "calls" if spot.study.task == "attention" else "records"
    losses = " (of losses: seeds, the repeats of each as their mean)" if spot.study.task == "training" else ""
    return (
        f"Small numbers: 95 % intervals, where no other level is marked, over runs{losses} or over the {steps} of a "
        "single run. A range: from the lowest of these to the highest."
    )


@text(r"Drift: .*", "dl.facts")
@text(r"GPUs: .*", "dl.facts")
@text(r"Machine: .*", "dl.facts")
@text(r"[^:]+: The machine drifted.*", "dl.facts")
@text(r"When \d+ of \d+ completed runs? started.*", "p.warning")
@text(r"Withheld, because .*", "p.warning")
def as_the_overview(spot: Spot, match: re.Match[str]) -> Iterator[str]:
    start = re.match(r"[A-Z]\w+: ", match[0])
    head = start[0] if start and spot.place.endswith("dd") else ""
    for place in kinds.SENTENCES.values():
        for kind in place.values():
            yield from (head + sentence for sentence in kind(spot.study))
    study = spot.study
    yield from (
        kinds.withheld(study, label)
        for label in study.measured
        if study.baseline and kinds.verdict(study, label)[0] == "withheld"
    )
    if head == "GPUs: " and "No difference" in match[0]:
        gpus, change, ends, p_value = gpu_effect(study)
        assert ends and p_value > 0.05
        yield (
            f"GPUs: No difference between the {gpus} GPUs was found: steps took {100 * change} % longer on the slowest than "
            f"on the fastest ({100 * ends[0]} to {100 * ends[1]} %; F test, p = {p_value})."
        )


@text(r"Load: .*", "dl.facts")
def load_fact(spot: Spot, match: re.Match[str]) -> str:
    return f"Load: {load(spot.study)}"


def load(study: Study) -> str:
    """The load of the machines before the runs, and who else was there."""
    if study.imported:
        return "load not recorded"
    runs = [run for run in study.runs if run.attempts and run.measured.manifest]
    parts = f"load before the runs {span([run.measured.manifest['load_before'] / run.measured.manifest['cores'] for run in runs])} per core"
    busy = sum((run.measured.manifest.get("device_users") or 0) > 0 for run in runs)
    return f"{parts}; other processes were on the device of {busy} of {len(runs)} runs" if busy else parts


@text(r"Device: .*", "dl.facts")
def device(spot: Spot, match: re.Match[str]) -> Iterator[str]:
    study = spot.study
    started = [run for run in study.done or study.runs if run.attempts and run.measured.manifest]
    yield f"Device: {', '.join(kinds.devices(started))}"
    for certificate in certificates(study) if spot.page == "certificates" else ():
        yield f"Device: {certificate['device_name']} ({certificate['device']})"
    if spot.run and spot.run.attempts and spot.run.measured.manifest:
        manifest = spot.run.measured.manifest
        gpu = f" {manifest['gpu_uuid']}" if spot.run.gpus == 1 and not study.imported else ""
        location = "" if study.imported else f"{gpu} on {manifest['host']}"
        peak = (
            f"peak {manifest['peak_flops'] / 1e12} TFLOP/s ({manifest['peak_source']})"
            if manifest["peak_flops"]
            else "peak not known"
        )
        yield f"Device: {kinds.devices([spot.run])[0]}{location}; {peak}"


def names_certificate(study: Study, run: Run) -> bool:
    """Whether it, or a call of its, was made under a certificate."""
    return bool(study.certificate(run)) or any(row.get("certificate") for row in run.kernels)


def certificates(study: Study) -> list[dict[str, Any]]:
    """Those of the study's runs, and of the calls of its runs."""
    all_certificates = [study.certificate(run) for run in study.done]
    for run in study.done:
        all_certificates += [
            study.certificate_of_key(run, row["certificate"]) for row in run.kernels if row.get("certificate")
        ]
    return [*{certificate["key"]: certificate for certificate in all_certificates if certificate}.values()]


@text(r"Software: .*", "dl.facts")
def software(spot: Spot, match: re.Match[str]) -> str:
    versions = {
        name: version
        for run in ([spot.run] if spot.run else spot.study.runs)
        if run.attempts
        for name, version in sorted((run.measured.manifest.get("software") or {}).items())
    }
    return "Software: " + ", ".join(f"{name} {version}" for name, version in versions.items())


@text(r"Imported: \d+ of \d+ runs? .*", "dl.facts")
@text(r"[^:]+: \d+ of \d+ runs? \(.*\), by other programs: no certificate", "dl.facts")
def imported_runs(spot: Spot, match: re.Match[str]) -> str:
    runs = spot.study.done
    return f"{match[0].partition(':')[0]}: {len(runs)} of {len(runs)} {'run' if len(runs) == 1 else 'runs'} ({', '.join(run.label for run in runs)}), by other programs: no certificate"
