"""A comparison as tables for people and pages, and as one JSON document for programs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from analysis.stats.verdict import Verdict
from analysis.verdicts.comparison import GroupComparison, SourceComparison
from analysis.verdicts.guard import in_logs
from analysis.verdicts.match import SideGroup
from analysis.wording import because, columns, decimals, faster, range_word


@dataclass(frozen=True)
class Section:
    """A table with a title and a short name; every row has as many cells as there are columns."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def summary(comparison: SourceComparison) -> str:
    """What the exit code means, in words; the page and the tables say why verdicts are open."""
    if comparison.regressions:
        return "\n".join(["regressions:", *(f"  {what}" for what in comparison.regressions)])
    margins = comparison.options.margins
    if not margins:
        return "no margin was stated, so no change in speed or loss can be a regression: state --margin"
    stated = [
        f"{name} {value:g} nats" if name == "loss" else f"{name} {100 * value:g} %"
        for name, value in sorted(margins.items())
    ]
    labels = [result.pair.label for result in comparison.results if result.unsettled]
    labels += [group.label for group in comparison.a_alone]
    shown = [*labels[:_SAID], f"{len(labels) - _SAID} more groups"] if len(labels) > _SAID + 1 else labels
    open_ = f"{len(comparison.unsettled)} ({'; '.join(shown)})" if labels else "0"
    return f"no regression is established (margins: {', '.join(stated)}); not settled: {open_}"


def sections(comparison: SourceComparison) -> list[Section]:
    """What changed: settings, groups, what else differs, results, and the reasons of the verdicts."""
    a, b = comparison.names
    settings = [
        [change.name, str(change.a), str(change.b), _labels(labels, comparison)]
        for change, labels in comparison.settings
        if change.known
    ]
    # A line for all that is unknown on a side, as most is of imported logs.
    changes = [change for change, _ in comparison.settings]
    unknown = [
        len({change.name for change in changes if change.a is None}),
        len({change.name for change in changes if change.b is None}),
    ]
    if any(unknown):
        settings.append(["(settings)", *(f"{n} unknown" if n else "" for n in unknown), ""])
    sides = [(a, comparison.a_alone), (b, comparison.b_alone)]
    alone = [[group.label, name, str(len(group.runs))] for name, groups in sides for group in groups]
    before = []
    for difference, labels in comparison.differences:
        withholds = ", ".join(sorted(difference.breaks))  # the verdicts that are withheld because of it
        if difference.breaks and comparison.options.meant(difference):
            withholds = "(meant)"
        before.append([difference.topic, withholds, _labels(labels, comparison), difference.sentence])
    errors = [[label, text] for label, sentences in wrong(comparison).items() for text in sentences]
    results = [_row(result, comparison) for result in comparison.results]
    reasons: dict[tuple[str, str, str], list[str]] = {}  # groups by what a verdict is of, its kind, and why
    for result in comparison.results:
        for what, verdict in (("speed", result.speed), ("loss", result.loss)):
            if verdict and verdict.kind != "equivalent":
                why = because(verdict, comparison.options.margins.get(_MARGINS[what]), ())
                reasons.setdefault((what, verdict.kind, why), []).append(result.pair.label)
    # A rate of pairs of runs, or of steps, is not the ratio of the medians beside it.
    paired = all(" paired " in f" {result.speed.method}" for result in comparison.results if result.speed)
    rate = "rate, paired" if paired else "rate"
    heads = ("group", "runs", "median s/step", rate, "speed", "loss, nats", "loss", "outcome", "memory, GiB")
    every = (
        Section("settings", "Settings that changed", ["setting", a, b, "groups"], settings),
        Section("alone", "Groups without a partner", ["group", "only in", "runs"], alone),
        Section("before", "Before comparing", ["topic", "withholds", "groups", "what differs"], before),
        Section("wrong", "Flagged in the logs", ["group", "error"], errors),
        Section("results", f"{b} compared with {a}", heads, results),
        Section(
            "verdicts",
            "Why",
            ["group", "of", "verdict", "why"],
            [
                [labels[0] if len(labels) == 1 else _labels(labels, comparison), what, kind, why]
                for (what, kind, why), labels in reasons.items()
            ],
        ),
    )
    return [section for section in every if section.rows]


