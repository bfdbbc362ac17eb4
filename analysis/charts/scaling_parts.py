"""Where the time goes that scaling loses: what a token costs of each part, on few processes and on many."""

from __future__ import annotations

from collections import Counter
from operator import itemgetter

from analysis.charts import Chart, Figure, Row, Styles, Table
from analysis.charts._parts import (
    PART_NAMES,
    middle_run,
    part_columns,
    part_looks,
    pieces,
    stacked_bars,
    whole_seconds,
)
from analysis.charts._rows import run_name
from analysis.charts.scaling import process_noun
from analysis.query.statements import MEASURED_RUNS
from analysis.stats import by_label, middle
from analysis.verdicts.profiles import UNLIKE, unlike
from analysis.verdicts.scaling import Curve, curves, once, parallel, parts_of, processes
from analysis.wording import UNKNOWN, number
from model.record.units import counted

_PARTS = ", ".join(
    f"p.{part} AS {part}_part" for part in (*PART_NAMES, "hidden")
)  # `attention` is a backend, too
_SQL = f"""\
WITH profiles AS (
  SELECT run_id, attempt, {part_columns()}
  FROM step_profile WHERE study = $study GROUP BY run_id, attempt
), measured AS (
{MEASURED_RUNS}
)
SELECT m.*, {_PARTS}, p.run_id IS NOT NULL AS profiled
FROM measured m LEFT JOIN profiles p ON p.run_id = m.run_id AND p.attempt = m.measured_attempt
ORDER BY m.place, m.seed, m.repeat, m.run_id"""
_TOKENS = 1e6  # that costs are of
_MOST = 3  # curves that the finding speaks of


def _build(rows: list[Row], _styles: Styles) -> Figure | None:
    columns = (*PART_NAMES, "hidden")
    profiled = [row | {part: row[f"{part}_part"] for part in columns} for row in rows if row["profiled"]]
    all_curves, groups, what = curves(rows), by_label(profiled), process_noun(rows)
    labels = [label for label in groups if any(label in curve.labels for curve in all_curves)]
    if not labels:
        return None
    middles = {label: middle(groups[label], itemgetter("step_seconds")) for label in labels}
    unit = f"{process_noun(rows, many=False)}-seconds per million tokens"

    # A name for each group, of what the figure is about; its label where several would have that name.
    lengths = {row["sequence_length"] for row in middles.values()}
    short_names = {}
    for label, row in middles.items():
        count = processes(row)
        way = "".join(f" {axis}" for axis in parallel(row))
        name = f"{count} {process_noun(rows, many=count > 1)}{way}{once(row)}, batch {row['batch_size']}"
        name += f" in {parts_of(row)} parts" if parts_of(row) > 1 else ""
        short_names[label] = f"{name}, {row['sequence_length']:,} tokens" if len(lengths) > 1 else name
    several = Counter(short_names.values())
    names = {label: name if several[name] == 1 else label for label, name in short_names.items()}

    bars = [piece for label, row in middles.items() for piece in pieces(names[label], _costs(row))]
    wholes = [
        {"label": names[label], "run": run_name(row), "value": _cost(row)}
        for label in labels
        for row in groups[label]
    ]
    heads = (
        "group", "runs", "processes", *(f"{name}, {unit}" for name in PART_NAMES.values()), f"whole, {unit}",
        "communication hidden by other work",
    )  # fmt: skip
    cells = [
        (
            names[label],
            str(len(groups[label])),
            str(processes(row)),
            *(UNKNOWN if row[part] is None else number(_part(row, row[part]), ",.3f") for part in PART_NAMES),
            number(_cost(row), ",.3f"),
            UNKNOWN if row["hidden"] is None else number(_part(row, row["hidden"]), ",.3f"),
        )
        for label, row in middles.items()
    ]
    return Figure(
        spec=stacked_bars(bars, wholes, list(names.values()), part_looks(middles.values()), unit),
        caption=_caption(profiled, labels, what),
        description=f"Stacked bars of {unit}, by group. "
        + "; ".join(f"{names[label]}: {number(_cost(row), ',.2f')}" for label, row in middles.items())
        + ".",
        interval="none: one run of each group and every run",
        used=frozenset(row["run_id"] for label in labels for row in groups[label]),
        finding=_finding(all_curves, middles, what),
        table=Table(heads, tuple(cells)),
    )


