"""Kinds of frontiers: every probe, the two figures, and the page of a run."""

from __future__ import annotations

import re
from typing import Any

from tests.oracle.frontiers import (
    UNIT,
    Sought,
    cards,
    frontiers,
    gib,
    memory_errors,
    next_larger,
    outermost,
    signed,
)
from tests.oracle.kinds import NONE
from tests.oracle.listing import Cell, Spot, column, text


def ends(study: Any) -> str:
    """The smallest frontier to the largest."""
    return " to ".join(f"{largest} ({', '.join(labels)})" for largest, labels in reversed(outermost(study)))


def errors(study: Any) -> str:
    """Of the forecast of memory."""
    percentages = memory_errors(study)
    return " to ".join(dict.fromkeys((f"{min(percentages):+}", f"{max(percentages):+}")))


@text(r"Filled: the largest value that trained .*", "figcaption")
@text(r"A mark is a probe: .*", "figcaption")
def frontier_caption(spot: Spot, match: re.Match[str]) -> str:
    beginning, memory, _ = re.split(r"((?:Memory|The rule is the memory): )", match[0], maxsplit=1)
    return f"{beginning}{memory}{cards(spot.study)}."


@text(rf"Dot plot of the largest {UNIT} that fit, by group: .*", "figcaption")
def frontier_description(spot: Spot, match: re.Match[str]) -> str:
    return f"Dot plot of the largest {UNIT} that fit, by group: {ends(spot.study)}."


@text(rf"Memory over {UNIT}, by group\. .*", "figcaption")
def memory_description(spot: Spot, match: re.Match[str]) -> str:
    return f"Memory over {UNIT}, by group. Forecast against the measured peak: {errors(spot.study)} %."


@column(rf"Largest that fits: {UNIT}: values", ".+")
def frontier_cells(cell: Cell) -> str:
    frontier = frontiers(cell.spot.study)[cell.first]
    search = sum(probe["purpose"] == "search" for probe in frontier.probes)
    return {
        "group": cell.first,
        "run": f"seed {frontier.run.key[0]}, {frontier.run.id}",
        "forecast": f"{frontier.record['foreseen']}",
        "largest that fits": frontier.text,
        "next that does not": next_larger(frontier) if frontier.bound else NONE,
        "forecast's error, %": signed(frontier.error),
        "probes: search + above": f"{search} + {len(frontier.probes) - search}",
    }[cell.head]


def probe_of(frontier: Sought, value: str) -> dict[str, Any]:
    """The probe of a value."""
    (probe,) = (probe for probe in frontier.probes if f"{probe['value']:,d}" == value)
    return dict(probe)


@column(rf"Memory over {UNIT}: values", ".+")
def memory_cells(cell: Cell) -> str:
    probe = probe_of(frontiers(cell.spot.study)[cell.first], cell.row[UNIT])
    return {
        "group": cell.first,
        UNIT: f"{probe['value']}",
        "outcome": f"{probe['outcome']}",
        "forecast, GiB": gib(probe["forecast_bytes"]),
        "peak, GiB": gib(probe.get("peak_bytes")),
    }[cell.head]


@column(r"Every probe, in its order\..*|Probes.*", ".+")
def probe_cells(cell: Cell) -> str:
    searches = frontiers(cell.spot.study).values()
    run_id = cell.spot.run.id if cell.spot.run else cell.row["Run"]
    (frontier,) = (frontier for frontier in searches if frontier.run.id == run_id)
    probe = probe_of(frontier, cell.row["Value"])
    value = {
        "Group": frontier.run.label,
        "Run": frontier.run.id,
        "Sought": frontier.record["find"],
        "Value": probe["value"],
        "Why": probe["purpose"],
        "Outcome": probe["outcome"],
        "Forecast, GiB": gib(probe["forecast_bytes"]),
        "Peak, GiB": gib(probe.get("peak_bytes")),
        "Reserved, GiB": gib(probe.get("reserved_bytes")),
        "Outside, GiB": gib(probe.get("outside_bytes")),
        "Retries": probe.get("retries", NONE),
        "Seconds": probe["seconds"],
        "Reason": probe["reason"] or "",
    }[cell.head]
    return f"{value}"


@text(r"Probes: .*", "dl.facts")
def probes_fact(spot: Spot, match: re.Match[str]) -> str:
    assert spot.run
    frontier = Sought(spot.run)
    text = f"{'' if frontier.sure else 'at least '}{frontier.largest}" if frontier.largest else NONE
    return (
        f"Probes: {len(frontier.probes)} of at most 12; largest {frontier.record['find']} that fits: {text}, by the forecast "
        f"{frontier.record['foreseen']}: see every probe"
    )
