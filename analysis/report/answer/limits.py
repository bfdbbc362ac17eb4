"""What the runs of a study do not show, what nobody planned, and what would show more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import combinations
from operator import itemgetter
from typing import TYPE_CHECKING

from analysis.charts._kernels import Point, points, shape_key, shapes_or_cases
from analysis.report.answer.statement import Number, Sentence
from analysis.report.topics import options
from analysis.stats import grouped
from analysis.verdicts.profiles import UNLIKE, impossible, unlike
from analysis.verdicts.rates import ENOUGH
from analysis.verdicts.slowest import holds_up, slowest
from analysis.verdicts.values import held_back_by, without_threads
from analysis.wording import FEW, drift, group_name, listed, named_or_counted
from model.record.units import counted

if TYPE_CHECKING:
    from analysis.report.comparison import StudyComparison
    from analysis.report.facts import Facts
    from analysis.report.rows import Run
    from analysis.verdicts.guard import Difference

# Topics of differences that matter to runs of which no verdict compares any two.
MACHINES = ("device", "commit", "driver", "software")


def disturbed(comparison: StudyComparison) -> Iterator[Sentence]:
    """That other work slowed the machine, or that it drifted."""
    if comparison.busy:
        yield Sentence(comparison.busy)
    if comparison.drift.drifted:
        yield Sentence(drift(comparison.drift))


def of_any(
    facts: Facts, comparison: StudyComparison, differences: Sequence[Difference]
) -> Iterator[Sentence]:
    """What is not compared, and how far the rest reaches."""
    yield from (Sentence(sentence) for sentence in comparison.rates.against_ranking)
    if comparison.gaps:
        done_runs = [run for run in facts.runs if run["outcome"] == "completed" and run["step_seconds"]]
        where = []
        for blocks, labels in grouped(comparison.gaps, lambda label: tuple(comparison.gaps[label])).items():
            has, several = {run["block"] for run in done_runs if run["label"] in labels}, len(labels) > 1
            if None not in has and len(has) == 1 < len(blocks):
                text = f"{'are' if several else 'is'} in block {has.pop()} alone"
            else:
                numbers = listed(list(map(str, blocks)))
                text = f"{'lack' if several else 'lacks'} block{'s' if len(blocks) > 1 else ''} {numbers}"
            where.append(f"{named_or_counted(labels)} {text}")
        across = listed([facts.name(label) for label in comparison.crossing])
        but = (
            f", but not those of {across}: they are over runs in other blocks, on other GPUs"
            if across
            else ""
        )
        yield Sentence(
            f"Medians are over different GPUs, as {listed(where)}; ratios of paired runs stay within "
            f"blocks{but}."
        )
    yield from _not_compared(facts, comparison)
    yield from (Sentence(sentence) for sentence in comparison.rates.unranked)
    if comparison.gpus and comparison.gpus.is_limit:
        yield Sentence(comparison.gpus.sentence)
    yield from differ(differences)
    done = [run for run in facts.runs if run["outcome"] == "completed"]
    if done and comparison.drift.change is None:
        yield Sentence(drift(comparison.drift))
    yield from _machines(done)
    yield from _unfinished(facts)


def of_training(
    facts: Facts, comparison: StudyComparison, differences: Sequence[Difference]
) -> Iterator[Sentence]:
    """The same of losses, too: what one seed does not show."""
    yield from of_any(facts, comparison, differences)
    seeds = {run["seed"] for run in facts.runs if run["outcome"] == "completed"}
    if len(seeds) == 1 and None not in seeds:
        yield Sentence(
            f"Every completed run has seed {seeds.pop()}: the effect of other initial weights and of another "
            "order of the documents is unknown."
        )
    yield from of_profiles(facts, "step")


def of_inference(
    facts: Facts, comparison: StudyComparison, differences: Sequence[Difference]
) -> Iterator[Sentence]:
    """The same, and which groups did not decode."""
    yield from of_any(facts, comparison, differences)
    alone = {run["label"] for run in facts.runs if run["config"]["inference"]["new_tokens"] == 0}
    labels = [label for label in facts.labels if label in alone]
    if labels and len(labels) < len(facts.labels):
        yield Sentence(
            f"How long {listed([facts.name(label) for label in labels])} would take to decode: "
            f"in this study {'it only reads' if len(labels) == 1 else 'they only read'} prompts."
        )
    yield from of_profiles(facts, "prefill")


def differ(differences: Sequence[Difference], topics: Collection[str] = ()) -> Iterator[Sentence]:
    """What differs among the runs: in these topics alone, if any are given."""
    for difference in differences:
        if not topics or difference.topic in topics:
            yield Sentence(difference.sentence)


def of_calls(
    facts: Facts, _comparison: StudyComparison, differences: Sequence[Difference]
) -> Iterator[Sentence]:
    """What runs that time attention alone do not show."""
    yield from differ(differences, MACHINES)
    done = [run for run in facts.runs if run["outcome"] == "completed"]
    timed = any(row["outcome"] == "completed" for row in facts.kernels)
    if timed and len({run["label"] for run in done}) == len(done):
        yield Sentence(
            "Each shape was measured in one process: intervals say how steady it was, "
            "not what another process would give."
        )
    if some := apart(facts):
        at = f"At {counted(len(some), shapes_or_cases(some))}, not all backends were called in one process"
        yield Sentence(f"{at}: two that no process called have no ratio.")
    yield Sentence("Attention alone is not a training step: its share of one was not measured here.")
    # All backends of a shape share the clocks and the GPU of its process, shapes need not.
    if clocked := [row for row in facts.kernels if row["sm_mhz_low"] is not None]:
        low, high = min(row["sm_mhz_low"] for row in clocked), max(row["sm_mhz_high"] for row in clocked)
        held = sorted(set().union(*map(held_back_by, clocked)))
        by = f", throttled at times by {listed(held)}" if held else ""
        clocks = " to ".join(dict.fromkeys(f"{clock:,.0f}" for clock in (low, high)))
        yield Sentence(f"The GPU's clock was {clocks} MHz after calls{by}.")
    if len(used := {run["gpu_uuid"] for run in done} - {None}) > 1:
        yield Sentence(
            f"The runs were on {len(used)} GPUs: what sets two shapes apart may be the GPUs. "
            "All backends of a run were on the same one."
        )
    yield from _machines(done)
    yield from _unfinished(facts)


def _not_compared(facts: Facts, comparison: StudyComparison) -> Iterator[Sentence]:
    if comparison.singles:
        yield _single_runs(facts, comparison.singles)
    if comparison.advice and facts.imported:
        yield Sentence(
            "Groups are not compared with a baseline: the import named none. "
            "Import again with `--baseline FACTOR=VALUE`."
        )
    elif comparison.advice and not comparison.scaling:  # the groups of which are compared with its first
        yield Sentence(
            "Groups are not compared with a baseline: the study declares none. "
            f"Write it in the study, for example `{comparison.advice}`."
        )
    if comparison.alone:
        groups = listed([facts.name(label) for label in comparison.alone])
        yield Sentence(f"Not compared, because {comparison.why_alone}: {groups}.")


def _single_runs(facts: Facts, singles: Sequence[str]) -> Sentence:
    """What single runs leave open, and what to do about it: repeats, or those that are planned once more."""
    groups = listed([facts.name(label) for label in singles])
    if len(singles) > FEW:
        groups = f"one of each of {len(singles)} groups"
    aim = "test them" if len(singles) > 1 else "test it"
    of = "differences in speed of single runs" if len(singles) > 1 else "difference in speed of a single run"
    text = f"How much of the {of} ({groups}) is the machine's own, between two starts, is unknown."
    logs = f"{ENOUGH} logs of each"
    if sum(group.n > 0 for group in facts.groups) == 1:
        text = f"What another start would give is unknown: one run ({groups}) completed."
        aim, logs = "know it", f"{ENOUGH} logs"
    if set(singles) <= facts.imported:
        return Sentence(f"{text} To {aim}, import {logs}.")

    runs = grouped(facts.runs, itemgetter("label"))
    planned_once = [label for label in singles if len(runs[label]) == 1 and label not in facts.imported]
    launches = {tuple(run["command"] or ()) for label in planned_once for run in runs[label]}
    left_out = any(only.startswith("repeat=") for command in launches for only in options(command, "--only"))
    scales = {run["scale"] for label in planned_once for run in runs[label]}
    repeats = {
        (run["scale"], run["seed"], run["repeat"])
        for run in facts.runs
        if run["scale"] in scales and run["label"] not in facts.imported
    }
    if left_out or len(repeats) > len(scales):  # as where others have more
        text += f" To {aim}, launch the study's other repeats too."
    elif planned_once:
        (scale,) = scales if len(scales) == 1 else {None}
        where = "the study" if scale in (None, "full") else f"the study's scale `{scale}`"
        text += f" To {aim}, write `repeats: {ENOUGH}` in {where}."
    waiting = [label for label in singles if any(run["outcome"] is None for run in runs[label])]
    if waiting:
        names = listed([facts.name(label) for label in waiting])
        text += f" Other runs of {names} have no outcome yet: `runner status {facts.study}` says why."
    again = [
        label
        for label in singles
        if any(run["outcome"] not in (None, "completed", run["expected_outcome"]) for run in runs[label])
    ]
    if again:
        names = listed([facts.name(label) for label in again])
        text += f" Other runs of {names} did not complete: `runner retry {facts.study}` starts them again."
    return Sentence(text)


def _machines(done: Sequence[Run]) -> Iterator[Sentence]:
    """The machines of the completed runs, and how many each had; none where one is unknown.

    Lent machines may share a name: those with other devices are others. A CPU is the same, whatever share of
    its threads a run had.
    """
    places = Counter((run["node"], without_threads(run["device"])) for run in done)
    if not places or None in {host for host, _ in places}:
        return
    if len(places) == 1:
        host = done[0]["node"]
        yield Sentence(f"Every completed run was on a machine named `{host}`: others of its kind may differ.")
    else:
        shares = [
            f"{counted(count, 'run')} on `{host}`{f' ({device})' if device else ''}"
            for (host, device), count in sorted(places.items(), key=str)
        ]
        yield Sentence(f"The completed runs were on {len(places)} machines: {listed(shares)}.")


def _unfinished(facts: Facts) -> Iterator[Sentence]:
    # Of the others the first sentence says how many of the planned runs there are.
    done = {run["label"] for run in facts.runs if run["outcome"] == "completed"}
    if waiting := [run for run in facts.runs if run["outcome"] is None and run["label"] not in done]:
        groups = listed(list(dict.fromkeys(group_name(run["label"]) for run in waiting)))
        have = "has" if len(waiting) == 1 else "have"
        yield Sentence(f"{counted(len(waiting), 'run')} of {groups} {have} no outcome yet.")
    if facts.quarantine:
        files = counted(len(facts.quarantine), "file")
        yield Sentence(f"{files} could not be read: nothing from there is in this report.")


def apart(facts: Facts) -> list[Point]:
    """A point of each shape at which no process timed some two of the backends."""
    timed = [point for point in points(facts.kernels) if point.time()]
    return [
        at_shape[0]
        for at_shape in grouped(timed, shape_key).values()
        if any(not _runs(one) & _runs(other) for one, other in combinations(at_shape, 2))
    ]


def _runs(point: Point) -> set[str]:
    return {row["run_id"] for row in point.rows() if row["outcome"] == "completed"}


def reported_elsewhere(facts: Facts) -> Iterator[Sentence]:
    """How many entries of others' numbers no run is about, as no scale of the runs has their cells."""
    newest = {run["scale"]: run for run in sorted(facts.runs, key=itemgetter("created_at"))}
    lacking = [set(run["reported_elsewhere"] or ()) for run in newest.values()]
    if many := len(set.intersection(*lacking)) if lacking else 0:
        what = "1 entry of `reported` is" if many == 1 else f"{many:,d} entries of `reported` are"
        its, at = "its cell" if many == 1 else "their cells", "scale" if len(newest) == 1 else "scales"
        scales = listed([f"`{scale}`" for scale in newest])
        text = f"What others report: {what} not shown, as there is no run of {its} at {at} {scales}."
        yield Sentence(text, (Number("entries of reported without a run", "entries", many),))


