"""A comparison as tables for people and pages, and as one JSON document for programs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from analysis.stats.verdict import Verdict
from analysis.verdicts.comparison import GroupComparison, SourceComparison
from analysis.verdicts.guard import Difference, in_logs
from analysis.verdicts.match import SideGroup
from analysis.wording import columns, decimals, faster, sentence


@dataclass(frozen=True)
class Section:
    """A table with a title and a short name; every row has as many cells as there are columns."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def summary(comparison: SourceComparison) -> str:
    """What the exit code means, in words."""
    if comparison.regressions:
        return "\n".join(["regressions:", *(f"  {what}" for what in comparison.regressions)])
    stated = [f"{name} {_margin(name, value)}" for name, value in sorted(comparison.options.margins.items())]
    if not stated:
        return "no margin was stated, so no change in speed or loss can be a regression: state --margin"
    return (
        f"no regression is established (margins: {', '.join(stated)}); not settled: {_unsettled(comparison)}"
    )


def _unsettled(comparison: SourceComparison) -> str:
    """How many verdicts are open, and of which groups; the page and the tables say why."""
    open_ = [one.pair.label for one in comparison.results if one.unsettled]
    open_ += [group.label for group in comparison.a_alone]
    return f"{len(comparison.unsettled)} ({_some(open_)})" if open_ else "0"


def _some(labels: Sequence[str]) -> str:
    shown = [*labels[:_SAID], f"{len(labels) - _SAID} more groups"] if len(labels) > _SAID + 1 else labels
    return "; ".join(shown)


def _margin(name: str, value: float) -> str:
    return f"{value:g} nats" if name == "loss" else f"{100 * value:g} %"


def sections(comparison: SourceComparison) -> list[Section]:
    """What changed: settings, groups, what else differs, results, and the reasons of the verdicts."""
    return [section for section in _all(comparison) if section.rows]


def _all(comparison: SourceComparison) -> Iterator[Section]:
    a, b = comparison.names
    yield Section("settings", "Settings that changed", ["setting", a, b, "groups"], _settings(comparison))
    alone = [(a, comparison.a_alone), (b, comparison.b_alone)]
    rows = [[group.label, name, str(len(group.runs))] for name, groups in alone for group in groups]
    yield Section("alone", "Groups without a partner", ["group", "only in", "runs"], rows)
    yield Section(
        "before",
        "Before comparing",
        ["topic", "withholds", "groups", "what differs"],
        [
            [
                difference.topic,
                _withholds(difference, comparison),
                _labels(labels, comparison),
                difference.sentence,
            ]
            for difference, labels in comparison.differences
        ],
    )
    rows = [[label, sentence] for label, sentences in wrong(comparison).items() for sentence in sentences]
    yield Section("wrong", "Errors in the logs", ["group", "error"], rows)
    yield Section(
        "results", f"{b} compared with {a}", _COLUMNS, [_row(one, comparison) for one in comparison.results]
    )
    yield Section(
        "verdicts",
        "Verdicts",
        ["group", "of", "why"],
        [row for one in comparison.results for row in _reasons(one)],
    )


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
        "settings": [asdict(each) | {"groups": labels} for each, labels in comparison.settings],
        "differences": [
            asdict(each)
            | {"breaks": sorted(each.breaks), "meant": comparison.options.meant(each), "groups": labels}
            for each, labels in comparison.differences
        ],
        "a_alone": [_group(group) for group in comparison.a_alone],
        "b_alone": [_group(group) for group in comparison.b_alone],
        "groups": [_result(one) for one in comparison.results],
    }


def _group(group: SideGroup) -> dict[str, Any]:
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


def wrong(comparison: SourceComparison) -> dict[str, list[str]]:
    """The errors found in the logs of runs, by the label of their group or pair of groups."""
    runs = {one.pair.label: [*one.pair.a.runs, *one.pair.b.runs] for one in comparison.results}
    runs |= {group.label: group.runs for group in (*comparison.a_alone, *comparison.b_alone)}
    errors = {label: in_logs(group_runs)["error"] for label, group_runs in runs.items()}
    return {label: sentences for label, sentences in errors.items() if sentences}


