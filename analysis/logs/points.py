"""Rows to points: numbers in known units, in the order of their steps, each run apart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from math import isfinite
from typing import Any, get_args

from analysis.logs.mapping import Mapping, Quantity
from analysis.logs.table import Refused, Row, Table

QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)
LARGEST = 2.0**53
_MOST_RETURNS = 5  # times that a run may be resumed before its steps count as in no order
_FROM_1970 = 1e8  # seconds: less cannot be when a model was trained


@dataclass(slots=True)
class Point:
    """One record of a log.

    Attributes:
        step: counted from 1.
        values: quantity -> number, in the default unit; NaN and infinities as the log has them.
    """

    line: int
    step: int
    time: datetime | None
    values: dict[str, float]

    def get(self, quantity: Quantity) -> float | None:
        """The value, if there is one and it is finite."""
        value = self.values.get(quantity)
        return value if value is not None and isfinite(value) else None


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
    return [_log(table, part, rows, mapping) for part, rows in parts.items()]


def _called(name: Any) -> str:
    """What a record calls its run. Half a character, as JSON can have it, cannot be written to any file."""
    return "" if name is None else str(name).encode(errors="backslashreplace").decode()


def _check_columns(table: Table, mapping: Mapping) -> None:
    there = dict.fromkeys(name for row in table.rows for name in row.values)
    first = table.rows[0].line if table.rows else 1
    shown = ", ".join(map(str, there)) or "none"
    if not table.rows:
        raise Refused("\n".join([f"{table.file}:1: no records", *table.problems[:1]]))
    needed = [mapping.run] if mapping.run else []
    step = mapping.column("step")
    if step is None:
        raise Refused(
            f"{table.file}:{first}: which column is the step? Name it in a mapping (columns: {shown})"
        )
    for name in [step, *needed]:
        if name not in there:
            raise Refused(
                f"{table.file}:{first}: no column '{name}' (columns: {shown}); name it in a mapping"
            )
    measured = [
        mapping.column(each) for each in QUANTITIES if each not in ("step", "time", "elapsed_seconds")
    ]
    if not any(name in there for name in measured if name):
        wanted = ", ".join(name for name in measured if name) or "loss, tokens_per_second, ..."
        raise Refused(f"{table.file}:{first}: none of the columns {wanted} (columns: {shown})")


def _log(table: Table, part: str | None, rows: Sequence[Row], mapping: Mapping) -> Log:
    log = Log(table, part)
    found = [point for row in rows if (point := _point(log, row, mapping))]
    joined = [point for point in _joined(log, found) if point.values.keys() - {"elapsed_seconds"}]
    if not joined:
        about = log.problems or [f"{log.at(rows[0].line)}: no record has a step and a value"]
        raise Refused(about[0])
    if any(point.step == 0 for point in joined):
        log.from_zero = True
        for point in joined:
            point.step += 1
    log.points = _in_order(log, joined)
    log.clocks = list(_clocks(log))
    return log


def _point(log: Log, row: Row, mapping: Mapping) -> Point | None:
    """A row's numbers; None if it has no step or no value, or one that is no number."""
    try:
        values: dict[str, float] = {}
        for quantity in QUANTITIES:
            name = mapping.column(quantity)
            value = None if name is None or quantity == "time" else _number(name, row.values.get(name))
            if value is not None:
                values[quantity] = _possible(name or "", value * mapping.factor(quantity))
        time = _time(row.values.get(mapping.column("time") or ""), mapping.unit("time"))
        step = values.pop("step", None)
        if step is None:
            raise ValueError(f"no step in column '{mapping.column('step')}'")
        if not isfinite(step) or step != int(step) or step < 0:
            raise ValueError(f"step {step:g} is not a whole number, 0 or more")
    except ValueError as error:
        log.problems.append(f"{log.at(row.line)}: {error}")
        return None
    return Point(row.line, int(step), time, values) if values else None


def _possible(name: str, value: float) -> float:
    """The value, unless it is finite and too large to be counted exactly."""
    if isfinite(value) and abs(value) > LARGEST:
        raise ValueError(f"'{name}' is {value:g}, which is too large")
    return value


def _number(name: str, value: Any) -> float | None:
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"'{name}' is {str(value)[:40]!r}, not a number")
    try:
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


def _joined(log: Log, points: Sequence[Point]) -> list[Point]:
    """Points of neighbouring rows with one step joined: some programs log each quantity in its own row.

    Raises:
        Refused: half of the steps or more are logged again and again, so that these are several runs.
    """
    said, joined = len(log.problems), list[Point]()
    for point in points:
        last = joined[-1] if joined else None
        if last is None or last.step != point.step:
            joined.append(point)
        elif last.values.keys() & point.values.keys():
            log.problems.append(
                f"{log.at(last.line)}: step {point.step} is logged again on line {point.line}"
            )
            joined[-1] = point
        else:
            last.values |= point.values
            last.time = point.time or last.time
    again = len(log.problems) - said
    if 2 * again >= len(joined) > _MOST_RETURNS:
        raise Refused(
            f"{log.problems[said]}, and {again - 1} more records like it: several runs in one file; "
            "split the file, or name the column that tells them apart (`run:` in a mapping)"
        )
    return joined


def _in_order(log: Log, points: list[Point]) -> list[Point]:
    """The points by step. Where a resumed run repeats steps, the later record counts.

    Raises:
        Refused: the steps start again, so that these are two runs, or are in no order.
    """
    returns = [(before, after) for before, after in pairwise(points) if after.step < before.step]
    for before, after in returns:
        if after.step <= points[0].step:
            raise Refused(
                f"{log.at(after.line)}: step {after.step} follows step {before.step}: two runs in one file; "
                "split the file, or name the column that tells them apart (`run:` in a mapping)"
            )
    if len(returns) > _MOST_RETURNS:
        before, after = returns[0]
        raise Refused(
            f"{log.at(after.line)}: step {after.step} follows step {before.step}, one of {len(returns)} "
            "steps that go back: the records are not in order; sort them by step, or split the file by run"
        )
    kept: list[Point] = []
    for point in points:
        while kept and kept[-1].step >= point.step:
            old = kept.pop()
            again = f"step {old.step} was logged again by a run that resumed on line {point.line}"
            log.problems.append(f"{log.at(old.line)}: {again}")
        kept.append(point)
    return kept


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
