"""What logs of one study say about each other: losses and FLOP per token that should be equal and are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, median
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from analysis.logs.flop import HIGH, LOW
from analysis.logs.points import Between
from analysis.logs.runs import Whole
from analysis.stats import grouped
from analysis.stats.equivalence import LAST, losses
from analysis.stats.student import Mean, mean_of
from analysis.stats.verdict import Verdict
from analysis.wording import sentence
from model.record.files import dumps
from model.record.imported import Finding

Losses = Mapping[int, float]  # step -> nats per token
Array = NDArray[Any]
_MUST_BE_EQUAL = ("attention", "seed")  # factors whose runs must reach the same loss
_WINDOWS = 10  # parts of a run in which a difference is located
_FEWEST = 4  # records in such a part
_CONFIDENCE = 0.99  # high, because there are several parts
_FEWEST_OTHERS = 3  # runs whose spread is an estimate
_OUTLIER = 0.01  # p below which a run is not of the others' kind


@dataclass(frozen=True)
class _Table:
    """The losses of runs side by side, and the training tokens by which their texts are recognised.

    Attributes:
        steps: (S) every step that some run logged.
        losses, tokens: (R, S), NaN where a run does not say.
    """

    runs: Sequence[Whole]
    steps: Array
    losses: Array
    tokens: Array

    @classmethod
    def of(cls, runs: Sequence[Whole]) -> _Table:
        """Build the table of runs that logged some loss."""
        steps = sorted({step.step for whole in runs for step in whole.steps})
        place = {step: column for column, step in enumerate(steps)}
        losses, tokens = np.full((2, len(runs), len(steps)), np.nan)
        for row, whole in enumerate(runs):
            for step in whole.steps:
                losses[row, place[step.step]] = np.nan if step.loss is None else step.loss
                tokens[row, place[step.step]] = (
                    np.nan if step.training_tokens is None else step.training_tokens
                )
        return cls(runs, np.array(steps), losses, tokens)

    def others(self, row: int, among: Sequence[int]) -> list[int]:
        """Runs that can have read the same text in the same order, and went on for as long."""
        mine = self.tokens[row]
        differ = ((self.tokens != mine) & ~np.isnan(self.tokens) & ~np.isnan(mine)).any(axis=1)
        short = self._last() < (1 - LAST) * self._last()[row]
        return [each for each in among if each != row and not differ[each] and not short[each]]

    def _last(self) -> Array:
        last: Array = np.where(np.isnan(self.losses), 0, self.steps).max(axis=1)
        return last

    def common(self, rows: Sequence[int]) -> Array:
        """Columns of the steps whose loss all of these runs logged."""
        return np.flatnonzero(~np.isnan(self.losses[list(rows)]).any(axis=0))

    def counted(self, rows: Sequence[int]) -> bool:
        """Whether these runs count training tokens wherever they log a loss."""
        losses, tokens = self.losses[list(rows)], self.tokens[list(rows)]
        return not (np.isnan(tokens) & ~np.isnan(losses)).any()


def across(runs: Sequence[Whole], margin: float | None) -> dict[str, list[Finding]]:
    """Findings that compare the runs of a study, by run id.

    Args:
        margin: in nats per token; what losses may differ by, as it was stated in advance.
    """
    found: dict[str, list[Finding]] = {whole.run.run_id: [] for whole in runs}
    for group in _comparable(runs, margin):
        for run_id, finding in [*_losses(group, margin), *_flop(group)]:
            marked = finding.model_copy(update={"evidence": finding.evidence | {"across": len(group)}})
            found[run_id].append(marked)
    return found


def _comparable(runs: Sequence[Whole], margin: float | None) -> list[list[Whole]]:
    """Runs that should be equal, as far as anybody knows: they differ by attention and seed alone.

    Runs that differ by the names of their logs can be anything, unless a margin says that they are equal.
    """
    alike = _MUST_BE_EQUAL if margin is None else (*_MUST_BE_EQUAL, "log")

    def rest(whole: Whole) -> str:
        factors = {axis: value for axis, value in whole.run.factors.items() if axis not in alike}
        return dumps([factors, whole.run.config])

    groups = grouped(sorted(runs, key=lambda each: each.run.run_id), rest)
    return [group for group in groups.values() if len(group) > 1]


def _losses(group: Sequence[Whole], margin: float | None) -> Iterator[tuple[str, Finding]]:
    """Each run against the median of the others at each step, which one wrong run hardly moves.

    Runs that differ are then left out of what the others are compared with.
    """
    table = _Table.of([whole for whole in group if any(step.loss is not None for step in whole.steps)])
    everyone = range(len(table.runs))
    first = [_against(table, row, everyone, margin) for row in everyone]
    sound = [row for row, found in enumerate(first) if found and found.level != "error"]
    again = len(sound) not in (0, 1, len(first))
    for row, whole in enumerate(table.runs):
        found = _against(table, row, sound, margin) if again else first[row]
        yield whole.run.run_id, found or _alone(whole, len(first) - 1)


def _against(table: _Table, row: int, among: Sequence[int], margin: float | None) -> Finding | None:
    """A run's loss against the others'; None if no other can be compared."""
    others = table.others(row, among)
    columns = table.common([row, *others])
    if not others or not columns.size:
        return None
    steps = [int(step) for step in table.steps[columns]]
    median = np.median(table.losses[others][:, columns], axis=0)
    mine, rest = (
        dict(zip(steps, values.tolist(), strict=True)) for values in (table.losses[row, columns], median)
    )
    last = [column for column in columns if table.steps[column] > (1 - LAST) * steps[-1]]
    means = table.losses[[row, *others]][:, last].mean(axis=1).tolist()
    return _finding(
        [table.runs[each] for each in (row, *others)],
        losses({0: mine}, {0: rest}, margin),
        margin,
        outlier(means[0], means[1:]),
        _located(mine, rest, margin),
        table.counted([row, *others]),
    )


def _alone(whole: Whole, others: int) -> Finding:
    sentence = (
        f"{whole.name}: its loss is compared with none of the {others} others: they share no step with it, "
        "ended long before it, or count different training tokens at the same steps: they read another text."
    )
    return Finding(check="loss", level="note", sentence=sentence)


def outlier(value: float, others: Sequence[float]) -> str | None:
    """Evidence that a run's mean loss is not of the same kind as the others'; None if there is none.

    A t test of one value against the others' mean and spread (a prediction interval), corrected for having
    looked at each run in turn. It needs no margin, but three others.
    """
    if len(others) < _FEWEST_OTHERS:
        return None
    rest, n = mean_of(others), len(others)
    error = rest.error * sqrt(n + 1)  # of one more value about the mean of the others
    p = Mean(value - rest.value, error, n - 1).p_value() * (n + 1)
    if p > _OUTLIER:
        return None
    return (
        f"Its mean over these steps is {value - rest.value:+.4f} nats from that of the {n} others, whose "
        f"standard deviation is {rest.error * sqrt(n):.4f}: p = {p:.1g} (t, {n - 1} degrees of freedom, "
        f"corrected for {n + 1} runs)."
    )


def _located(mine: Losses, rest: Losses, margin: float | None) -> list[dict[str, Any]]:
    """The parts of a run in which the mean difference is beyond the margin, or not zero if there is none."""
    steps = sorted(mine.keys() & rest.keys())
    size = max(_FEWEST, -(-len(steps) // _WINDOWS))
    found = []
    for window in (steps[start : start + size] for start in range(0, len(steps), size)):
        if len(window) < _FEWEST:
            continue
        mean = mean_of([mine[step] - rest[step] for step in window])
        low, high = mean.interval(_CONFIDENCE)
        if low > (margin or 0.0) or high < -(margin or 0.0):
            found.append({"first": window[0], "last": window[-1], "difference": mean.value})
    return found


def _finding(
    runs: Sequence[Whole],
    verdict: Verdict,
    margin: float | None,
    apart: str | None,
    where: list[dict[str, Any]],
    counted: bool,
) -> Finding:
    """The first of these runs against the others."""
    whole, *others = runs
    against = others[0].name if len(others) == 1 else f"the median of {len(others)} others"
    parts = "; ".join(
        f"{part['difference']:+.3f} over steps {part['first']}-{part['last']}" for part in where
    )
    sentences = [
        f"{whole.name}: its loss against {against} {_said(verdict, margin)}",
        apart or "",
        f"Parts of the run that differ: {parts}." if where else "",
        "All count the same training tokens at every step." if counted else "",
    ]
    evidence = {
        "verdict": verdict.kind,
        "difference": verdict.difference,
        "low": verdict.low,
        "high": verdict.high,
        "method": verdict.method,
        "others": [other.run.run_id for other in others],
        "parts": where,
    }
    wrong = verdict.kind == "different" or (apart and verdict.kind != "equivalent")
    level: Literal["error", "note"] = "error" if wrong else "note"
    return Finding(check="loss", level=level, sentence=" ".join(filter(None, sentences)), evidence=evidence)


def _said(verdict: Verdict, margin: float | None) -> str:
    """The verdict's sentence; without a margin what is known, and how to state one."""
    if margin is not None or verdict.low is None:
        text = sentence(verdict)
        return f"is {text[:1].lower()}{text[1:]}"
    return (
        f"differs by {verdict.difference:+.4f} nats ({verdict.low:+.4f} to {verdict.high:+.4f}; "
        f"{verdict.method}). For a verdict, state how much does not matter with --margin loss=NATS."
    )


