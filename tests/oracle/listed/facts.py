"""Kinds of every page: names, what is left out, sizes of tables, and the facts under figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from tests.oracle import kinds
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
            how = outcome_of(run)
            if run.done:
                how += f", {'at a shape that the figure does not show' if spot.page == 'kernels' else 'without a value for it'}"
            elif run.outcome:
                how += f" \N{EN DASH} {run.measured.result['reason']}"
            yield f"{run.label}, {start_of(run)} ({match['id']}): {how}"


def outcome_of(run: Run) -> str:
    """How it ended, and whether that was expected."""
    if run.outcome is None:
        return "not started"
    expected = run.plan["expected_outcome"]
    if isinstance(run, Log) and "steps" not in run.config["train"]:
        return "unknown"  # whether it went on
    if run.outcome == "completed" == expected:
        return "completed"
    return f"{run.outcome} as expected" if run.outcome == expected else f"{run.outcome} expected {expected}"


@text(r"(?P<start>Left out: )?\d+ (?:completed|failed|oom_gpu|not ended).*", "summary")
def left_out(spot: Spot, match: re.Match[str]) -> Iterator[str]:
    lacking = (
        "at a shape that the figure does not show" if spot.page == "kernels" else "without a value for it"
    )
    ends: dict[str, list[Run]] = {}
    for run in spot.study.runs:
        if not run.done or not shown_on(spot, run):
            end = f"completed, {lacking}" if run.done else run.outcome or "not ended"
            ends.setdefault(end, []).append(run)
    order = sorted(ends, key=lambda end: (not end.startswith("completed"), end == "not ended", end))
    names = {}
    for end in order:
        labels = list(dict.fromkeys(run.label for run in ends[end]))
        names[end] = ("; " if any("," in label for label in labels) else ", ").join(labels)
    for most in (1000, 100):  # a long list of names is left out
        parts = [
            f"{len(ends[end])} {end}" + (f" ({names[end]})" if len(names[end]) < most else "")
            for end in order
        ]
        yield (match["start"] or "") + "; ".join(parts)


def shown_on(spot: Spot, run: Run) -> bool:
    """Whether the figures of a page show a completed run."""
    if spot.page == "certificates":
        return bool(spot.study.certificate(run))
    if spot.page == "kernels":
        return run.length == kinds.main_shape(spot.study) and bool(run.kernels)
    if spot.page == "decoding":
        return bool(run.decoded)
    return True


@text(r"Runs: n = .*", "dl.facts")
def sizes(spot: Spot, match: re.Match[str]) -> str:
    study = spot.study
    if spot.page == "kernels":
        return f"Runs: n = {sum(run.length == kinds.main_shape(study) for run in study.runs)}"
    if spot.page == "frontier":
        return f"Runs: n = 1 in each of {len(study.groups)} groups"
    labels = [label for label in study.measured if any(shown_on(spot, run) for run in study.completed(label))]
    if spot.figure.startswith("step_profile"):
        labels = [label for label in labels if any(run.profile for run in study.completed(label))]
    if spot.figure == "loss_difference" and not study.imported and not study.baseline:
        labels = []
    counts: dict[int, list[str]] = {}
    for label in labels:
        counts.setdefault(len(study.completed(label)), []).append(label)
    ordered = sorted(counts, reverse=True)
    if len(labels) == 1:
        return f"Runs: n = {ordered[0]}"
    if len(ordered) == 1:
        return f"Runs: n = {ordered[0]} in each of {len(labels)} groups"
    return "Runs: " + "; ".join(f"n = {n} in {len(counts[n])} ({', '.join(counts[n])})" for n in ordered)


QUANTITIES: dict[str, Callable[[Study, str], Value | None]] = {
    "tokens per second": lambda study, label: study.over(label, lambda run, s: run.tokens / s),
    "percent of the peak (MFU)": kinds.mfu_of,
    "model TFLOP/s": lambda study, label: study.over(
        label, lambda run, s: run.flop * run.tokens / s / (run.gpus or 1) / 1e12
    ),
    "seconds per step": lambda study, label: study.over(label, lambda _run, s: s),
    "GiB of memory at the peak": kinds.peak_of,
    "GiB per GPU of memory at the peak": kinds.peak_of,
    "milliseconds per prefill": kinds.prefill_of,
    "milliseconds per decoded token": kinds.over_decoded,
    "final loss": kinds.final_loss,
}


BY_FIGURE = {
    "tokens_per_second": "tokens per second", "mfu": "percent of the peak (MFU)", "step_time": "seconds per step",
    "memory": "GiB of memory at the peak", "prefill_latency": "milliseconds per prefill",
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
        return f"no interval: with n = {n} it is wider than the value"
    if n == 1:
        return of_records(value, len(runs[0].counted))
    if n < 6:
        return (
            f"95 % t interval of the geometric mean over {n} runs, which assumes that their logs are normal"
        )
    return f"95 % interval between order statistics of {n} runs"


@text(r"Interval: n = .*", "dl.facts")
def intervals(spot: Spot, match: re.Match[str]) -> str:
    study, quantity = spot.study, quantity_of(spot)
    made: dict[tuple[int, str], list[str]] = {}
    for label in study.measured:
        if value := QUANTITIES[quantity](study, label):
            how = "no interval: one seed" if quantity == "final loss" else how_made(study, label, value)
            made.setdefault((len(study.completed(label)), how), []).append(label)
    if len(made) == 1:
        return "".join(f"Interval: n = {n}: {how}" for n, how in made)
    return "Interval: " + "; ".join(f"n = {n} ({', '.join(made[n, how])}): {how}" for n, how in made)


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
    base = study.baseline or next(iter(study.groups))
    made = [ratio_interval(study, label, base) for label in study.measured if label != base]
    return "Interval: " + "; ".join(dict.fromkeys(made))


def ratio_interval(study: Study, label: str, base: str) -> str:
    """How the interval of a ratio of rates was made."""
    own, theirs = study.completed(label), study.completed(base)
    if min(len(own), len(theirs)) == 1:
        return f"records of one run each: {paired_records(study, label, base)}"
    return f"runs: 95 % t interval of the log ratio, paired over {shared_runs(study, label, base)} runs each"


def paired_records(study: Study, label: str, base: str) -> str:
    """How the interval of a ratio to the baseline was made from a run each."""
    return f"paired by step, {of_records(study.rate_ratio(label), shared_records(study, label, base))}"


def shared_runs(study: Study, label: str, base: str) -> int:
    """Runs of the same seed and repeat."""
    return len(set(study.per_token(label)) & set(study.per_token(base)))


def shared_records(study: Study, label: str, base: str) -> int:
    """Steps that count in the first pair of runs."""
    own, theirs = ({run.key: run for run in study.completed(group)} for group in (label, base))
    key = next(key for key in own if key in theirs)
    return len({r["step"] for r in own[key].counted} & {r["step"] for r in theirs[key].counted})


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


@text(r"Drift: .*", "dl.facts")
@text(r"GPUs: .*", "dl.facts")
@text(r"Machine: .*", "dl.facts")
@text(r"[^:]+: The machine drifted.*", "dl.facts")
@text(r"When \d+ runs of \d+ started.*", "p.warning")
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
        gpus, change, ends, p = gpu_effect(study)
        assert ends and p > 0.05
        yield (
            f"GPUs: No difference between the {gpus} GPUs was found: steps took {100 * change} % longer on the slowest than "
            f"on the fastest ({100 * ends[0]} to {100 * ends[1]} %; F test, p = {p})."
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
    begun = [run for run in study.done or study.runs if run.attempts and run.measured.manifest]
    yield f"Device: {', '.join(kinds.devices(begun))}"
    for certificate in certificates(study) if spot.page == "certificates" else ():
        yield f"Device: {certificate['device_name']} ({certificate['device']})"
    if spot.run and spot.run.attempts and spot.run.measured.manifest:
        at = spot.run.measured.manifest
        gpu = f" {at['gpu_uuid']}" if spot.run.gpus == 1 and not study.imported else ""
        where = "" if study.imported else f"{gpu} on {at['host']}"
        peak = (
            f"peak {at['peak_flops'] / 1e12} TFLOP/s ({at['peak_source']})"
            if at["peak_flops"]
            else "peak not known"
        )
        yield f"Device: {kinds.devices([spot.run])[0]}{where}; {peak}"


def certificates(study: Study) -> list[dict[str, Any]]:
    """Those of the study's runs."""
    return [certificate for run in study.done if (certificate := study.certificate(run))]


@text(r"Software: .*", "dl.facts")
def software(spot: Spot, match: re.Match[str]) -> str:
    versions = next(
        run.measured.manifest["software"]
        for run in spot.study.runs
        if run.attempts and run.measured.manifest.get("software")
    )
    return "Software: " + ", ".join(f"{name} {versions[name]}" for name in sorted(versions))


@text(r"Imported: \d+ of \d+ runs? .*", "dl.facts")
@text(r"[^:]+: \d+ of \d+ runs? \(.*\), by other programs: no certificate", "dl.facts")
def imported_runs(spot: Spot, match: re.Match[str]) -> str:
    runs = spot.study.done
    return f"{match[0].partition(':')[0]}: {len(runs)} of {len(runs)} {'run' if len(runs) == 1 else 'runs'} ({', '.join(run.label for run in runs)}), by other programs: no certificate"
