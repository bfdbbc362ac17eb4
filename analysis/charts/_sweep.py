"""Numeric axes of a study, the cells of runs that they span, and what figures say of them in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log, log2
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

from analysis import stats
from analysis.charts import Table
from analysis.charts._quantities import CellQuantity
from analysis.charts._reported import ReportedMark
from analysis.stats import Estimate
from analysis.wording import UNKNOWN, capital, in_a_row, range_word
from model.record.outcome import NONE_YET, Outcome

if TYPE_CHECKING:
    from analysis.charts import Row

FEWEST = 3  # values; a number that has fewer in the study is a category


@dataclass(frozen=True)
class SweepAxis:
    """A numeric factor.

    Attributes:
        name: as the study has it, such as train.sequence_length.
        title: for readers; unique among the axes of its study.
        values: sorted, each once.
    """

    name: str
    title: str
    values: tuple[float, ...]

    @property
    def base(self) -> int | None:
        """The base of its logarithmic scale: 2 where all values are powers of two; None for a linear scale.

        Logarithmic is what makes the gaps between its values the more even ones.
        """
        if self.values[0] <= 0 or _unevenness(list(map(log, self.values))) >= _unevenness(self.values):
            return None
        return 2 if all(log2(value).is_integer() for value in self.values) else 10

    @property
    def number(self) -> str:
        """d3 format, also understood by `text`, in which its values remain distinct."""
        forms = [".6~g", ".2~e", ".16~g"]
        if self.values[0] and abs(self.values[0]) < 1e-3:
            forms.remove(".6~g")
        if all(float(value).is_integer() for value in self.values):
            forms.insert(0, ",d")
        return next(
            form for form in forms if len({_text(value, form) for value in self.values}) == len(self.values)
        )

    def text(self, value: float) -> str:
        """A value as the axis labels it."""
        return _text(value, self.number)

    def of(self, cell: SweepCell) -> str:
        """A cell's value as the axis labels it."""
        return self.text(cell.at[self.name])


@dataclass(frozen=True)
class SweepCell:
    """The runs of one configuration, seed and repeat apart.

    Attributes:
        at: its value on each axis of the sweep, by the axis's name.
        rest: what else varies, in words.
        estimate: of its completed runs that have a value; None if there are none.
        missing: how the others ended, in a word, and how many did.
        runs: how many there are.
        shown: ids of those that the estimate is of.
        theirs: what others report of it.
    """

    label: str
    at: dict[str, float]
    rest: str
    estimate: stats.Estimate | None
    missing: dict[str, int]
    runs: int
    shown: tuple[str, ...]
    theirs: tuple[ReportedMark, ...] = ()

    @property
    def place(self) -> tuple[object, ...]:
        """What tells it from the other cells of its sweep."""
        return (*self.at.values(), self.rest)

    @property
    def word(self) -> str:
        """How runs without a value ended: `OOM`, or `OOM 1/3` where it is some of the runs."""
        partly = "" if len(self.missing) == 1 and not self.estimate else f"/{self.runs}"
        return ", ".join(f"{word} {n}{partly}" if partly else word for word, n in self.missing.items())


@dataclass(frozen=True)
class Sweep:
    """A study's cells over its numeric axes.

    Attributes:
        axes: most values first.
        together: factors whose value one axis determines, by that axis's title.
        cells: in the study's order.
        ambiguous: labels of groups that share a cell with another, as after a launch with other settings.
    """

    axes: tuple[SweepAxis, ...]
    together: dict[str, tuple[str, ...]]
    cells: tuple[SweepCell, ...]
    ambiguous: tuple[str, ...]

    def by(self, axes: Sequence[SweepAxis]) -> dict[str, list[SweepCell]]:
        """The cells by what varies besides these axes, in words: other numeric axes are named there."""
        others = [axis for axis in self.axes if axis not in axes]
        cells_by_name: dict[str, list[SweepCell]] = {}
        for cell in self.cells:
            name = ", ".join([cell.rest, *(f"{axis.title} {axis.of(cell)}" for axis in others)])
            cells_by_name.setdefault(name, []).append(cell)
        return cells_by_name


def sweep_axes(rows: Sequence[Row]) -> tuple[SweepAxis, ...]:
    """The numeric factors that vary independently of each other: most values first."""
    return _axes(rows)[0]


