"""Which group of one set of runs corresponds to which group of another, and which settings differ. Pure.

Groups are matched by the names that the user gives, else by equal configurations, else by the factors that
both studies vary: then their configurations differ in other settings, which are shown.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.stats import grouped
from analysis.verdicts.guard import LOSS, NOTHING, SPEED, SPEED_AND_LOSS, Difference, Measure
from analysis.verdicts.values import Row
from model.record.errors import UserError, did_you_mean

_NOT_A_GROUP = frozenset({"seed", "repeat"})  # factors that vary within a group


@dataclass(frozen=True)
class SideGroup:
    """Runs with one configuration, but for the seed."""

    label: str
    runs: list[Row]


@dataclass(frozen=True)
class Pair:
    """A group of each side that mean the same.

    Attributes:
        named: whether the user said so; then their backends may differ.
    """

    a: SideGroup
    b: SideGroup
    named: bool = False

    @property
    def label(self) -> str:
        """One label, or both where they differ."""
        return self.a.label if self.a.label == self.b.label else f"{self.a.label} = {self.b.label}"


@dataclass(frozen=True)
class Matches:
    """Pairs of groups, and the groups that only one side has."""

    pairs: list[Pair]
    a_alone: list[SideGroup]
    b_alone: list[SideGroup]


def groups(rows: Sequence[Row]) -> list[SideGroup]:
    """The groups of one side, in the order of their first runs."""
    by_configuration: dict[Hashable, SideGroup] = {}
    for row in rows:
        by_configuration.setdefault(
            (row["label"], _configuration(row)), SideGroup(row["label"], [])
        ).runs.append(row)
    return list(by_configuration.values())


def match(a: Sequence[Row], b: Sequence[Row], names: Sequence[str] = ()) -> Matches:
    """Match the groups of two sides.

    Args:
        names: `LABEL_A=LABEL_B` for groups that mean the same.

    Raises:
        UserError: such a name fits no group.
    """
    left, right = groups(a), groups(b)
    pairs = [_named(text, left, right) for text in names]
    shared = _axes(a) & _axes(b)

    def factors(group: SideGroup) -> Hashable:
        row = group.runs[0]
        values = {axis: row["factors"][axis] for axis in shared if axis != "attention"}
        return row["attention"], json.dumps(values, sort_keys=True)

    for key in (lambda group: _configuration(group.runs[0]), factors):
        done = {id(group) for pair in pairs for group in (pair.a, pair.b)}
        unique = []  # groups whose key no other group of their side has
        for side in (left, right):
            by_key = grouped((group for group in side if id(group) not in done), key)
            unique.append({name: alike[0] for name, alike in by_key.items() if len(alike) == 1})
        one, other = unique
        pairs += [Pair(group, other[name]) for name, group in one.items() if name in other]
    done = {id(group) for pair in pairs for group in (pair.a, pair.b)}
    order = {id(group): place for place, group in enumerate(left)}
    return Matches(
        sorted(pairs, key=lambda pair: order[id(pair.a)]),
        [group for group in left if id(group) not in done],
        [group for group in right if id(group) not in done],
    )


def _named(text: str, a: list[SideGroup], b: list[SideGroup]) -> Pair:
    """The pair that `LABEL_A=LABEL_B` names; labels may hold `=` themselves."""
    places = [place for place, letter in enumerate(text) if letter == "="]
    if not places:
        raise UserError(f"--match {text}: expected LABEL=LABEL, such as flash3=fa3")
    for place in places:
        left, right = _labelled(a, text[:place]), _labelled(b, text[place + 1 :])
        if left and right:
            return Pair(left, right, named=True)
    first, _, second = text.partition("=")
    word, side = (second, b) if _labelled(a, first) else (first, a)
    valid = did_you_mean(word, [group.label for group in side])
    raise UserError(f"--match {text}: no group '{word}' {valid}")


def _labelled(some: list[SideGroup], label: str) -> SideGroup | None:
    return next((group for group in some if group.label == label), None)


def _configuration(row: Row) -> str:
    """All settings; of an imported run, many of which are unknown, also what its log is called."""
    return json.dumps([row["imported"] and row["label"], settings_of(row)], sort_keys=True)


def _axes(rows: Sequence[Row]) -> set[str]:
    """The factors that every run has."""
    return set.intersection(*(set(row["factors"]) for row in rows)) - _NOT_A_GROUP


# Runs are paired by the seed, and the guard knows the text by its fingerprint, wherever it lies.
_LEFT_OUT = frozenset({"seed", "data.path"})
# Records may leave them out, as those of one process do. On any number, the same batch gives the same loss.
_USUAL = {f"parallel.{axis}": 1 for axis in ("replicate", "shard", "context", "tensor")}
_USUAL |= {"parallel.reshard": True}
_BREAKS: dict[str, frozenset[Measure]] = {
    "train.steps": NOTHING,
    "train.log_every": NOTHING,
    "train.learning_rate": LOSS,
    "train.warmup_steps": LOSS,
    "train.clip_norm": LOSS,
    "train.weight_decay": LOSS,
    **dict.fromkeys(_USUAL, SPEED),
}
Settings = dict[str, Any]  # by dotted name


@dataclass(frozen=True)
class SettingChange:
    """A setting with two values.

    Attributes:
        a, b: None where it is not known, as in imported logs.
    """

    name: str
    a: Any
    b: Any

    @property
    def known(self) -> bool:
        """Whether both values are."""
        return None not in (self.a, self.b)

    @property
    def breaks(self) -> frozenset[Measure]:
        """The comparisons on which no verdict may be given; an unknown value breaks none."""
        return _BREAKS.get(self.name, SPEED_AND_LOSS) if self.known else NOTHING

    def difference(self) -> Difference:
        """The change in the guard's words."""
        return Difference(self.name, f"The setting {self.name} is {self.a} and {self.b}.", self.breaks)


def settings_of(run: Row) -> Settings:
    """A run's configuration by dotted name, without what differs between the runs of one group."""
    flat = dict(_flat(run["config"]))
    return {name: value for name, value in flat.items() if name not in _LEFT_OUT}


def changed_settings(a: Row, b: Row) -> list[SettingChange]:
    """The settings that differ between two runs, in the order of the configuration."""
    of_a, of_b = settings_of(a), settings_of(b)
    of_a, of_b = _complete(a, of_a, of_b), _complete(b, of_b, of_a)
    return [
        SettingChange(name, of_a.get(name), of_b.get(name))
        for name in dict.fromkeys([*of_a, *of_b])
        if of_a.get(name) != of_b.get(name)
    ]


def _complete(run: Row, settings: Settings, others: Settings) -> Settings:
    """Add the defaults of `parallel` that its record leaves out and the other run's settings state."""
    if run["imported"]:
        return settings
    return {name: usual for name, usual in _USUAL.items() if name in others} | settings


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
