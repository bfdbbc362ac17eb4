"""What a report says of the study's groups against each other, and the tables that it gives of that."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from analysis.query.formats import csv_lines
from analysis.query.statements import FINAL_LOSSES, LOADS, MEASURED_RUNS
from analysis.report.facts import literal, rows
from analysis.report.rows import Run
from analysis.stats.estimate import FEWEST_RECORDS
from analysis.stats.machines import Drift
from analysis.stats.ranking import Ranking
from analysis.verdicts import conditions
from analysis.verdicts.conditions import Gpus, gpus_of
from analysis.verdicts.groups import FEWEST_SEEDS, absent, alone, declared, groups_of, step_pairs
from analysis.verdicts.losses import LossVerdict, loss_verdicts
from analysis.verdicts.rates import ENOUGH, Rates, RateVerdict, decoding, rates
from analysis.verdicts.savings import Saving, memory_saved, time_saved
from analysis.verdicts.scaling import Curve, curves
from analysis.wording import columns, sentence
from model.record.config import TASKS

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

QUERIES = {"measured_runs": MEASURED_RUNS, "final_losses": FINAL_LOSSES, "loads": LOADS}


@dataclass(frozen=True)
class StudyComparison:
    """What the study's runs say of each other.

    Attributes:
        rates: ratios to the baseline, and the ranking.
        decoding: rankings by the seconds of a decoded token.
        losses: of each group against its baseline.
        step_losses: of groups that are one of the baseline's settings apart.
        scaling: over numbers of processes; empty where they do not vary.
        singles: labels of the groups of one run with a rate, in the study's order.
        alone: labels of the groups that are compared with none, though the study declares a baseline.
        absent: why that is so for all groups, where the baseline has no completed run at all.
        drift: over the blocks.
        gpus: whether they differ in speed; None where fewer than two are known.
        gaps: the blocks that a group lacks, by label, where two blocks have no GPU in common.
        crossing: the groups that are compared with a run of the baseline in a block on other GPUs.
        order, load: how the runs were started, and how busy the machines were, in words.
        busy: a warning if other work may have slowed runs down.
        advice: what to write in the study to have groups compared; None if it declares a baseline.
        queries: (what the SQL gives, SQL) for every number here.
        saved: percent of its baseline's time and memory that each group saves, by what is saved.
    """

    rates: Rates
    losses: list[LossVerdict]
    scaling: tuple[Curve, ...]
    singles: list[str]
    alone: list[str]
    absent: str | None
    drift: Drift
    gpus: Gpus | None
    order: str
    load: str
    busy: str | None
    advice: str | None
    queries: list[tuple[str, str]]
    saved: Mapping[str, list[Saving]] = field(default_factory=dict)
    gaps: Mapping[str, list[int]] = field(default_factory=dict)
    crossing: Sequence[str] = ()
    decoding: tuple[Ranking, ...] = ()
    step_losses: Sequence[LossVerdict] = ()

    @property
    def unlike(self) -> set[tuple[str, str]]:
        """Labels of the groups that train to another loss than what they are compared with."""
        both = (*self.losses, *self.step_losses)
        return {(loss.label, loss.baseline) for loss in both if loss.verdict.kind == "different"}

    @property
    def why_alone(self) -> str:
        """Why groups have no baseline that they are compared with."""
        return self.absent or "the baseline has no completed counterpart"

    enough = ENOUGH  # repeats, which make findings of what is observed
    fewest_records = FEWEST_RECORDS
    fewest_seeds = FEWEST_SEEDS


def of_study(connection: DuckDBPyConnection, study: str, runs: Sequence[Run]) -> StudyComparison:
    """Compare a study's completed runs.

    Args:
        runs: all of its runs, as the view `runs` has them.
    """
    measured, logged, loads = (rows(connection, sql, study) for sql in QUERIES.values())
    groups, baseline = groups_of(measured), declared(measured or runs)
    trained = [run for run in runs if TASKS[run["task"]].trains]
    at_the_end = [("Losses at the end", literal(FINAL_LOSSES, study))] if trained else []
    of_groups = rates(measured)
    in_steps = {step.rate.label for step in of_groups.steps} | {
        step.rate.baseline for step in of_groups.steps
    }
    return StudyComparison(
        rates=of_groups,
        losses=loss_verdicts(trained, logged),
        step_losses=loss_verdicts(trained, logged, step_pairs),
        scaling=curves(measured),
        singles=[label for label, group in groups.items() if len(group.runs) == 1],
        alone=[label for label in alone(groups, baseline) if label not in in_steps],
        absent=absent(runs, baseline),
        drift=conditions.drift_of(measured),
        gpus=gpus_of(measured),
        order=conditions.order_of(runs),
        load=conditions.load_of(loads),
        busy=conditions.busy(loads),
        advice=None if baseline else _advice([run["factors"] for run in measured or runs]),
        queries=[("Rates of the runs", literal(MEASURED_RUNS, study)), *at_the_end],
        saved={"time": time_saved(measured), "memory": memory_saved(measured)},
        gaps=conditions.gaps_of(measured),
        crossing=conditions.crossing(measured),
        decoding=decoding(measured),
    )


def _advice(factors: Sequence[Mapping[str, Any]]) -> str | None:
    """The baseline that a study could declare: its first group, by the first factor that varies."""
    first = factors[0]
    axes = (axis for axis in first if axis != "seed")
    axis = next((axis for axis in axes if len({str(other.get(axis)) for other in factors}) > 1), None)
    return f"baseline: {{{axis}: {_as_yaml(first[axis])}}}" if axis else None


_PLAIN = re.compile(r"[A-Za-z][\w .+-]*(?<! )")
_WORDS = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")


def _as_yaml(value: object) -> str:
    """A value as a study has it between braces: text that could be read as anything else is in quotes."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)  # which YAML reads, too


def tables(comparison: StudyComparison) -> dict[str, bytes]:
    """The findings as CSV, by the place of the file: in `data/` itself each table is a query's answer."""

    def ratio(rate: RateVerdict) -> dict[str, Any]:
        return (
            vars(rate.shown)
            | {"verdict": rate.verdict.kind, "sentence": sentence(rate.verdict)}
            | {"differences": " ".join(difference.sentence for difference in rate.differences)}
        )

    ratios = [
        {"label": rate.label, "baseline": rate.baseline, **ratio(rate)} for rate in comparison.rates.compared
    ]
    steps = [
        {"setting": step.setting, "label": step.rate.label, "without": step.rate.baseline, **ratio(step.rate)}
        for step in comparison.rates.steps
    ]
    differences = [
        {"label": loss.label, "baseline": loss.baseline, "margin": loss.margin, **columns(loss.verdict)}
        | {"differences": " ".join(difference.sentence for difference in loss.differences)}
        for loss in comparison.losses
    ]
    pairs = [
        {"first": first, "second": second, **columns(verdict)}
        for ranking in comparison.rates.rankings
        for (first, second), verdict in ranking.verdicts.items()
    ]
    scaling = [
        {"scaling": curve.kind, "way": curve.way, "constant": curve.constant, "first": curve.base}
        | {"label": point.label, "processes": point.processes, "efficiency": point.efficiency[0]}
        | vars(point.ratio)
        | {"differences": " ".join(filter(None, [point.why_withheld, *point.besides]))}
        for curve in comparison.scaling
        for point in curve.points
    ]
    named = {"scaling": scaling, "ratios": ratios, "steps": steps, "losses": differences, "ranking": pairs}
    return {
        f"findings/{name}": csv_lines([table[0], *(row.values() for row in table)]).encode()
        for name, table in named.items()
        if table
    }
