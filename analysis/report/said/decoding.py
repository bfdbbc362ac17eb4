"""What is said of inference alone: how long a token takes, and how little it and a prefill could take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from analysis.report.said.sentence import Number, Sentence
from analysis.stats import by_label
from analysis.stats.estimate import median
from analysis.wording import group_name, listed
from model.record.units import counted

if TYPE_CHECKING:
    from analysis.report.facts import Facts


def sentences(facts: Facts) -> Iterator[Sentence]:
    """Observed, not found: medians over positions, of which the figure has intervals."""
    done = [run for run in facts.runs if run["outcome"] == "completed"]
    decoded = [run for run in done if run["decode_seconds"]]
    if not decoded:
        return
    groups = {
        label: median([run["decode_seconds"] for run in mine]) for label, mine in by_label(decoded).items()
    }
    ordered = sorted(groups, key=lambda label: groups[label])
    ends = list(dict.fromkeys((ordered[0], ordered[-1])))
    each = listed([f"{1e3 * groups[label]:,.3g} ms under {group_name(label)}" for label in ends])
    among = f", of {len(groups)} groups that decode" if len(groups) > 2 else ""
    text = f"Observed: a decoded token takes {each}{among}."
    numbers = (
        Number(f"milliseconds per decoded token of {label}", 1e3 * groups[label], None, None, "ms")
        for label in ends
    )
    yield Sentence(text, tuple(numbers), "observed", f"medians of {counted(len(decoded), 'run')}", "")


def floors(facts: Facts) -> Iterator[Sentence]:
    """How little of its time a prefill and a decoded token could take, where that is least and most."""
    parts, numbers = [], list[Number]()
    for noun, column in (("a prefill", "floor_percentage"), ("a decoded token", "decode_floor_percentage")):
        shares = {group.label: share for group in facts.groups if (share := getattr(group, column))}
        if not shares:
            continue
        ordered = sorted(shares, key=lambda label: shares[label])
        ends = list(dict.fromkeys((ordered[0], ordered[-1])))
        numbers += [
            Number(f"floor of {noun} of {each}", shares[each], None, None, "percent") for each in ends
        ]
        each = " to ".join(f"{shares[label]:.0f} % ({group_name(label)})" for label in ends)
        parts.append(f"{each} of that of {noun}")
    if parts:
        text = f"Observed: the least time, by the rates measured on the same device, is {listed(parts)}."
        yield Sentence(text, tuple(numbers), "observed", "medians of completed runs", "")


def without(facts: Facts) -> Iterator[Sentence]:
    """Groups that only read prompts, as the study asked."""
    alone = {run["label"] for run in facts.runs if run["config"]["inference"]["new_tokens"] == 0}
    labels = [label for label in facts.labels if label in alone]
    if labels and len(labels) < len(facts.labels):
        yield Sentence(
            f"How long {listed([group_name(label) for label in labels])} would take to decode: "
            "in this study they only read prompts."
        )
