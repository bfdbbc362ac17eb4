"""What is said of profiles: of which groups they do not show where the time goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from analysis.report.said.sentence import Number, Sentence
from analysis.verdicts.profiles import UNLIKE, impossible, unlike
from analysis.wording import group_name, listed

if TYPE_CHECKING:
    from analysis.report.facts import Facts


def sentences(facts: Facts) -> Iterator[Sentence]:
    """One for each figure of other steps than those that were timed, or of parts that cannot be."""
    steps = [row for row in facts.profiles if row["phase"] == "step"]
    if wrong := impossible(steps):
        yield _wrong(wrong, "prefill" if facts.infers else "step")
    for phase, noun in (("step", "prefill" if facts.infers else "step"), ("decode", "decoded token")):
        if found := unlike(row for row in facts.profiles if row["phase"] == phase):
            groups = listed([f"{group_name(label)} ({more:+.1f} %)" for label, more in found.items()])
            numbers = (
                Number(f"profiled {noun} over timed {noun} of {label}, change", more, None, None, "percent")
                for label, more in found.items()
            )
            yield Sentence(
                f"The figure of where the time of a {noun} goes shows {noun}s profiled after the run. "
                f"Those of {groups} took over {UNLIKE:.0f} % longer or shorter than the timed ones, "
                "so it does not show where the time of the timed ones went.",
                tuple(numbers),
            )


def _wrong(found: dict[str, tuple[float, float]], noun: str) -> Sentence:
    groups = [
        f"{group_name(label)} ({1e3 * took:,.3g} ms of at least {1e3 * least:,.3g} ms)"
        for label, (took, least) in found.items()
    ]
    numbers = (
        Number(f"{what} of a profiled {noun} of {label}", 1e3 * seconds, None, None, "ms")
        for label, times in found.items()
        for what, seconds in zip(("attention", "least possible attention"), times, strict=True)
    )
    return Sentence(
        f"The figure of where the time of a {noun} goes is wrong for {listed(groups)}: attention would take "
        "less than it can, so the profile counts some of its kernels as other parts.",
        tuple(numbers),
    )
