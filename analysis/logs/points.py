"""Rows to points: numbers in known units, in the order of their steps, each run apart."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from math import inf, isfinite, ulp
from typing import Any, get_args

import numpy as np

from analysis.logs.mapping import Mapping, Quantity
from analysis.logs.table import Refused, Row, Table
from model.record.units import counted

QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)
LARGEST = 2.0**53
_MOST_RETURNS = 5  # times that a run may be resumed before its steps count as in no order
_MOST_COLUMNS = 30  # that a message lists
_OPERATIONS = 4  # whose rounding adds up in a number that a program printed
_FROM_1970 = 1e8  # seconds: less cannot be when a model was trained


@dataclass(frozen=True, slots=True)
class Between:
    """All numbers between two."""

    low: float
    high: float

    def over(self, other: Between, scale: float = 1.0) -> Between:
        """What scale x a / b can be; neither a nor b is negative."""
        if other.low <= 0:
            return Between(0.0, inf)
        return Between(scale * self.low / other.high, scale * self.high / other.low)

    def times(self, other: Between) -> Between:
        """What a x b can be; neither is negative."""
        return Between(self.low * other.low, self.high * other.high)

    def holds(self, value: float, slack: float = 0.0) -> bool:
        """Whether it can be this value, give or take `slack`, which is relative."""
        return self.low * (1 - slack) <= value <= self.high * (1 + slack)


def _half(printed: Any) -> float:
    """Half a unit of a number's last digit: how far the true value may be from it.

    A number of single precision has no more digits than tell it from its neighbours. One that was computed
    and printed with all its digits is off by the rounding of some operations.
    """
    if isinstance(printed, int):
        return 0.5
    text, unit = str(printed), ulp(float(printed))
    if isinstance(printed, float) and float(single := np.float32(printed)) == printed:
        text, unit = str(single), float(np.spacing(abs(single)))
    exponent = Decimal(text.strip()).as_tuple().exponent
    return max(0.5 * 10.0 ** int(exponent), _OPERATIONS * unit)


@dataclass(slots=True)
class Point:
    """One record of a log.

    Attributes:
        step: counted from 1.
        values: quantity -> number, in the default unit; NaN and infinities as the log has them.
        printed: quantity -> the value as the log has it, and what it was multiplied with.
    """

    line: int
    step: int
    time: datetime | None
    values: dict[Quantity, float]
    printed: dict[Quantity, tuple[Any, float]]

    def get(self, quantity: Quantity) -> float | None:
        """The value, if there is one and it is finite."""
        value = self.values.get(quantity)
        return value if value is not None and isfinite(value) else None

    def between(self, quantity: Quantity) -> Between | None:
        """The true values that the log would print like this one, if there is one and it is finite."""
        if (value := self.get(quantity)) is None:
            return None
        printed, factor = self.printed[quantity]
        off = _half(printed) * abs(factor)
        return Between(value - off, value + off)


@dataclass
class Log:
    """One run of a file.

    Attributes:
        part: what the file calls the run, if it holds several.
        problems: FILE:LINE and why, for each record that was left out.
        clocks: FILE:LINE and by how much, where time goes back.
        from_zero: whether the log counts steps from 0; 1 was added.
    """

    table: Table
    part: str | None
    points: list[Point] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    clocks: list[str] = field(default_factory=list)
    from_zero: bool = False

    def at(self, line: int) -> str:
        """FILE:LINE."""
        return f"{self.table.file}:{line}"


def logs_of(table: Table, mapping: Mapping) -> list[Log]:
    """The runs of a file.

    Raises:
        Refused: a needed column is missing, there is no record, or the steps are in no order.
    """
    _check_columns(table, mapping)
    run, parts = mapping.run or table.run, dict[str | None, list[Row]]()
    for row in table.rows:
        called = _called(row.values.get(run)) if run else None
        if called == "":
            table.skip(row.line, f"no run in column '{run}'")
        else:
            parts.setdefault(called, []).append(row)
    if not parts:
        raise Refused(table.problems[-1])
    for rows in parts.values():
        if rows[-1].line == table.unended and len(rows) > 1:
            table.skip(
                rows.pop().line,
                "no line break ends it, so it may lack digits or more; add one if it is whole",
            )
    return [_log(table, part, rows, mapping) for part, rows in parts.items()]


def _called(name: Any) -> str:
    """What a record calls its run. Half a character, as JSON can have it, cannot be written to any file."""
    return "" if name is None else str(name).encode(errors="backslashreplace").decode()


def _check_columns(table: Table, mapping: Mapping) -> None:
    if not table.rows:
        raise Refused("\n".join([f"{table.file}:1: no records", *table.problems[:1]]))
    there, where = set(table.columns()), f"{table.file}:{table.rows[0].line}"
    step = mapping.column("step")
    if step is None and mapping.config.train.steps is None:
        raise Refused(
            f"{where}: which column is the step? {example(table)}. If each line is the average of a whole "
            "run, the mapping says how many steps a run has, such as `config: {train: {steps: 1000}}`"
        )
    for name in filter(None, (step, mapping.run)):
        if name not in there:
            raise Refused(f"{where}: no column '{name}'. {example(table)}")
    measured = [
        mapping.column(quantity)
        for quantity in QUANTITIES
        if quantity not in ("step", "time", "elapsed_seconds")
    ]
    if there.isdisjoint(measured):
        wanted = ", ".join(name for name in measured if name) or "loss, tokens_per_second, ..."
        raise Refused(f"{where}: none of the columns {wanted}. {example(table)}")
    for mapped in (mapping.run, *(mapping.column(quantity) for quantity in QUANTITIES)):
        if mapped in table.twice:
            raise Refused(f"{table.file}:1: two columns are called '{mapped}'; rename one of them")


def example(table: Table) -> str:
    """How to say which column is which, with the columns that there are."""
    there = [name if name.isidentifier() else json.dumps(name) for name in table.columns()]
    step, loss = (*there, "STEP", "LOSS")[:2] if len(there) > 1 else ("STEP", "LOSS")
    listed = ", ".join([*there[:_MOST_COLUMNS], *(["..."] * (len(there) > _MOST_COLUMNS))]) or "none"
    return (
        "Name it in a YAML file and give that with --mapping, such as "
        f"`columns: {{step: {step}, loss: {loss}}}` (columns: {listed})"
    )


def _log(table: Table, part: str | None, rows: Sequence[Row], mapping: Mapping) -> Log:
    log = Log(table, part)
    points = [point for row in rows if (point := _point(log, row, mapping))]
    if not points:
        about = log.problems or [f"{log.at(rows[0].line)}: no record has a step and a value"]
        raise Refused(about[0])
    log.points = _in_order(log, _joined(points))
    if any(point.step == 0 for point in log.points):
        log.from_zero = True
        for point in log.points:
            point.step += 1
    log.clocks = list(_clocks(log))
    return log


def _point(log: Log, row: Row, mapping: Mapping) -> Point | None:
    """A row's numbers; None if it has none that is mapped, or one that is no number, or no step."""
    values, printed = dict[Quantity, float](), dict[Quantity, tuple[Any, float]]()
    cells = {quantity: row.values.get(column.column) for quantity, column in mapping.columns.items()}
    time_given = cells.pop("time", None)
    step_column = mapping.column("step")
    try:
        for quantity, cell in cells.items():
            number = _number(mapping.columns[quantity].column, cell)
            if number is not None:
                factor = mapping.factor(quantity)
                values[quantity] = _possible(mapping.columns[quantity].column, number * factor)
                printed[quantity] = cell, factor
        step = values.pop("step", None if step_column else mapping.config.train.steps)
        if not values.keys() - {"elapsed_seconds"}:
            return None
        moment = _time(time_given, mapping.unit("time"))
        if step is None:
            raise ValueError(f"no step in column '{step_column}'")
        if not isfinite(step) or step != int(step) or step < 0:
            raise ValueError(f"step {step:g} is not a whole number, 0 or more")
    except ValueError as error:
        log.problems.append(f"{log.at(row.line)}: {error}")
        return None
    return Point(row.line, int(step), moment, values, printed)


