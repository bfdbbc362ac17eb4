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
from model.measure.flops import attention_flop, of_run, peak
from model.record.case import Case
from model.record.config import RunConfig
from model.record.kernels import Direction
from model.record.records import Override, RunRecord
from model.record.reported import Reported


class Checked(NamedTuple):
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
    checks = checked(run.reported, run.config, run.overridden)
    return [
        one.model_dump(mode="json") | {"flags": check.flags, "unchecked": check.unchecked}
        for one, check in zip(run.reported, checks, strict=True)
    ]


def checked(
    reported: Sequence[Reported], config: RunConfig, overridden: Mapping[str, Override]
) -> list[Checked]:
    """What checks say of each entry.

    Args:
        config: of a run that they are about.
        overridden: what a scale or `--set` changed of it.
    """
    whole = _as_written(config, overridden) if reported else None
    if whole is None:
        why = "not held against the study's FLOP or a peak: its changes here cannot be undone one by one"
        return [Checked([*_impossible(one)], [why]) for one in reported]
    precision = whole.section.precision
    checks = []
    for one in reported:
        check = Checked([*_broken(one, whole)], [])
        if _RATES & one.numbers.keys() and peak(one.hardware, precision) is None:
            why = f"not held to a peak: none is known of '{one.hardware}' in {precision}"
            check = check._replace(unchecked=[why], no_peak=precision)
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


def _between(one: Reported) -> dict[str, NumberRange]:
    """The true values that are printed like these: off by at most half a unit of the last digit."""
    ranges = {}
    for name, text in one.numbers.items():
        value, off = float(text), 0.5 * 10.0 ** int(Decimal(text).as_tuple().exponent)
        ranges[name] = NumberRange(value - off, value + off)
    return ranges


def _impossible(one: Reported) -> Iterator[str]:
    """Shares of more than everything."""
    between = _between(one)
    for name in ("mfu", *(name for name in between if name.endswith("_percentage"))):
        if name in between and between[name].low > 100:
            yield f"{name} is {one.numbers[name]} %, and at most 100 % can be: rule {name} <= 100"


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


def _broken_of_calls(one: Reported, case: Case, precision: str) -> Iterator[str]:
    """Times and rates of attention alone against each other, the peak, and the whole against its parts."""
    between, printed, most = _between(one), one.numbers, peak(one.hardware, precision)
    for direction, call in _CALLS.items():
        time, rate = (between.get(f"{direction}_{quantity}") for quantity in ("milliseconds", "tflops"))
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
        if most and least > most.flops / 1e12 * (1 + DISAGREE):
            yield (
                f"{least:,.1f} TFLOP/s or more in {call} is above the peak of {one.hardware}, "
                f"{most.flops / 1e12:,.1f} TFLOP/s in {precision} ({most.source}): rule tflops <= peak"
            )
    forward, backward, both = (between.get(f"{direction}_milliseconds") for direction in _CALLS)
    if forward and backward and both:
        parts = NumberRange(forward.low + backward.low, forward.high + backward.high)
        if parts.low > both.high * (1 + DISAGREE) or both.low > parts.high * (1 + DISAGREE):
            yield (
                f"{printed['forward_milliseconds']} ms and {printed['backward_milliseconds']} ms are not "
                f"{printed['both_milliseconds']} ms together: rule both = forward + backward"
            )


def _broken(one: Reported, config: RunConfig) -> Iterator[str]:
    yield from _impossible(one)
    if one.backend is not None:
        yield from _broken_of_calls(one, config.attention_case, config.section.precision)
        return
    between, printed = _between(one), one.numbers
    rate, tflops, mfu = (between.get(name) for name in ("tokens_per_second", "tflops", "mfu"))
    flop, most = of_run(config), peak(one.hardware, config.section.precision)

    # Rates of tokens and of FLOP.
    if rate and tflops and flop:
        possible = tflops.over(rate, 1e12 * one.gpus)
        if not possible.holds(flop, DISAGREE):
            count = 1e12 * one.gpus * float(printed["tflops"]) / float(printed["tokens_per_second"])
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
        tflops = NumberRange(rate.low * flop / one.gpus / 1e12, rate.high * flop / one.gpus / 1e12)
    if not (tflops and most):
        return
    limit = most.flops / 1e12
    if tflops.low > limit * (1 + DISAGREE):
        what = f"{printed['tflops']} TFLOP/s" if "tflops" in printed else f"{tflops.low:,.1f} TFLOP/s or more"
        yield (
            f"{what} is above the peak of {one.hardware}, {limit:,.1f} TFLOP/s in {config.section.precision} "
            f"({most.source}): rule tflops <= peak"
        )
    if mfu and not tflops.over(mfu, 100).holds(limit, DISAGREE):
        middle = 100 * (tflops.low + tflops.high) / (mfu.low + mfu.high)
        yield (
            f"mfu is that of a peak of {middle:,.1f} TFLOP/s, and that of {one.hardware} is {limit:,.1f} "
            f"in {config.section.precision} ({most.source}): rule mfu = tflops / peak"
        )
