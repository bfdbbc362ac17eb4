"""Points to step records: what follows from what a log says, and where each quantity comes from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from statistics import median

from analysis.logs.mapping import Mapping, Quantity
from analysis.logs.points import LARGEST, Between, Log, Point
from model.record.imported import ImportedStep
from model.record.units import counted


@dataclass
class Steps:
    """The records of a run.

    Attributes:
        sources: by quantity, what it follows from where the log does not state it.
        not_finite: steps whose loss is NaN or infinite.
        impossible: FILE:LINE and why, for values that were left out.
    """

    records: list[ImportedStep] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    not_finite: list[int] = field(default_factory=list)
    impossible: list[str] = field(default_factory=list)


def steps_of(log: Log, mapping: Mapping) -> Steps:
    """The step records of a log; what it does not say and nothing implies is None."""
    found, before = Steps(), None
    if log.from_zero:
        found.sources["step"] = "the log counts from 0; 1 is added"
    for point in log.points:
        steps = _interval(log, found) if before is None else point.step - before.step
        found.records.append(_record(log, found, mapping, point, before, steps))
        before = point
    return found


def _interval(log: Log, found: Steps) -> int:
    """Steps that the first record covers: all so far, unless the log begins in the middle of a run."""
    steps = [point.step for point in log.points]
    usual = round(median(b - a for a, b in pairwise(steps))) if len(steps) > 1 else steps[0]
    if steps[0] <= 2 * usual:
        return steps[0]
    found.sources["steps"] = (
        f"the log begins at step {steps[0]}; its first record is taken to cover {counted(usual, 'step')}"
    )
    return usual


def _record(
    log: Log, found: Steps, mapping: Mapping, point: Point, before: Point | None, steps: int
) -> ImportedStep:
    loss = point.values.get("loss")
    if loss is not None and not isfinite(loss):
        found.not_finite.append(point.step)
    tokens = _tokens(found, mapping, point, before, steps)
    seconds = _seconds(found, point, before, steps, tokens)
    if seconds is not None and seconds <= 0:
        found.impossible.append(f"{log.at(point.line)}: step {point.step} took {seconds:g} s")
        seconds = None
    tokens = tokens if tokens and tokens > 0 else None
    rate = point.get("tokens_per_second")
    alone = rate is not None and rate > 0 and not (tokens and seconds)
    if alone:
        found.sources.setdefault("tokens_per_second", "the log: nothing says which tokens and seconds")
    return ImportedStep(
        step=point.step,
        steps=steps,
        time=point.time,
        loss=point.get("loss"),
        learning_rate=point.get("learning_rate"),
        grad_norm=point.get("grad_norm"),
        step_seconds=seconds,
        tokens=tokens,
        training_tokens=_training_tokens(found, point, tokens, seconds and seconds * steps),
        memory_bytes=_whole(point.get("memory_bytes")),
        printed_tokens_per_second=rate if alone else None,
    )


def _tokens(found: Steps, mapping: Mapping, point: Point, before: Point | None, steps: int) -> int | None:
    """Tokens in the interval, by the first of these that is known."""
    if (tokens := point.get("tokens")) is not None:
        return _whole(tokens)
    total, past = point.get("total_tokens"), before.get("total_tokens") if before else 0.0
    if total is not None and past is not None:
        return _whole(total - past)
    if per_step := tokens_per_step(mapping):
        found.sources.setdefault("tokens", "tokens per step, as the mapping states them")
        return per_step * steps
    rate, seconds = point.get("tokens_per_second"), stated_interval(point, steps)
    if rate is None or seconds is None:
        return None
    found.sources.setdefault("tokens", "tokens per second x seconds, both as printed")
    return _whole(rate * seconds)


def stated_interval(point: Point, steps: int) -> float | None:
    """Seconds since the record before, as the log states them."""
    mean = point.get("step_seconds")
    return point.get("interval_seconds") if mean is None else mean * steps


def stated_between(point: Point, steps: int) -> Between | None:
    """What the seconds since the record before can be, by the digits that the log has."""
    mean = point.between("step_seconds")
    return Between(mean.low * steps, mean.high * steps) if mean else point.between("interval_seconds")


def tokens_per_step(mapping: Mapping) -> int | None:
    """Tokens of a step, if the mapping states them, or a sequence length and a batch size."""
    train = mapping.config.train
    if mapping.constants.tokens_per_step:
        return mapping.constants.tokens_per_step
    return train.sequence_length * train.batch_size if train.sequence_length and train.batch_size else None


def _seconds(
    found: Steps, point: Point, before: Point | None, steps: int, tokens: int | None
) -> float | None:
    """Seconds per step over the interval, by the first of these that is known."""
    if (seconds := point.get("step_seconds")) is not None:
        return seconds
    if (seconds := point.get("interval_seconds")) is not None:
        return seconds / steps
    if (rate := point.get("tokens_per_second")) and tokens:
        found.sources.setdefault("step_seconds", "tokens / tokens per second, as printed")
        return tokens / rate / steps
    now, past = point.get("elapsed_seconds"), before.get("elapsed_seconds") if before else None
    if now is None or past is None or now < past:
        return None
    found.sources.setdefault(
        "step_seconds", "differences of elapsed seconds: they include everything that was done"
    )
    return (now - past) / steps


def _training_tokens(found: Steps, point: Point, tokens: int | None, seconds: float | None) -> int | None:
    if (stated := point.get("training_tokens")) is not None:
        return _whole(stated)
    share, rate = point.get("training_tokens_percentage"), point.get("training_tokens_per_second")
    if share is not None and tokens is not None:
        found.sources.setdefault("training_tokens", "tokens x their percentage, as printed")
        return round(tokens * share / 100)
    if rate is not None and seconds is not None:
        found.sources.setdefault("training_tokens", "training tokens per second x seconds, as printed")
        return round(rate * seconds)
    return None


def _whole(value: float | None) -> int | None:
    return None if value is None or abs(value) > LARGEST else round(value)


def implied(
    points: Sequence[Point], above: Quantity, below: Quantity, scale: float
) -> list[tuple[Point, float, Between]]:
    """Return scale x above / below, at each point that has both, and what it can be by the digits of both."""
    return [
        (point, scale * a / b, top.over(bottom, scale))
        for point in points
        if (a := point.get(above)) is not None
        and (b := point.get(below))
        and (top := point.between(above))
        and (bottom := point.between(below))
    ]


def common(ranges: Iterable[Between]) -> Between:
    """The numbers that are in all of these ranges; where none is, those from one range to another."""
    lows, highs = zip(*((each.low, each.high) for each in ranges), strict=True)
    return Between(*sorted((max(lows), min(highs))))
