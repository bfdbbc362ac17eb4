"""Attention alone: calls of every backend at each shape, and the table of all shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from analysis.charts._kernels import (
    MODES,
    Lead,
    Point,
    backend_names,
    in_letters,
    lead,
    main_shape,
    points,
    shape_key,
)
from analysis.report.answer import AnswerParts, calls, limits, ran
from analysis.report.overview import OverviewColumn, PanelSpec, TableCell, estimate_cell, median_cell
from analysis.report.rows import Run
from analysis.report.tasks import Cite, ReportTask, RunColumn, WriteupParts
from analysis.report.tasks._llama import gib
from analysis.report.topics import Setting, SetupTopic, changed, lines, plain, setting, whole
from analysis.stats import Estimate, grouped
from analysis.wording import UNKNOWN, decimals, group_name
from model.record.backends import described
from model.record.case import Case
from model.record.config import RunConfig
from model.record.kernels import DIRECTIONS
from model.record.outcome import OUT_OF_MEMORY, Outcome
from model.record.traffic import uncovered
from model.record.units import counted

if TYPE_CHECKING:
    from analysis.charts import Row
    from analysis.report.answer.statement import VerdictRow
    from analysis.report.facts import Facts

_SIZES = {
    "batch": "batch",
    "sequence_length": "sequence length",
    "heads": "heads",
    "kv_heads": "key heads",
    "head_dim": "head dim",
}


@dataclass(frozen=True)
class ShapeCell:
    """A backend at a shape, in one direction.

    Attributes:
        milliseconds, tflops: of the median call; None without a time.
        host: milliseconds until the median call returned on the host; None in CUDA graphs and on a CPU.
        lead: over the fastest other backend; None where there is no other, or no rounds in common.
        gone: how runs without a time ended, in words; empty where it was not called either.
    """

    milliseconds: float | None = None
    tflops: float | None = None
    host: float | None = None
    lead: Lead | None = None
    gone: str = ""

    @property
    def form(self) -> str:
        """The format of its ratio: no end of the interval rounds onto 1."""
        ratio = self.lead and self.lead.ratio
        if not ratio or ratio.low is None or ratio.high is None:
            return ".3f"
        return f".{decimals((ratio.low - 1, ratio.high - 1), None, 3)}f"


@dataclass(frozen=True)
class ShapeLine:
    """A shape in one direction.

    Attributes:
        shape: `B1 T16384 H16 D128, causal`, and the precision and device where shapes differ in them.
    """

    shape: str
    direction: str
    cells: tuple[ShapeCell, ...]


@dataclass(frozen=True)
class ShapeTable:
    """All of a study's shapes in one mode.

    Attributes:
        mode: `graph` or `eager`; `how` says it in words.
        backends: those that were timed at any of them.
        part: which of them this table has, where there are several: ` (backends 1 to 8 of 12)`.
    """

    mode: str
    how: str
    backends: tuple[str, ...]
    lines: tuple[ShapeLine, ...]
    part: str = ""

    @property
    def has_host(self) -> bool:
        """Whether the host's part of a call is known."""
        return any(cell.host is not None for line in self.lines for cell in line.cells)

    @property
    def compares(self) -> bool:
        """Whether any backend has a ratio over another."""
        return any(cell.lead for line in self.lines for cell in line.cells)

    def parts(self, most: int) -> list[ShapeTable]:
        """The same in tables of so many backends at most: paper can not be scrolled sideways."""
        count = len(self.backends)
        if count <= most:
            return [self]
        tables = []
        for first in range(0, count, most):
            end = min(first + most, count)
            lines = tuple(replace(line, cells=line.cells[first:end]) for line in self.lines)
            words = f" (backends {first + 1} to {end} of {count})"
            tables.append(replace(self, backends=self.backends[first:end], lines=lines, part=words))
        return tables


def shapes(kernels: list[dict[str, Any]]) -> list[ShapeTable]:
    """A table for each mode in which anything was timed, CUDA graphs first.

    Args:
        kernels: the answer to KERNEL_TIMES_AND_GONE.
    """
    every, tables = points(kernels), []
    for mode in MODES:
        timed = {point.attention for point in every if point.time("forward", mode)}
        shown = [point for point in every if point.attention in timed]
        backends = tuple(name for name in backend_names(shown) if name in timed)
        written, lines = _written(shown), []
        for at_shape in grouped(shown, shape_key).values():
            by_name = {point.attention: point for point in at_shape}
            for direction in DIRECTIONS if at_shape[0].main_direction == "both" else DIRECTIONS[:1]:
                cells = (_cell(by_name.get(name), at_shape, direction, mode) for name in backends)
                lines.append(ShapeLine(written(at_shape[0]), direction, tuple(cells)))
        if backends:
            tables.append(ShapeTable(mode, MODES[mode], backends, tuple(lines)))
    return tables


