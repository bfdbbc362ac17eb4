"""Where the time goes that scaling loses: what a token costs of each part, on few processes and on many."""

from __future__ import annotations

from collections import Counter

from analysis.charts import Chart, Figure, Row, Styles, Table
from analysis.charts._dots import called
from analysis.charts._parts import NAMES, columns, whole
from analysis.charts._scaling import noun
from analysis.charts._stack import pieces, plot
from analysis.charts._values import UNKNOWN, number
from analysis.findings.scaling import Family, families, once, parallel, processes
from analysis.stats import by_label, middle

_SQL = f"""\
WITH profiles AS (
  SELECT run_id, attempt, {columns()}
  FROM step_profile WHERE study = $study GROUP BY run_id, attempt
)
SELECT r.label, r.run_id, r.seed, r.repeat, r.gpus, r.processes, r.scale, r.config, r.factors,
  r.batch_size, r.sequence_length, r.tokens_per_step, r.created_at, p.* EXCLUDE (run_id, attempt)
FROM runs r
JOIN profiles p ON p.run_id = r.run_id AND p.attempt = r.measured_attempt
WHERE r.study = $study AND r.outcome = 'completed' AND r.tokens_per_step > 0
ORDER BY r.place, r.seed, r.repeat, r.run_id"""
_TOKENS = 1e6  # that costs are of
_MOST, _SAID = 3, 2  # curves that the finding speaks of, and parts that it names of each


def _build(rows: list[Row], _styles: Styles) -> Figure | None:
    found = families(rows)
    if not found:
        return None
    groups, what = by_label(rows), noun(rows)
    labels = [label for label in groups if any(label in _labels(family) for family in found)]
    middles = {label: middle(groups[label], whole) for label in labels}
    unit = f"{noun(rows, many=False)}-seconds per million tokens"
    names = _short(middles, rows)
    bars = [piece for label, row in middles.items() for piece in pieces(names[label], _costs(row))]
    wholes = [
        {"label": names[label], "run": called(row), "value": whole(row) * _cost(row)}
        for label in labels
        for row in groups[label]
    ]
    shown = [said for part, said in NAMES.items() if any(row[part] for row in middles.values())]
    return Figure(
        spec=plot(bars, wholes, list(names.values()), shown, unit),
        caption=_caption(rows, what),
        description=f"Stacked bars of {unit}, by group. "
        + "; ".join(f"{names[label]}: {whole(row) * _cost(row):,.2f}" for label, row in middles.items())
        + ".",
        interval="none: the median run and every run",
        used=frozenset(row["run_id"] for label in labels for row in groups[label]),
        finding=_finding(found, middles, groups, what),
        table=_table(middles, groups, names, unit),
    )


def _labels(family: Family) -> list[str]:
    return [group.label for group in family.groups]


def _cost(row: Row) -> float:
    """Seconds of all processes for so many tokens, of a second of the step: the same if scaling is ideal."""
    return float(processes(row) / row["tokens_per_step"] * _TOKENS)


def _costs(row: Row) -> dict[str, float]:
    """What so many tokens cost of each part."""
    return {said: (row[part] or 0.0) * _cost(row) for part, said in NAMES.items()}


def _caption(rows: list[Row], what: str) -> str:
    said = (
        f"What a million tokens cost, by the parts of a step: seconds per step times {what}, over tokens. "
        "With ideal scaling, all bars of one sample length would be equally long. The bar is the group's run "
        "whose step is the median (the shorter of the middle two), each mark is a run. "
        "Communication is what was exposed: nothing else ran on the device meanwhile. What other work hid "
        "costs nothing, and is in the table. Waiting for a slower process counts as communication. The "
        "first process is profiled, in a few steps after the last one of the run."
    )
    if not all(row["gpus"] for row in rows):
        said += " On a CPU, operators are timed, which the profiler slows, and idle is the time between them."
    return said


def _finding(
    found: tuple[Family, ...], middles: dict[str, Row], groups: dict[str, list[Row]], what: str
) -> str:
    """What a token costs more at the most processes of each curve, by the parts that changed most."""
    said, ends = [], set[str]()
    for family in found[:_MOST]:
        first, last = family.groups[0].label, family.groups[-1].label
        base, many = middles[first], middles[last]
        grown = _grown(base, many)
        most = sorted(grown, key=lambda part: -abs(grown[part]))[:_SAID]
        parts = ", ".join(f"{part} {grown[part]:+.1f}" for part in most)
        how = f"{processes(many)} {what}, {family.way}, {family.kind}"
        said.append(f"{sum(grown.values()):+.1f} % at {how} ({parts})")
        ends |= {first, last}
    single = any(len(groups[label]) == 1 for label in ends)
    return f"{'Observed: c' if single else 'C'}ost of a token: {'; '.join(said)}"


def _grown(base: Row, many: Row) -> dict[str, float]:
    """By part, what tokens cost more, in percent of all that they cost at first."""
    first, then, all_first = _costs(base), _costs(many), whole(base) * _cost(base)
    return {part: 100 * (then[part] - first[part]) / all_first for part in first}


def _short(middles: dict[str, Row], rows: list[Row]) -> dict[str, str]:
    """A name for each group, of what the figure is about; its label where several would have that name."""
    lengths = {row["sequence_length"] for row in middles.values()}
    names = {label: _named(row, rows, len(lengths) > 1) for label, row in middles.items()}
    several = Counter(names.values())
    return {label: name if several[name] == 1 else label for label, name in names.items()}


def _named(row: Row, rows: list[Row], length: bool) -> str:
    count = processes(row)
    way = "".join(f" {axis}" for axis in parallel(row))
    said = f"{count} {noun(rows, many=count > 1)}{way}{once(row)}, batch {row['batch_size']}"
    return f"{said}, {row['sequence_length']:,} tokens" if length else said


def _table(middles: dict[str, Row], groups: dict[str, list[Row]], names: dict[str, str], unit: str) -> Table:
    heads = (
        "group", "runs", "processes", *(f"{said}, {unit}" for said in NAMES.values()), f"whole, {unit}",
        "communication hidden by other work",
    )  # fmt: skip
    rows = [
        (
            names[label],
            str(len(groups[label])),
            str(processes(row)),
            *(UNKNOWN if row[part] is None else number(row[part] * _cost(row), ",.3f") for part in NAMES),
            number(whole(row) * _cost(row), ",.3f"),
            UNKNOWN if row["hidden"] is None else number(row["hidden"] * _cost(row), ",.3f"),
        )
        for label, row in middles.items()
    ]
    return Table(heads, tuple(rows))


chart = Chart(
    title="Scaling",
    page="scaling",
    order=4,
    question="Where does the time lost to scaling go?",
    sql=_SQL,
    build=_build,
    applies=lambda rows: bool(families(rows)),
    warmup=None,
)