def has_lines(rows: list[Row]) -> bool:
    """Whether a study has anything for a line: cells that differ in the first axis alone."""
    return bool(rows) and any(len(line) > 1 for line in _cells(rows, 1))


def has_map(rows: list[Row]) -> bool:
    """Whether a study has anything for a heat map: cells in one row, and cells in one column."""
    if not rows or len(sweep_axes(rows)) < 2:
        return False
    both = sweep_axes(rows)[:2]
    return any(
        all(len({cell.at[axis.name] for cell in panel}) < len(panel) for axis in both)
        for panel in _cells(rows, 2)
    )


def _cells(rows: list[Row], over: int) -> Iterable[list[SweepCell]]:
    """The cells that differ in so many of the first axes alone."""
    swept = sort_into_cells(rows, lambda _rows: {})
    return swept.by(swept.axes[:over]).values()


def sort_into_cells(rows: list[Row], estimates: Callable[[list[Row]], dict[str, stats.Estimate]]) -> Sweep:
    """Sort runs into cells.

    Args:
        rows: the answer to SWEEP_RUNS.
        estimates: completed runs that have the quantity -> its estimate by label.
    """
    independent, tied = _axes(rows)
    apart = {axis.name for axis in independent} | {name for names in tied.values() for name in names}
    words = _rest(rows, apart)
    estimated = estimates([row for row in rows if row["outcome"] == "completed"])
    cells = []
    for label, group in stats.by_label(rows).items():
        at = {axis.name: group[0]["factors"][axis.name] for axis in independent}
        missing = outcome_counts(group, label in estimated)
        cells.append(
            SweepCell(
                label, at, words[label], estimated.get(label), missing, len(group), completed_ids(group)
            )
        )
    shared = Counter(cell.place for cell in cells)
    clear = tuple(cell for cell in cells if shared[cell.place] == 1)
    doubled = tuple(cell.label for cell in cells if shared[cell.place] > 1)
    together = {axis.title: tuple(map(_title, tied[axis.name])) for axis in independent if tied[axis.name]}
    return Sweep(independent, together, clear, doubled)


def completed_ids(runs: Sequence[Row]) -> tuple[str, ...]:
    """Ids of the runs that completed."""
    return tuple(run["run_id"] for run in runs if run["outcome"] == "completed")


def outcome_counts(runs: Sequence[Row], measured: bool) -> dict[str, int]:
    """How many runs of a cell have no value, by how they ended in a word."""
    outcomes = [run["outcome"] for run in runs if run["outcome"] != "completed"]
    counts = Counter(Outcome(outcome).short if outcome else NONE_YET for outcome in outcomes)
    return dict(counts) if counts or measured else {"not measured": len(runs)}


def _axes(rows: Sequence[Row]) -> tuple[tuple[SweepAxis, ...], dict[str, list[str]]]:
    """The independent axes, and by the name of each the factors that follow from it."""
    numeric: dict[str, list[Any]] = {}
    for name in _factors(rows):
        values = [row["factors"].get(name) for row in rows]
        numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
        if numbers and len(set(values)) >= FEWEST:
            numeric[name] = values
    kept: dict[str, list[str]] = {}
    for name in sorted(numeric, key=lambda name: (-len(set(numeric[name])), name)):
        for leader, followers in kept.items():
            pairs = set(zip(numeric[leader], numeric[name], strict=True))
            if len(pairs) == len(set(numeric[leader])):  # each value of the leader comes with one value
                followers.append(name)
                break
        else:
            kept[name] = []
    short = Counter(map(_title, kept))
    made = tuple(
        SweepAxis(name, _title(name) if short[_title(name)] == 1 else name, tuple(sorted(set(numeric[name]))))
        for name in kept
    )
    return made, kept


def _factors(rows: Sequence[Row]) -> list[str]:
    return [name for name in (rows[0]["factors"] if rows else {}) if name not in ("seed", "repeat")]


def _rest(rows: list[Row], apart: set[str]) -> dict[str, str]:
    """By label, the factors that vary besides these: as labels name groups, the backend first."""
    given = {row["label"]: {**row["factors"], "scale": row["scale"]} for row in rows}
    names = [name for name in (*_factors(rows), "scale") if name not in apart]
    varying = [name for name in names if len({str(factors.get(name)) for factors in given.values()}) > 1]
    varying.sort(key=lambda name: (name != "attention", name))
    backends = {row["label"]: row["attention"] or "all runs" for row in rows}
    words = {}
    for label, factors in given.items():
        clauses = []
        for name in varying:
            value = factors.get(name)
            if name == "attention":
                clauses.append(str(value))
            elif isinstance(value, bool):
                clauses.append(f"{_title(name)}: {'yes' if value else 'no'}")
            else:
                clauses.append(f"{_title(name)} {value}")
        words[label] = ", ".join(clauses) or backends[label]
    return words


