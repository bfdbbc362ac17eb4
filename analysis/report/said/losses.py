"""What is said of the groups' losses against the baseline's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.report.said.left_out import without
from analysis.report.said.sentence import Number, Sentence
from analysis.stats import grouped
from analysis.stats.paired import RECORDS
from analysis.verdicts.losses import LossVerdict
from analysis.wording import decimals, group_name, listed, sentence

if TYPE_CHECKING:
    from analysis.report.comparison import StudyComparison
    from analysis.report.facts import Facts

_UNSTATED = " Declare `margins: {loss: NATS}` in the study before it runs."
_UNSTATED_IN_IMPORT = " Import again with `--margin loss=NATS`."
_Class = tuple[str, str, str, float | None, str, str]  # baseline, kind, sentence, margin, level, method


def sentences(facts: Facts, comparison: StudyComparison) -> list[Sentence]:
    """Each verdict on a loss, those of one kind in one sentence, findings first."""
    order = ("different", "equivalent")
    classes = grouped(comparison.losses, _class).items()
    found = sorted(classes, key=lambda each: (*order, each[0][1]).index(each[0][1]))
    unstated = _UNSTATED_IN_IMPORT if facts.imported else _UNSTATED
    return [without(_sentence(*which, items, unstated), facts, items) for which, items in found]


def _class(it: LossVerdict) -> _Class:
    found = it.verdict
    if found.kind == "withheld" or found.difference is None:
        return it.baseline, found.kind, sentence(found), None, found.level, ""
    return it.baseline, found.kind, "", it.margin, found.level, found.method


def _sentence(
    baseline: str,
    kind: str,
    said: str,
    margin: float | None,
    level: str,
    method: str,
    items: Sequence[LossVerdict],
    unstated: str,
) -> Sentence:
    groups = listed([_group(it) for it in items])
    if said:
        text = f"On the loss of {groups} against that of {group_name(baseline)}: {said[:1].lower()}{said[1:]}"
        return Sentence(text, kind=kind)
    share = "" if margin is None else f" the stated margin of {margin:.3g} nats per token"
    same = f"is the same as that of {group_name(baseline)}{share and f' within{share}'}"
    beyond = share and f" by more than{share}"
    text = {
        "equivalent": f"The loss of {groups} {same}.",
        "different": f"The loss of {groups} differs from that of {group_name(baseline)}{beyond}.",
    }.get(kind, f"These runs do not show whether the loss of {groups} {same}.{'' if share else unstated}")
    if level == RECORDS:
        text = f"In one pair of {_unit(items)} each: {text[:1].lower()}{text[1:]}"
    return Sentence(text, tuple(map(_number, items)), kind, level, method)


def _unit(items: Sequence[LossVerdict]) -> str:
    """What is one of a pair: where a seed was repeated, not a run, but the mean of its repeats."""
    return "runs" if all(len(it.runs) == 2 for it in items) else "means over the repeats of one seed"


def _group(it: LossVerdict) -> str:
    found = it.verdict
    if found.difference is None:
        return group_name(it.label)
    if found.low is None or found.high is None:
        return f"{group_name(it.label)} ({found.difference:+.4f})"
    digits = decimals((found.low, found.high), it.margin, 4)
    value, low, high = (f"{x:+.{digits}f}" for x in (found.difference, found.low, found.high))
    return f"{group_name(it.label)} ({value}; {low} to {high})"


def _number(it: LossVerdict) -> Number:
    found = it.verdict
    return Number(
        f"loss of {it.label} minus {it.baseline}",
        found.difference or 0.0,
        found.low,
        found.high,
        "nats per token",
        it.margin,
    )
