"""Whether the machine became faster or slower while a study ran, from its blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import expm1, sqrt
from typing import TypeVar

import numpy as np

from analysis.stats.student import Mean
from analysis.stats.verdict import percent
from model.record.units import counted

FEWEST = 3
Column = TypeVar("Column", int, str)


@dataclass(frozen=True)
class Drift:
    """A trend over blocks.

    Attributes:
        change: relative change of the step time from first to last block; None where it is not tested.
        low, high: ends of its 95 % interval.
        p: p value of no trend.
        found: whether p is at most 0.05.
        sentence: for the report.
    """

    change: float | None
    low: float | None
    high: float | None
    p: float | None
    found: bool
    sentence: str


def drift(seconds: Mapping[tuple[str, int], float]) -> Drift:
    """Test for a straight trend of the log seconds over blocks, with groups' differences removed.

    The runs of a block share the machine's state, so a block is the unit: its mean over groups. Groups and
    blocks are fitted together, so that a run that is missing biases nothing. Blocks that share no group, as
    those of groups that a later launch adds, cannot be told from their groups: the longest series of
    linked ones is tested.

    Args:
        seconds: per step, by group and block.
    """
    kept = linked(seconds)
    seconds = {key: value for key, value in seconds.items() if key in kept}
    blocks = sorted({block for _, block in seconds})
    if len(blocks) < FEWEST:
        there = counted(len(blocks), "block")
        sentence = f"Drift was not tested: {there}, at least {FEWEST} are needed."
        return Drift(None, None, None, None, False, sentence)
    trend = _trend(np.asarray(blocks, dtype=float), _block_effects(seconds, blocks))
    span = blocks[-1] - blocks[0]
    change, (low, high) = expm1(trend.value * span), (expm1(end * span) for end in trend.interval(0.95))
    p = trend.p_value()
    word = "slower" if change > 0 else "faster"
    said = f"{100 * abs(change):.2g} % {word} from the first block to the last ({len(blocks)} blocks)"
    ends = f"{percent(low)} to {percent(high)} %, p = {p:.2g}"
    if p <= 0.05:
        return Drift(change, low, high, p, True, f"The machine drifted: steps became {said}; {ends}.")
    sentence = f"No drift was found: {said}; {ends}."
    return Drift(change, low, high, p, False, sentence)


def linked(cells: Iterable[tuple[str, Column]]) -> set[tuple[str, Column]]:
    """The cells of the largest set of columns that rows link with each other; of equal ones, the first.

    Two columns that no chain of common rows joins cannot be told from the rows that they are in.
    """
    cells = set(cells)
    sets: list[tuple[set[str], set[Column]]] = []
    for row, column in sorted(cells, key=lambda cell: (cell[1], cell[0])):
        touched = [each for each in sets if row in each[0] or column in each[1]]
        sets = [each for each in sets if each not in touched]
        merged = ({row}.union(*(each[0] for each in touched)), {column}.union(*(each[1] for each in touched)))
        sets.append(merged)
    sets.sort(key=lambda each: (-len(each[1]), min(each[1])))
    rows = sets[0][0] if sets else set()
    return {cell for cell in cells if cell[0] in rows}


def _block_effects(seconds: Mapping[tuple[str, int], float], blocks: list[int]) -> np.ndarray:
    """Log seconds of each block, groups removed: least squares on group and block."""
    groups = sorted({group for group, _ in seconds})
    design = np.zeros((len(seconds), len(blocks) + len(groups)))
    for row, (group, block) in enumerate(seconds):
        design[row, blocks.index(block)] = design[row, len(blocks) + groups.index(group)] = 1
    fitted: np.ndarray = np.linalg.lstsq(design, np.log(list(seconds.values())), rcond=None)[0]
    return fitted[: len(blocks)]


def _trend(x: np.ndarray, y: np.ndarray) -> Mean:
    """The slope of y over x, with its standard error."""
    away = x - x.mean()
    slope = float(away @ y / (away @ away))
    rest = y - y.mean() - slope * away
    freedom = len(x) - 2
    return Mean(slope, sqrt(float(rest @ rest) / freedom / float(away @ away)), freedom)
