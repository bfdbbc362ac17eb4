"""What is wrong in the numbers that a study reports of others, at the digits that were printed.

They are held against each other, against the FLOP of the configuration that they are about, and against the
peak of their hardware where `model.measure.flops` knows one; where it does not, that is said.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

from pydantic import ValidationError

from analysis.importers._checks import DISAGREE, FLOP_FORMULA, digits_apart, flop_unit
from analysis.importers._points import NumberRange
from model.measure.flops import Peak, attention_flop, of_run, parameter_count, peaks
from model.record.case import ELEMENT_BYTES, Case
from model.record.config import RunConfig
from model.record.kernels import Direction
from model.record.records import Override, RunRecord
from model.record.reported import Reported


class ReportedCheck(NamedTuple):
    """What checks say of an entry.

    Attributes:
        flags: the rules that its numbers break, in sentences.
        unchecked: what they could not be held against, and why.
        no_peak: the precision in which its hardware has no peak, if that is among them; else empty.
    """

    flags: list[str]
    unchecked: list[str]
    no_peak: str = ""


def reported_rows(run: RunRecord) -> list[dict[str, object]]:
    """What others report of a run, as records have it, each with what checks say of its numbers."""
    checks = check_reported(run.reported, run.config, run.overridden)
    return [
        entry.model_dump(mode="json") | {"flags": check.flags, "unchecked": check.unchecked}
        for entry, check in zip(run.reported, checks, strict=True)
    ]


def check_reported(
    reported: Sequence[Reported], config: RunConfig, overridden: Mapping[str, Override]
) -> list[ReportedCheck]:
    """What checks say of each entry.

    Args:
        config: of a run that they are about.
        overridden: what a scale or `--set` changed of it.
    """
    written = _as_written(config, overridden) if reported else None
    if written is None:
        why = "not held against the study's FLOP or a peak: its changes here cannot be undone one by one"
        return [
            ReportedCheck([*_impossible(entry), *_contradicted(entry, reported)], [why]) for entry in reported
        ]
    precision = written.section.precision
    checks = []
    for entry in reported:
        check = ReportedCheck([*_broken_rules(entry, written), *_contradicted(entry, reported)], [])
        cards = peaks(entry.hardware, precision)
        has_rate = not _RATES.isdisjoint(entry.numbers)
        if has_rate and not cards:
            why = f"not held to a peak: none is known of '{entry.hardware}' in {precision}"
            check = check._replace(unchecked=[why], no_peak=precision)
        elif has_rate and len(cards) > 1:
            meant = f"'{entry.hardware}' can be {' or '.join(cards)}"
            why = f"{meant}: held to the peak of the fastest, {_fastest(cards)}"
            check = check._replace(unchecked=[why])
        checks.append(check)
    return checks


def _as_written(config: RunConfig, overridden: Mapping[str, Override]) -> RunConfig | None:
    """The configuration that the study itself gives a run, whatever its scale or `--set` changed.

    It is what others' numbers are about. None where these changes cannot be undone one by one.
    """
    settings = config.model_dump(mode="json")
    for dotted, change in overridden.items():
        *sections, name = dotted.split(".")
        part = settings
        for section in sections:
            part = part.setdefault(section, {})
        if change.own is None:
            part.pop(name, None)
        else:
            part[name] = change.own
    try:
        return RunConfig.model_validate_json(json.dumps(settings))
    except ValidationError:
        return None


def _ranges(entry: Reported) -> dict[str, NumberRange]:
    """The true values that are printed like these: off by at most half a unit of the last digit."""
    ranges = {}
    for name, text in entry.numbers.items():
        value, off = float(text), 0.5 * 10.0 ** int(Decimal(text).as_tuple().exponent)
        ranges[name] = NumberRange(value - off, value + off)
    return ranges


def _contradicted(entry: Reported, others: Sequence[Reported]) -> Iterator[str]:
    """Quantities of which another entry about the same runs has another number from the same source."""
    ranges = _ranges(entry)
    for other in others:
        if _origin(other) != _origin(entry):
            continue
        theirs = _ranges(other)
        for name in ranges.keys() & theirs.keys():
            if ranges[name].low > theirs[name].high or theirs[name].low > ranges[name].high:
                yield (
                    f"{name} is {entry.numbers[name]} here, and {other.numbers[name]} in another entry of "
                    "the same runs, hardware and source: rule one number of one measurement"
                )


def _origin(entry: Reported) -> tuple[str | None, str, int, str]:
    return entry.backend, entry.hardware, entry.gpus, entry.source


def _impossible(entry: Reported) -> Iterator[str]:
    """Shares of more than everything, and parts of bytes."""
    ranges = _ranges(entry)
    for name, text in entry.numbers.items():
        if name.endswith("_bytes") and Decimal(text) % 1:
            yield (
                f"{name} is {text}, a part of a byte, as where a unit is missing (40.3 GB are 40.3e9): "
                "rule bytes are whole numbers"
            )
    for name in ("mfu", *(name for name in ranges if name.endswith("_percentage"))):
        if name in ranges and ranges[name].low > 100:
            yield f"{name} is {entry.numbers[name]} %, and at most 100 % can be: rule {name} <= 100"


def _fastest(cards: Mapping[str, Peak]) -> str:
    return max(cards, key=lambda card: cards[card].flops)


def _too_few_bytes(entry: Reported, config: RunConfig) -> Iterator[str]:
    """Bytes below what must be there, whatever the implementation: the numbers themselves, each once."""
    least = {
        "peak_memory_bytes": (parameter_count(config.model) // entry.gpus, "the parameters, a byte each,")
    }
    if entry.backend is not None:
        case = config.attention_case
        queries = case.batch * (case.queries or case.sequence_length) * case.heads * case.head_dim
        keys = case.batch * case.sequence_length * case.kv_heads * case.head_dim
        both = 2 * (queries + keys) * ELEMENT_BYTES[case.dtype] if case.trains else 0
        least = {
            "call_memory_bytes": (both, "the output and the gradients of Q, K and V"),
            "both_dram_bytes": (2 * both, "Q, K, V, the output and the gradients of all four"),
        }
    for name, (count, what) in least.items():
        text = entry.numbers.get(name)
        if text is not None and not Decimal(text) % 1 and _ranges(entry)[name].high < count:
            yield (
                f"{name} is {text}, below the {count:,} bytes that {what} take, as where a unit is missing "
                "(40.3 GB are 40.3e9): rule bytes >= those of the tensors themselves"
            )


_CALLS: dict[Direction, str] = {
    "forward": "a forward",
    "backward": "a backward",
    "both": "a forward and its backward",
}


# What FLOP and a peak bound.
_RATES = {
    *("tokens_per_second", "tflops"),
    *(f"{direction}_{quantity}" for direction in _CALLS for quantity in ("milliseconds", "tflops")),
}


def _broken_rules_of_calls(entry: Reported, case: Case, precision: str) -> Iterator[str]:
    """Times and rates of attention alone against each other, the peak, and the whole against its parts."""
    ranges, printed, cards = _ranges(entry), entry.numbers, peaks(entry.hardware, precision)
    for direction, call in _CALLS.items():
        time, rate = (ranges.get(f"{direction}_{quantity}") for quantity in ("milliseconds", "tflops"))
        flop = attention_flop(case, direction)
        if time and rate and not time.times(rate).holds(flop / 1e9, DISAGREE):
            count = 1e9 * float(printed[f"{direction}_milliseconds"]) * float(printed[f"{direction}_tflops"])
            name, unit = flop_unit(count, flop)
            digits = digits_apart(count, flop, unit)
            yield (
                f"{direction}_tflops x {direction}_milliseconds is {count / unit:.{digits}f} {name}, and "
                f"{call} at the shape of the study has {flop / unit:.{digits}f}: "
                "rule tflops x milliseconds = FLOP"
            )
        least = max(rate.low if rate else 0.0, flop / 1e9 / time.high if time else 0.0)
        if cards and least > (most := cards[_fastest(cards)]).flops / 1e12 * (1 + DISAGREE):
            yield (
                f"{least:,.1f} TFLOP/s or more in {call} is above the peak of {_fastest(cards)}, "
                f"{most.flops / 1e12:,.1f} TFLOP/s in {precision} ({most.source}): rule tflops <= peak"
            )
    forward, backward, both = (ranges.get(f"{direction}_milliseconds") for direction in _CALLS)
    if forward and backward and both:
        parts = NumberRange(forward.low + backward.low, forward.high + backward.high)
        if parts.low > both.high * (1 + DISAGREE) or both.low > parts.high * (1 + DISAGREE):
            yield (
                f"{printed['forward_milliseconds']} ms and {printed['backward_milliseconds']} ms are not "
                f"{printed['both_milliseconds']} ms together: rule both = forward + backward"
            )


def _broken_rules(entry: Reported, config: RunConfig) -> Iterator[str]:
    """The rules that an entry's numbers break, held against each other, the configuration and the peak."""
    yield from _impossible(entry)
    yield from _too_few_bytes(entry, config)
    if entry.backend is not None:
        yield from _broken_rules_of_calls(entry, config.attention_case, config.section.precision)
        return
    ranges, printed = _ranges(entry), entry.numbers
    rate, tflops, mfu = (ranges.get(name) for name in ("tokens_per_second", "tflops", "mfu"))
    flop, cards = of_run(config), peaks(entry.hardware, config.section.precision)

    # Rates of tokens and of FLOP.
    if rate and tflops and flop:
        possible = tflops.over(rate, 1e12 * entry.gpus)
        if not possible.holds(flop, DISAGREE):
            count = 1e12 * entry.gpus * float(printed["tflops"]) / float(printed["tokens_per_second"])
            name, unit = flop_unit(count, flop)
            digits = digits_apart(count, flop, unit)
            formula = f" ({FLOP_FORMULA})" if config.section.trains else ""
            yield (
                f"tflops / tokens_per_second is {count / unit:.{digits}f} {name} per token, and the model of "
                f"the study has {flop / unit:.{digits}f}{formula}: "
                "rule tflops = tokens_per_second x FLOP per token"
            )

    # Rates of FLOP of one GPU, by whichever numbers say them, against its peak.
    if not tflops and rate and flop:
        tflops = NumberRange(rate.low * flop / entry.gpus / 1e12, rate.high * flop / entry.gpus / 1e12)
    if not (tflops and cards):
        return
    fastest = _fastest(cards)
    limit = cards[fastest].flops / 1e12
    if tflops.low > limit * (1 + DISAGREE):
        what = f"{printed['tflops']} TFLOP/s" if "tflops" in printed else f"{tflops.low:,.1f} TFLOP/s or more"
        yield (
            f"{what} is above the peak of {fastest}, {limit:,.1f} TFLOP/s in {config.section.precision} "
            f"({cards[fastest].source}): rule tflops <= peak"
        )
    if mfu and not any(tflops.over(mfu, 100).holds(card.flops / 1e12, DISAGREE) for card in cards.values()):
        middle = 100 * (tflops.low + tflops.high) / (mfu.low + mfu.high)
        limits = ", that of ".join(f"{name} is {card.flops / 1e12:,.1f}" for name, card in cards.items())
        sources = "; ".join(dict.fromkeys(card.source for card in cards.values()))
        yield (
            f"mfu is that of a peak of {middle:,.1f} TFLOP/s, and that of {limits} in "
            f"{config.section.precision} ({sources}): rule mfu = tflops / peak"
        )
