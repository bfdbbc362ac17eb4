"""Where the time of every completed run goes: start-up, what its first step takes longer, steps, the rest."""

from __future__ import annotations

from analysis.charts import Chart, Figure, Row, Styles, Table
from analysis.charts._parts import default_looks, pieces, stacked_bars
from analysis.charts._rows import ORDER, run_name
from analysis.charts._values import UNKNOWN, number, shares_of
from analysis.stats import by_label, middle
from analysis.wording import in_a_row
from model.record.units import counted

# Nothing records how long compilation takes. It happens in the first step of an attempt, whose time beyond a
# usual step is shown in its place.
_SQL = """\
SELECT label, r.run_id, seed, repeat, steps, attempts, round(startup_seconds, 6) AS startup_seconds,
  round(first_step_seconds, 6) AS first_step_seconds,
  round(r.training_seconds - first_step_seconds, 6) AS steps_seconds,
  round(CASE WHEN startup_seconds IS NOT NULL
    THEN greatest(0, wall_seconds - startup_seconds - r.training_seconds) END, 6) AS rest_seconds
FROM runs r JOIN run_measures m ON m.study = r.study AND m.run_id = r.run_id
WHERE r.study = $study AND outcome = 'completed' AND r.training_seconds IS NOT NULL
ORDER BY place, seed, repeat, r.run_id"""
_PARTS = {
    "startup_seconds": "start-up",
    "first_step_seconds": "first step's extra",
    "steps_seconds": "steps",
    "rest_seconds": "rest",
}


def _build(rows: list[Row], styles: Styles) -> Figure | None:
    timed = [row for row in rows if row["first_step_seconds"] is not None]
    if not timed:
        return None
    unit, factor = _unit(max(_whole(row) for row in timed))
    groups = by_label(timed)
    middles = {label: middle(groups[label], _whole) for label in styles if label in groups}
    parts = {label: _parts(row, factor) for label, row in middles.items()}
    bars = [piece for label, label_parts in parts.items() for piece in pieces(label, label_parts)]
    wholes = [{"label": row["label"], "run": run_name(row), "value": _whole(row) / factor} for row in timed]
    return Figure(
        spec=stacked_bars(
            bars, wholes, list(middles), default_looks(list(_PARTS.values())), f"{unit} per run"
        ),
        caption=(
            f"The whole time of a run of {_steps(timed)}, by its parts. The bar is the group's run whose "
            "whole time is the median (the shorter of the middle two), each mark is a run. Start-up: "
            "from the start of the process to its first step, with the trial that certifies the backend "
            "and the measurement of the device's ceilings if these were missing. First step's extra: "
            "what it took beyond the run's median step, including compilation, which is not recorded "
            "separately. Steps: the rest of the logged steps, including the warm-up. Rest: records, audits, "
            "checkpoints, the end, attempts that ended before a step was logged, and steps that a later "
            "attempt repeated."
            f"{_gaps(timed)} {ORDER}"
        ),
        description=f"Stacked bars of {unit} by group. "
        + "; ".join(f"{label}: {_said(label_parts)}" for label, label_parts in parts.items())
        + ".",
        interval="none: the median run and every run",
        used=frozenset(row["run_id"] for row in timed),
        finding=_finding(middles, groups),
        table=_table(parts, groups, unit),
    )


def _whole(row: Row) -> float:
    return sum(row[part] or 0.0 for part in _PARTS)


def _unit(longest_seconds: float) -> tuple[str, float]:
    if longest_seconds < 300:
        return "seconds", 1.0
    return ("minutes", 60.0) if longest_seconds < 18000 else ("hours", 3600.0)


def _steps(rows: list[Row]) -> str:
    counts = sorted({row["steps"] for row in rows})
    if len(counts) == 1:
        return counted(counts[0], "step")
    return f"{counts[0]} to {counts[-1]} steps, not the same work"


def _parts(row: Row, factor: float) -> dict[str, float | None]:
    """The parts of a run's time in the figure's unit; None where unknown."""
    return {part: None if row[name] is None else row[name] / factor for name, part in _PARTS.items()}


def _gaps(rows: list[Row]) -> str:
    unknown = sorted({row["label"] for row in rows if None in (row["startup_seconds"], row["rest_seconds"])})
    return f" Start-up or rest are not known of {in_a_row(unknown)}." if unknown else ""


def _said(label_parts: dict[str, float | None]) -> str:
    return ", ".join(f"{part} {number(value, ',.2f')}" for part, value in label_parts.items())


def _finding(middles: dict[str, Row], groups: dict[str, list[Row]]) -> str | None:
    """How much of the time is not steps."""
    shares = {
        label: 1 - row["steps_seconds"] / _whole(row)
        for label, row in middles.items()
        if None not in (row["startup_seconds"], row["rest_seconds"])
    }
    if not shares:
        return None
    return shares_of(shares, groups, "start-up, first step and rest take", "the whole time")


def _table(parts: dict[str, dict[str, float | None]], groups: dict[str, list[Row]], unit: str) -> Table:
    rows = [
        (
            label,
            str(len(groups[label])),
            *(number(value, ",.2f") for value in label_parts.values()),
            _sum(label_parts),
        )
        for label, label_parts in parts.items()
    ]
    columns = ("group", "runs", *(f"{part}, {unit}" for part in _PARTS.values()), f"whole, {unit}")
    return Table(columns, tuple(rows))


def _sum(label_parts: dict[str, float | None]) -> str:
    values = [value for value in label_parts.values() if value is not None]
    return number(sum(values), ",.2f") if len(values) == len(label_parts) else UNKNOWN


chart = Chart(
    title="Where the time goes",
    page="time",
    order=40,
    question="How long does the whole training take, and on what is the time spent?",
    sql=_SQL,
    build=_build,
    empty="No run completed with step records after the warm-up.",
    warmup=False,
)
