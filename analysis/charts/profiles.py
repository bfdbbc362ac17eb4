"""Where the time goes, by its parts, beside the least time that it could take on that device."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from string import Template

from analysis.charts import Chart, Figure, Row, Styles, Table
from analysis.charts._parts import (
    FORWARD_PARTS,
    PART_NAMES,
    middle_run,
    part_columns,
    part_looks,
    pieces,
    stacked_bars,
    whole_seconds,
)
from analysis.charts._rows import run_name
from analysis.charts._values import in_single_runs, names, shortened
from analysis.stats import by_label, grouped
from analysis.verdicts.profiles import UNLIKE, excesses, impossible, median_run, timed_runs, unlike
from analysis.wording import UNKNOWN, capital, in_a_row, number
from model.record.units import counted

_OF_FLOOR = ("products", "attention", "loss", "optimizer", "elementwise")
_LEAST = ", ".join(f"sum(seconds) FILTER (part = '{part}') AS least_{part}" for part in _OF_FLOOR)
_SQL = Template(f"""\
WITH profiles AS (
  SELECT run_id, attempt, {part_columns()}, bool_or(by_name) AS by_name
  FROM step_profile WHERE study = $study AND phase = '${{phase}}' GROUP BY run_id, attempt
), floors AS (
  SELECT run_id, attempt, {_LEAST}
  FROM step_floor WHERE study = $study AND phase = '${{phase}}' GROUP BY run_id, attempt
)
SELECT r.label, r.run_id, r.seed, r.repeat, r.gpus, ${{timed}},
  p.* EXCLUDE (run_id, attempt) REPLACE (${{by_name}} AS by_name),
  f.* EXCLUDE (run_id, attempt)
