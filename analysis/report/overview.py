"""The first page of a report: a line of the table for each group, and four small figures above it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any, NamedTuple

from analysis.report.answer.headline import in_times
from analysis.report.render import interval
from analysis.stats import Estimate, by_label
from analysis.stats.equivalence import TESTS
from analysis.verdicts.values import shown_outcome
from analysis.wording import UNKNOWN, listed, number
from model.record.outcome import Outcome
from model.record.units import duration

if TYPE_CHECKING:
    from analysis.charts import Row, Styles
    from analysis.report.answer.statement import VerdictRow
    from analysis.report.facts import Facts, GroupFacts
    from analysis.report.rows import Run

_MOST_BARS = 12  # of a small figure; of more groups, the six smallest and the six largest in the first one
_LONG = 14  # characters of a name, beyond which small figures have a number in its place
_VAGUE = 1.0  # the width of the interval of a ratio, beyond which it says nothing
_WIDTH, _HEIGHT = 100.0, 100.0  # of the drawing of lines, in its own units


class TableCell(NamedTuple):
    """What a table says of a group in one column.

    Attributes:
        small: beside the text in smaller print, such as its interval.
        note: what the reader must know of it; a note of several cells is written once, below the table.
        has_interval: whether `small` is an interval or a range: what these are is said once, below the table.
    """

    text: str = UNKNOWN
    small: str = ""
    note: str = ""
    has_interval: bool = False


@dataclass(frozen=True)
class GroupLine:
    """A group, with everything that was computed of it.

    Attributes:
        runs: all that were planned.
        rate, loss: verdicts on its difference from its baseline; None where it has none.
        scaling: the efficiency of each curve that it is on.
        is_baseline: whether others are compared with it.
    """

    group: GroupFacts
    runs: Sequence[Run]
    rate: VerdictRow | None
    loss: VerdictRow | None
    scaling: tuple[VerdictRow, ...]
    is_baseline: bool


@dataclass(frozen=True)
class OverviewColumn:
    """A column of the table; one that says nothing of any line is left out.

    Attributes:
        cell: of what a task makes a line of: of a group, or of a backend where all are called in one run.
        is_text: whether it has words, not numbers.
    """

    head: str
    cell: Callable[[Any], TableCell]
    is_text: bool = False


@dataclass(frozen=True)
class PanelSpec:
    """One of the four small figures.

    Attributes:
        page: name of the page with the figure itself.
        value: of a group; None where it has none. Without it the figure is of lines over steps, of `chart`.
        form: format of a value; that of a duration where it is empty.
        absent: what to say where no group has a value.
        chart: name of a chart whose rows have `label`, `step` and `value`.
        instead: the figure in its place where no group has a value.
        kind: a word after a group's value, where values of several kinds are side by side.
    """

    title: str
    page: str
    value: Callable[[Any], Estimate | None] | None = None
    form: str = ",.0f"
    absent: str = "No run has this."
    chart: str = ""
    instead: PanelSpec | None = None
    kind: Callable[[Any], str] = lambda _line: ""


class Bar(NamedTuple):
    """A group in a small figure; its ends are in percent of the figure's width."""

    label: str
    place: int
    text: str
    colour: str
    end: float
    low: float | None
    high: float | None


class PanelCurve(NamedTuple):
    """A group's line in a small figure: points of its path, from the left and from the top."""

    labels: tuple[str, ...]
    colour: str
    dash: str
    points: str


@dataclass(frozen=True)
class Panel:
    """A small figure, ready for a page: bars or lines, or a reason why there are none.

    Attributes:
        left_out: how many groups it does not show, because they lie between those that it does; in the figure
            of title `by`, where that is another one.
        ranges: how many lines on bars are the range of the runs, and no interval.
        ends: what the axes of lines end at: first and last step, smallest and largest value.
        description: of lines, for readers who cannot see them; bars are text.
    """

    title: str
    page: str
    bars: tuple[Bar, ...] = ()
    curves: tuple[PanelCurve, ...] = ()
    absent: str = ""
    left_out: int = 0
    by: str = ""
    ranges: int = 0
    ends: tuple[str, str, str, str] | None = None
    description: str = ""


