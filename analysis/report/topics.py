"""A topic of the setup table: what the runs have of it, which of them differ, and what overrode the study."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from analysis.report.rows import Run
from analysis.stats import grouped
from analysis.wording import group_name, listed
from model.record.units import counted

TextOf = Callable[[Run], str | None]
_SHOWN = 8  # values of one topic
_LABELS = 4  # groups that are named beside a value; of more, the first ones
_ELSEWHERE = "`data/runs.csv` has all of them"


class Setting(NamedTuple):
    """One line of the setup table.

    Attributes:
        topic: what it is: `Steps`.
        value: as text; where runs differ, each value with the groups that have it.
        part: which part of the table it is in: `Model`, `Training`, ...
        changed: what overrode the study's own value; empty if nothing did.
    """

    topic: str
    value: str
    part: str
    changed: str = ""


class SetupTopic(NamedTuple):
    """A topic that runs have one value of.

    Attributes:
        text_of: a run's value as text; None if it is not known.
        keys: the settings behind it, dotted.
    """

    title: str
    text_of: TextOf
    keys: tuple[str, ...] = ()


def lines(
    part: str, topics: Sequence[SetupTopic], runs: Sequence[Run], those: Sequence[Run] | None = None
) -> Iterator[Setting]:
    """A line for each topic.

    Args:
        those: the runs that have a value of it; by default all.
    """
    why_unknown = "the logs do not say" if any(run["imported"] for run in runs) else "not recorded"
    for topic in topics:
        text = value(runs if those is None else those, topic.text_of, why_unknown)
        yield Setting(topic.title, text, part, changed(runs, topic.keys))


def value(runs: Sequence[Run], text_of: TextOf, why_unknown: str = "not recorded") -> str:
    """What the runs have; where they differ, each value with its groups, and for how many it is unknown."""
    by_text = grouped(runs, text_of)
    missing = by_text.pop(None, [])
    if not by_text:
        return f"unknown: {why_unknown}" if runs else "unknown: no run has started"
    if len(by_text) == 1 and not missing:
        return str(*by_text)
    texts = [f"{text} ({_who(having, runs)})" for text, having in by_text.items()]
    more = [f"unknown ({_who(missing, runs)})"] if missing else []
    return "; ".join([*capped(texts, "values"), *more])


def _who(having: Sequence[Run], runs: Sequence[Run]) -> str:
    """The groups that have a value; the number of runs if runs of one group differ."""
    labels = dict.fromkeys(run["label"] for run in having)
    if sum(run["label"] in labels for run in runs) != len(having):
        return counted(len(having), "run")
    return groups(list(labels))


def groups(labels: Sequence[str]) -> str:
    """The groups by name; of many, the first few, and how many more there are."""
    names = [group_name(label) for label in labels]
    more = len(names) - _LABELS + 1
    return listed(names if more <= 1 else [*names[: _LABELS - 1], f"{more} more groups"])


def capped(entries: Sequence[str], what: str) -> list[str]:
    """The first of many entries, and how many more there are and where to look for them."""
    if len(entries) <= _SHOWN:
        return list(entries)
    return [*entries[:_SHOWN], f"{len(entries) - _SHOWN} more {what}; {_ELSEWHERE}"]


def setting(*path: str) -> Callable[[Run], Any]:
    """A setting of a run's configuration; None if it does not say."""

    def value_of(run: Run) -> Any:
        part: Any = run["config"]
        for key in path:
            part = part.get(key) if isinstance(part, dict) else None
        return part

    return value_of


def whole(value_of: Callable[[Run], int | None]) -> TextOf:
    """A count with its thousands set off."""
    return lambda run: None if (count := value_of(run)) is None else f"{count:,d}"


def plain(value_of: Callable[[Run], Any]) -> TextOf:
    """A value as a person would write it."""
    return lambda run: None if (written := value_of(run)) is None else _plain(written)


def _plain(written: Any) -> str:
    return f"{written:g}" if isinstance(written, float) else str(written)


def changed(runs: Sequence[Run], keys: Sequence[str]) -> str:
    """What overrode the study's own values of these settings, and what they were; empty if nothing did."""
    overrides = (_override(run, dotted) for run in runs for dotted in keys)
    return "; ".join(capped(list(dict.fromkeys(filter(None, overrides))), "changes"))


def _override(run: Run, dotted: str) -> str | None:
    if run["overridden"] is None:  # a record of a version that did not keep the study's own values
        texts = [text for text in options(run["command"], "--set") if text.partition("=")[0] == dotted]
        return f"`--set {texts[-1]}`; these records do not include the study's own value" if texts else None
    override = run["overridden"].get(dotted)
    if override is None:
        return None
    own = override["own"]
    if own is None:
        return f"{override['by']}; the study leaves it at its default"
    if isinstance(own, bool):
        return f"{override['by']}; the study says {'yes' if own else 'no'}"
    return f"{override['by']}; the study says {f'{own:,d}' if isinstance(own, int) else _plain(own)}"


def options(command: Sequence[Any] | None, option: str) -> list[str]:
    """The values that a launching command line gives an option, `--set A=B` and `--set=A=B` alike."""
    words = list(map(str, command or ()))
    after = [text for before, text in itertools.pairwise(words) if before == option]
    joined = f"{option}="
    return after + [text.removeprefix(joined) for text in words if text.startswith(joined)]
