"""A quantity over one numeric axis: a line for each combination of the other factors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from analysis.charts import Figure
from analysis.charts import _sweep_words as words
from analysis.charts._quantities import Quantity, fitted
from analysis.charts._style import styles
from analysis.charts._sweep import Axis, Cell, Sweep, sweep
from analysis.charts._sweep_plot import Plot, spec
from analysis.charts._values import capital
from analysis.stats import grouped

if TYPE_CHECKING:
    from analysis.charts import Row, Styles

MOST = 12  # lines that can be told apart; of more, the outermost have colour and name
_SPREAD = 20  # of values, from which their axis is logarithmic
_CLAUSES = 2  # lines of which a figure's finding says where they end


def lines(quantity: Quantity) -> Callable[[list[Row], Styles], Figure | None]:
    """How a chart file builds the figure of a quantity."""
    return lambda rows, _styles: figure(rows, quantity)


def figure(rows: list[Row], quantity: Quantity, note: str = "") -> Figure | None:
    """Draw a quantity over the axis with the most values; None if no run has it.

    Args:
        rows: the answer to SWEEP_RUNS.
        note: what to say first.
    """
    if not rows:
        return None
    found = sweep(rows, quantity.estimates)
    return over(found, found.by([found.axes[0]]), quantity, note)


def over(found: Sweep, every: dict[str, list[Cell]], quantity: Quantity, note: str = "") -> Figure | None:
    """Draw lines over the first axis of a sweep; None if no cell of theirs has a value.

    Args:
        every: the cells of each line, by its name.
    """
    x = found.axes[0]
    every = {name: sorted(line, key=lambda cell: cell.at[x.name]) for name, line in every.items()}
    cells = [cell for line in every.values() for cell in line]
    if not any(cell.estimate for cell in cells):
        return None
    quantity = fitted(quantity, (cell.estimate for cell in cells if cell.estimate))
    shown = every if len(every) <= MOST else outermost(every, x)
    quiet = {name: line for name, line in every.items() if name not in shown}
    plot = Plot(x, shown, quiet, styles(list(shown)), quantity, *_span(cells, quantity))
    return Figure(
        spec=spec(plot),
        caption=_caption(plot),
        description=f"Line plot over {x.title}: {words.description(cells, found.axes, quantity)}",
        interval=words.interval(cells),
        used=frozenset(run for cell in cells if cell.estimate for run in cell.shown),
        title=f"{capital(quantity.name)} over {x.title}",
        note=" ".join([note, *words.notes(found), *_nowhere(plot)]).strip() or None,
        finding=_finding(plot),
        table=words.table(found, quantity),
    )


def outermost(every: dict[str, list[Cell]], x: Axis) -> dict[str, list[Cell]]:
    """The lines that are the highest or the lowest at the ends or in the middle of the axis."""
    found = set()
    for at in _looked_at(x):
        here = {
            name: cell.estimate.median
            for name, line in every.items()
            for cell in line
            if cell.estimate and cell.at[x.name] == at
        }
        if here:
            found |= {end(here, key=lambda name: here[name]) for end in (min, max)}
    return {name: line for name, line in every.items() if name in found}


def _looked_at(x: Axis) -> list[float]:
    return [x.values[0], x.values[len(x.values) // 2], x.values[-1]]


def _span(cells: list[Cell], quantity: Quantity) -> tuple[float, float, bool]:
    """The ends of the vertical axis, and whether it is logarithmic."""
    known = [cell.estimate for cell in cells if cell.estimate]
    ends = [end for it in known for end in (it.median, it.low, it.high) if end is not None]
    low, high, medians = min(ends), max(ends), [it.median for it in known]
    if low > 0 and max(medians) > _SPREAD * min(medians):
        return low / 1.15, high * 1.15, True
    room = 0.05 * ((high - low) or abs(high) or 1)
    return (0.0 if quantity.zero and low >= 0 else low - room), high + room, False


def _nowhere(plot: Plot) -> list[str]:
    """Which lines have no value at all, nor a row below the axis."""
    gone = [name for name in plot.lines if name not in plot.strip and name not in plot.valued]
    ended = grouped(gone, lambda name: plot.lines[name][0].word)
    return [f"No value at all: {'; '.join(names)} ({word})." for word, names in ended.items()]


def _caption(plot: Plot) -> str:
    said = [plot.quantity.what, *_marks(plot)]
    if any(len(line) > 1 for line in plot.lines.values()):
        said.append("Lines join neighbouring values that were measured; nothing was measured in between.")
    if plot.quiet:
        said.append(_crowd(plot))
    if len(plot.lines) > 1:
        said.append("Marks of different lines at the same value are drawn side by side.")
    logarithmic = [
        title for title, log in ((plot.x.title, plot.x.base), (plot.quantity.name, plot.log)) if log
    ]
    if logarithmic:
        said.append(f"Logarithmic: {' and '.join(logarithmic)}.")
    if not plot.log and plot.low != 0:
        said.append("The vertical axis does not start at zero.")
    if plot.strip:
        said.append(f"Crosses below the axis: {plot.quantity.gone}.")
    return " ".join([*said, *words.abbreviations(cell for line in plot.lines.values() for cell in line)])


def _marks(plot: Plot) -> list[str]:
    """What is drawn, no more: a mark may have no interval."""
    mark = f"Each mark is {plot.quantity.numbers}"
    without = [point["low"] is None for point in plot.points]
    if all(without):
        return [f"{mark}."]
    return [f"{mark}, the bar its interval.", *(["Without a bar: no interval."] if any(without) else [])]


def _crowd(plot: Plot) -> str:
    """What is done where there are too many lines, and what the grey ones leave out."""
    at = [plot.x.text(value) for value in _looked_at(plot.x)]
    said = (
        f"Of {len(plot.lines) + len(plot.quiet)} lines, those that are the highest or the lowest at "
        f"{plot.x.title} {at[0]}, {at[1]} or {at[2]} have a colour and a name. The others are grey, without "
        "their intervals, and darker where several overlap: pointer and arrow keys name each, and the "
        "table has all."
    )
    gone = sum(not cell.estimate for line in plot.quiet.values() for cell in line)
    cells = "1 cell of a grey line has" if gone == 1 else f"{gone} cells of the grey lines have"
    return f"{said} {cells} no value." if gone else said


def _finding(plot: Plot) -> str | None:
    """The last value against the first on lines that have both; None if any line's intervals overlap."""
    first, last = plot.x.values[0], plot.x.values[-1]
    pairs = [
        (line[0].estimate, line[-1].estimate)
        for line in (*plot.lines.values(), *plot.quiet.values())
        if (line[0].at[plot.x.name], line[-1].at[plot.x.name]) == (first, last)
    ]
    known = [(a, b) for a, b in pairs if a and b]
    if not known or any(words.overlap(a, b) for a, b in known):
        return None
    observed = "Observed: " if any(1 in (a.n, b.n) for a, b in known) else ""
    name = plot.quantity.name if observed else capital(plot.quantity.name)
    if plot.quantity.zero:
        by = words.between([_times(b.median / a.median) for a, b in known]) + " times that at"
    else:
        by = words.between([f"{b.median - a.median:+.2g}" for a, b in known]) + " against that at"
    where = f"{name} at {plot.x.title} {plot.x.text(last)}: {by} {plot.x.text(first)}"
    return "; ".join([observed + where, *_ends(plot)])


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"


def _ends(plot: Plot) -> list[str]:
    """From where on lines have no value, if that is all that happened to them, and there are few of them."""
    said = []
    for name in plot.strip:
        words_ = [cell.word for cell in plot.lines[name]]
        start = next(place for place, word in enumerate(words_) if word)
        if (
            start
            and len(set(words_[start:])) == 1
            and not any(cell.estimate for cell in plot.lines[name][start:])
        ):
            said.append(f"{name}: {words_[start]} from {plot.x.of(plot.lines[name][start])}")
    return said if len(said) <= _CLAUSES else []