def _possible(name: str, value: float) -> float:
    """The value, unless it is finite and too large to be counted exactly."""
    if isfinite(value) and abs(value) > LARGEST:
        raise ValueError(f"'{name}' is {value:g}, which is too large")
    return value


def _number(name: str, value: Any) -> float | None:
    if value is None or value == "":
        return None
    number = not isinstance(value, bool) and isinstance(value, int | float | str | Decimal)
    try:
        if not number or "_" in str(value):  # Python reads 1_000 as a number
            raise ValueError
        return float(value)
    except (ValueError, OverflowError):
        raise ValueError(f"'{name}' is {str(value)[:40]!r}, not a number") from None


def _time(value: Any, unit: str) -> datetime | None:
    """A moment in UTC. One without an offset is taken for UTC; only differences are relied on."""
    if value is None or value == "":
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
        raise ValueError(f"not a time in unit {unit}: {error}") from None


def _joined(points: Sequence[Point]) -> list[Point]:
    """The points in the order of writing, with those of one step joined as long as no quantity is said twice.

    Programs write the quantities of a step in one row or in several, next to each other or one quantity after
    the other. Where a quantity comes back to a step, or goes back to an earlier one, it is logged again.
    """
    written, rows, last = list[Point](), dict[int, Point](), dict[Quantity, int]()
    for point in points:
        said = [quantity for quantity in point.values if quantity != "elapsed_seconds"]
        if any(point.step <= last.get(quantity, -1) for quantity in said):
            written += (rows[step] for step in sorted(rows))
            rows, last = {}, {}
        last |= dict.fromkeys(said, point.step)
        row = rows.setdefault(point.step, point)
        if row is not point:
            row.values |= point.values
            row.printed |= point.printed
            row.time = point.time or row.time
    return [*written, *(rows[step] for step in sorted(rows))]