@dataclass(frozen=True)
class Overview:
    """The table and the small figures.

    Attributes:
        lines: a cell for each of `columns`, with the letter of its note, by what names the line.
        notes: below the table, by letter.
        numbered: whether lines have numbers, by which the figures name them: their names are long.
        has_intervals: whether a cell has an interval.
    """

    columns: tuple[OverviewColumn, ...]
    lines: dict[str, tuple[tuple[TableCell, str], ...]]
    notes: dict[str, str]
    panels: tuple[Panel, ...]
    numbered: bool
    has_intervals: bool


def overview(
    lines: Mapping[str, Any],
    columns: Sequence[OverviewColumn],
    panels: Sequence[PanelSpec],
    chart_rows: Mapping[str, Sequence[Row]],
    styles: Styles,
) -> Overview:
    """The table and the figures of a study.

    Args:
        lines: what the columns and figures take their values from, by what names the line.
        chart_rows: answers to the queries of the charts that panels name.
    """
    cells = {name: [column.cell(line) for column in columns] for name, line in lines.items()}
    told = [at for at in range(len(columns)) if any(row[at].text != UNKNOWN for row in cells.values())]
    letters: dict[str, str] = {}  # by the note
    for row in cells.values():
        for at in told:
            if row[at].note:
                turn, place = divmod(len(letters), len(ascii_lowercase))  # a to z, aa to zz
                letters.setdefault(row[at].note, ascii_lowercase[place] * (turn + 1))
    return Overview(
        columns=tuple(columns[at] for at in told),
        lines={
            name: tuple((row[at], letters.get(row[at].note, "")) for at in told)
            for name, row in cells.items()
        },
        notes={letter: note for note, letter in letters.items()},
        panels=tuple(_panels(panels, lines, chart_rows, styles)),
        numbered=any(len(name) > _LONG for name in lines),
        has_intervals=any(cell.has_interval for row in cells.values() for cell in row),
    )


def group_lines(facts: Facts, verdicts: Sequence[VerdictRow]) -> dict[str, GroupLine]:
    """Every group by its label, in the study's order."""
    planned = by_label(facts.runs)
    bases = {row.against for row in verdicts if row.about in ("rate", "loss")}
    lines = {}
    for group in facts.groups:
        own = [row for row in verdicts if row.group == group.label]
        by_kind = {row.about: row for row in own}
        lines[group.label] = GroupLine(
            group=group,
            runs=planned[group.label],
            rate=by_kind.get("rate"),
            loss=by_kind.get("loss"),
            scaling=tuple(row for row in own if row.about == "scaling"),
            is_baseline=group.label in bases,
        )
    return lines


def size(line: GroupLine) -> TableCell:
    """How many of its runs have a rate: `4 of 5`."""
    n, runs = line.group.n, line.group.runs
    return TableCell(str(n) if n == runs else f"{n} of {runs}")


def outcome(line: GroupLine) -> TableCell:
    """How a group's runs ended, with the reason of those that did not complete.

    How many completed is not said again beside the same number with a rate, which is a column of its own.
    """
    ends = Counter(map(shown_outcome, line.runs))
    several_ends = len(ends) > 1
    if several_ends and ends[Outcome.COMPLETED] == line.group.n:
        del ends[Outcome.COMPLETED]
    # A backend's own reason says which setting it lacks, whatever the study expected.
    reasons = [
        str(told)
        for run in line.runs
        if run["outcome"] not in (Outcome.COMPLETED, None)
        and (
            told := (run["outcome"] == Outcome.UNSUPPORTED and run["reason"])
            or run["because"]
            or run["reason"]
        )
    ]
    words = [
        f"{count} {end or 'not ended'}" if several_ends else end or "not ended" for end, count in ends.items()
    ]
    unexpected = any(run["outcome"] not in (None, run["expected_outcome"]) for run in line.runs)
    several = [len(run["history"]) for run in line.runs if len(run["history"]) > 1]
    again = f"{len(several)} of {len(line.runs)} in several attempts"
    if len(line.runs) == 1 and several:
        again = f"{several[0]} attempts"
    small = [*(["not expected"] if unexpected else []), *([again] if several else [])]
    return TableCell(
        ", ".join(words), ", ".join(small), "; ".join(filter(None, (*reasons[:1], attempts(line))))
    )