def document(comparison: SourceComparison) -> dict[str, Any]:
    """The comparison as `--json` prints it."""
    a, b = comparison.names
    return {
        "a": a,
        "b": b,
        "margins": comparison.options.margins,
        "regressions": comparison.regressions,
        "unsettled": comparison.unsettled,
        "wrong_in_logs": wrong(comparison),
        "settings": [asdict(change) | {"groups": labels} for change, labels in comparison.settings],
        "differences": [
            asdict(difference)
            | {
                "breaks": sorted(difference.breaks),
                "meant": comparison.options.meant(difference),
                "groups": labels,
            }
            for difference, labels in comparison.differences
        ],
        "a_alone": [_group(group) for group in comparison.a_alone],
        "b_alone": [_group(group) for group in comparison.b_alone],
        "groups": [
            {
                "label": result.pair.label,
                "a": _group(result.pair.a),
                "b": _group(result.pair.b),
                "regressions": result.regressions,
                "speed": result.speed and columns(result.speed),
                "loss": result.loss and columns(result.loss),
                "outcomes": asdict(result.outcomes),
                "step_seconds": result.step_seconds,
                "peak_memory_bytes": result.peak_memory_bytes,
            }
            for result in comparison.results
        ],
    }


def _group(group: SideGroup) -> dict[str, Any]:
    return {"label": group.label, "run_ids": [run["run_id"] for run in group.runs]}


def wrong(comparison: SourceComparison) -> dict[str, list[str]]:
    """The errors found in the logs of runs, by the label of their group or pair of groups."""
    runs = {result.pair.label: [*result.pair.a.runs, *result.pair.b.runs] for result in comparison.results}
    runs |= {group.label: group.runs for group in (*comparison.a_alone, *comparison.b_alone)}
    errors = {label: in_logs(group_runs)["error"] for label, group_runs in runs.items()}
    return {label: list(sentences) for label, sentences in errors.items() if sentences}


_NAMED = 3  # groups that a cell names
_SAID = 6  # and the sentence at the top
_MARGINS = {"speed": "tokens_per_second", "loss": "loss"}


def _row(result: GroupComparison, comparison: SourceComparison) -> list[str]:
    margins, speed = comparison.options.margins, result.speed
    before, after = (
        ", ".join(f"{n} {what}" if len(side) > 1 else what for what, n in sorted(side.items()))
        for side in (result.outcomes.a, result.outcomes.b)
    )
    outcome = f"{before} -> {after}{' (worse)' if result.outcomes.worse else ''}"
    word: str = speed.kind if speed else ""
    if speed and speed.kind == "different":
        word = faster(speed)
    return [
        result.pair.label,
        f"{len(result.pair.a.runs)} -> {len(result.pair.b.runs)}",
        _arrow(result.step_seconds, 1.0, ".4g"),
        _with_ends(speed, 100.0, margins.get("tokens_per_second"), 2, " %"),
        word,
        _with_ends(result.loss, 1.0, margins.get("loss"), 4, ""),
        result.loss.kind if result.loss else "",
        before if before == after else outcome,
        _arrow(result.peak_memory_bytes, 2.0**30, ".1f"),
    ]


def _arrow(pair: tuple[float | None, float | None], unit: float, form: str) -> str:
    if pair == (None, None):
        return ""
    return " -> ".join("?" if value is None else format(value / unit, form) for value in pair)


def _with_ends(verdict: Verdict | None, times: float, margin: float | None, least: int, unit: str) -> str:
    """A difference and its interval, with enough decimals to round no end onto the margin or across."""
    if verdict is None or verdict.difference is None:
        return ""
    if verdict.low is None or verdict.high is None:
        return f"{times * verdict.difference:+.{least}f}{unit}"
    low, high = times * verdict.low, times * verdict.high
    form = f"+.{decimals((low, high), margin and times * margin, least)}f"
    ends = f"{range_word(verdict.is_range)}{low:{form}} to {high:{form}}"
    return f"{times * verdict.difference:{form}}{unit} ({ends})"


def _labels(labels: list[str], comparison: SourceComparison) -> str:
    if len(labels) == len(comparison.results):
        return "all"
    return ", ".join(labels) if len(labels) <= _NAMED else f"{len(labels)} of {len(comparison.results)}"
