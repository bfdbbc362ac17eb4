"""Rows to points, and points to step records.

A point is a record's numbers in known units, in the order of the steps, each run apart. A step record holds
what follows from them, and where each quantity comes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from math import inf, isfinite, isnan, ulp
from statistics import median
from typing import Any, get_args

import numpy as np

from analysis.importers._mapping import UNITS, LogQuantity, Mapping
from analysis.importers._table import LogRow, LogTable, Refused, mapping_example
from model.record.imported import ImportedStep
from model.record.units import counted

QUANTITIES: tuple[LogQuantity, ...] = get_args(LogQuantity)
LARGEST = 2.0**53
_MOST_RETURNS = 5  # times that a run may be resumed before its steps count as in no order
_OPERATIONS = 4  # whose rounding adds up in a number that a program printed
_FROM_1970 = 1e8  # seconds: less cannot be when a model was trained
_ABSENT = ("", "none", "null", "na", "n/a", "#n/a", "<na>")  # how tables write that there is no value
_ANY_SIGN: tuple[LogQuantity, ...] = ("loss", "step", "step_seconds", "interval_seconds")  # or checked later
_PLAIN = "; write it with a decimal point, and without separators, signs and units, such as 8127.71"


@dataclass(frozen=True, slots=True)
class NumberRange:
    """All numbers between two."""

    low: float
    high: float

    def over(self, other: NumberRange, scale: float = 1.0) -> NumberRange:
        """What scale x a / b can be; neither a nor b is negative."""
        if other.low <= 0:
            return NumberRange(0.0, inf)
        return NumberRange(scale * self.low / other.high, scale * self.high / other.low)

    def times(self, other: NumberRange) -> NumberRange:
        """What a x b can be; neither is negative."""
        return NumberRange(self.low * other.low, self.high * other.high)

    def holds(self, value: float, slack: float = 0.0) -> bool:
        """Whether it can be this value, give or take `slack`, which is relative."""
        return self.low * (1 - slack) <= value <= self.high * (1 + slack)


@dataclass(slots=True)
class LogPoint:
    """One record of a log.

    Attributes:
        step: counted from 1.
        values: quantity -> number, in the default unit; NaN and infinities as the log has them.
        printed: quantity -> the value as the log has it, and what it was multiplied with.
        restarted: whether elapsed seconds count anew since the record that was written before.
    """

    line: int
    step: int
    time: datetime | None
    values: dict[LogQuantity, float]
    printed: dict[LogQuantity, tuple[Any, float]]
    restarted: bool = False

    def get(self, quantity: LogQuantity) -> float | None:
        """The value, if there is one and it is finite."""
        value = self.values.get(quantity)
        return value if value is not None and isfinite(value) else None

    def range_of(self, quantity: LogQuantity) -> NumberRange | None:
        """The true values that the log would print like this one, if there is one and it is finite.

        They are off by at most half a unit of its last digit. A number of single precision has no more digits
        than tell it from its neighbours. One that was computed and printed with all its digits is off by the
        rounding of some operations.
        """
        if (value := self.get(quantity)) is None:
            return None
        printed, factor = self.printed[quantity]
        off = 0.5
        if not isinstance(printed, int):
            text, unit = str(printed), ulp(float(printed))
            if isinstance(printed, float) and float(single := np.float32(printed)) == printed:
                text, unit = str(single), float(np.spacing(abs(single)))
            exponent = Decimal(text.strip()).as_tuple().exponent
            off = max(0.5 * 10.0 ** int(exponent), _OPERATIONS * unit)
        off *= abs(factor)
        return NumberRange(value - off, value + off)


@dataclass
class LoggedRun:
    """One run of a file.

    Attributes:
        part: what the file calls the run, if it holds several.
        problems: FILE:LINE and why, for each record that was left out.
        clocks: FILE:LINE and by how much, where time goes back.
        from_zero: whether the log counts steps from 0; 1 was added.
    """

    table: LogTable
    part: str | None
    points: list[LogPoint] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    clocks: list[str] = field(default_factory=list)
    from_zero: bool = False

    def at(self, line: int) -> str:
        """FILE:LINE."""
        return f"{self.table.file}:{line}"


def logs_of(table: LogTable, mapping: Mapping) -> list[LoggedRun]:
    """The runs of a file.

    Raises:
        Refused: a needed column is missing, there is no record, or the steps are in no order.
    """
    _check_columns(table, mapping)
    run, parts = mapping.run or table.run, dict[str | None, list[LogRow]]()
    for row in table.rows:
        name = row.values.get(run) if run else None
        # Half a character, as JSON can have it, cannot be written to any file.
        part = None if name is None else str(name).encode(errors="backslashreplace").decode()
        if run and not part:
            table.skip(row.line, f"no run in column '{run}'")
        else:
            parts.setdefault(part, []).append(row)
    if not parts:
        raise Refused(table.problems[-1])
    logs = []
    for part, rows in parts.items():
        log = LoggedRun(table, part)
        if rows[-1].line == table.unended and len(rows) > 1:
            cut = "no line break ends it, so it may lack digits or more; add one if it is whole"
            log.problems.append(f"{log.at(rows.pop().line)}: {cut}")
        points = [point for row in rows if (point := _point(log, row, mapping))]
        if not points:
            about = log.problems or [f"{log.at(rows[0].line)}: no record has a step and a value"]
            raise Refused(about[0])
        written = _joined(points)
        for before, after in pairwise(written):
            past, now = before.get("elapsed_seconds"), after.get("elapsed_seconds")
            if past is not None and now is not None and now < past:
                log.clocks.append(f"{log.at(after.line)}: elapsed seconds go back by {past - now:g} s")
                after.restarted = True
        log.points = _in_order(log, written)
        _count_from_one(log, mapping.config.train.steps)
        for before, after in pairwise(log.points):
            if before.time and after.time and after.time < before.time:
                back = (before.time - after.time).total_seconds()
                log.clocks.append(f"{log.at(after.line)}: the clock goes back by {back:,.0f} s")
        logs.append(log)
    return logs


def _count_from_one(log: LoggedRun, planned: int | None) -> None:
    """Add 1 to steps that count from 0; leave a step 0 out that was before the first of those planned."""
    if log.points[0].step:
        return
    if log.points[-1].step == planned:
        log.problems.append(
            f"{log.at(log.points.pop(0).line)}: step 0 was before the first of {planned} steps"
        )
        return
    log.from_zero = True
    for point in log.points:
        point.step += 1


def _check_columns(table: LogTable, mapping: Mapping) -> None:
    if not table.rows:
        raise Refused("\n".join([f"{table.file}:1: no records", *table.problems[:1]]))
    there, where = set(table.columns()), f"{table.file}:{table.rows[0].line}"
    step = mapping.column("step")
    if step is None and mapping.config.train.steps is None:
        raise Refused(
            f"{where}: which column is the step? {mapping_example(table)}. If each line is the average of a "
            "whole run, the mapping says how many steps a run has, such as `config: {train: {steps: 1000}}`"
        )
    for name in filter(None, (step, mapping.run)):
        if name not in there:
            raise Refused(f"{where}: no column '{name}'. {mapping_example(table)}")
    measured = [
        mapping.column(quantity)
        for quantity in QUANTITIES
        if quantity not in ("step", "time", "elapsed_seconds")
    ]
    if there.isdisjoint(measured):
        wanted = ", ".join(name for name in measured if name) or "loss, tokens_per_second, ..."
        raise Refused(f"{where}: none of the columns {wanted}. {mapping_example(table)}")
    for mapped in (mapping.run, *(mapping.column(quantity) for quantity in QUANTITIES)):
        if mapped in table.twice:
            raise Refused(f"{table.file}:1: two columns are called '{mapped}'; rename one of them")


def _point(log: LoggedRun, row: LogRow, mapping: Mapping) -> LogPoint | None:
    """A row's numbers; None if it has none that is mapped, or one that is no number, or no step."""
    values, printed = dict[LogQuantity, float](), dict[LogQuantity, tuple[Any, float]]()
    cells: dict[LogQuantity, Any] = {
        quantity: cell
        for quantity, column in mapping.columns.items()
        if (cell := row.values.get(column.column)) is not None
        and not (isinstance(cell, str) and cell.strip().lower() in _ABSENT)
    }
    time_given = cells.pop("time", None)
    step_column = mapping.column("step")
    try:
        for quantity, cell in cells.items():
            name, factor = mapping.columns[quantity].column, mapping.factor(quantity)
            number = not isinstance(cell, bool) and isinstance(cell, int | float | str | Decimal)
            try:
                if not number or "_" in str(cell):  # Python reads 1_000 as a number
                    raise ValueError
                value = float(cell) * factor
            except (ValueError, OverflowError):
                plain = _PLAIN if isinstance(cell, str) and any(map(str.isdecimal, cell)) else ""
                raise ValueError(f"'{name}' is {str(cell)[:40]!r}, not a number{plain}") from None
            if isfinite(value) and abs(value) > LARGEST:  # it could not be counted exactly
                raise ValueError(f"'{name}' is {value:g}, which is too large")
            if value < 0 and quantity not in _ANY_SIGN:
                log.problems.append(f"{log.at(row.line)}: '{name}' is {cell}, below 0; left out")
                continue
            values[quantity], printed[quantity] = value, (cell, factor)
        step = values.pop("step", None if step_column else mapping.config.train.steps)
        if not values.keys() - {"elapsed_seconds"}:
            return None
        moment = _time(time_given, mapping.unit("time"))
        if step is None:
            raise ValueError(f"no step in column '{step_column}'")
        if not isfinite(step) or step != int(step) or step < 0:
            raise ValueError(f"step {step:.15g} is not a whole number, 0 or more")
    except ValueError as error:
        log.problems.append(f"{log.at(row.line)}: {error}")
        return None
    return LogPoint(row.line, int(step), moment, values, printed)


