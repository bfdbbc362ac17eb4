"""Kinds of imported logs: what the import found in them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from math import sqrt
from pathlib import Path
from statistics import fmean
from statistics import median as plain_median

from tests.oracle.listing import Spot, text
from tests.oracle.truth import (
    Run,
    Study,
    arithmetic_median,
    deviation,
    t_tail,
)


def flags(study: Study, run: Run) -> Iterator[tuple[str, str]]:
    """What the import says of a log: a note or an error, and its text."""
    seconds = [record["step_seconds"] for _, record in run.steps]
    mean, mean_without = fmean(seconds), fmean(seconds[1:])  # as a reader would average them
    yield (
        "note",
        (
            f"{run.label}: the first record ({run.folder}.csv:2, step 1) took {seconds[0]} s a step, the median is "
            f"{plain_median(seconds)} s: it includes the warm-up, and so does every mean over all records: step_seconds {mean} "
            f"over all, {mean_without} without ({100 * (mean / mean_without - 1):+}%)."
        ),
    )
    others = [
        other
        for other in study.done
        if other is not run and (run.label in study.wrong or other.label not in study.wrong)
    ]
    if not others:
        return
    differences = [
        record["loss"] - arithmetic_median([other.steps[index][1]["loss"] for other in others])
        for index, (_, record) in enumerate(run.steps)
    ]
    last_differences = differences[-len(differences) // 5 :]
    if run.label not in study.wrong:
        yield (
            "note",
            (
                f"{run.label}: its loss against the median of {len(others)} others is inconclusive: {fmean(last_differences):+} nats, no "
                f"interval: one seed, {len(last_differences)} records, at least 24 needed."
            ),
        )
        return
    run_mean, *means = (
        fmean(record["loss"] for _, record in log.steps[-len(last_differences) :]) for log in (run, *others)
    )
    statistic = (run_mean - fmean(means)) / (deviation(means) * sqrt(1 + 1 / len(means)))
    p_value = 2 * t_tail(abs(statistic), len(means) - 1) * len(study.done)
    tenth = len(differences) // 10
    parts = [
        f"{fmean(differences[index : index + tenth]):+} over steps {index + 1}-{index + tenth}"
        for index in range(0, len(differences), tenth)
    ]
    yield (
        "error",
        (
            f"{run.label}: its loss against the median of {len(others)} others differs by {fmean(last_differences):+} nats, as no other's does. "
            f"Its mean over these steps is {run_mean - fmean(means):+} nats from that of the {len(others)} others, whose standard "
            f"deviation is {deviation(means)}: p = {p_value} (t, {len(means) - 1} degrees of freedom, corrected for {len(study.done)} "
            f"runs). Parts of the run that differ: {'; '.join(parts)}."
        ),
    )


@text(r".*(?:the first record \(|its loss against the median).*")
def flag(spot: Spot, match: re.Match[str]) -> Iterator[str]:
    for run in spot.study.done:
        findings = list(flags(spot.study, run))
        yield from (sentence for _, sentence in findings)
        yield "Found in its log: " + "".join(f"{kind}: {sentence}" for kind, sentence in findings)
        for kind, sentence in findings:
            if kind == "error":
                yield from (f"loss: {sentence}", f"Flagged by the check loss: {sentence}")


@text(r"Notes on the logs: \d+", "summary")
def notes_on_logs(spot: Spot, match: re.Match[str]) -> str:
    notes = sum(kind == "note" for run in spot.study.done for kind, _ in flags(spot.study, run))
    return f"Notes on the logs: {notes}"


@text(r"Imported: (?P<date>\S+) by assay (?P<version>\S+) from .*", "dl.facts")
def imported_from(spot: Spot, match: re.Match[str]) -> str:
    assert spot.run
    file = Path(f"{spot.run.folder}.csv")
    return (
        f"Imported: 2026-03-01 by assay 0.1.0 from {file} (format csv, {len(spot.run.steps)} records, SHA-256 "
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}); flop_per_token: computed from the shape in the mapping: 6 N + "
        "12 L H Q T, N without the input embedding; peak_flops: NVIDIA H100 datasheet, SXM, dense"
    )
