"""The verdicts of an answer, a row for each group and quantity, and which runs they leave out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from analysis.report.answer.statement import About, Number, Sentence, VerdictRow
from analysis.stats import by_label, grouped
from analysis.stats.estimate import median
from analysis.stats.paired import RECORDS
from analysis.verdicts.scaling import HELD_UP
from analysis.wording import because, faster, group_name, listed, named_or_counted, nats, percentage
from model.record.units import counted

if TYPE_CHECKING:
    from analysis.report.comparison import StudyComparison
    from analysis.report.facts import Facts
    from analysis.verdicts.losses import LossVerdict
    from analysis.verdicts.rates import RateVerdict
    from analysis.verdicts.scaling import Curve, ScalingPoint

_MOST_SHOWN = 12  # rows of a quantity; of more, the two extremes of each verdict


def rows(facts: Facts, comparison: StudyComparison, rate_name: str) -> list[VerdictRow]:
    """Every verdict by quantity: findings first, then what was observed, then what is not decided.

    Those on single settings come last, in the order of the comparison's.

    Args:
        rate_name: what the rate of a run is called, such as `tokens per second`.
    """
    rates = [_rate(verdict, facts, comparison, rate_name) for verdict in comparison.rates.compared]
    steps = [
        _rate(step.rate, facts, comparison, f"{rate_name} with {group_name(step.setting)}", step.setting)
        for step in comparison.rates.steps
    ]
    losses = [_loss(loss) for loss in comparison.losses]
    on_gpus = all(run["gpus"] for run in facts.runs if run["outcome"] == "completed")
    what = "GPUs" if on_gpus else "processes"
    scaling = [scaling_row(curve, curve.points[-1], what) for curve in comparison.scaling]
    single = []  # rates of single runs where no baseline is declared, with which they could be compared
    for group in () if comparison.rates.baseline else facts.groups:
        rate = group.tokens_per_second and group.tokens_per_second.telling
        if rate and group.label in comparison.singles:
            number = Number(
                f"tokens per second of {group.label}",
                "tokens per second",
                rate.median,
                rate.low,
                rate.high,
                is_range=rate.is_range,
            )
            value, reason = f"{rate.median:,.0f}", "not a finding: one run"
            single.append(_observed("alone", rate_name, group.label, value, reason, number))
    verdicts = [*scaling, *rates, *losses, *single]
    quantities = list(dict.fromkeys(row.quantity for row in verdicts))
    kinds = {"measured": 0, "different": 0, "equivalent": 0, "observed": 1, "inconclusive": 2, "withheld": 3}
    return [*sorted(verdicts, key=lambda row: (quantities.index(row.quantity), kinds[row.kind])), *steps]


def shown(verdicts: Sequence[VerdictRow]) -> list[VerdictRow]:
    """The rows that a page shows: all of a quantity, or the extremes of each verdict where these are many."""
    kept: set[int] = set()
    for many in grouped(verdicts, lambda row: row.quantity).values():
        if len(many) <= _MOST_SHOWN:
            kept |= set(map(id, many))
            continue
        for alike in grouped(many, lambda row: row.verdict).values():
            ordered = sorted(alike, key=lambda row: row.number.value if row.number else 0.0)
            kept |= {id(ordered[0]), id(ordered[-1])}
    return [row for row in verdicts if id(row) in kept]


def _rate(
    rate: RateVerdict, facts: Facts, comparison: StudyComparison, quantity: str, setting: str = ""
) -> VerdictRow:
    verdict = rate.verdict
    kind = verdict.kind
    reason = because(verdict, rate.margin, facts.imported)
    if (rate.label, rate.baseline) in comparison.unlike:
        reason = f"{reason}; its loss differs" if reason else "its loss differs"
    inferred = verdict.apart is not None
    share, low, high, margin = (
        None if part is None else 100 * part
        for part in (verdict.difference, verdict.low, verdict.high, rate.margin)
    )
    difference, interval = "", ""
    if verdict.difference is not None and kind != "withheld":
        difference, interval = percentage(verdict.difference, verdict.low, verdict.high, rate.margin)
    if interval and verdict.is_range:
        interval = f"range {interval}"
    return VerdictRow(
        about="step" if setting else "rate",
        quantity=quantity,
        group=rate.label,
        against=rate.baseline,
        difference=difference,
        interval=interval,
        kind=kind,
        verdict=faster(verdict) if kind == "different" else kind,
        reason=reason,
        number=Number(
            f"rate of {rate.label} against {rate.baseline}{f', {setting} alone' if setting else ''}",
            "percent",
            share or 0.0,
            low,
            high,
            margin=margin,
            is_range=verdict.is_range,
        )
        if kind != "withheld"
        else None,
        level=verdict.level if inferred else "",
        method=verdict.method if inferred else "",
        setting=setting,
    )


def _loss(loss: LossVerdict) -> VerdictRow:
    verdict = loss.verdict
    row = VerdictRow(
        about="loss",
        quantity="loss",
        group=loss.label,
        kind=verdict.kind,
        verdict=verdict.kind,
        against=loss.baseline,
        reason=because(verdict, loss.margin, frozenset()),
    )
    if verdict.difference is None or verdict.kind == "withheld":
        return row
    difference, interval = nats(verdict)
    return replace(
        row,
        difference=f"{difference} nats per token",
        interval=interval,
        number=Number(
            f"loss of {loss.label} minus {loss.baseline}",
            "nats per token",
            verdict.difference,
            verdict.low,
            verdict.high,
            margin=loss.margin,
            is_range=verdict.is_range,
        ),
        level=verdict.level,
        method=verdict.method,
    )


def scaling_row(curve: Curve, point: ScalingPoint, what: str) -> VerdictRow:
    """The efficiency of a curve at one of its numbers of processes.

    Args:
        what: is counted, `GPUs` or `processes`.
    """
    about = f"{curve.way}, {curve.constant}"
    row = VerdictRow(
        about="scaling",
        quantity=f"{curve.kind} scaling from {curve.base_processes} to {point.processes} {what}",
        group=point.label,
        kind="withheld",
        verdict="withheld",
        against=curve.base,
    )
    if point.why_withheld:
        return replace(row, reason=f"{about}. {point.why_withheld}")
    value, low, high = (end and 100 * end for end in point.efficiency)
    over = f" over {curve.base_processes}" if curve.base_processes > 1 else ""
    kind: Literal["observed", "measured"] = (
        "observed" if point.observed or point.ratio.level == RECORDS else "measured"
    )
    reasons = [about]
    if point.parts:
        reasons.append(point.parts.removesuffix("."))
    if point.observed:
        reasons.append(f"not a finding: {point.observed}")
    if point.beyond_ideal:
        reasons.append(HELD_UP)
    ratio, is_range = point.ratio, point.ratio.is_range
    at = f"{curve.kind} scaling at {point.processes} {what}{over}, {about}"
    return replace(
        row,
        kind=kind,
        verdict=kind,
        difference=f"{value:.1f} % of ideal",
        interval="" if low is None or high is None else f"{'range ' * is_range}{low:.1f} to {high:.1f} %",
        reason=". ".join(reasons),
        number=Number(f"efficiency of {at}", "percent", value or 0.0, low, high, is_range=is_range),
        level=ratio.level,
        method=ratio.method,
        speedup=Number(f"speed-up of {at}", "times", ratio.ratio, ratio.low, ratio.high, is_range=is_range),
    )


def _observed(about: About, quantity: str, label: str, value: str, reason: str, number: Number) -> VerdictRow:
    return VerdictRow(
        about, quantity, label, "observed", "observed", difference=value, reason=reason, number=number
    )


def decoding(facts: Facts) -> Iterator[VerdictRow]:
    """How long a token takes, and how little it and a prefill could take, of the extreme groups."""
    decoded = [run for run in facts.runs if run["outcome"] == "completed" and run["decode_seconds"]]
    times = {
        label: 1e3 * median([seconds for run in runs if (seconds := run["decode_seconds"])])
        for label, runs in by_label(decoded).items()
    }
    reason = f"medians of {counted(len(decoded), 'run')}; {counted(len(times), 'group')} decode"
    for label in _extremes(times):
        number = Number(f"milliseconds per decoded token of {label}", "ms", times[label])
        yield _observed(
            "decoding", "time of a decoded token", label, f"{times[label]:,.3g} ms", reason, number
        )
    for noun, column in (("a prefill", "floor_percentage"), ("a decoded token", "decode_floor_percentage")):
        shares = {group.label: share for group in facts.groups if (share := getattr(group, column))}
        for label in _extremes(shares):
            number = Number(f"floor of {noun} of {label}", "percent", shares[label])
            reason = "by the rates measured on the same device; medians of completed runs"
            value = f"{shares[label]:.0f} % of its time"
            yield _observed("decoding", f"floor of {noun}", label, value, reason, number)


def _extremes(values: dict[str, float]) -> list[str]:
    """The labels of the smallest and the largest value."""
    ordered = sorted(values, key=lambda label: values[label])
    return list(dict.fromkeys((*ordered[:1], *ordered[-1:])))


def left_out(facts: Facts, comparison: StudyComparison, rate_name: str) -> Iterator[Sentence]:
    """Which planned runs the verdicts are not about, although they speak of their groups."""
    measured = {run["run_id"] for run in facts.runs if run["outcome"] == "completed" and run["step_seconds"]}
    ranked = [label for ranking in comparison.rates.rankings for tier in ranking.tiers for label in tier]
    groups = by_label(facts.runs)
    quantities: dict[str, list[str]] = {}  # by `2 of 5 runs of flash (2 failed)`
    for quantity, compared, more, used in (
        (rate_name, comparison.rates.compared, ranked, measured),
        ("loss", comparison.losses, [], set[str]()),
    ):
        labels = [label for verdict in compared for label in (verdict.label, verdict.baseline)]
        with_verdict = used.union(*(verdict.runs for verdict in compared))
        gaps: dict[tuple[str, str], list[str]] = {}  # labels, by `2 of 5 runs` and `2 failed`
        for label in dict.fromkeys([*labels, *more]):
            ends = Counter(run["outcome"] for run in groups[label] if run["run_id"] not in with_verdict)
            names = {"completed": "without measured steps", None: "without an outcome yet"}
            why = listed([f"{count} {names.get(end, f'`{end}`')}" for end, count in ends.items()])
            if ends:
                few = f"{ends.total()} of {counted(len(groups[label]), 'run')}"
                gaps.setdefault((few, why), []).append(label)
        if gaps:
            left = []
            for (few, reasons), of in gaps.items():
                left.append(f"{few} of {'each of ' if len(of) > 1 else ''}{named_or_counted(of)} ({reasons})")
            quantities.setdefault(listed(left), []).append(quantity)
    for runs, about in quantities.items():
        yield Sentence(f"The verdicts on {listed(about)} leave out {runs}.")
