"""Settings that differ between the configurations of two sets of runs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from analysis.verdicts.difference import LOSS, NOTHING, SPEED, SPEED_AND_LOSS, Difference, Kind, Row

# Runs are paired by the seed, and the guard knows the text by its fingerprint, wherever it lies.
_LEFT_OUT = frozenset({"seed", "data.path"})
# Records may leave them out, as those of one process do. On any number, the same batch gives the same loss.
_USUAL = {f"parallel.{axis}": 1 for axis in ("replicate", "shard", "context", "tensor")}
_USUAL |= {"parallel.reshard": True}
_BREAKS: dict[str, frozenset[Kind]] = {
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
class Changed:
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
    def breaks(self) -> frozenset[Kind]:
        """The comparisons on which no verdict may be given; an unknown value breaks none."""
        return _BREAKS.get(self.name, SPEED_AND_LOSS) if self.known else NOTHING

    def difference(self) -> Difference:
        """The change in the guard's words."""
        return Difference(self.name, f"The setting {self.name} is {self.a} and {self.b}.", self.breaks)


def settings_of(run: Row) -> Settings:
    """A run's configuration by dotted name, without what differs between the runs of one group."""
    flat = dict(_flat(run["config"]))
    return {name: value for name, value in flat.items() if name not in _LEFT_OUT}


def between(a: Row, b: Row) -> list[Changed]:
    """The settings that differ between two runs."""
    mine, theirs = settings_of(a), settings_of(b)
    return changed(_complete(a, mine, theirs), _complete(b, theirs, mine))


def _complete(run: Row, settings: Settings, others: Settings) -> Settings:
    """Add the defaults of `parallel` that its record leaves out and the other run's settings state."""
    if run["imported"]:
        return settings
    return {name: usual for name, usual in _USUAL.items() if name in others} | settings


def changed(a: Settings, b: Settings) -> list[Changed]:
    """The settings that differ, in the order of the configuration."""
    names = dict.fromkeys([*a, *b])
    return [Changed(name, a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name)]


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