def _time(value: Any, unit: str) -> datetime | None:
    """A moment in UTC. One without an offset is taken for UTC; only differences are relied on."""
    if value is None:
        return None
    try:
        if isinstance(value, datetime) or unit == "iso":
            moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        seconds = float(value) * (1e-3 if unit == "ms" else 1.0)
        if seconds < _FROM_1970:
            raise ValueError(f"'{value}' does not count from 1970; map it as elapsed_seconds")
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError, TypeError) as error:
        valid = ", ".join(UNITS["time"])
        raise ValueError(f"not a time in unit {unit}: {error} (units: {valid})") from None


def _joined(points: Sequence[LogPoint]) -> list[LogPoint]:
    """The points in the order of writing, with those of one step joined as long as no quantity is said twice.

    Programs write the quantities of a step in one row or in several, next to each other or one quantity after
    the other. Where a quantity comes back to a step, or goes back to an earlier one, it is logged again. In
    one of two rows of a step, NaN is no value of the quantity: it fills tables.
    """
    written, rows, last = list[LogPoint](), dict[int, LogPoint](), dict[LogQuantity, int]()
    for point in points:
        quantities = [quantity for quantity in point.values if quantity != "elapsed_seconds"]
        before = rows[point.step].values if point.step in rows else {}
        if any(
            point.step < last.get(quantity, -1)
            or (quantity in before and not isnan(before[quantity]) and not isnan(point.values[quantity]))
            for quantity in quantities
        ):
            written += (rows[step] for step in sorted(rows))
            rows, last = {}, {}
        last |= dict.fromkeys(quantities, point.step)
        row = rows.setdefault(point.step, point)
        if row is not point:
            for quantity, value in point.values.items():
                if quantity not in row.values or not isnan(value):
                    row.values[quantity], row.printed[quantity] = value, point.printed[quantity]
            row.time = point.time or row.time
    return [*written, *(rows[step] for step in sorted(rows))]