def attempts(line: GroupLine) -> str:
    """How the attempts of its runs ended that have several, and how long nothing ran between them."""
    notes = []
    for run in line.runs:
        history = run["history"]
        if len(history) < 2:
            continue
        gaps = [
            (after["started_at"] - before["ended_at"]).total_seconds()
            for before, after in pairwise(history)
            if after["started_at"] and before["ended_at"]
        ]
        ends = listed([attempt["outcome"] or "not ended" for attempt in history])
        pause = f", {duration(sum(gaps))} between them" if len(gaps) == len(history) - 1 else ""
        notes.append(f"{len(history)} attempts ({ends}{pause})")
    if not notes:
        return ""
    counted_once = "; training time is of the steps alone, each once" if line.group.training_seconds else ""
    return f"{listed(notes)}{counted_once}"


def time_to_train(line: GroupLine) -> TableCell:
    """Seconds of the steps alone, and of everything else beside them."""
    took, other = line.group.training_seconds, line.group.other_seconds
    if not took:
        return TableCell()
    return TableCell(_took(took.median), f"+ {_took(other)} other" if other else "", attempts(line))


def against(line: GroupLine) -> TableCell:
    """The difference from the baseline in tokens per second, with its interval."""
    if line.rate is None:
        return TableCell("baseline") if line.is_baseline else TableCell()
    known = line.rate.number
    if known and known.low is not None and known.high is not None and known.high - known.low > 100 * _VAGUE:
        return TableCell(line.rate.difference, f"no telling interval, n = {line.group.n}")
    level = " (90 %)" if TESTS in line.rate.method and line.rate.interval else ""  # all others are at 95 %
    small = f"{line.rate.interval}{level}"
    return TableCell(line.rate.difference or UNKNOWN, small, has_interval=bool(small))


def verdict(line: GroupLine) -> TableCell:
    """What that difference comes to, and why."""
    return TableCell(line.rate.verdict, "", line.rate.reason) if line.rate else TableCell()


def efficiency(line: GroupLine) -> TableCell:
    """Of the first curve that the group is on, and whether that is of strong or of weak scaling."""
    if not line.scaling:
        return TableCell()
    row = line.scaling[0]
    small = ", ".join(filter(None, (scaling_kind(line), row.interval)))
    return TableCell(row.difference.removesuffix(" of ideal") or row.verdict, small, row.reason)


def scaling_kind(line: GroupLine) -> str:
    """`strong` or `weak`, of the first curve that the group is on; the two are not compared."""
    return line.scaling[0].quantity.partition(" ")[0] if line.scaling else ""


def speedup(line: GroupLine) -> TableCell:
    """How many times as fast it is as the first group of that curve."""
    return TableCell(*in_times(line.scaling[0])) if line.scaling and line.scaling[0].speedup else TableCell()


def efficiency_estimate(line: GroupLine) -> Estimate | None:
    """The same as a number; None of the group that the others are compared with."""
    known = line.scaling[0].number if line.scaling else None
    return Estimate(known.value, known.low, known.high, line.group.n, "", known.is_range) if known else None


def loss(line: GroupLine) -> TableCell:
    """The final loss, and whether the loss differs from the baseline's."""
    cell = estimated(lambda group: group.final_loss, ".4f")(line)
    if line.loss and line.loss.kind == "different":
        return cell._replace(small=f"{cell.small} differs".strip(), note=line.loss.reason)
    return cell


def estimated(value: Callable[[GroupFacts], Estimate | None], form: str) -> Callable[[GroupLine], TableCell]:
    """The cell of an estimate of a group."""
    return lambda line: estimate_cell(value(line.group), form)


def median_cell(estimate: Estimate | None, form: str) -> TableCell:
    """Its median alone."""
    return TableCell(number(estimate.median if estimate else None, form))


def estimate_cell(estimate: Estimate | None, form: str) -> TableCell:
    """Its median, and its interval, or a range in the place of that, where there is one."""
    if not estimate:
        return TableCell()
    told = estimate.telling
    ends = "" if told.low is None else interval(told, form)
    if not ends or not told.is_range:
        return TableCell(number(told.median, form), ends, has_interval=bool(ends))
    return TableCell(
        number(told.median, form), f"range {ends}", told.method if told.n > 1 else "", has_interval=True
    )