def _settings(comparison: SourceComparison) -> list[list[str]]:
    """A line for each change, and one for all that is unknown on a side, as most is of imported logs."""
    lines = [
        [change.name, str(change.a), str(change.b), _labels(labels, comparison)]
        for change, labels in comparison.settings
        if change.known
    ]
    changes = [change for change, _ in comparison.settings]
    unknown = [
        len({change.name for change in changes if change.a is None}),
        len({change.name for change in changes if change.b is None}),
    ]
    if any(unknown):
        lines.append(["(settings)", *(f"{n} unknown" if n else "" for n in unknown), ""])
    return lines


def _withholds(difference: Difference, comparison: SourceComparison) -> str:
    """The verdicts that are withheld because of it."""
    return (
        "(meant)"
        if difference.breaks and comparison.options.meant(difference)
        else ", ".join(sorted(difference.breaks))
    )


_NAMED = 3  # groups that a cell names
_SAID = 6  # and the sentence at the top
_COLUMNS = ("group", "runs", "s/step", "rate", "speed", "loss, nats", "loss", "outcome", "memory, GiB")


def _row(one: GroupComparison, comparison: SourceComparison) -> list[str]:
    return [
        one.pair.label,
        f"{len(one.pair.a.runs)} -> {len(one.pair.b.runs)}",
        _arrow(one.step_seconds, 1.0, ".4g"),
        _percent(one.speed, comparison.options.margins.get("tokens_per_second")),
        _speed_word(one.speed),
        _nats(one.loss, comparison.options.margins.get("loss")),
        one.loss.kind if one.loss else "",
        _outcome(one),
        _arrow(one.peak_memory_bytes, 2.0**30, ".1f"),
    ]


def _arrow(pair: tuple[float | None, float | None], unit: float, form: str) -> str:
    if pair == (None, None):
        return ""
    return " -> ".join("?" if value is None else format(value / unit, form) for value in pair)


def _percent(verdict: Verdict | None, margin: float | None) -> str:
    return _with_ends(verdict, 100.0, margin, 2, " %")


def _nats(verdict: Verdict | None, margin: float | None) -> str:
    return _with_ends(verdict, 1.0, margin, 4, "")


def _with_ends(verdict: Verdict | None, times: float, margin: float | None, least: int, unit: str) -> str:
    """A difference and its interval, with enough decimals to round no end onto the margin or across."""
    if verdict is None or verdict.difference is None:
        return ""
    if verdict.low is None or verdict.high is None:
        return f"{times * verdict.difference:+.{least}f}{unit}"
    low, high = times * verdict.low, times * verdict.high
    form = f"+.{decimals((low, high), margin and times * margin, least)}f"
    return f"{times * verdict.difference:{form}}{unit} ({low:{form}} to {high:{form}})"


def _speed_word(verdict: Verdict | None) -> str:
    if verdict is None or verdict.kind != "different":
        return verdict.kind if verdict else ""
    return faster(verdict)


def _outcome(one: GroupComparison) -> str:
    a, b = (", ".join(f"{n} {what}" if len(side) > 1 else what for what, n in sorted(side.items()))
            for side in (one.outcomes.a, one.outcomes.b))  # fmt: skip
    return a if a == b else f"{a} -> {b}{' (worse)' if one.outcomes.worse else ''}"


def _reasons(one: GroupComparison) -> list[list[str]]:
    """Rows of sentences for the verdicts other than *equivalent*."""
    verdicts = (("speed", one.speed), ("loss", one.loss))
    return [
        [one.pair.label, what, sentence(verdict)]
        for what, verdict in verdicts
        if verdict and verdict.kind != "equivalent"
    ]


def _labels(labels: list[str], comparison: SourceComparison) -> str:
    if len(labels) == len(comparison.results):
        return "all"
    return ", ".join(labels) if len(labels) <= _NAMED else f"{len(labels)} of {len(comparison.results)}"