def _in_order(log: LoggedRun, points: Sequence[LogPoint]) -> list[LogPoint]:
    """The points by step. Where a resumed run repeats steps, the later record counts.

    Raises:
        Refused: the steps start again or are logged again and again, so that these are several runs, or
            are in no order.
    """
    pairs = list(pairwise(points))
    again = [(before, after) for before, after in pairs if after.step == before.step]
    returns = [(before, after) for before, after in pairs if after.step < before.step]
    steps = len(points) - len(again)
    if again and (steps == 1 or 2 * len(again) >= max(3, steps)):
        before, after = again[0]
        more = f", and {counted(len(again) - 1, 'more record')} like it" if len(again) > 1 else ""
        raise Refused(
            f"{_logged_again(log, before, after)}{more}: several runs in one file; {log.table.several}"
        )
    for before, after in returns:
        if after.step <= points[0].step:
            raise Refused(
                f"{log.at(after.line)}: step {after.step} follows step {before.step}: two runs in one file; "
                f"{log.table.several}; if they are one run, sort its records by step"
            )
    if len(returns) > _MOST_RETURNS:
        before, after = returns[0]
        raise Refused(
            f"{log.at(after.line)}: step {after.step} follows step {before.step}, one of {len(returns)} "
            "steps that go back: the records are not in order; sort them by step, or split the file by run"
        )
    ordered: list[LogPoint] = []
    for place, point in enumerate(points):
        if not ordered or ordered[-1].step < point.step:
            ordered.append(point)
            continue
        later = {after.step for after in points[place:]}
        while ordered and ordered[-1].step >= point.step:
            old = ordered.pop()
            point.restarted |= old.restarted
            if old is points[place - 1] and old.step == point.step:
                log.problems.append(_logged_again(log, old, point))
                continue
            if old.step not in later and old.step < max(later):
                raise Refused(
                    f"{log.at(point.line)}: step {point.step} follows step {old.step}, which is not logged "
                    "again: the records are not in order; sort them by step, or remove those that a resumed "
                    "run replaced"
                )
            how = "was logged again" if old.step in later else "is replaced"
            by = f"by a run that resumed on line {point.line}"
            log.problems.append(f"{log.at(old.line)}: step {old.step} {how} {by}")
        ordered.append(point)
    return ordered


