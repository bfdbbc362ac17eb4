"""What is said of decoding: how long a token takes under the fastest and the slowest group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from analysis.report.said.sentence import Number, Sentence, counted, listed
from analysis.stats import by_label
from analysis.stats.estimate import median
from analysis.stats.verdict import name

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
    each = listed([f"{1e3 * groups[label]:,.3g} ms under {name(label)}" for label in ends])
    among = f", of {len(groups)} groups that decode" if len(groups) > 2 else ""
    text = f"Observed: a decoded token takes {each}{among}."
    numbers = (
        Number(f"milliseconds per decoded token of {label}", 1e3 * groups[label], None, None, "ms")
        for label in ends
    )
    yield Sentence(text, tuple(numbers), "observed", f"medians of {counted(len(decoded), 'run')}", "")


def without(facts: Facts) -> Iterator[Sentence]:
    """Groups that only read prompts, as the study asked."""
    alone = {run["label"] for run in facts.runs if run["config"]["inference"]["new_tokens"] == 0}
    labels = [label for label in facts.labels if label in alone]
    if labels and len(labels) < len(facts.labels):
        yield Sentence(
            f"How long {listed([name(label) for label in labels])} would take to decode: "
            "the study has them read prompts alone."
        )
