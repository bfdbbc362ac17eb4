"""Whether a group of runs still trains to the same loss. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from analysis.stats.equivalence import by_sample, losses, means, noise_floor
from analysis.stats.verdict import Verdict
from analysis.verdicts.source import Measured

Repeats = dict[Hashable, list[Mapping[int, float]]]  # the losses of runs that saw the same samples


def loss(a: Measured, b: Measured, margin: float | None) -> Verdict | None:
    """The difference of the losses, B minus A, of runs that saw the same samples.

    Args:
        a, b: completed runs of one group.
        margin: in nats; None if none was stated.

    Returns:
        None if a side has no losses.
    """
    mine, theirs = _by_sample(a), _by_sample(b)
    if not mine.keys() & theirs.keys():  # the guard says that the texts differ
        mine, theirs = _by_sample(a, with_text=False), _by_sample(b, with_text=False)
    if not (mine and theirs):
        return None
    floor = noise_floor([*mine.values(), *theirs.values()])
    return losses(means(theirs), means(mine), margin, floor)


def _by_sample(side: Measured, with_text: bool = True) -> Repeats:
    """Losses by seed and text."""
    known = [(run, of_run) for run in side.runs if (of_run := side.records[run["run_id"]].losses)]
    return by_sample(
        ((run["seed"], run["data_fingerprint"] if with_text else None), of_run) for run, of_run in known
    )