def _flop(group: Sequence[Whole]) -> Iterator[tuple[str, Finding]]:
    """A FLOP per token that differs among logs of one configuration, by more than their digits leave open."""
    counts = [
        (whole, printed["flop_per_token"], _count(printed))
        for whole in group
        if (printed := whole.run.imported.printed).get("flop_per_token")
    ]
    if len(counts) < 2:
        return
    apart = [
        [(other.name, value) for other, value, theirs in counts if not _meet(mine, theirs)]
        for _, _, mine in counts
    ]
    values = [value for _, value, _ in counts]
    if not any(apart):
        sentence = (
            f"The {len(counts)} logs that imply a FLOP per token agree: {median(values) / 1e9:.3f} GFLOP."
        )
        evidence = {"flop_per_token": fmean(values)}
        alike = Finding(check="flop_per_token", level="note", sentence=sentence, evidence=evidence)
        yield from ((whole.run.run_id, alike) for whole, _, _ in counts)
    for (whole, value, _), others in zip(counts, apart, strict=True):
        if others:
            yield whole.run.run_id, _other_flop(whole, value, others)


def _count(printed: Mapping[str, float]) -> Between:
    """What a log's FLOP per token can be, by its digits; versions before recorded the number alone."""
    count = printed["flop_per_token"]
    return Between(printed.get(LOW, count), printed.get(HIGH, count))


def _meet(a: Between, b: Between) -> bool:
    return a.low <= b.high and b.low <= a.high


def _other_flop(whole: Whole, count: float, others: Sequence[tuple[str, float]]) -> Finding:
    listed = ", ".join(f"{name} {value / 1e9:.2f}" for name, value in others)
    sentence = (
        f"{whole.name}: it counts {count / 1e9:.2f} GFLOP per token, but others of the same configuration "
        f"do not ({listed}): their MFU and TFLOP/s are not comparable."
    )
    evidence = {"printed": count, "others": dict(others)}
    return Finding(check="flop_per_token", level="error", sentence=sentence, evidence=evidence)