def _cost(row: Row) -> float:
    """Seconds of all processes for so many tokens, of timed steps: the same if scaling is ideal."""
    return float(processes(row) * row["step_seconds"] / row["tokens_per_step"] * _TOKENS)


def _part(row: Row, seconds: float | None) -> float:
    """What so many tokens cost of a part that takes so long of a profiled step: its share of the whole."""
    return (seconds or 0.0) / whole_seconds(row) * _cost(row)


def _costs(row: Row) -> dict[str, float]:
    """What so many tokens cost of each part."""
    return {name: _part(row, row[part]) for part, name in PART_NAMES.items()}


def _caption(rows: list[Row], labels: list[str], what: str) -> str:
    sizes = map(len, by_label(row for row in rows if row["label"] in labels).values())
    sentences = (
        f"Seconds of a timed step times {what}, over tokens: with ideal scaling, bars of one sample length "
        f"are equally long. {middle_run('timed step', sizes)} Parts: their shares of profiled steps of the "
        "first process. Communication: what nothing else hid, with waiting. In the title, costs are of "
        "paired runs."
    )
    if not all(row["gpus"] for row in rows):
        sentences += " On a CPU, the profiler slows the operators, and idle is the time between them."
    timed_rows = (
        {**row, "seconds": whole_seconds(row), "timed_seconds": row["step_seconds"]} for row in rows
    )
    if others := set(unlike(timed_rows)) & set(labels):
        sentences += (
            f" In {len(others)} of {counted(len(labels), 'group')} profiled steps took over {UNLIKE:.0f} % "
            "longer or shorter than the timed ones."
        )
    return sentences


def _finding(all_curves: tuple[Curve, ...], middles: dict[str, Row], what: str) -> str:
    """What a token costs more at the most processes of each curve, with the part that grew most.

    The cost is the inverse of the efficiency, of paired runs; parts are of the bars, each of one run, in
    percent of the curve's first bar, where both have a profile.
    """
    clauses = []
    places = {curve.points[-1].processes for curve in all_curves[:_MOST]}
    kinds = {curve.kind for curve in all_curves[:_MOST]}
    for curve in all_curves[:_MOST]:
        last = curve.points[-1]
        how = curve.way if len(kinds) == 1 else f"{curve.way}, {curve.kind}"
        if len(places) > 1:
            how += f", on {last.processes} {what}"
        if last.why_withheld:
            clauses.append(f"not comparable: {how}")
            continue
        clause = f"{100 * (last.cost - 1):+.1f} % {how}"
        if {curve.base, last.label} <= middles.keys():
            base = middles[curve.base]
            before, after = _costs(base), _costs(middles[last.label])
            grown = {part: 100 * (after[part] - before[part]) / _cost(base) for part in before}
            part = max(grown, key=lambda part: grown[part] if last.cost > 1 else -grown[part])
            clause += f" ({part} {grown[part]:+.1f})"
        clauses.append(clause)
    single = " (one run each)" if any(curve.points[-1].observed for curve in all_curves[:_MOST]) else ""
    at = f" on {next(iter(places))} {what}" if len(places) == 1 else ""
    return f"Cost of a token{at}: {'; '.join(clauses)}{single}"


chart = Chart(
    title="Scaling",
    page="scaling",
    order=4,
    question="Where does the time lost to scaling go?",
    sql=_SQL,
    build=_build,
    applies=lambda rows: any(row["profiled"] for row in rows) and bool(curves(rows)),
    warmup=None,
)