def _took(seconds: float) -> str:
    """A duration with as many digits as any other."""
    return f"{seconds:#.3g} s" if seconds < 99.95 else duration(seconds)


def _panels(
    specs: Sequence[PanelSpec],
    lines: Mapping[str, Any],
    chart_rows: Mapping[str, Sequence[Row]],
    styles: Styles,
) -> Iterator[Panel]:
    """Figures of bars show the same groups: of many, those at both ends of the first that has too many.

    A group that has no value there is shown where it has one.
    """
    shown = [_with_values(spec, lines) for spec in specs]
    kept, by = {*lines}, ""
    for spec in shown:
        values = {
            name: value.median for name, line in lines.items() if spec.value and (value := spec.value(line))
        }
        if len(values) > _MOST_BARS:
            ordered = sorted(values, key=values.__getitem__)
            kept, by = kept - {*ordered[_MOST_BARS // 2 : -_MOST_BARS // 2]}, spec.title
            break
    for spec in shown:
        if spec.value:
            yield _bars(spec, lines, styles, kept, by)
        else:
            yield _curves(spec, chart_rows.get(spec.chart, []), styles)


def _with_values(spec: PanelSpec, lines: Mapping[str, Any]) -> PanelSpec:
    if spec.instead and spec.value and not any(map(spec.value, lines.values())):
        return _with_values(spec.instead, lines)
    return spec


def _bars(spec: PanelSpec, lines: Mapping[str, Any], styles: Styles, kept: Set[str], by: str) -> Panel:
    assert spec.value
    values = {name: value for name, line in lines.items() if (value := spec.value(line))}
    shown = {label: value for label, value in values.items() if label in kept}
    if not shown:
        absent = "Only groups that these figures leave out have this." if values else spec.absent
        return Panel(spec.title, spec.page, absent=absent)

    # From zero to the largest value or end of an interval, so that lengths are as the values.
    told = {label: value.telling for label, value in shown.items()}
    most = max(max(value.median, value.high or 0.0) for value in told.values())
    scale = 100.0 / most if most > 0 else 0.0
    bars = []
    for place, label in enumerate(lines, start=1):
        if label not in shown:
            continue
        value = told[label]
        low, high = (
            None if end is None else round(max(0.0, scale * end), 2) for end in (value.low, value.high)
        )
        text = number(value.median, spec.form) if spec.form else _took(value.median)
        text = f"{text} {spec.kind(lines[label])}".rstrip()
        end = round(max(0.0, scale * value.median), 2)
        bars.append(Bar(label, place, text, styles[label].colour, end, low, high))
    ranges = sum(value.is_range and value.n > 1 for value in told.values())
    left_out, by = len(values) - len(shown), "" if by == spec.title else by
    return Panel(spec.title, spec.page, tuple(bars), left_out=left_out, by=by, ranges=ranges)


def _curves(spec: PanelSpec, rows: Sequence[Row], styles: Styles) -> Panel:
    groups = [row for row in rows if row["kind"] == "group" and row["value"] is not None]
    if not groups:
        return Panel(spec.title, spec.page, absent=spec.absent)
    steps, values = [row["step"] for row in groups], sorted(row["value"] for row in groups)
    # The first steps of a training are far above the rest: the axis ends where 95 % of the values are below.
    first, last, low, high = min(steps), max(steps), values[0], values[int(0.95 * (len(values) - 1))]
    wide, tall = max(last - first, 1), max(high - low, 1e-9)
    paths: dict[str, list[str]] = {}
    for label, own in by_label(groups).items():
        path = " ".join(
            f"{_WIDTH * (row['step'] - first) / wide:.1f},"
            f"{_HEIGHT - _HEIGHT * min(1.0, (row['value'] - low) / tall):.1f}"
            for row in own
        )
        paths.setdefault(path, []).append(label)
    curves = tuple(
        PanelCurve(tuple(labels), styles[labels[0]].colour, " ".join(map(str, styles[labels[0]].dash)), path)
        for path, labels in paths.items()
    )
    return Panel(
        spec.title,
        spec.page,
        curves=curves,
        ends=(f"{first:,d}", f"{last:,d}", f"{low:.3g}", f"{'≥ ' * (values[-1] > high)}{high:.3g}"),
        description=f"{spec.title}, steps {first:,d} to {last:,d}, down to {low:.4g}.",
    )
