"""Two sources compared: settings, comparability and results of each group, and what became worse. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from analysis.stats.equivalence import beyond, by_sample, change, losses, means, noise_floor
from analysis.stats.estimate import median_of_known
from analysis.stats.paired import single_pair
from analysis.stats.rows import paired_by
from analysis.stats.verdict import MarginTest, SingleRuns, Verdict, of_single_runs
from analysis.verdicts.guard import SPEED_AND_LOSS, Difference, RunSet, differences, withheld
from analysis.verdicts.match import Pair, SettingChange, SideGroup, changed_settings, match
from analysis.verdicts.source import Measured
from analysis.verdicts.values import Row
from analysis.wording import sentence
from model.record.config import TASKS
from model.record.errors import UserError
from model.record.outcome import NONE_YET, Outcome
from model.record.units import counted

# What two studies are compared for, so that it withholds nothing: other code, later, or somebody else's logs.
MEANT = frozenset({"commit", "diff", "order", "imported"})
EVERYTHING = "all"
T = TypeVar("T")


@dataclass(frozen=True)
class CompareOptions:
    """How to compare.

    Attributes:
        names: `LABEL_A=LABEL_B` for groups that mean the same.
        margins: by quantity: loss in nats, tokens_per_second as a fraction; the studies' own where missing.
        across: topics and settings that are meant to differ, besides MEANT.
        single_runs: test the speed of single runs, too.
    """

    names: Sequence[str] = ()
    margins: Mapping[str, float] = field(default_factory=dict)
    across: Collection[str] = ()
    single_runs: bool = False

    def meant(self, difference: Difference) -> bool:
        """Whether a difference is what the comparison is about, so that it breaks nothing."""
        return EVERYTHING in self.across or difference.topic in (*MEANT, *self.across)


@dataclass(frozen=True)
class GroupComparison:
    """One group on both sides.

    Attributes:
        settings: those that changed.
        guard: what else differs between its completed runs, and settings that break a comparison.
        speed, loss: None if a side has no completed run that was measured.
        step_seconds, peak_memory_bytes: medians over the completed runs of A and of B.
    """

    pair: Pair
    settings: list[SettingChange]
    guard: list[Difference]
    speed: Verdict | None
    loss: Verdict | None
    outcomes: Outcomes
    step_seconds: tuple[float | None, float | None]
    peak_memory_bytes: tuple[float | None, float | None]

    @property
    def regressions(self) -> list[str]:
        """What became worse, as far as that is established."""
        worse = [f"outcome: {outcome}, which no run had before" for outcome in self.outcomes.worse]
        if self.speed and self.speed.kind == "different" and (self.speed.difference or 0) < 0:
            worse.append(f"speed: {sentence(self.speed)}")
        if self.loss and self.loss.kind == "different":
            worse.append(f"loss: {sentence(self.loss)}")
        return worse

    @property
    def unsettled(self) -> list[str]:
        """What nothing is established about; groups with no completed run on either side are not listed."""
        if not ("completed" in self.outcomes.a or "completed" in self.outcomes.b):
            return []
        verdicts = {"speed": self.speed, "loss": self.loss}
        if not TASKS[self.pair.a.runs[0]["task"]].trains:  # then there is no loss that could be missing
            del verdicts["loss"]
        return [
            f"{what}: {sentence(verdict) if verdict else 'not measured on both sides'}"
            for what, verdict in verdicts.items()
            if verdict is None or verdict.kind not in ("equivalent", "different")
        ]


@dataclass(frozen=True)
class SourceComparison:
    """Two sources compared.

    Attributes:
        names: of A and B.
        options: with the margins that were used; a quantity without one is not tested.
        a_alone, b_alone: groups that have no partner.
    """

    names: tuple[str, str]
    options: CompareOptions
    results: list[GroupComparison]
    a_alone: list[SideGroup]
    b_alone: list[SideGroup]

    @property
    def regressions(self) -> list[str]:
        """What became worse, by group."""
        return [f"{result.pair.label}: {what}" for result in self.results for what in result.regressions]

    @property
    def unsettled(self) -> list[str]:
        """What was compared, or was to be, without anything being established, by group."""
        open_ = [f"{result.pair.label}: {what}" for result in self.results for what in result.unsettled]
        return [*open_, *(f"{group.label}: {self.names[1]} has no such group" for group in self.a_alone)]

    @property
    def differences(self) -> list[tuple[Difference, list[str]]]:
        """What the guard found, each once, with the labels of its groups."""
        return _with_labels(self.results, lambda result: result.guard)

    @property
    def settings(self) -> list[tuple[SettingChange, list[str]]]:
        """The settings that changed, each once, with the labels of its groups."""
        return _with_labels(self.results, lambda result: result.settings)


def _with_labels(
    results: Iterable[GroupComparison], of: Callable[[GroupComparison], Iterable[T]]
) -> list[tuple[T, list[str]]]:
    """What the results name, each once, with the labels of the groups that name it."""
    labels: dict[T, list[str]] = {}
    for result in results:
        for item in of(result):
            labels.setdefault(item, []).append(result.pair.label)
    return list(labels.items())


def compare(a: Measured, b: Measured, options: CompareOptions) -> SourceComparison:
    """Compare two sources, group by group.

    Raises:
        UserError: an option names a group that does not exist, no group of A is one of B, or their runs do
            different work, or work whose rates are in another table.
    """
    # Training tokens and prompt tokens are not units of the same rate.
    tasks = {run["task"]: side.name for side in (b, a) for run in side.runs}
    if len(tasks) > 1:
        apart = ", ".join(f"{name} has runs of task {task}" for task, name in sorted(tasks.items()))
        raise UserError(f"only runs of one task can be compared: {apart}")
    if any(TASKS[name].compares_backends for name in tasks):
        raise UserError(
            f"{a.name} and {b.name} time attention alone, and such runs have no rate: compare the rows of "
            "table `kernels`, with `runner sql`"
        )

    matches = match(a.runs, b.runs, options.names)
    if not matches.pairs:
        of_a, of_b = matches.a_alone[0], matches.b_alone[0]
        one, other = of_a.runs[0], of_b.runs[0]
        backends = ["attention"] if one["attention"] != other["attention"] else []
        names = dict.fromkeys([*backends, *(change.name for change in changed_settings(one, other))])
        apart = ", ".join(names) or "their factors"
        of_both = [", ".join(group.label for group in side) for side in (matches.a_alone, matches.b_alone)]
        raise UserError(
            f"no group of {a.name} ({of_both[0]}) has the configuration or the factors of one of {b.name} "
            f"({of_both[1]}); {of_a.label} and {of_b.label} differ in {apart}. "
            f"Say which groups mean the same, such as --match '{of_a.label}={of_b.label}'"
        )
    margins = {**stated_margins(b.runs), **stated_margins(a.runs), **options.margins}
    options = replace(options, margins=margins)
    sides = [(a.completed(pair.a.runs), b.completed(pair.b.runs)) for pair in matches.pairs]
    same = sum(len(_shared(*both)) for both in sides)
    if same and same == sum(len(after.runs) for _, after in sides):
        raise UserError(
            f"{a.name} and {b.name} hold the same runs, attempt by attempt, as a copy does: they are one "
            "sample. Repeat the runs after the change, in another root"
        )
    pairs = zip(matches.pairs, sides, strict=True)
    results = [_result(pair, *both, options) for pair, both in pairs]
    return SourceComparison((a.name, b.name), options, results, matches.a_alone, matches.b_alone)


def _shared(a: Measured, b: Measured) -> set[tuple[Any, ...]]:
    """The runs that both sides have, with the same attempts."""
    same = ("run_id", "attempts", "started_at", "ended_at", "wall_seconds", "step_seconds", "final_loss")
    one, other = ({tuple(run.get(column) for column in same) for run in side.runs} for side in (a, b))
    return one & other


def _result(pair: Pair, a: Measured, b: Measured, options: CompareOptions) -> GroupComparison:
    settings = changed_settings(pair.a.runs[0], pair.b.runs[0])
    if pair.named:  # by a person, who knows that the backends may have other names
        settings = [change for change in settings if change.name != "attention"]
    guard = differences(RunSet(a.name, a.runs), RunSet(b.name, b.runs))
    guard += [change.difference() for change in settings if change.breaks]
    counts = [change for change in guard if not options.meant(change)]
    if shared := len(_shared(a, b)):  # this forbids a verdict whatever the comparison is meant to be about
        runs = f"{shared} of the {counted(len(b.runs), 'run')} of {b.name}"
        also = f"{'is' if shared == 1 else 'are'} also in {a.name}, attempt by attempt"
        same = Difference("sample", f"{runs} {also}: they are one sample.", SPEED_AND_LOSS)
        guard, counts = [same, *guard], [same, *counts]
    fast = speed(a, b, options.margins.get("tokens_per_second"), options.single_runs)
    trained = loss(a, b, options.margins.get("loss"))
    return GroupComparison(
        pair=pair,
        settings=settings,
        guard=guard,
        speed=fast and withheld(fast, counts, "speed"),
        loss=trained and withheld(trained, counts, "loss"),
        outcomes=outcomes(pair.a.runs, pair.b.runs),
        step_seconds=_medians(a, b, "step_seconds"),
        peak_memory_bytes=_medians(a, b, "peak_memory_bytes"),
    )


def _medians(a: Measured, b: Measured, column: str) -> tuple[float | None, float | None]:
    before, after = (median_of_known(run[column] for run in side.runs) for side in (a, b))
    return before, after


def stated_margins(rows: Iterable[Row]) -> Mapping[str, float]:
    """The smallest margin that any plan states: one that was widened later does not reach earlier runs."""
    smallest: dict[str, float] = {}
    for row in rows:
        for name, margin in ((row["design"] or {}).get("margins") or {}).items():
            smallest[name] = min(margin, smallest.get(name, margin))
    return smallest


@dataclass(frozen=True)
class Outcomes:
    """Numbers of runs by outcome.

    Attributes:
        worse: bad outcomes of B that its study does not expect and that no run of A had.
    """

    a: Mapping[str, int]
    b: Mapping[str, int]
    worse: tuple[str, ...]

    @property
    def changed(self) -> bool:
        """Whether there is an outcome that only one side had."""
        return self.a.keys() != self.b.keys()


def outcomes(a: Sequence[Row], b: Sequence[Row]) -> Outcomes:
    """Compare how two sets of runs ended."""
    before, after = (Counter(run["outcome"] or NONE_YET for run in runs) for runs in (a, b))
    unexpected = {run["outcome"] for run in b if run["outcome"] != run["expected_outcome"]}
    bad = {outcome.value for outcome in Outcome if outcome.cause == "code"}
    return Outcomes(before, after, tuple(sorted((unexpected & bad) - before.keys())))


def speed(a: Measured, b: Measured, margin: float | None, single_runs: bool = False) -> Verdict | None:
    """The change of the rate from A to B: over runs, or of the medians of one run each.

    Args:
        a, b: completed runs of one group.
        margin: relative difference of the rate; None if none was stated, and then nothing is tested.
        single_runs: test one run each, too, which says nothing of other runs.

    Returns:
        None if a side has no measured run.
    """
    per_token = all(run["tokens_per_step"] for run in (*a.runs, *b.runs))
    before, after = _seconds(a, per_token), _seconds(b, per_token)
    if not (before and after):
        return None
    ratio = None
    if len(before) == len(after) == 1:
        sides = []
        for side in (a, b):
            (run,) = (run for run in side.runs if run["step_seconds"])
            records, tokens = side.records[run["run_id"]].seconds, _tokens(run, per_token)
            sides.append([seconds / tokens for _, seconds in sorted(records.items())])
        if all(sides):
            ratio = single_pair(sides[1], sides[0])
    if ratio is None:
        return change(before, after, margin or None)
    numbers = (1, ratio.level, ratio.method, ratio.is_range)
    if not single_runs or margin is None or ratio.low is None or ratio.high is None:
        low, high = (None if end is None else end - 1 for end in (ratio.low, ratio.high))
        return Verdict(of_single_runs(low, high), SingleRuns(1, 1), ratio.ratio - 1, low, high, *numbers)
    low, high = ratio.low - 1, ratio.high - 1
    return Verdict(beyond(low, high, margin), MarginTest(margin), ratio.ratio - 1, low, high, *numbers)


def _seconds(side: Measured, per_token: bool) -> dict[Hashable, float]:
    """Seconds per token by what pairs runs.

    Args:
        per_token: False if the tokens of a run are unknown: then seconds per step.
    """
    runs = [run for run in side.runs if run["step_seconds"]]
    return {key: run["step_seconds"] / _tokens(run, per_token) for key, run in paired_by(runs).items()}


def _tokens(run: Row, per_token: bool) -> float:
    return float(run["tokens_per_step"]) if per_token else 1.0


Repeats = dict[Hashable, list[Mapping[int, float]]]  # the losses of runs that saw the same samples


def loss(a: Measured, b: Measured, margin: float | None) -> Verdict | None:
    """The difference of the losses, B minus A, of runs that saw the same samples.

    Args:
        a, b: completed runs of one group.
        margin: in nats; None if none was stated.

    Returns:
        None if a side has no losses.
    """
    before, after = _by_sample(a), _by_sample(b)
    if not before.keys() & after.keys():  # the guard says that the texts differ
        before, after = _by_sample(a, with_text=False), _by_sample(b, with_text=False)
    if not (before and after):
        return None
    floor = noise_floor([*before.values(), *after.values()])
    return losses(means(after), means(before), margin, floor)


def _by_sample(side: Measured, with_text: bool = True) -> Repeats:
    """Losses by seed and text."""
    logged = [(run, of_run) for run in side.runs if (of_run := side.records[run["run_id"]].losses)]
    return by_sample(
        ((run["seed"], run["data_fingerprint"] if with_text else None), of_run) for run, of_run in logged
    )
