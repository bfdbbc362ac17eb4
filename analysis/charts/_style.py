"""What every chart shares: a look for each label, the ends of axes, and a configuration for both themes.

Text and rules are drawn in `currentColor`, the page's text colour: one SVG serves light, dark and print.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import altair as alt

# At least 3:1 against the pages' light and dark paper, and as far apart as that allows, also to eyes that
# lack red or green cones. Where colours come again, dash and shape differ.
COLOURS = (
    "#1766E1", "#C47200", "#009A66", "#C050A5", "#C23A12", "#4C8FD9",
    "#736A66", "#FA5A78", "#7850B4", "#A08CA0", "#FA46D2", "#8C6EFA",
)  # fmt: skip
_DASHES = ((1, 0), (7, 3), (2, 2), (9, 3, 2, 3))
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
INK = "currentColor"
LONGEST_NAME = 230  # pixels, beyond which a name is cut: pages write a number there, and the names below
QUIET = 0.5  # opacity of what is drawn in grey: 3:1 against light and dark paper


@dataclass(frozen=True)
class Style:
    """How a label is drawn on every figure of a report."""

    colour: str
    dash: tuple[int, ...]
    shape: str


def styles(labels: Sequence[str], absent: Collection[str] = ()) -> dict[str, Style]:
    """A style for each label, in their order; the colour alone never tells two apart.

    A turn of the colours shifts the dashes by one: 48 labels before two lines look the same.

    Args:
        labels: all groups of the study.
        absent: those that are on no figure: they take no colour that another could have.
    """
    made = {}
    for index, label in enumerate(sorted(labels, key=lambda label: label in absent)):
        turn, place = divmod(index, len(COLOURS))
        shape = _SHAPES[(place + turn) % len(_SHAPES)]
        made[label] = Style(COLOURS[place], _DASHES[(place + turn) % len(_DASHES)], shape)
    return {label: made[label] for label in labels}


def styles_for(labels: Collection[str], styles: dict[str, Style]) -> dict[str, Style]:
    """The styles of these labels alone, in the study's order."""
    return {label: style for label, style in styles.items() if label in labels}


def colours(styles: dict[str, Style], legend: alt.Legend | None = None) -> alt.Color:
    """The colour of a mark's label; without a legend if the labels are written beside the marks."""
    import altair as alt

    scale = alt.Scale(domain=list(styles), range=[style.colour for style in styles.values()])
    return alt.Color("label:N", scale=scale, legend=legend)


def shapes(styles: dict[str, Style], legend: alt.Legend | None = None) -> alt.Shape:
    """The shape of a mark's label; without a legend if the labels are written beside the marks."""
    import altair as alt

    scale = alt.Scale(domain=list(styles), range=[style.shape for style in styles.values()])
    return alt.Shape("label:N", scale=scale, legend=legend)


def dashes(styles: dict[str, Style]) -> alt.StrokeDash:
    """The dash of a line's label."""
    import altair as alt

    scale = alt.Scale(domain=list(styles), range=[list(style.dash) for style in styles.values()])
    return alt.StrokeDash("label:N", scale=scale, legend=None)


def right_edge(end: int = 1) -> Any:
    """The right end of the plot, wherever the page's width puts it; `end` 2 for the second end of a rule."""
    import altair as alt

    kind: Any = alt.XValue if end == 1 else alt.X2Value
    return kind("width")


def inline(rows: list[dict[str, Any]]) -> alt.Chart:
    """A chart of inline rows: the SQL bounds their number, so Altair's own limit is not needed.

    They are a tuple, because Altair would copy each row of a list, several times a figure.
    """
    import altair as alt

    return alt.Chart(alt.InlineData(values=tuple(rows)))


def packed(rows: list[dict[str, Any]], *shared: str) -> alt.Chart:
    """A chart like `inline` with what many rows share written once: 10,000 points are a third of the size.

    Args:
        shared: columns by which the rows are packed; the others become lists, which the browser takes apart.
    """
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    lists: list[Any] = [name for name in rows[0] if name not in shared]
    for row in rows:
        key = tuple(row[name] for name in shared)
        group = groups.setdefault(key, dict(zip(shared, key, strict=True)))
        for name in lists:
            group.setdefault(name, []).append(row[name])
    return inline(list(groups.values())).transform_flatten(lists)


def vega_lite(layers: Sequence[Any], height: int, top: int) -> dict[str, Any]:
    """The layers as Vega-Lite, as wide as the page, with the configuration of every figure.

    As `alt.layer` gives them, which takes three times as long, because it copies each layer several times.
    Only the width follows the page: fitting the height too would squeeze a figure's rows.

    Args:
        height: of the plot, in pixels.
        top: pixels above it.
    """
    parts = [layer.to_dict(validate=False) for layer in layers]
    datasets = {name: list(rows) for part in parts for name, rows in part.pop("datasets", {}).items()}
    _, schema = ([part.pop(name) for part in parts] for name in ("config", "$schema"))
    axis = {
        "labelColor": INK, "titleColor": INK, "tickColor": INK, "domainColor": INK, "gridColor": INK,
        "gridOpacity": 0.13, "domainOpacity": 0.6, "tickOpacity": 0.6, "labelOpacity": 0.85,
        "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "titlePadding": 8,
    }  # fmt: skip
    config = {
        "font": FONT,
        "background": None,
        "view": {"stroke": None},
        "axis": axis,
        "axisY": {"domain": False, "ticks": False},
        "text": {"color": INK, "fontSize": 12},
        "rule": {"color": INK},
    }
    return {
        "config": config,
        "layer": parts,
        "height": height,
        "width": "container",
        "$schema": schema[0],
        "datasets": datasets,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "padding": {"left": 2, "top": top, "right": 2, "bottom": 4},
    }


_TICKS = 5
_APART = 0.5  # values below this share of the largest need an axis from zero: else it would show little else
_LEAST = 0.02  # of the largest value: an axis spans at least this, or tiny differences would look large


def axis_ends(values: Iterable[float], zero: bool) -> tuple[float, float]:
    """The first and last value of an axis over these values, all of one sign or none.

    Args:
        values: at least one.
        zero: whether it must start at zero. Otherwise it starts near the smallest value, but only where the
            values are so close to each other that they would all lie at the far end.
    """
    low, high = min(listed := list(values)), max(listed)
    if zero or low <= _APART * high:
        return round_ends(min(low, 0.0), max(high, 0.0))
    room = max(0.08 * (high - low), (_LEAST * high - (high - low)) / 2)
    return round_ends(low - room, high + room)


def round_ends(low: float, high: float) -> tuple[float, float]:
    """The nearest round numbers outside of the two."""
    high = high if high > low else low + (abs(low) or 1.0)
    # The next of 1, 2, 5, 10, ... at or above a tenth of an order of magnitude below the step.
    wanted = (high - low) / _TICKS
    size = 10.0 ** floor(log10(wanted))
    step = next(size * part for part in (1, 2, 5, 10) if size * part >= 0.9 * wanted)
    return _times(floor(low / step + 1e-9), step), _times(ceil(high / step - 1e-9), step)


def _times(count: int, step: float) -> float:
    return round(count * step, 12)
