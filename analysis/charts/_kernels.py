"""Attention alone, as figures take it apart: backends at shapes, and shapes that differ in one thing only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from analysis import stats
from analysis.stats.paired import RUNS, Ratio, paired_rounds
from model.record.case import FP8
from model.record.outcome import OUT_OF_MEMORY
from model.record.units import counted

if TYPE_CHECKING:
    from analysis.charts import Row

Shape = tuple[Any, ...]  # the values of SHAPE
SHAPE = (
    *("batch", "sequence_length", "heads", "kv_heads", "head_dim", "causal", "dtype", "device"),
    *("dropout", "tile_queries", "tile_keys"),
)
MODES = {  # of calling
    "graph": "Replayed from CUDA graphs, which leave the host's share out",
    "eager": "Called from Python, eagerly",
}
UNMASKED = "both, without a mask"
OTHER_SHAPE = "at a shape that the figure does not show"  # why a completed run is not in it
_NO_GRAPH = "no graph"  # of what runs eagerly, but is nothing that a CUDA graph can hold


@dataclass(frozen=True)
class Point:
    """One backend at one shape.

    Its methods are about the main direction and the mode of the study's figures, where none is given.

    Attributes:
        shape: the values of SHAPE; `causal` is None of both masks together.
        mode: in which the study's figures show it.
        calls: by direction and mode, one row a run.
    """

    attention: str
    shape: dict[str, Any]
    mode: str
    calls: dict[tuple[str, str], list[Row]]

    @property
    def main_direction(self) -> str:
        """The direction that stands for all of a call: of 8 bits there is a forward alone."""
        return "forward" if self.shape["dtype"] == FP8 else "both"

    def rows(self, direction: str = "", mode: str = "") -> list[Row]:
        """One a run."""
        return self.calls.get((direction or self.main_direction, mode or self.mode), [])

    def time(self, direction: str = "", mode: str = "") -> stats.Estimate | None:
        """Milliseconds of a call: over runs, or within the only one."""
        rows = [row for row in self.rows(direction, mode) if row["milliseconds"] is not None]
        if not rows:
            return None
        if len(rows) > 1:
            return stats.over_runs([row["milliseconds"] for row in rows]).telling
        (only,) = rows
        how = f"95 % interval between order statistics of {only['calls']} calls in one process"
        if only["milliseconds_low"] is None:
            how = f"no interval: {counted(only['calls'], 'call')} in one process"
        return stats.Estimate(
            only["milliseconds"], only["milliseconds_low"], only["milliseconds_high"], 1, how
        )

    def median(self, column: str, direction: str = "", mode: str = "") -> float | None:
        """The median over runs of another column; None where no run has it."""
        values = [float(row[column]) for row in self.rows(direction, mode) if row[column] is not None]
        return stats.over_runs(values).median if values else None

    def rate(self, direction: str = "") -> stats.Estimate | None:
        """Kernel TFLOP/s."""
        time, tflops = self.time(direction), self.median("tflops", direction)
        if time is None or tflops is None:
            return None
        return time.map(lambda milliseconds: tflops * time.median / milliseconds)

    def gone(self, direction: str = "", mode: str = "") -> dict[str, int]:
        """How runs without a time ended, in a word, and how many."""
        eager = {row["run_id"] for row in self.rows(direction, "eager") if row["outcome"] == "completed"}
        endings = Counter[str]()
        for row in self.rows(direction, mode):
            if row["outcome"] == "unsupported" and row["run_id"] in eager:
                endings[_NO_GRAPH] += 1
            elif row["outcome"] != "completed":
                endings["OOM" if row["outcome"] in OUT_OF_MEMORY else row["outcome"]] += 1
        return dict(endings)

    @property
    def runs(self) -> tuple[str, ...]:
        """Ids of its runs."""
        return tuple(dict.fromkeys(row["run_id"] for rows in self.calls.values() for row in rows))

    @property
    def width(self) -> int:
        """Heads x head dim, which a model calls its embedding dim."""
        return int(self.shape["heads"] * self.shape["head_dim"])

    @property
    def tile(self) -> str:
        """`128 x 64`, queries and keys of its tiles where the run chose them; else empty."""
        queries, keys = self.shape["tile_queries"], self.shape["tile_keys"]
        return f"{queries} x {keys}" if keys else ""

    @property
    def queries_per_key(self) -> int:
        """Query heads for each key head."""
        return int(self.shape["heads"] // self.shape["kv_heads"])


@dataclass(frozen=True)
class Lead:
    """How a backend stands beside the others at a shape.

    Attributes:
        next_best: the fastest other: the one over which it gains least.
        ratio: how many times as fast as that one it is.
        doubt: another from which it is not told, and the ratio over that one, whose interval does not lie
            above 1: of several the one over which it gains least. None where it is faster than each of them.
    """

    next_best: Point
    ratio: Ratio
    doubt: tuple[Point, Ratio] | None

    @property
    def clear(self) -> bool:
        """Whether it is faster than each of the others, by the interval of its ratio over that one."""
        return self.doubt is None


@dataclass(frozen=True)
class ShapeAxis:
    """An axis of shapes, and what stays the same along it.

    Attributes:
        value: of a point.
        fixed: what has to be equal, in words by their order, in one way or several.
        of_tiles: whether it is about the size of tiles, where the run chose one.
    """

    title: str
    value: Callable[[Point], float]
    fixed: tuple[Callable[[Point], dict[str, Hashable]], ...]
    of_tiles: bool = False


@dataclass
class Series:
    """The points of all backends along one axis.

    Attributes:
        fixed: what they share, in words.
    """

    fixed: str
    points: list[Point] = field(default_factory=list)


def speed_over(point: Point, other: Point, direction: str = "", mode: str = "") -> Ratio | None:
    """How many times as fast a backend is as another, paired by round; of several runs, the median over them.

    None where no process called both.
    """
    own, theirs = (
        {row["run_id"]: row["seconds"] for row in side.rows(direction, mode) if row["seconds"]}
        for side in (point, other)
    )
    ratios = [paired_rounds(own[run], theirs[run]) for run in own if run in theirs]
    if len(ratios) < 2:
        return ratios[0] if ratios else None
    estimate = stats.over_runs([ratio.ratio for ratio in ratios])
    ends = estimate.low, estimate.high
    return Ratio(estimate.median, *ends, estimate.n, RUNS, estimate.method, estimate.is_range)


def lead(point: Point, among: Sequence[Point], direction: str = "", mode: str = "") -> Lead | None:
    """How a backend stands beside the others; None without any, and where no process called both."""
    others = [other for other in among if other is not point]
    ratios = [speed_over(point, other, direction, mode) for other in others]
    pairs = [(ratio, other) for ratio, other in zip(ratios, others, strict=True) if ratio]
    if not pairs or len(pairs) < len(others):
        return None
    pairs.sort(key=lambda pair: pair[0].ratio)
    least, next_best = pairs[0]
    in_doubt = ((other, ratio) for ratio, other in pairs if ratio.low is None or ratio.low <= 1)
    return Lead(next_best, least, next(in_doubt, None))


def points(rows: list[Row]) -> list[Point]:
    """By backend and shape; in CUDA graphs where a study has any, else called eagerly."""
    mode = mode_of(rows)
    groups = stats.grouped(rows, lambda row: (row["attention"], _shape_key(row)))
    call = itemgetter("direction", "mode")
    return [
        Point(name, dict(zip(SHAPE, shape, strict=True)), mode, stats.grouped(point_rows, call))
        for (name, shape), point_rows in groups.items()
    ]


def how_called(rows: list[Row]) -> str:
    """How the calls of the figures were made, for a caption."""
    return MODES[mode_of(rows)].partition(", which")[0]


def mode_of(rows: list[Row]) -> str:
    """`graph` where anything was timed so, else `eager`."""
    return "graph" if any(row["mode"] == "graph" and row["milliseconds"] for row in rows) else "eager"


def backend_names(shown: list[Point]) -> list[str]:
    """The backends, those with a time first: figures of a report give each the same colour."""
    timed = {point.attention for point in shown if has_time(point)}
    return sorted({point.attention for point in shown}, key=lambda name: (name not in timed, name))


def has_time(point: Point) -> bool:
    """Whether any of its runs was timed."""
    return point.time("forward") is not None


def series_along(
    shown: list[Point], axis: ShapeAxis, fewest: int = 3, has_value: Callable[[Point], bool] = has_time
) -> list[Series]:
    """The points along an axis, for everything that they can share: the one with the most to show first.

    Args:
        fewest: values on the axis that make a slice.
        has_value: whether there is anything to show of a point.
    """
    masks = {True: "causal", False: "no mask", None: "causal and without a mask"}
    every: dict[str, Series] = {}
    for fixed in axis.fixed:
        for point in shown:
            if axis.of_tiles and not point.tile:
                continue
            same = fixed(point) | _unusual(point, with_tile=not axis.of_tiles)
            same |= {masks[point.shape["causal"]]: None, point.shape["dtype"]: None}
            shared = _listed(same | {point.shape["device"] or "unknown device": None})
            every.setdefault(shared, Series(shared)).points.append(point)

    def interest(part: Series) -> tuple[float, ...]:
        """Most values, and of these most backends; then causal, then head dim 128, which most models have."""
        shape = part.points[0].shape
        largest = max(point.shape["batch"] * point.shape["sequence_length"] ** 2 for point in part.points)
        return (
            len({axis.value(point) for point in part.points if has_value(point)}),
            sum(map(has_value, part.points)),
            shape["causal"],
            shape["head_dim"] == 128,
            largest,
        )

    whole = [part for part in every.values() if len({axis.value(point) for point in part.points}) >= fewest]
    return sorted(whole, key=interest, reverse=True)


def _unusual(point: Point, with_tile: bool = True) -> dict[str, Hashable]:
    """What most shapes do not have: fewer key heads than query heads, a chosen tile, and dropout."""
    unusual: dict[str, Hashable] = {}
    if point.queries_per_key > 1:
        unusual["query heads for each key head"] = point.queries_per_key
    if point.tile and with_tile:
        unusual["tiles of"] = point.tile
    if point.shape["dropout"]:
        unusual["dropout"] = point.shape["dropout"]
    return unusual


def _listed(fixed: dict[str, Hashable]) -> str:
    """`16 heads, head dim 128, causal, bfloat16`."""
    texts = {name: f"{value:,}" if isinstance(value, int) else value for name, value in fixed.items()}
    return ", ".join(name if text is None else f"{name} {text}" for name, text in texts.items())


def sizes(*what: str) -> Callable[[Point], dict[str, Hashable]]:
    """What gives these sizes of a point in words: columns, `tokens` and `width`."""

    def of(point: Point) -> dict[str, Hashable]:
        columns = point.shape | {
            "tokens": point.shape["batch"] * point.shape["sequence_length"],
            "width": point.width,
        }
        return {_SIZES[name]: columns[name] for name in what}

    return of


_SIZES = {
    "batch": "batch",
    "sequence_length": "sequence length",
    "heads": "heads",
    "head_dim": "head dim",
    "tokens": "batch x sequence length",
    "width": "heads x head dim",
}
SEQUENCE = ShapeAxis(
    "sequence length",
    lambda point: float(point.shape["sequence_length"]),
    (sizes("tokens", "heads", "head_dim"), sizes("batch", "heads", "head_dim")),
)
BATCH = ShapeAxis(
    "batch", lambda point: float(point.shape["batch"]), (sizes("sequence_length", "heads", "head_dim"),)
)
HEADS = ShapeAxis(
    "heads", lambda point: float(point.shape["heads"]), (sizes("batch", "sequence_length", "width"),)
)
WIDTH = ShapeAxis(
    "embedding dim (heads x head dim)",
    lambda point: float(point.width),
    (sizes("batch", "sequence_length", "head_dim"), sizes("batch", "sequence_length", "heads")),
)
HEAD_DIM = ShapeAxis(
    "head dim", lambda point: float(point.shape["head_dim"]), (sizes("batch", "sequence_length", "heads"),)
)


_ALL_SIZES = sizes("batch", "sequence_length", "heads", "head_dim")


def _square(point: Point) -> dict[str, Hashable]:
    """Tiles with as many queries as keys, of which both grow together; every other is alone."""
    square = point.shape["tile_queries"] == point.shape["tile_keys"]
    return _ALL_SIZES(point) | {
        "as many queries as keys in a tile" if square else f"tiles of {point.tile}": None
    }


TILE_KEYS = ShapeAxis(
    "keys of a tile",
    lambda point: float(point.shape["tile_keys"]),
    (lambda point: _ALL_SIZES(point) | {"queries of a tile": point.shape["tile_queries"]}, _square),
    of_tiles=True,
)
TILE_QUERIES = ShapeAxis(
    "queries of a tile",
    lambda point: float(point.shape["tile_queries"]),
    (lambda point: _ALL_SIZES(point) | {"keys of a tile": point.shape["tile_keys"]},),
    of_tiles=True,
)


def main_shape(shown: list[Point]) -> list[Point]:
    """The backends at the shape that most were timed at: of several, by mask, size and tile's time."""

    def weight(alike: list[Point]) -> tuple[float, ...]:
        shape = alike[0].shape
        size = shape["batch"] * shape["heads"] * shape["sequence_length"] ** 2 * shape["head_dim"]
        times = [time.median for point in alike if (time := point.time())]
        slowness = min(times, default=0.0) if alike[0].tile else 0.0
        return len(times), shape["causal"], size, -slowness

    return max(stats.grouped(shown, shape_key).values(), key=weight, default=[])


