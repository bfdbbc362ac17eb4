"""Whether a group of runs became faster or slower. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from analysis.stats.change import beyond, change
from analysis.stats.paired import Ratio, paired_records
from analysis.stats.rows import paired_by
from analysis.stats.verdict import Verdict, enclosed, percent
from analysis.verdicts.difference import Row
from analysis.verdicts.source import Measured

_ANY = 1e-12  # a margin that no difference is within


def speed(a: Measured, b: Measured, margin: float | None, single_runs: bool = False) -> Verdict | None:
    """The change of the rate from A to B: over runs, or over the records of one run each at the same steps.

    Args:
        a, b: completed runs of one group.
        margin: relative difference of the rate; None if none was stated, and then nothing is tested.
        single_runs: test one run each, too, which says nothing of other runs.

    Returns:
        None if a side has no measured run.
    """
    per_token = all(run["tokens_per_step"] for run in (*a.runs, *b.runs))
    before, after = _seconds(a, per_token), _seconds(b, per_token)
    if not (before and after):
        return None
    if len(before) == len(after) == 1 and (ratio := _of_records(a, b, per_token)):
        return _single(ratio, margin if single_runs else None)
    found = change(before, after, margin or _ANY)
    return found if margin or found.kind == "observed" else _untested(found)


def _seconds(side: Measured, per_token: bool) -> dict[Hashable, float]:
    """Seconds per token by what pairs runs.

    Args:
        per_token: False if the tokens of a run are unknown: then seconds per step.
    """
    runs = [run for run in side.runs if run["step_seconds"]]
    return {key: run["step_seconds"] / _tokens(run, per_token) for key, run in paired_by(runs).items()}


def _tokens(run: Row, per_token: bool) -> float:
    return float(run["tokens_per_step"]) if per_token else 1.0


def _of_records(a: Measured, b: Measured, per_token: bool) -> Ratio | None:
    """Rate of B over rate of A, paired by step; None without a step in common."""
    sides = []
    for side in (a, b):
        (run,) = (run for run in side.runs if run["step_seconds"])
        records, tokens = side.records[run["run_id"]].seconds, _tokens(run, per_token)
        sides.append({step: seconds / tokens for step, seconds in records.items()})
    mine, theirs = sides
    return paired_records(theirs, mine) if mine.keys() & theirs.keys() else None


def _single(ratio: Ratio, margin: float | None) -> Verdict:
    """A verdict on two runs alone if there is a margin."""
    difference = ratio.ratio - 1
    if ratio.low is None or ratio.high is None:
        sentence = f"Rate {percent(difference)} % in one run each: observed, not tested."
        return Verdict("observed", sentence, difference, None, None, 1, ratio.level, ratio.method)
    low, high = ratio.low - 1, ratio.high - 1
    said = f"Rate {enclosed(difference, low, high, margin)} in one run each"
    if margin is None:
        sentence = f"{said}: observed, which says nothing about other runs."
        return Verdict("observed", sentence, difference, low, high, 1, ratio.level, ratio.method)
    kind = beyond(low, high, margin)
    sentence = f"{said}: {kind} by a margin of {100 * margin:.3g} %, of these two runs alone."
    return Verdict(kind, sentence, difference, low, high, 1, ratio.level, ratio.method)


def _untested(found: Verdict) -> Verdict:
    numbers = found.sentence.partition(": ")[0]
    return replace(
        found, kind="inconclusive", sentence=f"{numbers}: not tested, because no margin was stated."
    )