def _title(name: str) -> str:
    return name.rpartition(".")[2].replace("_", " ")


def _unevenness(values: Sequence[float]) -> float:
    gaps = [after - before for before, after in pairwise(values)]
    return pstdev(gaps) / fmean(gaps)


def _text(value: float, form: str) -> str:
    """What d3 makes of these formats."""
    if form == ",d":
        return f"{value:,.0f}"
    if form == ".2~e":
        digits, _, power = f"{value:.2e}".partition("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(power):+d}"
    return f"{value:.{form[1:-2]}g}"


def abbreviations(cells: Iterable[SweepCell]) -> list[str]:
    """What the short words for outcomes stand for, of those that are used."""
    return ["OOM: out of memory."] if any("OOM" in cell.word for cell in cells) else []


def interval_methods(cells: Sequence[SweepCell]) -> str:
    """What the intervals of the cells are: each method with the number of cells that have it."""
    methods = Counter(f"n = {cell.estimate.n}: {cell.estimate.method}" for cell in cells if cell.estimate)
    if len(methods) == 1:
        return next(iter(methods))
    return "; ".join(f"{method} ({count} cells)" for method, count in methods.items())


def sweep_notes(swept: Sweep, groups: Collection[str] = (), most: int = 0, what: str = "") -> list[str]:
    """What the reader must know first: factors that go together, and what the figure leaves out.

    Args:
        groups: what the figure shows at most so many of; `what` says what they are.
    """
    sentences = [
        f"{capital(' and '.join(names))} {'varies' if len(names) == 1 else 'vary'} together with {title}."
        for title, names in swept.together.items()
    ]
    if len(groups) > most:
        sentences.append(
            f"The figure shows the first {most} of {len(groups)} {what}; the table has all values."
        )
    if swept.ambiguous:
        names = in_a_row(swept.ambiguous)
        sentences.append(f"Not shown: {names}, whose runs have the same factors but other settings.")
    return sentences


def sweep_table(swept: Sweep, quantity: CellQuantity) -> Table:
    """Every cell, also of groups beyond those that the figure has room for."""
    heads = ("Group", *(capital(axis.title) for axis in swept.axes), capital(quantity.title))
    rows = []
    for cell in swept.cells:
        values = (UNKNOWN, UNKNOWN, "0")
        if estimate := cell.estimate:
            median = format(estimate.median, quantity.number)
            values = (median, interval_ends(estimate, quantity.number), str(estimate.n))
        rows.append((cell.rest, *(axis.of(cell) for axis in swept.axes), *values, cell.word or UNKNOWN))
    return Table((*heads, "Interval", "n", "Not completed"), tuple(rows))


def interval_ends(estimate: Estimate, number: str) -> str:
    """The interval's ends, after the word where they are a range, or a dash."""
    if estimate.low is None or estimate.high is None:
        return UNKNOWN
    return f"{range_word(estimate.is_range)}{estimate.low:{number}} {UNKNOWN} {estimate.high:{number}}"


def range_description(cells: Sequence[SweepCell], axes: Sequence[SweepAxis], quantity: CellQuantity) -> str:
    """The smallest and the largest value, with where they are."""
    valued = sorted(((cell.estimate.median, cell) for cell in cells if cell.estimate), key=lambda one: one[0])
    ends = []
    for value, cell in (valued[0], valued[-1]):
        where = ", ".join([cell.rest, *(f"{axis.title} {axis.of(cell)}" for axis in axes)])
        ends.append(f"{value:{quantity.number}} ({where})")
    gone = len(cells) - len(valued)
    cells_ = "cell has" if gone == 1 else "cells have"
    return f"{quantity.title} from {' to '.join(ends)}." + (f" {gone} {cells_} no value." if gone else "")


def range_of_numbers(numbers: Sequence[str]) -> str:
    """`1.2 to 3.4`, or one number where all read the same."""
    ordered = sorted(set(numbers), key=lambda number: float(number.replace(",", "")))
    return " to ".join(dict.fromkeys((ordered[0], ordered[-1])))
