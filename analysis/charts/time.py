"""Where the time of every completed run goes: start-up, first step's extra, steps, lost time, the rest."""

from __future__ import annotations

from analysis.charts import Chart, Figure, Row, Styles, Table
from analysis.charts._parts import default_looks, middle_run, pieces, stacked_bars
from analysis.charts._reported import hollow_caption, hollow_description, mark_rows, marks_of
from analysis.charts._rows import run_name
from analysis.charts._values import in_single_runs, names, shortened
from analysis.stats import by_label, middle
from analysis.stats.estimate import median
from analysis.wording import in_a_row, number
from model.record.units import counted

# Nothing records how long compilation takes. It happens in the first step of an attempt, whose time beyond a
# usual step is shown in its place.
_SQL = """\
WITH resumed AS (
  SELECT run_id FROM attempts WHERE study = $study GROUP BY run_id HAVING count(*) > 1
), lasts AS (  -- when each attempt of theirs logged the last step that counts
  SELECT run_id, attempt, max(time) AS time FROM steps
  WHERE study = $study AND run_id IN (FROM resumed) GROUP BY run_id, attempt
), lost AS (
  SELECT a.run_id, sum(greatest(0, epoch(a.ended_at - coalesce(l.time, a.started_at)))) AS seconds
  FROM attempts a JOIN runs r ON r.study = a.study AND r.run_id = a.run_id
  LEFT JOIN lasts l ON l.run_id = a.run_id AND l.attempt = a.attempt
  WHERE a.study = $study AND a.run_id IN (FROM resumed) AND a.attempt <> r.deciding_attempt
  GROUP BY a.run_id
), timed AS (
  SELECT label, place, r.run_id, seed, repeat, steps, attempts, startup_seconds, first_step_seconds,
    r.training_seconds,
    CASE WHEN startup_seconds IS NOT NULL
      THEN greatest(0, wall_seconds - startup_seconds - r.training_seconds) END AS other_seconds,
    CASE WHEN lost.seconds IS NULL THEN 0 ELSE least(lost.seconds, other_seconds) END AS lost_seconds
  FROM runs r JOIN run_measures m ON m.study = r.study AND m.run_id = r.run_id
  LEFT JOIN lost ON lost.run_id = r.run_id
  WHERE r.study = $study AND outcome = 'completed' AND r.training_seconds IS NOT NULL
)
SELECT label, run_id, seed, repeat, steps, attempts, round(startup_seconds, 6) AS startup_seconds,
  round(first_step_seconds, 6) AS first_step_seconds,
  round(training_seconds - first_step_seconds, 6) AS steps_seconds, round(lost_seconds, 6) AS lost_seconds,
  round(other_seconds - lost_seconds, 6) AS rest_seconds
FROM timed ORDER BY place, seed, repeat, run_id"""
_PARTS = {
    "startup_seconds": "start-up",
    "first_step_seconds": "first step's extra",
    "steps_seconds": "steps",
    "lost_seconds": "lost with an earlier attempt",
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
    shown = {
        name: part
        for name, part in _PARTS.items()
        if name != "lost_seconds" or any(row[name] for row in timed)
    }
    groups = by_label(timed)
    middles = {label: middle(groups[label], _whole) for label in styles if label in groups}
    bars, descriptions, cells = list[Row](), [], []
    for label, row in middles.items():
        parts = {part: None if row[name] is None else row[name] / factor for name, part in shown.items()}
        bars += pieces(label, parts)
        values = [value for value in parts.values() if value is not None]
        whole = sum(values) if len(values) == len(parts) else None
        texts = {part: number(value, ",.2f") for part, value in parts.items()}
        descriptions.append(f"{label}: {', '.join(f'{part} {text}' for part, text in texts.items())}")
        cells.append((label, str(len(groups[label])), *texts.values(), number(whole, ",.2f")))
    marks = marks_of(timed, "training_seconds")
    theirs = [row | {"value": row["value"] / factor} for row in mark_rows(marks)]
    wholes = [{"label": row["label"], "run": run_name(row), "value": _whole(row) / factor} for row in timed]

    counts = sorted({row["steps"] for row in timed})
    if len(counts) == 1:
        steps = counted(counts[0], "step")
    else:
        steps = f"{counts[0]} to {counts[-1]} steps (not the same work)"
    unknown = sorted({row["label"] for row in timed if None in (row["startup_seconds"], row["rest_seconds"])})
    gaps = f" Start-up or rest are not known of {in_a_row(unknown)}." if unknown else ""
    lost = ""
    if "lost_seconds" in shown:
        lost = " Lost: an earlier attempt's time after the last of its steps that counts."
    bars_of = middle_run("time", map(len, by_label(timed).values()))
    return Figure(
        spec=stacked_bars(
            bars, wholes, list(middles), default_looks(list(shown.values())), f"{unit} per run", theirs
        ),
        caption=(
            f"Runs of {steps}, without pauses between attempts. {bars_of} Start-up: to the "
            "first step, with the backend's certificate. First step's extra: beyond a median step; with the "
            f"steps, it is the training time.{lost} Rest: records, audits, checkpoints, the end.{gaps}"
            f"{hollow_caption(marks)}{' They are of the steps.' if marks else ''}"
        ),
        description=(
            f"Stacked bars of {unit} by group. {'; '.join(descriptions)}.{hollow_description(marks)}"
        ),
        interval="none: the median run and every run",
        used=frozenset(row["run_id"] for row in timed),
        finding=_finding(timed, unit, factor),
        table=Table(
            ("group", "runs", *(f"{part}, {unit}" for part in shown.values()), f"whole, {unit}"),
            tuple(cells),
        ),
    )


def _finding(rows: list[Row], unit: str, factor: float) -> str:
    """How long the steps alone take, as everywhere the training time, and how much everything else adds.

    That share is of sums over a group's runs: a ratio of two medians is true of no run. The run to which all
    else adds most is named beside it.
    """
    steps, shares, runs = dict[str, float](), dict[str, float](), dict[str, int]()
    for label, own in by_label(rows).items():
        steps[label] = median([_training(row) / factor for row in own])
        runs[label] = len(own)
        if whole := [row for row in own if row["rest_seconds"] is not None]:
            shares[label] = 100 * (sum(map(_whole, whole)) / sum(map(_training, whole)) - 1)
    short = shortened(steps)
    first, last = min(steps, key=lambda label: steps[label]), max(steps, key=lambda label: steps[label])
    low, high = (number(steps[label], "#,.3g") for label in (first, last))
    single = in_single_runs({label: runs[label] for label in (first, last)})
    what = "Median training time" if any(count > 1 for count in runs.values()) else "Training time"
    if low == high:
        start = f"{what}, steps alone: {low} {unit}{single}"
    else:
        start = f"{what}, steps alone: {low} ({short[first]}) to {high} {unit} ({short[last]}){single}"
    if not shares:
        return start
    most = max(shares, key=lambda label: shares[label])
    where = f" ({names([short[most]])})" if len(shares) > 1 else ""
    total = " in total" if runs[most] > 1 else ""
    at_most = "at most " if len(shares) > 1 else ""
    share, worst = (
        number(shares[most], ",.0f"),
        max((row for row in rows if row["rest_seconds"] is not None), key=_added),
    )
    alone = number(_added(worst), ",.0f")
    of = f" of {names([short[worst['label']]])}" if worst["label"] != most else ""
    in_one = f", {alone} % in one run{of}" if alone != share else ""
    return f"{start}; all else adds {at_most}{share} %{total}{where}{in_one}"


def _added(row: Row) -> float:
    """What all else adds to the steps of a run, in percent of them."""
    return 100 * (_whole(row) / _training(row) - 1)


def _training(row: Row) -> float:
    """Seconds of its logged steps."""
    return float(row["first_step_seconds"] + row["steps_seconds"])


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
