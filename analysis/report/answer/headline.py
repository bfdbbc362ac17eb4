"""The answer to a study's question in a sentence or two, from medians, verdicts and outcomes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from analysis.report.answer.statement import Number, Sentence, VerdictRow
from analysis.stats import by_label, grouped
from analysis.wording import capital, group_name, listed, number, range_word
from model.record.outcome import Outcome

if TYPE_CHECKING:
    from analysis.report.comparison import StudyComparison
    from analysis.report.facts import Facts
    from analysis.report.rows import Run
    from analysis.stats import Estimate
    from analysis.stats.ranking import Ranking

_SETTINGS = 6  # that a sentence names; of more, those that change most
_NAMED = 3  # groups that a sentence names; of more it says how many
_SHOWN = ("faster", "equivalent", "slower")  # verdicts of several runs


def scaling(facts: Facts, verdicts: Sequence[VerdictRow]) -> Iterator[Sentence]:
    """How many times as fast the most processes are: `Weak scaling from 1 to 4 GPUs: ...`.

    Of more than two groups, those that come closest to the ideal and least close.
    """
    rows = [row for row in verdicts if row.about == "scaling" and row.number]
    for quantity, alike in grouped(rows, lambda row: row.quantity).items():
        texts, numbers = [], []
        ordered = sorted(alike, key=lambda row: row.number.value if row.number else 0.0)
        for row in alike if len(alike) <= 2 else (ordered[-1], ordered[0]):
            value, ends = in_times(row)
            times = f"{value}{f' ({ends})' if ends else ''} times as fast"
            texts.append(f"{facts.name(row.group)} {times}, {row.difference}")
            numbers += [row.speedup] if row.speedup else []
        once = " (one run each: observed)" if all(row.kind == "observed" for row in alike) else ""
        text = "; ".join(texts) if len(alike) <= 2 else f"most {texts[0]}; least {texts[1]}"
        yield Sentence(f"{capital(quantity)}: {text}{once}.", tuple(numbers))


def in_times(row: VerdictRow) -> tuple[str, str]:
    """A speed-up, and its interval or range where it has one: `1.83`, `1.82 to 1.84`."""
    assert row.speedup
    value, low, high = f"{row.speedup.value:.2f}", row.speedup.low, row.speedup.high
    if low is None or high is None:
        return value, ""
    return value, f"{range_word(row.speedup.is_range)}{low:.2f} to {high:.2f}"


def rates(
    facts: Facts,
    comparison: StudyComparison,
    verdicts: Sequence[VerdictRow],
    unit: str = "tokens/s",
    beside: Mapping[str, str] | None = None,
) -> Iterator[Sentence]:
    """The groups with the highest and the lowest rate, and their verdicts against the baseline.

    Groups of different numbers of processes have no order. Of a grid, whose cells have baselines of their
    own, it is what they save of these. Where groups lack blocks on other GPUs, their order is that of the
    ratios to the baseline, which are of runs in the same block, unless these were planned apart.

    Args:
        beside: what the rate of a group comes to, by its label: `104 ms a prefill`.
    """
    if len({pair.baseline for pair in comparison.rates.compared}) > 1:
        yield from _saved(facts, comparison)
    elif not comparison.scaling and len(comparison.rates.rankings) <= 1:
        values = {group.label: group.tokens_per_second for group in facts.groups}
        judged = {row.group: row for row in verdicts if row.about == "rate"}
        ratios: dict[str, float] = {}
        if comparison.gaps:
            ratios = {label: row.number.value for label, row in judged.items() if row.number}
            ratios |= {row.against: 0.0 for row in judged.values()}
        words = ("highest rate", "lowest")
        ordered = "Within blocks, "
        if comparison.crossing and judged:
            ordered = f"By ratios to {facts.name(next(iter(judged.values())).against)}, "
        yield from ends(
            facts,
            values,
            unit,
            judged,
            comparison.rates.rankings,
            words,
            by_ratio=(ratios, ordered),
            beside=beside,
        )
        if not comparison.rates.steps:
            yield from _findings(facts, judged)
    yield from _steps(facts, comparison, verdicts)


def _steps(facts: Facts, comparison: StudyComparison, verdicts: Sequence[VerdictRow]) -> Iterator[Sentence]:
    """What each setting changes, all else being equal; of many settings, those that change most.

    Of a setting that was added to several groups, the least and the most that it changes.
    """
    steps = [
        row
        for row in verdicts
        if row.about == "step" and facts.flagged.keys().isdisjoint((row.group, row.against))
    ]
    texts: dict[str, str] = {}
    ends: dict[str, list[Number]] = {}  # the least and the most of each setting; none where all are withheld
    for setting, rows in grouped(steps, lambda row: row.setting).items():
        changes = sorted(
            ((row.number, row.difference) for row in rows if row.number), key=lambda change: change[0].value
        )
        extremes = [*changes[:1], *changes[1:][-1:]]
        ends[setting] = [number for number, _ in extremes]
        span = " to ".join(dict.fromkeys(text for _, text in extremes)).replace(" % to ", " to ")
        counts = Counter(row.verdict for row in rows)
        outcomes = [verdict if len(counts) == 1 else f"{n} {verdict}" for verdict, n in counts.items()]
        if any((row.group, row.against) in comparison.unlike for row in rows):
            outcomes.append("to another loss")
        texts[setting] = " ".join(filter(None, (group_name(setting), span, f"({', '.join(outcomes)})")))
    if not texts:
        return
    size = {setting: max((abs(end.value) for end in ends[setting]), default=0.0) for setting in texts}
    most = {setting: max((end.value for end in ends[setting]), default=0.0) for setting in texts}
    named = sorted(
        sorted(texts, key=lambda setting: -size[setting])[:_SETTINGS], key=lambda setting: -most[setting]
    )
    more = [f"{len(texts) - len(named)} more change less"] if len(texts) > len(named) else []
    once = ", in one run each" if all(step.rate.single for step in comparison.rates.steps) else ""
    listing = "; ".join([*(texts[setting] for setting in named), *more])
    cited = tuple(end for setting in named for end in ends[setting])
    yield Sentence(f"One setting at a time{once}: {listing}.", cited)


def _findings(facts: Facts, judged: Mapping[str, VerdictRow]) -> Iterator[Sentence]:
    """What is shown of each group: `Against auto, custom is faster and 5 are slower.`.

    Nothing where the two ends say it: of fewer than three groups, or where nothing is shown of any.
    """
    right = [row for label, row in judged.items() if label not in facts.flagged]
    by_verdict = grouped(right, lambda row: row.verdict)
    if len(right) < 3 or by_verdict.keys().isdisjoint(_SHOWN):
        return
    texts = []
    for verdict in (*_SHOWN, "inconclusive", "observed"):
        if rows := by_verdict.get(verdict):
            names = [facts.name(row.group) for row in rows]
            which = listed(names) if len(names) <= _NAMED else f"{len(names)}"
            one, several = f"is {verdict}", f"are {verdict}"
            if verdict == "observed":
                one, several = "has a single run", "have single runs"
            texts.append(f"{which} {one if len(names) == 1 else several}")
    yield Sentence(f"Against {facts.name(right[0].against)}, {listed(texts)}.")


def _saved(facts: Facts, comparison: StudyComparison) -> Iterator[Sentence]:
    """The least and the most that a cell of a grid saves, of time and of memory.

    Of time, cells that are undecided are counted instead, where others are not.
    """
    compared = [pair for pair in comparison.rates.compared if pair.label not in facts.flagged]
    inconclusive = {pair.label for pair in compared if pair.verdict.kind == "inconclusive"}
    for what, savings in comparison.saved.items():
        left_out = inconclusive if what == "time" and len(inconclusive) < len(compared) else set()
        right = [saving for saving in savings if saving.label not in {*facts.flagged, *left_out}]
        ordered = sorted(right, key=lambda saving: saving.percent.median)
        if not ordered:
            continue
        shown = list(dict.fromkeys((ordered[0], ordered[-1])))
        single = [one.percent.n == 1 for one in shown]
        marks = [", in one run" if alone and not all(single) else "" for alone in single]
        texts = [
            f"{one.percent.median:.1f} % ({facts.name(one.label)}){mark}"
            for one, mark in zip(shown, marks, strict=True)
        ]
        numbers = tuple(
            Number(f"{what} that {one.label} saves", "percent", one.percent.median) for one in shown
        )
        once = ", in one run each" if all(single) else ""
        undecided = f"; {len(left_out)} undecided" if left_out else ""
        yield Sentence(
            f"{what.capitalize()} saved against the baseline: {' to '.join(texts)}{once}{undecided}.", numbers
        )


def ends(
    facts: Facts,
    values: Mapping[str, Estimate | None],
    unit: str,
    judged: Mapping[str, VerdictRow],
    rankings: Sequence[Ranking],
    words: tuple[str, str],
    most: bool = True,
    before: str = "",
    by_ratio: tuple[Mapping[str, float], str] = ({}, ""),
    beside: Mapping[str, str] | None = None,
) -> Iterator[Sentence]:
    """Both ends of a quantity: `flash3 has the highest rate, 10,327 tokens/s (...); ...`.

    A group that is flagged in its log is no answer.

    Args:
        values: by group, in `unit`.
        judged, rankings: verdicts on the same quantity, by group, and its rankings.
        words: for the first and the last group: `highest rate`, `lowest`.
        most: whether the largest value comes first.
        before: what the sentence begins with, such as `Decoding: `.
        by_ratio: of each group to the baseline: the order, where medians are of different blocks; and what
            the sentence then begins with.
        beside: in other words, by group.
    """
    medians = {label: value.median for label, value in values.items() if value and label not in facts.flagged}
    if not medians:
        return
    order = medians
    ratios, ordered_by = by_ratio
    if medians.keys() <= ratios.keys():
        order, before = {label: ratios[label] for label in medians}, ordered_by
    ordered = sorted(order, key=order.__getitem__, reverse=most)
    first, last = ordered[0], ordered[-1]
    form = ",.0f" if min(medians.values()) >= 100 else "#,.3g"
    numbers = tuple(
        Number(f"{unit} of {label}, {word}", unit, medians[label])
        for label, word in {last: words[1], first: words[0]}.items()
    )
    texts = {label: f"{number(medians[label], form)} {unit}" for label in (first, last)}
    if len(ordered) == 1 or len(set(texts.values())) == 1:
        which = facts.name(first) if len(ordered) == 1 else f"all {len(ordered)} groups"
        yield Sentence(f"{before}{which if before else capital(which)}: {texts[first]}.", numbers)
        return
    for label in (first, last):
        if beside and label in beside:
            texts[label] += f", {beside[label]}"
        if (row := judged.get(label)) and row.difference:
            # Of pairs of runs, whose mean can be on the other side than the medians: then none is said.
            ahead = medians[label] - medians.get(row.against, medians[label])
            change = f"{row.difference} " if not row.number or ahead * row.number.value >= 0 else ""
            texts[label] += f" ({change}against {facts.name(row.against)}: {row.verdict})"
    runs = {group.label: group.n for group in facts.groups}
    single = [label for label in (first, last) if runs[label] == 1]
    if len(single) == 2:
        once = "in one run each, "
        before = f"{before}{once if before else once.capitalize()}"
    elif single:
        texts[single[0]] += ", in one run"
    doubt = _ties(ordered, judged, facts, rankings)
    leader = facts.name(first)
    if not before and leader.startswith("group"):
        leader = leader.capitalize()
    clauses = [
        f"{before}{leader} has the {words[0]}, {texts[first]}",
        *([doubt] if doubt else []),
        f"{facts.name(last)} the {words[1]}, {texts[last]}",
    ]
    yield Sentence(f"{'; '.join(clauses)}.", numbers)


def _ties(
    ordered: Sequence[str], judged: Mapping[str, VerdictRow], facts: Facts, rankings: Sequence[Ranking]
) -> str:
    """`tests do not tell it from auto, nor compare it with math`, of the first group; empty without a tie.

    What the verdicts on the first and on the last group say is not said again.
    """
    first, last = ordered[0], ordered[-1]
    compared = {judged[first].against} if first in judged else set[str]()
    if last in judged and judged[last].against == first:
        compared.add(last)
    tiers = next((ranking.tiers for ranking in rankings if any(first in tier for tier in ranking.tiers)), ())
    like = {label for tier in tiers if first in tier for label in tier}
    ties = [facts.name(label) for label in ordered if label in like - {first, *compared}]
    if not ties:
        return ""
    ranked = {label for tier in tiers for label in tier}
    of_single_runs = {label for label, row in judged.items() if row.verdict == "observed"}
    untested = [facts.name(label) for label in ordered if label not in ranked | of_single_runs]
    nor = f", nor compare it with {_few(untested)}" if untested else ""
    return f"tests do not tell it from {_few(ties)}{nor}"


def _few(names: Sequence[str], more: str = "others") -> str:
    return listed(names) if len(names) <= _NAMED else f"{len(names)} {more}"


def losses(facts: Facts, verdicts: Sequence[VerdictRow]) -> Iterator[Sentence]:
    """The range of final losses, and what their verdicts say."""
    done = [run for run in facts.runs if run["outcome"] == "completed" and run["final_loss"] is not None]
    right = {label: runs for label, runs in by_label(done).items() if label not in facts.flagged}
    amounts = {
        (run["steps"], run["batch_size"], run["sequence_length"]) for runs in right.values() for run in runs
    }
    medians = {
        group.label: group.final_loss.median
        for group in facts.groups
        if group.label in right and group.final_loss
    }
    if not medians:
        return
    low, high = (end(medians, key=medians.__getitem__) for end in (min, max))
    texts = [f"{medians[label]:.4f}" for label in (low, high)]
    alike = [[facts.name(label) for label in medians if f"{medians[label]:.4f}" == text] for text in texts]
    names = [_few(labels, "groups") for labels in alike]
    numbers = tuple(
        Number(f"final loss of {label}, {end}", "nats", medians[label])
        for label, end in {high: "highest", low: "lowest"}.items()
    )
    if texts[0] == texts[1]:
        text = f"Final loss: {texts[0]}" + (f" for all {len(medians)} groups" if len(medians) > 1 else "")
    else:
        text = f"Final losses: {texts[0]} ({names[0]}) to {texts[1]} ({names[1]})"
    if len(amounts) > 1 and len(medians) > 1:
        text += ", after different amounts of text"
    compared = [
        row
        for row in verdicts
        if row.about == "loss" and facts.flagged.keys().isdisjoint((row.group, row.against))
    ]
    yield Sentence(f"{text}{_agreement(compared, facts)}{_largest_difference(compared, facts)}.", numbers)


def _agreement(compared: Sequence[VerdictRow], facts: Facts) -> str:
    """`; whether they agree is not decided`, of losses; empty where none is compared."""
    diverged = {run["label"] for run in facts.runs if run["outcome"] == Outcome.DIVERGED}
    judged = [row for row in compared if row.kind != "different" or row.number or row.against not in diverged]
    if not judged:
        return "; none is compared with a baseline that diverged" if compared else ""
    kinds = Counter(row.kind for row in judged)
    if kinds.keys() == {"equivalent"}:
        return ", equivalent within the margin"
    if kinds.keys().isdisjoint(("equivalent", "different", "withheld")):
        return "; whether they agree is not decided"
    differing = [facts.name(row.group) for row in compared if row.kind == "different"]
    clauses = [f"{listed(differing)} differ{'s' if len(differing) == 1 else ''}"] if differing else []
    undecided = kinds.total() - sum(kinds[kind] for kind in ("different", "equivalent", "withheld"))
    others = (
        (kinds["equivalent"], f" of {kinds.total()}", "equivalent within the margin"),
        (undecided, "", "not decided"),
        (kinds["withheld"], "", "not comparable"),
    )
    clauses += [f"{n}{of} {'is' if n == 1 else 'are'} {what}" for n, of, what in others if n]
    return f"; against the baseline, {listed(clauses)}"


def _largest_difference(compared: Sequence[VerdictRow], facts: Facts) -> str:
    """Of the verdicts on losses, unless all are equivalent: final losses, of one step, may hide it."""
    differences = [(row, row.number) for row in compared if row.number]
    row, most = max(differences, key=lambda pair: abs(pair[1].value), default=(None, None))
    if not row or not most or not round(most.value, 4) or all(row.kind == "equivalent" for row in compared):
        return ""
    interval = f"90 %: {row.interval}" if row.interval else "no interval"
    margin = "no margin" if most.margin is None else f"margin {most.margin:g}"
    which = "largest difference" if len(differences) > 1 else "difference"
    return (
        f"; over the last fifth of their common steps, the {which} is that of {facts.name(row.group)} "
        f"from {facts.name(row.against)}: {row.difference} ({interval}; {margin})"
    )


def _amount(run: Run) -> str | None:
    """`4 x 256`: samples of a step and tokens of each, as far as a run has both."""
    batch, length = run["batch_size"], run["sequence_length"]
    return None if batch is None or length is None else f"{batch:,d} x {length:,d}"


def without_result(facts: Facts) -> Iterator[Sentence]:
    """Groups none of whose runs completed, by how they ended: `No result: math (out of GPU memory).`."""
    done = {_amount(run) for run in facts.runs if run["outcome"] == Outcome.COMPLETED}
    ends: dict[str, list[str]] = {}
    for label, runs in by_label(facts.runs).items():
        outcomes = {Outcome(run["outcome"]) for run in runs if run["outcome"]}
        if any(run["outcome"] is None for run in runs) or Outcome.COMPLETED in outcomes:
            continue
        words_for = (outcome.meaning if outcome.out_of_memory else outcome.short for outcome in outcomes)
        meaning = " or ".join(sorted(words_for))
        amount, *others = {_amount(run) for run in runs}
        asked_otherwise = done and amount and not others and done.isdisjoint((amount, None))
        if asked_otherwise and all(outcome.out_of_memory for outcome in outcomes):
            meaning += f", at {amount} tokens"
        ends.setdefault(meaning, []).append(label)
    words = []
    for meaning, labels in sorted(ends.items(), key=lambda end: len(end[1])):
        words.append(f"{_few([facts.name(label) for label in labels], 'groups')} ({meaning})")
    if words:
        yield Sentence(f"No result: {listed(words)}.")
    if facts.flagged:
        flagged = [
            f"{facts.name(label)} ({facts.flagged[label]})"
            for label in facts.labels
            if label in facts.flagged
        ]
        yield Sentence(f"Left out of this answer, flagged in its log: {listed(flagged)}.")