def _written(shown: Sequence[Point]) -> Callable[[Point], str]:
    """How to write shapes: `B1 T16384 H16 D128, causal`, and the precision and device where they differ."""
    unlike = [part for part in ("dtype", "device") if len({point.shape[part] for point in shown}) > 1]

    def written(point: Point) -> str:
        shape = point.shape
        mask = "causal" if shape["causal"] else "no mask"
        tile = f", tiles of {point.tile}" if point.tile else ""
        dropout = f", dropout {shape['dropout']:g}" if shape["dropout"] else ""
        others = (str(shape[part] or f"unknown {part}") for part in unlike)
        return ", ".join([f"{in_letters(shape)}, {mask}{dropout}{tile}", *others])

    return written


def _cell(point: Point | None, among: Sequence[Point], direction: str, mode: str) -> ShapeCell:
    if point is None:
        return ShapeCell()
    time = point.time(direction, mode)
    if time is None:
        return ShapeCell(gone=", ".join(point.gone(direction, mode)))
    others = [other for other in among if other.time(direction, mode)]
    host = point.median("host_milliseconds", direction, mode) if mode == "eager" else None
    return ShapeCell(
        time.median, point.median("tflops", direction, mode), host, lead(point, others, direction, mode)
    )


@dataclass(frozen=True)
class TrafficLine:
    """The bytes of a call of a backend at a shape in one direction, in GB; None where unknown.

    Attributes:
        scores: of the matrix of scores of all heads.
        formula: by the backend's tiles, without a cache.
        l2, dram: read and written, as the GPU counted.
        reason: why there is no formula, and why nothing was counted; empty if all is there.
    """

    shape: str
    attention: str
    direction: str
    scores: float
    formula: float | None
    l2: float | None
    dram: float | None
    reason: str


def traffic(kernels: list[dict[str, Any]], runs: Sequence[Run]) -> list[TrafficLine]:
    """The bytes of calls, where a run was asked for them; the median over runs of a shape.

    Args:
        kernels: the answer to KERNEL_TIMES_AND_GONE.
        runs: those that it is of.
    """
    every, lines = points(kernels), []
    configs = {run["run_id"]: run["config"] for run in runs}
    written = _written(every)
    for point in every:
        for direction in DIRECTIONS:
            rows = point.rows(direction, "eager")
            reasons = dict.fromkeys(row["traffic_reason"] for row in rows if row["traffic_reason"])
            of = partial(_gigabytes, rows)
            l2, dram = of("l2_read_bytes", "l2_write_bytes"), of("dram_read_bytes", "dram_write_bytes")
            scores = of("score_bytes")
            if scores is not None and (reasons or l2 is not None):
                formula, shape = of("formula_bytes"), written(point)
                why = [*reasons]
                if formula is None:
                    config = RunConfig.model_validate(configs[point.runs[0]])
                    why.insert(0, _no_formula(point.attention, config.attention_case))
                told = "; ".join(why)
                lines.append(TrafficLine(shape, point.attention, direction, scores, formula, l2, dram, told))
    return lines


def _no_formula(attention: str, case: Case) -> str:
    """Why a call of a backend has no formula of its bytes."""
    if kind := uncovered(case):
        return f"no formula covers {kind}"
    own = described(attention)
    if own and own.moves:
        return "its formula does not cover this direction at this shape on this device"
    return "no formula is known for this backend"


def _gigabytes(rows: Sequence[Row], *columns: str) -> float | None:
    """The sum of columns in GB, the median over rows that have all of them; None if no row does."""
    values = [[row[column] for column in columns] for row in rows]
    sums = [sum(row) / 1e9 for row in values if None not in row]
    return median(sums) if sums else None


