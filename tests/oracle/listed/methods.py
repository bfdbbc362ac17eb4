"""Kinds of methods: what a rule says with a number stands here as `truth` has it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.oracle.listed.certificates import certified
from tests.oracle.listed.overview import moment
from tests.oracle.listing import Cell, Spot, cites, column, text
from tests.oracle.pages import NUMBER
from tests.oracle.truth import (
    Study,
)

RULES: dict[str, Callable[[Study, str], tuple[float | str, ...]]] = {
    "Warm-up. The first W of the planned steps": lambda study, rule: (max(run.warmup for run in study.runs),),
    "MFU, model FLOPs utilisation, is": lambda study, rule: (6, 12, 2022),
    "MFU of a prefill is": lambda study, rule: (2, 2, 4),
    "A group is the runs that differ only in seed and repeat.": lambda study, rule: (
        95,
        *((6, 1986) if any(len(study.completed(label)) >= 6 for label in study.groups) else ()),
        *((5,) if any(1 < len(study.completed(label)) < 6 for label in study.groups) else ()),
        *(
            (24,)
            if any(
                len(study.completed(label)) == 1 and study.completed(label)[0].counted
                for label in study.groups
            )
            else ()
        ),
    ),
    "Losses are compared by their difference": lambda study, rule: (3, 5),
    "Kernel TFLOP/s count": lambda study, rule: (4, 2.5, 3.5),
    "The interval of a median over the calls": lambda study, rule: (95,),
    "Times of the same shape can be compared": lambda study, rule: (95, 24),
    "Against the baseline. A group is compared": lambda study, rule: (
        (90, 5) if "The study states a margin" in rule else ()
    ),
    "Ranking. All pairs of groups": lambda study, rule: (5, 5),
    "GPUs. The logarithms of seconds per token": lambda study, rule: (5,),
    "Prefill. A step is one prefill": lambda study, rule: (study.runs[0].warmup,),
    "Losses are compared over the last fifth": lambda study, rule: (),
    "The forecast counts the peak": lambda study, rule: (0.5,),
    "A share of the memory below 1": lambda study, rule: (1,),
}


@text(r".+", "section>p")
def rule(spot: Spot, match: re.Match[str]) -> Iterator[str]:
    for start, numbers in RULES.items():
        if match[0].startswith(start):
            yield cites(match[0], *numbers(spot.study, match[0]))
    if spot.page == "methods" and "Certificates lists what was found" in match[0]:
        beginning, lists, _ = match[0].partition("Certificates lists what was found")
        counts = certified(spot.study)
        yield beginning + lists + (f": {counts}." if counts else ".")
    if not NUMBER.search(match[0]) and (spot.page == "methods" or match[0].endswith("?")):
        yield match[0]  # a rule, or a question, without a number


@text(r"The runs were (?:planned|imported) between .*")
def planned_between(spot: Spot, match: re.Match[str]) -> str:
    if spot.study.imported:
        return f"The runs were imported between {moment('2026-03-01')} and {moment('2026-03-01')}."
    times = sorted(run.plan["created_at"] for run in spot.study.runs)
    return f"The runs were planned between {moment(times[0])} and {moment(times[-1])}."


@column(r"runs|steps|kernels|probes", "What it is")
def column_of_the_database(cell: Cell) -> str:
    """As docs/schema.md has it: no value of a study."""
    schema = " ".join(
        Path("docs/schema.md").read_text(encoding="utf-8").replace("`", "").replace("\\", "").split()
    )
    return cell.row[cell.head] if cell.row[cell.head] in schema else "as in docs/schema.md"