def _logged_again(log: LoggedRun, old: LogPoint, new: LogPoint) -> str:
    return f"{log.at(old.line)}: step {old.step} is logged again on line {new.line}"


@dataclass
class StepRecords:
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


def steps_of(log: LoggedRun, mapping: Mapping) -> StepRecords:
    """The step records of a log; what it does not say and nothing implies is None."""
    result = StepRecords()
    if log.from_zero:
        result.sources["step"] = "the log counts from 0; 1 is added"

    # The first record covers all steps so far, unless the log begins in the middle of a run.
    numbers = [point.step for point in log.points]
    first = numbers[0]
    usual = round(median(b - a for a, b in pairwise(numbers))) if len(numbers) > 1 else first
    if first > 2 * usual:
        result.sources["steps"] = (
            f"the log begins at step {first}; its first record is taken to cover {counted(usual, 'step')}"
        )
        first = usual

    before = None
    for point in log.points:
        steps = first if before is None else point.step - before.step
        loss = point.values.get("loss")
        if loss is not None and not isfinite(loss):
            result.not_finite.append(point.step)
        tokens = _tokens(result.sources, mapping, point, before, steps)
        seconds = _seconds(result.sources, point, before, steps, tokens)
        if seconds is not None and seconds <= 0:
            result.impossible.append(f"{log.at(point.line)}: step {point.step} took {seconds:g} s")
            seconds = None
        tokens = tokens if tokens and tokens > 0 else None
        rate = point.get("tokens_per_second")
        alone = rate is not None and rate > 0 and not (tokens and seconds)
        if alone:
            result.sources.setdefault("tokens_per_second", "the log: nothing says which tokens and seconds")
        record = ImportedStep(
            step=point.step,
            steps=steps,
            time=point.time,
            loss=point.get("loss"),
            learning_rate=point.get("learning_rate"),
            grad_norm=point.get("grad_norm"),
            step_seconds=seconds,
            tokens=tokens,
            training_tokens=_training_tokens(result.sources, point, tokens, seconds and seconds * steps),
            memory_bytes=_whole(point.get("memory_bytes")),
            printed_tokens_per_second=rate if alone else None,
        )
        result.records.append(record)
        before = point
    return result


