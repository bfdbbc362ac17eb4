"""The table of attention alone: every shape, forward and backward, with a column for each backend. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from analysis.charts._kernels import HOW, Lead, Point, lead, names, place, points
from analysis.stats import grouped
from analysis.wording import decimals
from model.record.kernels import DIRECTIONS

if TYPE_CHECKING:
    from analysis.report.facts import Row


@dataclass(frozen=True)
class Cell:
    """A backend at a shape, in one direction.

    Attributes:
        milliseconds, tflops: of the median call; None without a time.
        lead: over the fastest other backend; None where there is no other, or no rounds in common.
        gone: how runs without a time ended, in words; empty where it was not called either.
    """

    milliseconds: float | None
    tflops: float | None
    lead: Lead | None
    gone: str

    @property
    def form(self) -> str:
        """The format of its ratio: no end of the interval rounds onto 1."""
        found = self.lead and self.lead.ratio
        if not found or found.low is None or found.high is None:
            return ".3f"
        return f".{decimals((found.low - 1, found.high - 1), None, 3)}f"


@dataclass(frozen=True)
class Line:
    """A shape in one direction.

    Attributes:
        shape: `B1 T16384 H16 D128, causal`, and the precision and device where shapes differ in them.
    """

    shape: str
    direction: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Shapes:
    """All of a study's shapes in one mode.

    Attributes:
        mode: `graph` or `eager`; `how` says it in words.
        backends: those that were timed at any of them.
        part: which of them this table has, where there are several: ` (backends 1 to 8 of 12)`.
    """

    mode: str
    how: str
    backends: tuple[str, ...]
    lines: tuple[Line, ...]
    part: str = ""

    def parts(self, most: int) -> list[Shapes]:
        """The same in tables of so many backends at most: paper can not be scrolled sideways."""
        count = len(self.backends)
        if count <= most:
            return [self]
        return [self._part(first, min(first + most, count)) for first in range(0, count, most)]

    def _part(self, first: int, end: int) -> Shapes:
        lines = tuple(replace(line, cells=line.cells[first:end]) for line in self.lines)
        said = f" (backends {first + 1} to {end} of {len(self.backends)})"
        return replace(self, backends=self.backends[first:end], lines=lines, part=said)


def shapes(kernels: list[Row]) -> list[Shapes]:
    """A table for each mode in which anything was timed, CUDA graphs first.

    Args:
        kernels: the answer to KERNEL_TIMES_AND_GONE.
    """
    return [found for mode in HOW if (found := _in_mode(points(kernels), mode)).backends]


def _in_mode(found: Sequence[Point], mode: str) -> Shapes:
    timed = {point.attention for point in found if point.timed("forward", mode)}
    shown = [point for point in found if point.attention in timed]
    backends = tuple(name for name in names(shown) if name in timed)
    alike = {part: len({point.shape[part] for point in shown}) < 2 for part in ("dtype", "device")}
    lines = [
        _line(mine, backends, direction, mode, alike)
        for mine in grouped(shown, place).values()
        for direction in DIRECTIONS
    ]
    return Shapes(mode, HOW[mode], backends, tuple(lines))


def _line(
    mine: Sequence[Point], backends: Sequence[str], direction: str, mode: str, alike: dict[str, bool]
) -> Line:
    by_name = {point.attention: point for point in mine}
    cells = (_cell(by_name.get(name), mine, direction, mode) for name in backends)
    apart = [str(mine[0].shape[part] or f"unknown {part}") for part, same in alike.items() if not same]
    return Line(", ".join([_said(mine[0]), *apart]), direction, tuple(cells))


def _cell(point: Point | None, among: Sequence[Point], direction: str, mode: str) -> Cell:
    if point is None:
        return Cell(None, None, None, "")
    found = point.timed(direction, mode)
    if found is None:
        return Cell(None, None, None, ", ".join(point.gone(mode, direction)))
    others = [other for other in among if other.timed(direction, mode)]
    return Cell(found.median, point.of("tflops", direction, mode), lead(point, others, direction, mode), "")


def _said(point: Point) -> str:
    """As a study writes it."""
    at = point.shape
    keys = "" if at["kv_heads"] == at["heads"] else f" K{at['kv_heads']}"
    mask = "causal" if at["causal"] else "no mask"
    return f"B{at['batch']} T{at['sequence_length']} H{at['heads']}{keys} D{at['head_dim']}, {mask}"
