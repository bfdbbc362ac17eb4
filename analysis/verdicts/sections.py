"""A comparison in words: what `runner compare` prints, and its page says. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analysis.stats.verdict import Verdict
from analysis.verdicts.comparison import GroupComparison, SourceComparison
from analysis.verdicts.guard import Difference, in_logs
from analysis.wording import decimals, faster, sentence


@dataclass(frozen=True)
class Section:
    """A table with a title and a short name; every row has as many cells as there are columns."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def summary(found: SourceComparison) -> str:
    """What the exit code means, in words."""
    if found.regressions:
        return "\n".join(["regressions:", *(f"  {what}" for what in found.regressions)])
    stated = [f"{name} {_margin(name, value)}" for name, value in sorted(found.options.margins.items())]
    if not stated:
        return "no margin was stated, so no change in speed or loss can be a regression: state --margin"
    return f"no regression is established (margins: {', '.join(stated)}); not settled: {_unsettled(found)}"


def _unsettled(found: SourceComparison) -> str:
    """How many verdicts are open, and of which groups; the page and the tables say why."""
    open_ = [one.pair.label for one in found.results if one.unsettled]
    open_ += [group.label for group in found.a_alone]
    return f"{len(found.unsettled)} ({_some(open_)})" if open_ else "0"


def _some(labels: Sequence[str]) -> str:
    shown = [*labels[:_SAID], f"{len(labels) - _SAID} more groups"] if len(labels) > _SAID + 1 else labels
    return "; ".join(shown)


def _margin(name: str, value: float) -> str:
    return f"{value:g} nats" if name == "loss" else f"{100 * value:g} %"


def sections(found: SourceComparison) -> list[Section]:
    """What changed: settings, groups, what else differs, results, and the reasons of the verdicts."""
    return [section for section in _all(found) if section.rows]


def _all(found: SourceComparison) -> Iterator[Section]:
    a, b = found.names
    yield Section("settings", "Settings that changed", ["setting", a, b, "groups"], _settings(found))
    alone = [(a, found.a_alone), (b, found.b_alone)]
    rows = [[group.label, name, str(len(group.runs))] for name, groups in alone for group in groups]
    yield Section("alone", "Groups without a partner", ["group", "only in", "runs"], rows)
    yield Section(
        "before",
        "Before comparing",
        ["topic", "withholds", "groups", "what differs"],
        [
            [each.topic, _withholds(each, found), _labels(labels, found), each.sentence]
            for each, labels in found.said
        ],
    )
    rows = [[label, sentence] for label, sentences in wrong(found).items() for sentence in sentences]
    yield Section("wrong", "Errors in the logs", ["group", "error"], rows)
    yield Section("results", f"{b} compared with {a}", _COLUMNS, [_row(one, found) for one in found.results])
    yield Section(
        "verdicts",
        "Verdicts",
        ["group", "of", "why"],
        [row for one in found.results for row in _reasons(one)],
    )


def wrong(found: SourceComparison) -> dict[str, list[str]]:
    """The errors found in the logs of runs, by the label of their group or pair of groups."""
    runs = {one.pair.label: [*one.pair.a.runs, *one.pair.b.runs] for one in found.results}
    runs |= {group.label: group.runs for group in (*found.a_alone, *found.b_alone)}
    errors = {label: in_logs(mine)["error"] for label, mine in runs.items()}
    return {label: sentences for label, sentences in errors.items() if sentences}


def _settings(found: SourceComparison) -> list[list[str]]:
    """A line for each change, and one for all that is unknown on a side, as most is of imported logs."""
    lines = [
        [each.name, str(each.a), str(each.b), _labels(labels, found)]
        for each, labels in found.settings
        if each.known
    ]
    changes = [each for each, _ in found.settings]
    unknown = [
        len({each.name for each in changes if each.a is None}),
        len({each.name for each in changes if each.b is None}),
    ]
    if any(unknown):
        lines.append(["(settings)", *(f"{n} unknown" if n else "" for n in unknown), ""])
    return lines


def _withholds(difference: Difference, found: SourceComparison) -> str:
    """The verdicts that are withheld because of it."""
    return (
        "(meant)"
        if difference.breaks and found.options.meant(difference)
        else ", ".join(sorted(difference.breaks))
    )


_NAMED = 3  # groups that a cell names
_SAID = 6  # and the sentence at the top
_COLUMNS = ("group", "runs", "s/step", "rate", "speed", "loss, nats", "loss", "outcome", "memory, GiB")


def _row(one: GroupComparison, found: SourceComparison) -> list[str]:
    return [
        one.pair.label,
        f"{len(one.pair.a.runs)} -> {len(one.pair.b.runs)}",
        _arrow(one.step_seconds, 1.0, ".4g"),
        _percent(one.speed, found.options.margins.get("tokens_per_second")),
        _speed_word(one.speed),
        _nats(one.loss, found.options.margins.get("loss")),
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


def _labels(labels: list[str], found: SourceComparison) -> str:
    if len(labels) == len(found.results):
        return "all"
    return ", ".join(labels) if len(labels) <= _NAMED else f"{len(labels)} of {len(found.results)}"