def _tokens(
    sources: dict[str, str], mapping: Mapping, point: LogPoint, before: LogPoint | None, steps: int
) -> int | None:
    """Tokens in the interval, by the first of these that is known."""
    if (tokens := point.get("tokens")) is not None:
        return _whole(tokens)
    total, past = point.get("total_tokens"), before.get("total_tokens") if before else 0.0
    if total is not None and past is not None:
        return _whole(total - past)
    if per_step := tokens_per_step(mapping):
        sources.setdefault("tokens", "tokens per step, as the mapping states them")
        return per_step * steps
    rate, seconds = point.get("tokens_per_second"), stated_interval(point, steps)
    if rate is None or seconds is None:
        return None
    sources.setdefault("tokens", "tokens per second x seconds, both as printed")
    return _whole(rate * seconds)


def stated_interval(point: LogPoint, steps: int) -> float | None:
    """Seconds since the record before, as the log states them."""
    mean = point.get("step_seconds")
    return point.get("interval_seconds") if mean is None else mean * steps


def stated_interval_range(point: LogPoint, steps: int) -> NumberRange | None:
    """What the seconds since the record before can be, by the digits that the log has."""
    mean = point.range_of("step_seconds")
    return NumberRange(mean.low * steps, mean.high * steps) if mean else point.range_of("interval_seconds")


def tokens_per_step(mapping: Mapping) -> int | None:
    """Tokens of a step, if the mapping states them, or a sequence length and a batch size."""
    train = mapping.config.train
    if mapping.constants.tokens_per_step:
        return mapping.constants.tokens_per_step
    return train.sequence_length * train.batch_size if train.sequence_length and train.batch_size else None


def _seconds(
    sources: dict[str, str], point: LogPoint, before: LogPoint | None, steps: int, tokens: int | None
) -> float | None:
    """Seconds per step over the interval, by the first of these that is known."""
    if (seconds := point.get("step_seconds")) is not None:
        return seconds
    if (seconds := point.get("interval_seconds")) is not None:
        return seconds / steps
    if (rate := point.get("tokens_per_second")) and tokens:
        sources.setdefault("step_seconds", "tokens / tokens per second, as printed")
        return tokens / rate / steps
    now, past = point.get("elapsed_seconds"), before.get("elapsed_seconds") if before else None
    if now is None or past is None or point.restarted:
        return None
    sources.setdefault(
        "step_seconds", "differences of elapsed seconds: they include everything that was done"
    )
    return (now - past) / steps


def _training_tokens(
    sources: dict[str, str], point: LogPoint, tokens: int | None, seconds: float | None
) -> int | None:
    if (stated := point.get("training_tokens")) is not None:
        return _whole(stated)
    share, rate = point.get("training_tokens_percentage"), point.get("training_tokens_per_second")
    if share is not None and tokens is not None:
        sources.setdefault("training_tokens", "tokens x their percentage, as printed")
        return round(tokens * share / 100)
    if rate is not None and seconds is not None:
        sources.setdefault("training_tokens", "training tokens per second x seconds, as printed")
        return round(rate * seconds)
    return None


def _whole(value: float | None) -> int | None:
    return None if value is None or abs(value) > LARGEST else round(value)


def implied_values(
    points: Sequence[LogPoint], above: LogQuantity, below: LogQuantity, scale: float
) -> list[tuple[LogPoint, float, NumberRange]]:
    """Return scale x above / below, at each point that has both, and what it can be by the digits of both."""
    return [
        (point, scale * a / b, top.over(bottom, scale))
        for point in points
        if (a := point.get(above)) is not None
        and (b := point.get(below))
        and (top := point.range_of(above))
        and (bottom := point.range_of(below))
    ]


def common_range(ranges: Iterable[NumberRange]) -> NumberRange:
    """The numbers that are in all of these ranges; where none is, those from one range to another."""
    lows, highs = zip(*((possible.low, possible.high) for possible in ranges), strict=True)
    return NumberRange(*sorted((max(lows), min(highs))))