def _in_order(log: Log, points: Sequence[Point]) -> list[Point]:
    """The points by step. Where a resumed run repeats steps, the later record counts.

    Raises:
        Refused: the steps start again or are logged again and again, so that these are several runs, or
            are in no order.
    """
    pairs = list(pairwise(points))
    again = [(before, after) for before, after in pairs if after.step == before.step]
    returns = [(before, after) for before, after in pairs if after.step < before.step]
    single = len(points) - len(again) == 1
    if again and (single or 2 * len(again) >= len(points) - len(again) > _MOST_RETURNS):
        before, after = again[0]
        more = f", and {counted(len(again) - 1, 'more record')} like it" if len(again) > 1 else ""
        raise Refused(f"{_again(log, before, after)}{more}: several runs in one file; {log.table.several}")
    for before, after in returns:
        if after.step <= points[0].step:
            raise Refused(
                f"{log.at(after.line)}: step {after.step} follows step {before.step}: two runs in one file; "
                f"{log.table.several}"
            )
    if len(returns) > _MOST_RETURNS:
        before, after = returns[0]
        raise Refused(
            f"{log.at(after.line)}: step {after.step} follows step {before.step}, one of {len(returns)} "
            "steps that go back: the records are not in order; sort them by step, or split the file by run"
        )
    kept: list[Point] = []
    for place, point in enumerate(points):
        while kept and kept[-1].step >= point.step:
            old = kept.pop()
            if old is points[place - 1] and old.step == point.step:
                log.problems.append(_again(log, old, point))
            else:
                resumed = f"step {old.step} was logged again by a run that resumed on line {point.line}"
                log.problems.append(f"{log.at(old.line)}: {resumed}")
        kept.append(point)
    return kept


def _again(log: Log, old: Point, new: Point) -> str:
    return f"{log.at(old.line)}: step {old.step} is logged again on line {new.line}"


def _clocks(log: Log) -> Iterable[str]:
    for before, after in pairwise(log.points):
        if before.time and after.time and after.time < before.time:
            back = (before.time - after.time).total_seconds()
            yield f"{log.at(after.line)}: the clock goes back by {back:,.0f} s"
        past, now = before.get("elapsed_seconds"), after.get("elapsed_seconds")
        if past is not None and now is not None and now < past:
            yield f"{log.at(after.line)}: elapsed seconds go back by {past - now:g} s"


def named(log: Log, pattern: str | None) -> tuple[str, dict[str, str]]:
    """What to call the run, and the factors that its file's name states."""
    stem = log.table.file.stem
    found = re.fullmatch(pattern, stem) if pattern else None
    groups = {name: value for name, value in (found.groupdict() if found else {}).items() if value}
    return log.part or groups.get("attention") or stem, groups