def _settings(runs: Sequence[Run]) -> Iterator[Setting]:
    """How many shapes there are, how far each of their sizes reaches, and how the calls were timed."""
    cases = [RunConfig.model_validate(run["config"]).attention_case for run in runs]
    sizes = (f"{words} {ran.span(getattr(case, size) for case in cases)}" for size, words in _SIZES.items())
    count = counted(len({run["config"]["call"]["shape"] for run in runs}), "shape")
    part = "Attention"
    yield Setting("Shapes", f"{count}: {', '.join(sizes)}", part, changed(runs, ("call.shape",)))
    chosen = [topic for name, topic in _RARE.items() if any(setting("call", name)(run) for run in runs)]
    yield from lines(part, [*_TOPICS, *chosen], runs)


def _backends(run: Run) -> str | None:
    backends: str | None = setting("call", "backends")(run)
    return "all that are installed" if backends == "all" else backends


_TOPICS = (
    SetupTopic(
        "Mask",
        lambda run: {True: "causal", False: "none"}.get(setting("call", "causal")(run)),
        ("call.causal",),
    ),
    SetupTopic("Precision", plain(setting("call", "dtype")), ("call.dtype",)),
    SetupTopic("Backends", _backends, ("call.backends",)),
    SetupTopic("Rounds", whole(setting("call", "steps")), ("call.steps",)),
)
_RARE = {  # shown where a run chose them
    "dropout": SetupTopic(
        "Dropout", lambda run: f"{setting('call', 'dropout')(run) or 0:g}", ("call.dropout",)
    ),
    "tile": SetupTopic(
        "Tiles, queries x keys",
        lambda run: setting("call", "tile")(run) or "each backend's own",
        ("call.tile",),
    ),
}


@dataclass(frozen=True)
class TimedBackend:
    """A backend at the shape that most backends were timed at.

    Attributes:
        lead: over the fastest other backend there; None without one, or without rounds in common.
        fastest_at: the number of shapes at which it is faster than every other backend, of `shapes`, at which
            two or more were timed.
        wrong: why it was not timed there; empty where it was.
        elsewhere: how it ended in runs at other shapes, with dropout or another tile, and their ids.
        reasons: why.
    """

    point: Point
    lead: Lead | None
    fastest_at: int
    shapes: int
    wrong: str
    elsewhere: Mapping[str, Set[str]]
    reasons: Sequence[str]

    def cell(self, direction: str) -> TableCell:
        """The median time of a call, in milliseconds, with its interval."""
        return estimate_cell(self.point.time(direction), "#,.3g")

    @property
    def over_next(self) -> TableCell:
        """How many times as fast it is as the fastest other backend, with the interval of that."""
        if not self.lead:
            return TableCell()
        ratio, over = self.lead.ratio, self.lead.next_best.attention
        ends = (
            "" if ratio.low is None or ratio.high is None else f"{ratio.low:.3f} {UNKNOWN} {ratio.high:.3f}"
        )
        return TableCell(f"{ratio.ratio:.3f}", ends, f"times as fast as {group_name(over)}, paired by round")

    @property
    def wins(self) -> TableCell:
        """At how many shapes it is the fastest, where any has two backends to compare."""
        return TableCell(f"{self.fastest_at} of {self.shapes}") if self.shapes else TableCell()

    @property
    def outcome(self) -> TableCell:
        """How its calls at the shape ended, and how in how many runs at others, as far as not completed."""
        ends = [f"{end} in {counted(len(ids), 'other run')}" for end, ids in self.elsewhere.items()]
        ended = "completed"
        if not self.point.time():
            ended = ", ".join(self.point.gone()) or "not timed"
        return TableCell(
            ended, ", ".join(ends), "; ".join(dict.fromkeys(filter(None, (self.wrong, *self.reasons))))
        )

    @property
    def memory(self) -> Estimate | None:
        """Peak GiB of a forward and its backward, of 8 bits of the forward, beyond the inputs."""
        peak_bytes = self.point.median("memory_bytes", mode="eager")
        return None if peak_bytes is None else Estimate(peak_bytes / 2**30, None, None, 1, "")


