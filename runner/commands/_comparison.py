"""A comparison as `runner compare` shows it: tables for people, one JSON document for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from analysis.verdicts.comparison import GroupComparison, SourceComparison
from analysis.verdicts.match import Group
from analysis.verdicts.sections import sections, wrong
from analysis.wording import columns
from runner.commands._console import show as show_line
from runner.commands._console import table


def show(found: SourceComparison) -> None:
    """Print what changed."""
    for section in sections(found):
        show_line(f"\n{section.title}")
        table(section.columns, section.rows)


def document(found: SourceComparison) -> dict[str, Any]:
    """The comparison as `--json` prints it."""
    a, b = found.names
    return {
        "a": a,
        "b": b,
        "margins": found.options.margins,
        "regressions": found.regressions,
        "unsettled": found.unsettled,
        "wrong_in_logs": wrong(found),
        "settings": [asdict(each) | {"groups": labels} for each, labels in found.settings],
        "differences": [
            asdict(each)
            | {"breaks": sorted(each.breaks), "meant": found.options.meant(each), "groups": labels}
            for each, labels in found.said
        ],
        "a_alone": [_group(group) for group in found.a_alone],
        "b_alone": [_group(group) for group in found.b_alone],
        "groups": [_result(one) for one in found.results],
    }


def _group(group: Group) -> dict[str, Any]:
    return {"label": group.label, "run_ids": [run["run_id"] for run in group.runs]}


def _result(one: GroupComparison) -> dict[str, Any]:
    return {
        "label": one.pair.label,
        "a": _group(one.pair.a),
        "b": _group(one.pair.b),
        "regressions": one.regressions,
        "speed": one.speed and columns(one.speed),
        "loss": one.loss and columns(one.loss),
        "outcomes": asdict(one.outcomes),
        "step_seconds": one.step_seconds,
        "peak_memory_bytes": one.peak_memory_bytes,
    }
