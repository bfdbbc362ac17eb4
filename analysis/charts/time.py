"""Where the time of every completed run goes: start-up, what its first step takes longer, steps, the rest."""

from __future__ import annotations

from analysis.charts import Chart, Figure, Row, Styles, Table
from analysis.charts._parts import default_looks, pieces, stacked_bars
from analysis.charts._rows import ORDER, run_name
from analysis.charts._values import number, shares_of
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
    longest = max(_whole(row) for row in timed)
    if longest < 300:
        unit, factor = "seconds", 1.0
    elif longest < 18000:
        unit, factor = "minutes", 60.0
    else:
        unit, factor = "hours", 3600.0
    groups = by_label(timed)
    middles = {label: middle(groups[label], _whole) for label in styles if label in groups}
    bars, descriptions, cells = list[Row](), [], []
    for label, row in middles.items():
        parts = {part: None if row[name] is None else row[name] / factor for name, part in _PARTS.items()}
        bars += pieces(label, parts)
        values = [value for value in parts.values() if value is not None]
        whole = sum(values) if len(values) == len(parts) else None
        texts = {part: number(value, ",.2f") for part, value in parts.items()}
        descriptions.append(f"{label}: {', '.join(f'{part} {text}' for part, text in texts.items())}")
        cells.append((label, str(len(groups[label])), *texts.values(), number(whole, ",.2f")))
    wholes = [{"label": row["label"], "run": run_name(row), "value": _whole(row) / factor} for row in timed]

    counts = sorted({row["steps"] for row in timed})
    if len(counts) == 1:
        steps = counted(counts[0], "step")
    else:
        steps = f"{counts[0]} to {counts[-1]} steps, not the same work"
    unknown = sorted({row["label"] for row in timed if None in (row["startup_seconds"], row["rest_seconds"])})
    gaps = f" Start-up or rest are not known of {in_a_row(unknown)}." if unknown else ""
    not_steps = {
        label: 1 - row["steps_seconds"] / _whole(row)
        for label, row in middles.items()
        if None not in (row["startup_seconds"], row["rest_seconds"])
    }
    finding = None
    if not_steps:
        finding = shares_of(not_steps, groups, "start-up, first step and rest take", "the whole time")
    return Figure(
        spec=stacked_bars(
            bars, wholes, list(middles), default_looks(list(_PARTS.values())), f"{unit} per run"
        ),
        caption=(
            f"The whole time of a run of {steps}, by its parts. The bar is the group's run whose "
            "whole time is the median (the shorter of the middle two), each mark is a run. Start-up: "
            "from the start of the process to its first step, with the trial that certifies the backend "
            "and the measurement of the device's ceilings if these were missing. First step's extra: "
            "what it took beyond the run's median step, including compilation, which is not recorded "
            "separately. Steps: the rest of the logged steps, including the warm-up. Rest: records, audits, "
            "checkpoints, the end, attempts that ended before a step was logged, and steps that a later "
            f"attempt repeated.{gaps} {ORDER}"
        ),
        description=f"Stacked bars of {unit} by group. {'; '.join(descriptions)}.",
        interval="none: the median run and every run",
        used=frozenset(row["run_id"] for row in timed),
        finding=finding,
        table=Table(
            ("group", "runs", *(f"{part}, {unit}" for part in _PARTS.values()), f"whole, {unit}"),
            tuple(cells),
        ),
    )


def _whole(row: Row) -> float:
    return sum(row[part] or 0.0 for part in _PARTS)


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
