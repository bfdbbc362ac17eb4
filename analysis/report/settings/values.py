"""A topic of the setup: what the runs have of it, which of them differ, and what overrode the study."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from analysis.stats import grouped
from analysis.wording import group_name, listed
from model.record.units import counted

Row = dict[str, Any]  # of the report's query of runs
Of = Callable[[Row], str | None]
_SHOWN = 8  # values of one topic
_LABELS = 4  # groups that are named beside a value; of more, the first ones
_ELSEWHERE = "`data/runs.csv` has all of them"
UNKNOWN = "unknown"


class Setting(NamedTuple):
    """One line of the setup table.

    Attributes:
        topic: what it is: `Steps`.
        value: as text; where runs differ, each value with the groups that have it.
        changed: what overrode the study's own value; empty if nothing did.
        part: which part of the table it is in: `Model`, `Training`, ...
    """

    topic: str
    value: str
    changed: str
    part: str


def value(runs: Sequence[Row], of: Of, why_unknown: str = "not recorded") -> str:
    """What the runs have; where they differ, each value with its groups, and for how many it is unknown."""
    found = grouped(runs, of)
    missing = found.pop(None, [])
    if not found:
        return f"{UNKNOWN}: {why_unknown}" if runs else f"{UNKNOWN}: no run has started"
    if len(found) == 1 and not missing:
        return str(*found)
    said = [f"{text} ({_who(mine, runs)})" for text, mine in found.items()]
    more = [f"{UNKNOWN} ({_who(missing, runs)})"] if missing else []
    return "; ".join([*capped(said, "values"), *more])


def _who(mine: Sequence[Row], runs: Sequence[Row]) -> str:
    """The groups that have a value; the number of runs if runs of one group differ."""
    labels = list(dict.fromkeys(run["label"] for run in mine))
    known = set(labels)
    whole = sum(run["label"] in known for run in runs) == len(mine)
    if not whole:
        return counted(len(mine), "run")
    return groups(labels)


def groups(labels: Sequence[str]) -> str:
    """The groups by name; of many, the first few, and how many more there are."""
    names = [group_name(label) for label in labels]
    more = len(names) - _LABELS + 1
    return listed(names if more <= 1 else [*names[: _LABELS - 1], f"{more} more groups"])


def capped(said: Sequence[str], what: str) -> list[str]:
    """The first of many entries, and how many more there are and where to look for them."""
    if len(said) <= _SHOWN:
        return list(said)
    return [*said[:_SHOWN], f"{len(said) - _SHOWN} more {what}; {_ELSEWHERE}"]


def setting(*path: str) -> Callable[[Row], Any]:
    """A setting of a run's configuration; None if it does not say."""

    def of(run: Row) -> Any:
        found: Any = run["config"]
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        return found

    return of


def whole(of: Callable[[Row], Any]) -> Of:
    """A count with its thousands set off."""
    return lambda run: None if (found := of(run)) is None else f"{found:,d}"


def plain(of: Callable[[Row], Any]) -> Of:
    """A value as a person would write it."""
    return lambda run: None if (found := of(run)) is None else _plain(found)


def _plain(found: Any) -> str:
    return f"{found:g}" if isinstance(found, float) else str(found)


def changed(runs: Sequence[Row], settings: Sequence[str]) -> str:
    """What overrode the study's own values of these settings, and what they were; empty if nothing did."""
    said: dict[str, None] = {}
    for run in runs:
        for dotted in settings:
            if text := _override(run, dotted):
                said[text] = None
    return "; ".join(capped(list(said), "changes"))


def _override(run: Row, dotted: str) -> str | None:
    if run["overridden"] is None:  # a record of a version that did not keep the study's own values
        given = options(run, "--set")
        texts = [text for text in given if text.partition("=")[0] == dotted]
        return f"`--set {texts[-1]}`; these records do not include the study's own value" if texts else None
    found = run["overridden"].get(dotted)
    if found is None:
        return None
    own = "leaves it at its default" if found["own"] is None else f"says {_own(found['own'])}"
    return f"{found['by']}; the study {own}"


def _own(found: Any) -> str:
    if isinstance(found, bool):
        return "yes" if found else "no"
    return f"{found:,d}" if isinstance(found, int) else _plain(found)


def options(run: Row, option: str) -> list[str]:
    """The values that the launching command line gives an option, `--set A=B` and `--set=A=B` alike."""
    command = list(map(str, run["command"] or ()))
    after = [text for before, text in itertools.pairwise(command) if before == option]
    joined = f"{option}="
    return after + [text.removeprefix(joined) for text in command if text.startswith(joined)]
