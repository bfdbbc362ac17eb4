"""What is said of scaling: the efficiency of each curve at its most processes, and which held up a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from analysis.report.said.sentence import Number, Sentence
from analysis.stats.paired import RECORDS
from analysis.verdicts.scaling import HELD_UP
from analysis.verdicts.slowest import holds_up, slowest
from analysis.wording import group_name, listed
from model.record.units import counted

if TYPE_CHECKING:
    from analysis.report.comparison import StudyComparison
    from analysis.report.facts import Facts, Row
    from analysis.verdicts.scaling import Curve, Point


def sentences(facts: Facts, comparison: StudyComparison) -> Iterator[Sentence]:
    """One for each curve; of single runs it says that they are observed."""
    on_gpus = all(run["gpus"] for run in facts.runs if run["outcome"] == "completed")
    for curve in comparison.scaling:
        yield _sentence(curve, curve.points[-1], "GPUs" if on_gpus else "processes")


def held_up(runs: Sequence[Row]) -> Iterator[Sentence]:
    """Which completed runs waited for one of their processes."""
    ranked = [run for run in runs if run["outcome"] == "completed" and run["ranked_records"]]
    if found := [run for run in ranked if holds_up(run)]:
        places = listed([f"in {group_name(run['label'])}, {slowest(run)}" for run in found])
        many = f"{len(found)} of {len(ranked)} completed runs of several processes"
        yield Sentence(f"One process held up the others in {many}: {places}.")


def moved(runs: Sequence[Row]) -> Iterator[Sentence]:
    """Which completed runs ended on other numbers of processes than the study gives them."""
    done = [run for run in runs if run["outcome"] == "completed"]
    if found := [run for run in done if run["measured_attempt"] != run["deciding_attempt"]]:
        where = listed([group_name(label) for label in dict.fromkeys(run["label"] for run in found)])
        yield Sentence(
            f"{len(found)} of {counted(len(done), 'completed run')} ended on other numbers of processes than "
            f"the study gives, in {where}: speed and memory are those of the attempts before."
        )


def _sentence(curve: Curve, last: Point, what: str) -> Sentence:
    where = f"{curve.kind.capitalize()} scaling, {curve.way}, {curve.constant}"
    if last.why_withheld:
        return Sentence(f"{where}: no efficiency is given. {last.why_withheld}", kind="withheld")
    value, low, high = (end and 100 * end for end in last.efficiency)
    ends = "" if low is None or high is None else f" ({low:.1f} to {high:.1f})"
    said = (
        f"{where}: {last.processes} {what} train {last.ratio.ratio:.2f} times as fast as "
        f"{curve.base_processes}, {value:.1f} %{ends} of ideal"
    )
    if last.observed:
        said = f"Observed {last.observed}, not a finding: {said[0].lower()}{said[1:]}"
    more = f". {HELD_UP}" if last.beyond_ideal else ""
    over = f" over {curve.base_processes}" if curve.base_processes > 1 else ""
    number = Number(
        f"efficiency of {curve.kind} scaling at {last.processes} {what}{over}, {curve.way}, {curve.constant}",
        value or 0.0,
        low,
        high,
        "percent",
    )
    kind = "observed" if last.observed or last.ratio.level == RECORDS else "scaling"
    return Sentence(f"{said}{more}.", (number,), kind, last.ratio.level, last.ratio.method)