def _backend_lines(facts: Facts, _verdicts: Sequence[VerdictRow]) -> dict[str, TimedBackend]:
    every = points(facts.kernels)
    timed = [point for point in every if point.time()]
    at_shapes = [at_shape for at_shape in grouped(timed, shape_key).values() if len(at_shape) > 1]
    wins = Counter(
        point.attention
        for at_shape in at_shapes
        for point in at_shape
        if (ahead := lead(point, at_shape)) and ahead.clear
    )
    main = main_shape(timed)
    of_main = {point.attention: point for point in main}
    there = {shape_key(point) for point in main}
    here = of_main | {p.attention: p for p in every if shape_key(p) in there and p.attention not in of_main}
    return {
        name: TimedBackend(
            here[name], lead(here[name], main) if name in of_main else None, wins[name], len(at_shapes),
            *_not_timed(facts, here[name]),
        )
        for name in backend_names(every)
        if name in here
    }  # fmt: skip


def _not_timed(facts: Facts, point: Point) -> tuple[str, dict[str, set[str]], list[str]]:
    """Why a backend has no time at a shape, if so; how it ended at others, in which runs, and why.

    A call that has no backward, or is in no CUDA graph, is unsupported in part alone, and its run is none of
    these. A run out of memory says no more of why.
    """
    wrong, elsewhere, reasons = "", dict[str, set[str]](), list[str]()
    for row in facts.untimed:
        unsupported = row["outcome"] == Outcome.UNSUPPORTED
        if row["attention"] != point.attention or (unsupported and "forward" not in row["directions"]):
            continue
        run_ids = {*row["run_ids"].split()}
        if run_ids & {*point.runs}:
            wrong = wrong or ("" if point.time() else row["reason"] or "")
        others = run_ids - {*point.runs}
        if others and not (unsupported and "eager" not in row["modes"]):
            out_of_memory = row["outcome"] in OUT_OF_MEMORY
            elsewhere.setdefault("OOM" if out_of_memory else row["outcome"], set()).update(others)
            reasons += [] if out_of_memory else [row["reason"]]
    return wrong, elsewhere, reasons


def _panel(title: str, direction: str) -> PanelSpec:
    return PanelSpec(title, "kernels", lambda line: line.point.time(direction), "#,.3g")


def _methods(_runs: Sequence[Run], _cite: Cite) -> Iterator[str]:
    yield (
        "In each round all backends of a shape are called once in one process, in random order, on the same "
        "new numbers and on cold caches; a call is timed by events of the device, on a CPU by the host's "
        "clock. "
        "Kernel TFLOP/s count $4BHS^2D$ FLOP forward, half of that with a causal mask, and 2.5 times that "
        "backward. Medians are over the calls of a process, their intervals between order statistics."
    )


TASK = ReportTask(
    name="attention",
    settings=_settings,
    answer=AnswerParts(
        ran=ran.called,
        headlines=lambda facts, _comparison, _verdicts: [*calls.sentences(facts), *ran.out_of_memory(facts)],
        limits=limits.of_calls,
        unexpected=ran.without_times,
    ),
    writeup=WriteupParts(
        backends=lambda facts: sorted(
            {row["attention"] for row in facts.kernels if row["milliseconds"] is not None}
        ),
        methods=_methods,
    ),
    lines=_backend_lines,
    first="Backend",
    columns=(
        OverviewColumn("Both, ms", lambda line: line.cell("both")),
        OverviewColumn("Forward, ms", lambda line: line.cell("forward")),
        OverviewColumn("Backward, ms", lambda line: line.cell("backward")),
        OverviewColumn("Speed over the fastest other", lambda line: line.over_next),
        OverviewColumn(
            "Kernel TFLOP/s",
            lambda line: median_cell(line.point.rate(), ",.3g"),
        ),
        OverviewColumn("Memory, GiB", lambda line: median_cell(line.memory, ",.2f")),
        OverviewColumn("Fastest at", lambda line: line.wins),
        OverviewColumn("Outcome", lambda line: line.outcome, is_text=True),
    ),
    panels=(
        _panel("Forward, ms", "forward"),
        _panel("Backward, ms", "backward"),
        PanelSpec("Kernel TFLOP/s, both", "kernels", lambda line: line.point.rate("both"), ",.3g"),
        PanelSpec("Memory, GiB", "kernels", lambda line: line.memory, ",.2f"),
    ),
    run_columns=(RunColumn("Peak memory, GiB", gib),),
    run_note="Peak memory: of the whole process.",
    steps="Rounds",
    checked="in the precision of the run and at the sizes that its certificate names",
    used="is timed",
    not_used="is not timed",
    records="times",
    table="kernels",
    table_order="attention, mode, direction",
    has_mfu=False,
    ranks=False,
)
