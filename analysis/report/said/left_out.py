"""Which planned runs a sentence is not about, although it speaks of their groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING

from analysis.report.said.sentence import Sentence
from analysis.stats import by_label
from analysis.wording import group_name, listed
from model.record.units import counted

if TYPE_CHECKING:
    from analysis.report.facts import Facts, Row
    from analysis.verdicts.losses import LossVerdict as Loss
    from analysis.verdicts.rates import RateVerdict as Rate


def without(sentence: Sentence, facts: Facts, items: Sequence[Rate | Loss]) -> Sentence:
    """The sentence about these comparisons, followed by what they leave out."""
    labels = [label for it in items for label in (it.label, it.baseline)]
    return saying_left_out(sentence, facts, labels, frozenset().union(*(it.runs for it in items)))


def saying_left_out(sentence: Sentence, facts: Facts, labels: Iterable[str], used: Set[str]) -> Sentence:
    """The sentence, followed by how many runs of these groups it leaves out, of how many, and why.

    Args:
        used: ids of the runs that it is about.
    """
    groups = by_label(facts.runs)
    found = [_of_group(groups[label], group_name(label), used) for label in dict.fromkeys(labels)]
    gaps = listed([each for each in found if each])
    return replace(sentence, text=f"{sentence.text} Left out: {gaps}.") if gaps else sentence


def _of_group(runs: list[Row], group: str, used: Set[str]) -> str:
    """`2 of 5 runs of flash (2 failed)`; empty where all are in."""
    out = [run for run in runs if run["run_id"] not in used]
    if not out:
        return ""
    ends = listed([f"{count} {end}" for end, count in Counter(map(_end, out)).items()])
    return f"{len(out)} of {counted(len(runs), 'run')} of {group} ({ends})"


def _end(run: Row) -> str:
    if run["outcome"] == "completed":
        return "without measured steps"
    return f"`{run['outcome']}`" if run["outcome"] else "without an outcome yet"