def held_up(runs: Sequence[Run]) -> Iterator[Sentence]:
    """Which completed runs waited for one of their processes."""
    ranked = [run for run in runs if run["outcome"] == "completed" and run["ranked_records"]]
    if slowed := [run for run in ranked if holds_up(run)]:
        places = listed([f"in {group_name(run['label'])}, {slowest(run)}" for run in slowed])
        many = f"{len(slowed)} of {len(ranked)} completed runs of several processes"
        yield Sentence(f"One process held up the others in {many}: {places}.")


def moved(facts: Facts) -> Iterator[Sentence]:
    """Which completed runs ended on other numbers of processes than the study gives them."""
    done = [run for run in facts.runs if run["outcome"] == "completed"]
    if elsewhere := [run for run in done if run["measured_attempt"] != run["deciding_attempt"]]:
        where = listed([facts.name(label) for label in dict.fromkeys(run["label"] for run in elsewhere)])
        yield Sentence(
            f"{len(elsewhere)} of {counted(len(done), 'completed run')} ended on other numbers of processes "
            f"than the study gives, in {where}: speed and memory are those of the attempts before."
        )


def of_profiles(facts: Facts, step: str) -> Iterator[Sentence]:
    """One for each figure of other steps than those that were timed, or of parts that cannot be.

    Args:
        step: what a step is called.
    """
    if wrong := impossible([row for row in facts.profiles if row["phase"] == "step"]):
        groups = listed(
            [
                f"{facts.name(label)} ({1e3 * took:,.3g} ms of at least {1e3 * least:,.3g} ms)"
                for label, (took, least) in wrong.items()
            ]
        )
        times = (
            Number(f"{what} of a profiled {step} of {label}", "ms", 1e3 * seconds)
            for label, both in wrong.items()
            for what, seconds in zip(("attention", "least possible attention"), both, strict=True)
        )
        yield Sentence(
            f"The figure of where the time of a {step} goes is wrong for {groups}: attention would take "
            "less than it can, so the profile counts some of its kernels as other parts.",
            tuple(times),
        )
    for phase, noun in (("step", step), ("decode", "decoded token")):
        if differing := unlike(row for row in facts.profiles if row["phase"] == phase):
            groups = listed([f"{facts.name(label)} ({more:+.1f} %)" for label, more in differing.items()])
            numbers = (
                Number(f"profiled {noun} over timed {noun} of {label}, change", "percent", more)
                for label, more in differing.items()
            )
            yield Sentence(
                f"The figure of where the time of a {noun} goes shows {noun}s profiled after the run. "
                f"Those of {groups} took over {UNLIKE:.0f} % longer or shorter than the timed ones, "
                "so it does not show where the time of the timed ones went.",
                tuple(numbers),
            )
