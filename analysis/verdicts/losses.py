"""Losses: each group's at the end of training against the declared baseline's, within the stated margin."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any

from analysis.stats.equivalence import by_sample, losses, means, noise_floor
from analysis.stats.verdict import Verdict
from analysis.verdicts.groups import Group, common_margin, compared, declared, differing, groups_of
from analysis.verdicts.guard import Difference, withheld
from analysis.verdicts.values import Row


@dataclass(frozen=True)
class LossVerdict:
    """A group's losses minus its baseline's.

    Attributes:
        margin: in nats; None if the runs state none, or not the same.
        differences: what the guard found between the two.
    """

    label: str
    baseline: str
    margin: float | None
    verdict: Verdict
    differences: tuple[Difference, ...]
    runs: frozenset[str]


Pairs = Callable[[dict[str, Group], dict[str, Any] | None], Iterable[tuple[Group, Group]]]


def loss_verdicts(runs: Sequence[Row], logged: Sequence[Row], pairs: Pairs = compared) -> list[LossVerdict]:
    """Compare the losses of one study's runs that completed or diverged, in the study's order.

    Args:
        runs: as the view `runs` has them.
        logged: the answer to FINAL_LOSSES, of those that completed.
        pairs: the groups that are compared, of all groups and the declared baseline.
    """
    by_run: dict[str, dict[int, float]] = {  # nats per token by step; NaN where it was not finite
        row["run_id"]: {
            step: nan if loss is None else loss
            for step, loss in zip(row["steps"], row["losses"], strict=True)
        }
        for row in logged
    }
    by_run |= {run["run_id"]: {run["steps"] or 1: nan} for run in runs if run["outcome"] == "diverged"}
    logged_runs = [run for run in runs if run["run_id"] in by_run]
    verdicts = []
    for a, b in pairs(groups_of(logged_runs), declared(logged_runs)):
        both = [*a.runs, *b.runs]
        first, second = (
            by_sample((_sample(run), by_run[run["run_id"]]) for run in group.runs) for group in (a, b)
        )
        margin = common_margin(both, "loss")
        floor = noise_floor([*first.values(), *second.values()])
        differences = differing(a, b)
        verdict = replace(
            losses(means(first), means(second), margin, floor),
            groups=(a.label, b.label),
            imported=any(run["imported"] for run in both),
        )
        verdict = withheld(verdict, differences, "loss")
        ids = frozenset(run["run_id"] for run in both)
        verdicts.append(LossVerdict(a.label, b.label, margin, verdict, tuple(differences), ids))
    return verdicts


def _sample(run: Row) -> str:
    """What decides which tokens a step trains on; the file's path does not."""
    data = {name: value for name, value in run["config"].get("data", {}).items() if name != "path"}
    what = [run["seed"], run["data_fingerprint"], data, run["sequence_length"], run["batch_size"]]
    return json.dumps(what, sort_keys=True)
