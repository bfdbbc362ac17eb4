"""Dotted paths into the run configuration, and conversion between them and nested mappings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel

from model.record.config import TASKS, RunConfig, sections_of
from model.record.errors import did_you_mean
from model.record.tasks import FIRST
from runner.inputs.document import KeyPath, Mark, look_alike

_TYPO = 0.9  # share of equal letters above which a name is taken for a misspelt setting
Scalar = str | int | float | bool
Setting = tuple[Any, Mark]  # a value and where it was set
# What other tools call our settings, as the words of ours.
_OTHER_NAMES = {
    "lr": "learning rate", "eta": "learning rate", "bs": "batch size", "wd": "weight decay",
    "context": "sequence length", "block": "sequence length", "ctx": "sequence length",
    "iterations": "steps", "iters": "steps", "epochs": "steps", "backend": "attention", "attn": "attention",
    "hidden": "dim", "width": "dim", "embd": "dim", "depth": "layers", "precision": "dtype",
    "intermediate": "ffn dim", "gpu": "device", "cuda": "device", "file": "path", "grad": "clip norm",
    "ms": "milliseconds", "gb": "bytes", "gib": "bytes", "mib": "bytes",
}  # fmt: skip


@cache
def leaves(kind: type[BaseModel] = RunConfig, prefix: str = "") -> tuple[str, ...]:
    """The dotted paths of all settings: `attention`, `model.dim`, ..."""
    paths: list[str] = []
    inner = sections(kind)
    for name in kind.model_fields:
        if name in inner:
            paths += leaves(inner[name], f"{prefix}{name}.")
        else:
            paths.append(prefix + name)
    return tuple(paths)


def sections(kind: type[BaseModel] = RunConfig) -> dict[str, type[BaseModel]]:
    """The keys that hold settings of their own, by name; also keys that may be left out."""
    members = {
        name: (info.annotation, *get_args(info.annotation)) for name, info in kind.model_fields.items()
    }
    return {
        name: member
        for name, types in members.items()
        for member in types
        if isinstance(member, type) and issubclass(member, BaseModel)
    }


def flatten(value: Any, path: KeyPath, prefix: str = "") -> Iterator[tuple[str, Any, KeyPath]]:
    """Yield (dotted path, value, document path) for each value of a nested or dotted mapping."""
    for key, item in value.items():
        if isinstance(item, dict):
            yield from flatten(item, (*path, key), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item, (*path, key)


def nest(flat: dict[str, Any]) -> dict[str, Any]:
    """Turn dotted paths into a nested mapping; the inverse of `flatten`."""
    result: dict[str, Any] = {}
    for dotted, value in flat.items():
        *parents, name = dotted.split(".")
        into = result
        for parent in parents:
            into = into.setdefault(parent, {})
        into[name] = value
    return result


def unknown(dotted: str, tasks: Sequence[str]) -> str:
    """Say why this is not the name of a setting, and which one was probably meant.

    Args:
        tasks: that the study names; none: the task whose section was written, else training.
    """
    if members := [leaf for leaf in leaves() if leaf.startswith(f"{dotted}.")]:
        return f"'{dotted}' is a section: set one of {', '.join(members)}"
    section = dotted.rpartition(".")[0]
    if section in leaves():
        return f"'{section}' holds one value, so it has no '{dotted.removeprefix(section + '.')}'"
    # The task whose own section was written, if it is one's.
    task = next((task for task, own in TASKS.items() if own.key == section), FIRST)
    wanted = tasks or (task,)
    choices = list[str]()
    for leaf in leaves():
        part = leaf.partition(".")[0]
        for_all = not any(part in sections_of(name) for name in TASKS)  # in no task's own section
        if any(part in sections_of(name) or (for_all and leaf not in TASKS[name].unread) for name in wanted):
            choices.append(leaf)
    typo = next(iter(get_close_matches(dotted, choices, n=1, cutoff=_TYPO)), None)
    advice = did_you_mean(dotted, choices, typo or nearest(dotted, choices))
    return f"unknown setting '{dotted}' {advice}{look_alike(dotted)}"


def settings_for(name: str, dotted: Sequence[str]) -> list[str]:
    """The settings that a name can mean: itself, or those whose last part it is, begins, or has a word of.

    `train.learning_rate`, `learning_rate`, `learn` and `lr`, and `rate`, in this order.
    """
    if name in dotted:
        return [name]
    no_fit = 3

    def rank(last: str) -> int:
        words = last.split("_")
        begins = last.startswith(name) or name == "".join(word[:1] for word in words)
        fits = (last == name, begins, any(word.startswith(name) for word in words), True)
        return fits.index(True) if name else no_fit

    ranks = {path: rank(path.rpartition(".")[2]) for path in dotted}
    best = min(ranks.values(), default=no_fit)
    return [path for path, rank_of_path in ranks.items() if rank_of_path == best < no_fit]


def nearest(dotted: str, choices: Sequence[str]) -> str | None:
    """The setting that shares most words with a name, such as train.learning_rate for `lr`, if any does."""
    words = _words(dotted)

    def score(leaf: str) -> float:
        """How many words begin a word of this setting, or the other way round; less for its other words."""
        own = _words(leaf)
        hits = sum(any(a.startswith(b) or b.startswith(a) for b in own) for a in words)
        return hits - 0.1 * len(own) if hits else 0.0

    scores = {leaf: score(leaf) for leaf in choices}
    best = max(scores.values(), default=0.0)
    alike = [leaf for leaf in scores if scores[leaf] == best]
    # Sections are compared only if one was written: otherwise a short one would seem nearer than a long one.
    written = {leaf: leaf if "." in dotted else leaf.rpartition(".")[2] for leaf in alike}
    ratios = {leaf: SequenceMatcher(None, dotted, text).ratio() for leaf, text in written.items()}
    return max(ratios, key=lambda leaf: ratios[leaf]) if best > 0 else None


def _words(dotted: str) -> list[str]:
    """The words of a setting's name without its section."""
    words = re.split(r"[^a-z]+", dotted.lower().rpartition(".")[2])
    return [part for word in words if len(word) > 1 for part in _OTHER_NAMES.get(word, word).split()]
