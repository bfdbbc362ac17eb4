"""Where the time of a step goes, by its parts, beside the least time that it could take on that device."""

from __future__ import annotations

from analysis.charts import Chart, Figure, Row, Styles, Table
from analysis.charts._dots import called
from analysis.charts._parts import NAMES, columns, whole
from analysis.charts._parts import middle as find_middle
from analysis.charts._stack import plot
from analysis.charts._values import UNKNOWN, number, observed_in
from analysis.stats import by_label

_OF_FLOOR = ("products", "attention", "loss", "optimizer", "elementwise")
_LEAST = ", ".join(f"sum(seconds) FILTER (part = '{part}') AS least_{part}" for part in _OF_FLOOR)
_SQL = f"""\
WITH profiles AS (
  SELECT run_id, attempt, {columns()}
  FROM step_profile WHERE study = $study GROUP BY run_id, attempt
), floors AS (
  SELECT run_id, attempt, {_LEAST}
  FROM step_floor WHERE study = $study GROUP BY run_id, attempt
)
SELECT r.label, r.run_id, r.seed, r.repeat, r.gpus, r.step_seconds, r.floor_seconds, r.floor_percentage,
  p.* EXCLUDE (run_id, attempt), f.* EXCLUDE (run_id, attempt)
FROM runs r
JOIN profiles p ON p.run_id = r.run_id AND p.attempt = r.deciding_attempt
LEFT JOIN floors f ON f.run_id = r.run_id AND f.attempt = r.deciding_attempt
WHERE r.study = $study AND r.outcome = 'completed'
ORDER BY r.place, r.seed, r.repeat, r.run_id"""
_FLOOR = ": floor"  # after a group's label


def _build(rows: list[Row], styles: Styles) -> Figure | None:
    if not rows:
        return None
    unit, factor = ("ms", 1e-3) if max(map(whole, rows)) < 10 else ("s", 1.0)
    groups = by_label(rows)
    middle = {label: find_middle(groups[label]) for label in styles if label in groups}
    bars = [bar for label, row in middle.items() for bar in _bars(label, row, factor)]
    labels = list(dict.fromkeys(bar["label"] for bar in bars))
    shown = [name for part, name in NAMES.items() if any(row[part] for row in middle.values())]
    wholes = [{"label": row["label"], "run": called(row), "value": whole(row) / factor} for row in rows]
    return Figure(
        spec=plot(bars, wholes, labels, shown, unit),
        caption=_caption(rows),
        description=f"Stacked bars of {unit} a step by group. "
        + "; ".join(f"{label}: {_said(row, factor)}" for label, row in middle.items())
        + ".",
        interval="none: the median run and every run",
        used=frozenset(row["run_id"] for row in rows),
        finding=_finding(middle, groups),
        table=_table(middle, groups, unit, factor),
    )


def _bars(label: str, row: Row, factor: float) -> list[Row]:
    """The bar of a group, and the one of its floor where it has one."""
    mine = [_bar(label, {NAMES[part]: row[part] for part in NAMES}, factor)]
    if row["floor_seconds"] is not None:
        least = {NAMES[part]: row[f"least_{part}"] for part in _OF_FLOOR}
        mine.append(_bar(f"{label}{_FLOOR}", least, factor))
    return [piece for bar in mine for piece in bar]


def _bar(label: str, parts: dict[str, float | None], factor: float) -> list[Row]:
    pieces, start = [], 0.0
    for part, seconds in parts.items():
        if seconds:
            value = seconds / factor
            pieces.append(
                {"label": label, "part": part, "value": value, "start": start, "end": start + value}
            )
            start += value
    return pieces


def _caption(rows: list[Row]) -> str:
    how = (
        "Kernels are timed in a few steps after the last one of the run, which are not in its other numbers; "
        "idle is what is left of a step without the profiler."
    )
    if not all(row["gpus"] for row in rows):
        how += " On a CPU, operators are timed, which the profiler slows, and idle is the time between them."
    if any(row["hidden"] is not None and row["communication"] for row in rows):
        how += (
            " Communication is exposed: nothing else ran on the device meanwhile. What other work hid of it "
            "takes no time of the step; the table has it."
        )
    if any(row["floor_seconds"] is not None for row in rows):
        how += (
            " The bar below, floor, is the least time by the ceilings that were measured on the same device: "
            "each product at its own rate, causal attention at the rate of the products, and what the other "
            "parts must read and write at the memory bandwidth (model/measure/floor.py)."
        )
    return (
        "The time of a training step by its parts. The bar is the run of the group whose step is the median "
        "(the shorter of two in the middle), each mark is a run. Products of attention are attention. " + how
    )


def _said(row: Row, factor: float) -> str:
    said = [f"{name} {number((row[part] or 0.0) / factor, ',.2f')}" for part, name in NAMES.items()]
    least = row["floor_seconds"]
    return ", ".join([*said, *([f"floor {number(least / factor, ',.2f')}"] if least is not None else [])])


def _finding(middle: dict[str, Row], groups: dict[str, list[Row]]) -> str:
    """How much of the step is matrix products: an observation where an end of the range is a single run."""
    shares = {label: (row["products"] or 0.0) / whole(row) for label, row in middle.items() if whole(row)}
    low, high = (end(shares, key=lambda label: shares[label]) for end in (min, max))
    observed = observed_in({label: len(groups[label]) for label in (low, high)})
    ends = [f"{100 * shares[label]:.0f} % ({label})" for label in dict.fromkeys((low, high))]
    start = f"{observed}: m" if observed else "M"
    return f"{start}atrix products take {' to '.join(ends)} of the step"


def _table(middle: dict[str, Row], groups: dict[str, list[Row]], unit: str, factor: float) -> Table:
    def cell(seconds: float | None) -> str:
        return UNKNOWN if seconds is None else number(seconds / factor, ",.2f")

    hidden = any(row["hidden"] for row in middle.values())
    rows = [
        (
            label,
            str(len(groups[label])),
            *(cell(row[part]) for part in NAMES),
            cell(whole(row)),
            *([cell(row["hidden"])] if hidden else ()),
            cell(row["step_seconds"]),
            cell(row["floor_seconds"]),
            number(row["floor_percentage"], ".0f"),
        )
        for label, row in middle.items()
    ]
    parts = (f"{name}, {unit}" for name in NAMES.values())
    hides = (f"hidden communication, {unit}",) if hidden else ()
    others = (f"whole, {unit}", *hides, f"timed step, {unit}", f"floor, {unit}", "floor, % of the timed step")
    return Table(("group", "runs", *parts, *others), tuple(rows))


chart = Chart(
    title="Where the time of a step goes",
    page="time",
    order=42,
    question="What does a training step spend its time on, and how little could it take?",
    sql=_SQL,
    build=_build,
    empty="No step of this study was profiled.",
    warmup=None,
    applies=bool,
)