FROM runs r
JOIN profiles p ON p.run_id = r.run_id AND p.attempt = r.measured_attempt
LEFT JOIN floors f ON f.run_id = r.run_id AND f.attempt = r.measured_attempt
WHERE r.study = $study AND r.outcome = 'completed'${{kept}}
ORDER BY r.place, r.seed, r.repeat, r.run_id""")
_FLOOR = ": floor"  # after a group's label
_NOTED = 1.0  # percent between a bar and the timed steps, from which a caption has it


@dataclass(frozen=True)
class Profiled:
    """What was profiled.

    Attributes:
        noun: what readers call one of it.
        phase: what the tables call it.
        timed: SQL of its seconds, its floor, the floor's percentage and whether it was in CUDA graphs, from
            `runs r`.
        unmarked: SQL of whether older records tell attention by its kernels' names alone.
        which: which ones were profiled.
        floor: what its floor is made of.
        parts: that it can have.
    """

    noun: str
    phase: str
    timed: str
    unmarked: str
    which: str
    floor: str
    parts: tuple[str, ...]

    @property
    def sql(self) -> str:
        """A row for each completed run with a profile of it.

        Not of tokens that CUDA graphs decoded, as far as names alone told attention: the kernels that merge
        parts of keys, or repeat heads, would be norms.
        """
        by_name = f"coalesce(p.by_name, {self.unmarked}, false)"
        kept = f" AND NOT {by_name}" if self.phase == "decode" else ""
        return _SQL.safe_substitute(phase=self.phase, timed=self.timed, by_name=by_name, kept=kept)

    def build(self, rows: list[Row], styles: Styles) -> Figure | None:
        """A bar for each group, and one of its floor."""
        if not rows:
            return None
        unit, factor = ("ms", 1e-3) if max(map(whole_seconds, rows)) < 10 else ("s", 1.0)
        groups = by_label(rows)
        middles = {label: median_run(groups[label]) for label in styles if label in groups}
        bars, descriptions = list[Row](), []
        for label, row in middles.items():
            bars += pieces(label, {name: (row[part] or 0.0) / factor for part, name in PART_NAMES.items()})
            values = [(PART_NAMES[part], row[part] or 0.0) for part in self.parts]
            if row["floor_seconds"] is not None:
                least = {PART_NAMES[part]: (row[f"least_{part}"] or 0.0) / factor for part in _OF_FLOOR}
                bars += pieces(f"{label}{_FLOOR}", least)
                values.append(("floor", row["floor_seconds"]))
            words = [f"{name} {number(seconds / factor, ',.2f')}" for name, seconds in values]
            descriptions.append(f"{label}: {', '.join(words)}")
        labels = list(dict.fromkeys(bar["label"] for bar in bars))
        shown = part_looks(middles.values())
        wholes = [
            {"label": row["label"], "run": run_name(row), "value": whole_seconds(row) / factor}
            for row in rows
        ]
        wrong = impossible(rows) if self.phase == "step" else {}
        timed = {label: row for label, row in middles.items() if whole_seconds(row) and label not in wrong}
        return Figure(
            spec=stacked_bars(bars, wholes, labels, shown, f"{unit} per {self.noun}"),
            caption=self._caption(rows, wrong),
            description=f"Stacked bars of {unit} a {self.noun} by group. {'; '.join(descriptions)}.",
            interval="none: the median run and every run",
            used=frozenset(row["run_id"] for row in rows),
            finding=self._finding(timed, groups),
            table=self._table(middles, groups, unit, factor),
        )

    def _finding(self, timed: dict[str, Row], groups: dict[str, list[Row]]) -> str | None:
        """The largest part of the most groups with its share, and the groups in which another one is."""
        if not timed:
            return None
        largest = {label: max(self.parts, key=lambda part: row[part] or 0.0) for label, row in timed.items()}
        short, clauses = shortened(timed), []
        by_part = sorted(grouped(largest, lambda label: largest[label]).items(), key=lambda one: -len(one[1]))
        for part, labels in by_part:
            shares = sorted(100 * timed[label][part] / whole_seconds(timed[label]) for label in labels)
            ends = dict.fromkeys(f"{share:.0f}" for share in (shares[0], shares[-1]))
            where = f" in {names([short[label] for label in labels], 3)}" if len(by_part) > 1 else ""
            clauses.append(f"{PART_NAMES[part]}, {' to '.join(ends)} %{where}")
        single = in_single_runs({label: len(groups[label]) for label in timed})
        return f"{capital(f'largest part of a {self.noun}')}: {'; '.join(clauses)}{single}"

    def _under_floor(self, rows: list[Row]) -> str:
        """Which times are shorter than their floor, which is made of rates and no limit of nature."""
        under = dict[str, list[float]]()
        floors = [row for row in rows if row["floor_seconds"] is not None]
        for part in _OF_FLOOR:
            for row in floors:
                least, took = row[f"least_{part}"], row[part]
                if least and took and took < least:
                    under.setdefault(part, []).append(100 * (1 - took / least))
        clauses = []
        for part, shares in under.items():
            by = " to ".join(dict.fromkeys(f"{share:.1f}" for share in (min(shares), max(shares))))
            clauses.append(f"{PART_NAMES[part]} in {len(shares)} of {counted(len(floors), 'run')}, by {by} %")
        return f" Shorter than their floor: {'; '.join(clauses)}." if clauses else ""

    def _caption(self, rows: list[Row], wrong: Collection[str]) -> str:
        how = f"Timed in {self.which}; idle: the rest of a {self.noun} without the profiler."
        if graphs := list(by_label(row for row in rows if row["in_graphs"])):
            whose = "These" if len(graphs) == len(by_label(rows)) else f"Those of {in_a_row(graphs)}"
            how += (
                f" {whose} were in CUDA graphs, as the run's; their kernels were timed in more, "
                "launched one by one."
            )
        if not all(row["gpus"] for row in rows):
            how += " On a CPU, the profiler slows the operators, and idle is the time between them."
        if any(row["hidden"] is not None and row["communication"] for row in rows):
            how += " Communication: what nothing else hid."
        if any(row["floor_seconds"] is not None for row in rows):
            how += (
                f" Floor: at rates measured on the device, no strict limit: {self.floor}"
                f"{self._under_floor(rows)}"
            )
        profiled = [{**row, "seconds": whole_seconds(row)} for row in rows]
        if differing := unlike(profiled):
            how += (
                f" In {len(differing)} of {counted(len(by_label(rows)), 'group')} these took over "
                f"{UNLIKE:.0f} % longer or shorter than the timed ones."
            )
        elif (most := max(map(abs, excesses(profiled).values()))) >= _NOTED:
            how += f" The bars are up to {most:.1f} % longer or shorter than the timed {self.noun}."
        if named := list(by_label(row for row in rows if row["by_name"])):
            which = "" if len(named) == len(by_label(rows)) else f" in {in_a_row(named)}"
            how += (
                f" Attention's kernels were told by their names{which}: what else a backend launches counts "
                "as other parts."
            )
        if wrong:
            how += (
                f" Wrong for {in_a_row(list(wrong))}: attention would take less than it can, so some kernels "
                "count as other parts."
            )
        bars = middle_run(f"timed {self.noun}", (len(timed_runs(own)) for own in by_label(rows).values()))
        return f"{bars} Attention includes its products. {how}"

    def _table(
        self, middles: dict[str, Row], groups: dict[str, list[Row]], unit: str, factor: float
    ) -> Table:
        def cell(seconds: float | None) -> str:
            return UNKNOWN if seconds is None else number(seconds / factor, ",.2f")

        hidden = any(row["hidden"] for row in middles.values())
        rows = [
            (
                label,
                str(len(groups[label])),
                *(cell(row[part]) for part in self.parts),
                cell(whole_seconds(row)),
                *([cell(row["hidden"])] if hidden else ()),
                cell(row["timed_seconds"]),
                cell(row["floor_seconds"]),
                number(row["floor_percentage"], ".0f"),
            )
            for label, row in middles.items()
        ]
        parts = (f"{PART_NAMES[part]}, {unit}" for part in self.parts)
        hides = (f"hidden communication, {unit}",) if hidden else ()
        timed = f"timed {self.noun}"
        others = (f"whole, {unit}", *hides, f"{timed}, {unit}", f"floor, {unit}", f"floor, % of the {timed}")
        return Table(("group", "runs", *parts, *others), tuple(rows))


_STEP = Profiled(
    noun="step",
    phase="step",
    timed="r.step_seconds AS timed_seconds, r.floor_seconds, r.floor_percentage, false AS in_graphs",
    unmarked="coalesce(r.config->>'$.train.compile', r.config->>'$.inference.compile')::BOOLEAN",
    which="a few steps after the last one of the run",
    floor="products and causal attention at those of products, the rest at the memory bandwidth.",
    parts=tuple(PART_NAMES),
)


_PREFILL = replace(
    _STEP, noun="prefill", which="a few more prefills of the run's last prompts", parts=FORWARD_PARTS
)


_TOKEN = Profiled(
    noun="decoded token",
    phase="decode",
    timed=(
        "r.decode_seconds AS timed_seconds, r.decode_floor_seconds AS floor_seconds, "
        "r.decode_floor_percentage AS floor_percentage, "
        "coalesce((r.config->>'$.inference.cuda_graphs')::BOOLEAN, false) AS in_graphs"
    ),
    unmarked="(r.config->>'$.inference.cuda_graphs')::BOOLEAN",
    which="a few more tokens at the median position, after the run",
    floor=("weights, keys and values read once, or the products where these take longer."),
    parts=FORWARD_PARTS,
)

charts = {
    "step_profile": Chart(
        title="Where the time of a step goes",
        page="time",
        order=42,
        question="What does a training step spend its time on, and how little could it take?",
        sql=_STEP.sql,
        build=_STEP.build,
        empty="No step of this study was profiled.",
        warmup=None,
        applies=bool,
    ),
    "prefill_profile": Chart(
        title="Where the time of a prefill goes",
        page="prefill",
        order=14,
        question="What does a prefill spend its time on, and how little could it take?",
        sql=_PREFILL.sql,
        build=_PREFILL.build,
        empty="No prefill of this study was profiled.",
        warmup=None,
        applies=bool,
        tasks=("inference",),
    ),
    "decode_profile": Chart(
        title="Where the time of a decoded token goes",
        page="decoding",
        order=16,
        question="What does a decoded token spend its time on, and how little could it take?",
        sql=_TOKEN.sql,
        build=_TOKEN.build,
        empty="No decoded token of this study was profiled, with its attention told apart.",
        warmup=None,
        applies=bool,
        tasks=("inference",),
    ),
}
