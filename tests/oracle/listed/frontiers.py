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
    return " to ".join(f"{most} ({', '.join(labels)})" for most, labels in reversed(outermost(study)))


def errors(study: Any) -> str:
    """Of the forecast of memory."""
    own = memory_errors(study)
    return " to ".join(dict.fromkeys((f"{min(own):+}", f"{max(own):+}")))


@text(r"Filled: the largest value that trained .*", "figcaption")
@text(r"A mark is a probe: .*", "figcaption")
def frontier_caption(spot: Spot, match: re.Match[str]) -> str:
    before, memory, _ = re.split(r"((?:Memory|The rule is the memory): )", match[0], maxsplit=1)
    return f"{before}{memory}{cards(spot.study)}."


@text(rf"Dot plot of the largest {UNIT} that fit, by group: .*", "figcaption")
def frontier_description(spot: Spot, match: re.Match[str]) -> str:
    return f"Dot plot of the largest {UNIT} that fit, by group: {ends(spot.study)}."


@text(rf"Memory over {UNIT}, by group\. .*", "figcaption")
def memory_description(spot: Spot, match: re.Match[str]) -> str:
    return f"Memory over {UNIT}, by group. Forecast against the measured peak: {errors(spot.study)} %."


@column(rf"Largest that fits: {UNIT}: values", ".+")
def frontier_cells(cell: Cell) -> str:
    one = frontiers(cell.spot.study)[cell.first]
    search = sum(probe["purpose"] == "search" for probe in one.probes)
    return {
        "group": cell.first,
        "run": f"seed {one.run.key[0]}, {one.run.id}",
        "forecast": f"{one.record['foreseen']}",
        "largest that fits": one.text,
        "next that does not": next_larger(one) if one.bound else NONE,
        "forecast's error, %": signed(one.error),
        "probes: search + above": f"{search} + {len(one.probes) - search}",
    }[cell.head]


def probe_of(one: Sought, value: str) -> dict[str, Any]:
    """The probe of a value."""
    (probe,) = (probe for probe in one.probes if f"{probe['value']:,d}" == value)
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
    found = frontiers(cell.spot.study).values()
    run_id = cell.spot.run.id if cell.spot.run else cell.row["Run"]
    (one,) = (one for one in found if one.run.id == run_id)
    probe = probe_of(one, cell.row["Value"])
    value = {
        "Group": one.run.label,
        "Run": one.run.id,
        "Sought": one.record["find"],
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
    one = Sought(spot.run)
    text = f"{'' if one.sure else 'at least '}{one.largest}" if one.largest else NONE
    return (
        f"Probes: {len(one.probes)} of at most 12; largest {one.record['find']} that fits: {text}, by the forecast "
        f"{one.record['foreseen']}: see every probe"
    )
