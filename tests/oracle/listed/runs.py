"""Kinds of the pages of runs: facts, attempts, machine, files."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from statistics import median as plain_median

import numpy as np

from tests.oracle import calls
from tests.oracle.kinds import NONE, took
from tests.oracle.listed.facts import certificates, outcome_of
from tests.oracle.listed.overview import last_step, moment
from tests.oracle.listing import Cell, Spot, cites, column, text
from tests.oracle.truth import (
    Run,
)


@text(r"(?P<outcome>completed|unknown|failed|oom_gpu|not started).*", "p.lead")
@text(r".*", "div.kept")
def how_it_ended(spot: Spot, match: re.Match[str]) -> Iterator[str]:
    runs = [spot.run] if spot.run else spot.study.runs
    for run in filter(None, runs):
        reason = run.measured.result.get("reason") if run.attempts else None
        if spot.study.imported and "steps" not in run.config["train"]:
            reason = f"the log ends at step {run.steps[-1][1]['step']}; how many were planned is unknown"
        yield f"{reason}"
        expected = f" Expected {run.expected}: {run.plan['because']}." if run.plan.get("because") else ""
        yield outcome_of(run) + (f" \N{EN DASH} {reason}" if reason else "") + expected
    for certificate in certificates(spot.study):
        yield from (
            f"{check['name']}: {check['variant']}; {check['case']}" for check in certificate["checks"]
        )


@text(r"Its settings are the same as .*, with seed \d+\.")
def same_settings(spot: Spot, match: re.Match[str]) -> str:
    assert spot.run
    return cites(match[0], spot.run.key[0] or 0)


@text(r"Checkpoints: attempt \d+ resumed from the one of step \d+\..*")
def resumed(spot: Spot, match: re.Match[str]) -> str:
    assert spot.run
    attempt = next(candidate for candidate in spot.run.attempts if candidate.manifest.get("resumed_step"))
    return cites(match[0], attempt.number, attempt.manifest["resumed_step"])


@text(r"Attempt \d+ was restarted with a different layout .*")
def other_layout(spot: Spot, match: re.Match[str]) -> str:
    assert spot.run
    attempt = next(candidate for candidate in spot.run.attempts if candidate.manifest.get("parallel"))
    return cites(
        match[0],
        attempt.number,
        *(attempt.manifest["parallel"][name] for name in sorted(attempt.manifest["parallel"])),
    )


@text(r"Each start of the run\. Its outcome is that of attempt \d+\.", "caption")
def attempts_caption(spot: Spot, match: re.Match[str]) -> str:
    assert spot.run
    return cites(match[0], spot.run.attempts[-1].number)


@text(r"Factors: .*", "dl.facts")
def factors(spot: Spot, match: re.Match[str]) -> str:
    assert spot.run
    return "Factors: " + ", ".join(
        f"{name} = {value}" for name, value in sorted(spot.run.plan["factors"].items())
    )


@text(r"(?:Steps|Rounds): .*", "dl.facts")
def steps_fact(spot: Spot, match: re.Match[str]) -> str:
    assert spot.run
    run, head = spot.run, match[0].partition(":")[0]
    step = last_step(run)
    if "call" in run.config:
        forward_only = "forward alone: the figures have its errors beside those of bfloat16"
        directions = (
            forward_only
            if run.config["call"].get("dtype") == calls.FP8
            else "forward and backward: see the figures"
        )
        return f"{head}: {step} of {run.config['call']['steps']}, in each of which every backend was called once, {directions}"
    if spot.study.imported and "steps" not in run.config["train"]:
        return f"{head}: {step} of an unknown number"
    planned = run.config.get("inference", run.config.get("train"))["steps"]
    share = ""
    if run.steps and "training_tokens" in run.steps[-1][1]:
        tokens = [record for _, record in run.steps]
        share = f"; {100 * sum(entry['training_tokens'] for entry in tokens) / sum(entry['tokens'] for entry in tokens)} % of the tokens count in the loss"
    return f"{head}: {NONE if step is None else step} of {planned}{share}"


@text(r"Measured: .*", "dl.facts")
def measured(spot: Spot, match: re.Match[str]) -> str:
    assert spot.run
    run = spot.run
    if not run.counted:
        return f"Measured: no rate from 0 step records after a warm-up of {run.warmup} steps"
    rates = [record["tokens"] / record["steps"] / record["step_seconds"] for record in run.counted]
    prefill = f"{1e3 * run.seconds} ms a prefill, " if "inference" in run.config else ""
    mfu = run.mfu(run.seconds)
    tflops = run.flop * run.tokens / run.seconds / run.gpus / 1e12
    return (
        f"Measured: {prefill}{run.tokens / run.seconds} tokens/s (quartiles {np.quantile(rates, 0.25)} and {np.quantile(rates, 0.75)}) "
        f"from {len(run.counted)} step records after a warm-up of {run.warmup} steps; "
        f"{f'MFU {mfu} %' if mfu else 'MFU unknown, because the peak is'}; {tflops} model TFLOP/s"
    )


@text(r"Final loss: .*", "dl.facts")
def final_loss(spot: Spot, match: re.Match[str]) -> str:
    assert spot.run
    return f"Final loss: {spot.run.final_loss}"


@text(r"Cost: .*", "dl.facts")
def cost(spot: Spot, match: re.Match[str]) -> str:
    assert spot.run
    run = spot.run
    peak = f"{run.peak_gib}" if run.peak_gib and "call" not in run.config else NONE
    scope = " in the process that needed most" if run.measured.manifest.get("gpus", 0) > 1 else ""
    hours = (
        sum(attempt.result["wall_seconds"] * attempt.manifest.get("gpus", 0) for attempt in run.attempts)
        / 3600
    )
    return f"Cost: peak memory {peak} GiB{scope}; wall time {took(run.wall)}; {hours if run.measured.manifest else NONE} GPU-hours"


@text(r"(?:Planned|Imported): .* UTC.*", "dl.facts")
def planned(spot: Spot, match: re.Match[str]) -> str:
    times = (
        ["2026-03-01"] if spot.study.imported else sorted(run.plan["created_at"] for run in spot.study.runs)
    )
    if not spot.run:
        verb = "Imported" if spot.study.imported else "Planned"
        return f"{verb}: {moment(times[0])} to {moment(times[-1])}"
    plan = spot.run.plan
    command = " ".join(plan["provenance"]["command"])
    return f"Planned: {moment(plan['created_at'])} by {command}, from {plan['why'][0]}"


@text(r"Code: .*", "dl.facts")
def code(spot: Spot, match: re.Match[str]) -> str:
    assert spot.run
    provenance = spot.run.plan["provenance"]
    return f"Code: assay {provenance['version']}, commit {provenance['git_sha']}"


@text(r"Floor: .*", "dl.facts")
def floor_fact(spot: Spot, match: re.Match[str]) -> str:
    assert spot.run
    run, unit = spot.run, "prefill" if "inference" in spot.run.config else "step"
    products = next(
        row for row in run.measured.manifest["floor"] if (row["phase"], row["part"]) == ("step", "products")
    )
    minimum = run.floor("step")
    time = f"{1e3 * minimum} ms" if unit == "prefill" else f"{minimum} s"
    return (
        f"Floor: a {unit} takes {time} at the rates measured on this device, its matrix products at "
        f"{products['flop'] / products['seconds'] / 1e12} TFLOP/s: {100 * minimum / run.seconds} % of the median {unit}"
    )


@text(r"Decoded: .*", "dl.facts")
def decoding_fact(spot: Spot, match: re.Match[str]) -> str:
    assert spot.run
    run = spot.run
    middle, minimum, batch = (
        plain_median(run.decoded),
        run.floor("decode"),
        run.config["inference"]["batch_size"],
    )
    return (
        f"Decoded: {len(run.decoded)} positions, {1e3 * middle} ms each (median), {batch / middle} tokens/s; its floor is "
        f"{1e3 * minimum} ms, {100 * minimum / middle} % of that"
    )


@text(r"Power: at least \S+ W on average after the warm-up", "dl.facts")
def power(spot: Spot, match: re.Match[str]) -> str:
    assert spot.run
    counted = spot.run.counted
    rows = [
        row
        for row in counted
        if "power_joules" in row and row["step"] - row["power_steps"] >= spot.run.warmup
    ]
    # The counter is 0.1 s late once, at the end: a record begins where the one before it ended.
    watts = sum(row["power_joules"] for row in rows) / (sum(row["power_seconds"] for row in rows) + 0.1)
    return cites(
        match[0], watts
    )  # at least: a pause of a tenth of a second between records may be part of it


@text(r"Clock at work: .*", "dl.facts")
def clock(spot: Spot, match: re.Match[str]) -> str:
    assert spot.run
    clocks = [record["sm_mhz"] for record in spot.run.counted]
    reasons = {record["throttle_reasons"] for record in spot.run.counted}
    return f"Clock at work: {min(clocks)} to {max(clocks)} MHz; throttled by {', '.join(sorted(reasons))}"


@text(r"Waiting for data: .*", "dl.facts")
def waited(spot: Spot, match: re.Match[str]) -> str:
    assert spot.run
    rows = spot.run.counted
    share = sum(row["data_wait_seconds"] for row in rows) / sum(
        row["step_seconds"] * row["steps"] for row in rows
    )
    return f"Waiting for data: {100 * share} % of the time after the warm-up"


@text(r"Audits: (?P<passed>\d+) of (?P<all>\d+) passed; .*")
def audited(spot: Spot, match: re.Match[str]) -> str:
    assert spot.run
    lines = (spot.run.folder / "attempt-1" / "audits.jsonl").read_text().splitlines()
    audits = [json.loads(line) for line in lines]
    worst = max(
        tensor["measured"] / tensor["tolerance"] for audit in audits for tensor in audit["tensors"].values()
    )
    return cites(match[0], sum(audit["passed"] for audit in audits), len(audits), worst)


@text(r"The end of [\d,]+ bytes: at most 30 lines and 4,000 characters\.|Attempt \d+, stdout")
def printed(spot: Spot, match: re.Match[str]) -> str:
    assert spot.run
    size = (spot.run.folder / "attempt-1" / "stdout.log").stat().st_size
    return cites(match[0], 1) if match[0].startswith("Attempt") else cites(match[0], size, 30, 4000)


@text(r"[^:]+: after the warm-up, rank \d+ on .*", "dl.facts")
def slowest(spot: Spot, match: re.Match[str]) -> str:
    assert spot.run
    counted = spot.run.counted
    rank, occurrences = Counter(record["slowest_rank"] for record in counted).most_common(1)[0]
    excess = 100 * (
        plain_median(
            interval["slowest_rank_seconds"] / interval["other_ranks_seconds"] for interval in counted
        )
        - 1
    )
    return f"{match[0].partition(':')[0]}: after the warm-up, rank {rank} on nid001 was slowest in {occurrences} of {len(counted)} intervals, by {excess} % of the median of the others"


@text(r"Certificate: .*", "dl.facts")
def certificate_fact(spot: Spot, match: re.Match[str]) -> str:
    assert spot.run
    certificate = spot.study.certificate(spot.run)
    if not certificate:
        return "Certificate: none"
    return f"Certificate: {certificate['backend']} is {certificate['verdict']}: {certificate['key']}"


@column(r"Each start of the run\..*", ".+")
def attempt_cells(cell: Cell) -> str:
    assert cell.spot.run
    attempt = next(candidate for candidate in cell.spot.run.attempts if f"{candidate.number}" == cell.first)
    value = {
        "Attempt": attempt.number,
        "Outcome": attempt.result["outcome"],
        "Node": attempt.manifest.get("host"),
        "Started": moment(attempt.result["started_at"]) if "started_at" in attempt.result else NONE,
        "Wall time": took(attempt.result["wall_seconds"]) if "wall_seconds" in attempt.result else NONE,
        "Steps": attempt.result.get("steps", len(attempt.steps)),
        "Resumed from step": attempt.manifest.get("resumed_step"),
    }[cell.head]
    return NONE if value is None else f"{value}"


@column(r"GPU clocks and power, .*", r"Attempt \d+")
def machine_cells(cell: Cell) -> str:
    assert cell.spot.run
    attempt = next(
        candidate for candidate in cell.spot.run.attempts if f"Attempt {candidate.number}" == cell.head
    )
    clocks_before, clocks_after = (record.get("clocks", {}) for record in (attempt.manifest, attempt.result))
    value = {
        "Power limit, W": clocks_before.get("power_limit_watts"),
        "Clock, MHz": clocks_before.get("sm_mhz"),
        "Memory clock, MHz": clocks_before.get("memory_mhz"),
        "Throttled by the power limit, s": (
            clocks_after.get("power_capped_seconds", 0) - clocks_before.get("power_capped_seconds", 0)
        ),
        "Throttled by heat or supply, s": clocks_after.get("slowed_seconds", 0)
        - clocks_before.get("slowed_seconds", 0),
        "Other processes on the GPU": attempt.manifest.get("device_users"),
        "Load before": attempt.manifest.get("load_before"),
        "Load after": attempt.result.get("load_after"),
        "Processors": attempt.manifest.get("cores"),
    }[cell.first]
    return f"{value}"


@column(r"Files under the root .*", "File", "Bytes", "SHA-256")
def file_cells(cell: Cell) -> str:
    file = cell.spot.root / cell.row["File"]
    return {
        "File": cell.row["File"] if file.is_file() else "no such file",
        "Bytes": f"{file.stat().st_size}",
        "SHA-256": hashlib.sha256(file.read_bytes()).hexdigest(),
    }[cell.head]


@column(r"Settings whose value differs .*", "This run", "Most groups")
def setting_cells(cell: Cell) -> str:
    assert cell.spot.run

    def value(run: Run) -> str:
        inner: object = run.config
        for name in cell.first.split("."):
            inner = inner.get(name) if isinstance(inner, dict) else None
        return NONE if inner is None else f"{inner}"

    if cell.head == "This run":
        return value(cell.spot.run)
    groups = [value(runs[0]) for runs in cell.spot.study.groups.values()]
    return max(dict.fromkeys(groups), key=groups.count)