def in_letters(shape: dict[str, Any]) -> str:
    """The sizes of a shape as one writes them: `B1 T16384 H16 D128`, with key heads where they are fewer."""
    keys = "" if shape["kv_heads"] == shape["heads"] else f" K{shape['kv_heads']}"
    return f"B{shape['batch']} T{shape['sequence_length']} H{shape['heads']}{keys} D{shape['head_dim']}"


def shape_in_words(point: Point) -> str:
    """A shape in words, without the device."""
    mask = "causal" if point.shape["causal"] else "no mask"
    return f"{_listed(_ALL_SIZES(point) | _unusual(point))}, {mask}, {point.shape['dtype']}"


def both_masks(shown: list[Point]) -> list[Point]:
    """Each causal point with the rows of the same one without a mask, whose direction is UNMASKED."""
    by_shape = {(point.attention, shape_key(point)): point for point in shown}
    both = []
    for point in shown:
        other = by_shape.get((point.attention, _shape_key(point.shape | {"causal": False})))
        if point.shape["causal"] and other:
            unmasked = {(UNMASKED, mode): rows for (way, mode), rows in other.calls.items() if way == "both"}
            shape = point.shape | {"causal": None}
            both.append(Point(point.attention, shape, point.mode, point.calls | unmasked))
    return both


def shapes_or_cases(shown: Sequence[Point]) -> str:
    """`shape`, or `case` where points that share one differ in their mask, precision, dropout or tiles."""
    letters = {in_letters(point.shape) for point in shown}
    return "case" if len(letters) < len(set(map(shape_key, shown))) else "shape"


def shape_key(point: Point) -> Shape:
    """A point's shape, to look it up."""
    return _shape_key(point.shape)


def _shape_key(shape: dict[str, Any]) -> Shape:
    return tuple(shape[name] for name in SHAPE)
