"""How wrong a result is, and how wrong it may be.

An error is measured in units of the spread: how far the roundings that no implementation in this precision
can avoid would move that row (`reference.Exact.spread`). In this unit an honest result is near 1/2 in every
row of every tensor, early or late, large or cancelled, so that a fault in one row, head or column cannot hide
behind large numbers elsewhere. It is measured over the whole tensor and over slices; the worst one counts.

The tolerance is derived: it is FACTOR times the error of plain attention in the same precision
(`reference.same_precision`), on the same data, over the same kind of slice. Where that error happens to be
smaller than one may expect of the roundings, a floor applies.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from model.attention.verify.reference import Exact

# FlashAttention's own tests allow twice the error of plain attention in the same precision. In float32 the
# order of the sums matters too, as no coarser rounding hides it.
FACTOR = {torch.bfloat16: 2.0, torch.float16: 2.0, torch.float32: 4.0}
# One rounding errs by at most 1 and on average 0.4 of its unit; among few numbers the worst is near 1.
# In float32 a sum of few terms rounds about twice as often as the spread assumes.
FLOOR_16 = {"tensor": 0.4, "head": 0.4, "tile": 0.5, "row": 1.0, "column": 1.0}
FLOOR_32 = {"tensor": 1.0, "head": 1.0, "tile": 1.0, "row": 2.0, "column": 2.0}
TILE = 64  # rows: no kernel works on fewer at a time


class Deviation(NamedTuple):
    """The worst slice of a result, relative to its tolerance.

    Attributes:
        measured, tolerance: in units of the spread.
        where: which slice, for people.
        relative: ||x - exact|| / ||exact|| of the whole tensor; NaN where that is meaningless.
    """

    measured: float
    tolerance: float
    where: str
    relative: float

    @property
    def passed(self) -> bool:
        """NaN never passes."""
        return self.measured <= self.tolerance

    @property
    def words(self) -> str:
        """`off by 3.2 roundings, where 2 are allowed`."""
        return f"off by {self.measured:.3g} roundings, where {self.tolerance:.3g} are allowed"


def compare(
    step: str, x_BTHD: Tensor, plain_BTHD: Tensor, exact: Exact, times: int = 1, audit: bool = False
) -> Deviation:
    """Hold one result to the tolerance.

    Args:
        plain_BTHD: the same result from `same_precision`.
        times: how many equal results add up to this one.
        audit: the data are those of a run, and there are many audits. In training a single token may carry
            all of a gradient, and then a whole tensor errs like a row. So every floor is twice a row's.
    """
    value, spread = exact.values[step] * times, exact.spread[step] * times
    scores, plain = (slices(x.double() - value, spread) for x in (x_BTHD, plain_BTHD.double() * times))
    factor = FACTOR[plain_BTHD.dtype]
    floor = FLOOR_32 if plain_BTHD.dtype == torch.float32 else FLOOR_16
    if audit:
        floor = dict.fromkeys(floor, 2 * floor["row"])
    tolerance = {kind: factor * max(float(plain[kind].max()), floor[kind]) for kind in scores}
    worst = {kind: float(_finite(of_kind).max()) for kind, of_kind in scores.items()}
    kind = max(worst, key=lambda kind: worst[kind] / tolerance[kind])
    # A result that is zero apart from roundings, such as dQ of one token, has no relative error.
    meaningful = value.norm() > spread.norm()
    relative = float((x_BTHD.double() - value).norm() / value.norm()) if meaningful else torch.nan
    where = _where(kind, _finite(scores[kind]), x_BTHD.shape[1])
    return Deviation(worst[kind], tolerance[kind], where, relative)


def slices(error_BTHD: Tensor, spread_BTH: Tensor) -> dict[str, Tensor]:
    """Norm of the error over norm of the spread, for the tensor and by head, tile of rows, row and column."""
    D = error_BTHD.shape[-1]
    error2_BTH, spread2_BTH = error_BTHD.square().sum(-1), spread_BTH.square()
    spread2_BTH = spread2_BTH.clamp_min(1e-12 * float(spread2_BTH.mean()) + 1e-300)
    sums = {
        "tensor": (error2_BTH.sum(), spread2_BTH.sum()),
        "head": (error2_BTH.sum(1), spread2_BTH.sum(1)),
        "tile": (_tiles(error2_BTH), _tiles(spread2_BTH)),
        "row": (error2_BTH, spread2_BTH),
        "column": (error_BTHD.square().sum(1), spread2_BTH.sum(1)[..., None] / D),
    }
    return {kind: (error / spread).sqrt() for kind, (error, spread) in sums.items()}


def _tiles(x_BTH: Tensor) -> Tensor:
    firsts = _first_rows(x_BTH.shape[1])
    return torch.stack([x_BTH[:, first : first + TILE].sum(1) for first in firsts], dim=1)


def _first_rows(length: int) -> list[int]:
    """The first rows of tiles. The last tile is whole too: a single row errs as a row does, not as a tile."""
    last = max(0, length - TILE)
    return [*range(0, last, TILE), last]


def _finite(scores: Tensor) -> Tensor:
    """NaN counts as infinitely wrong; otherwise max() would depend on the order."""
    return scores.nan_to_num(nan=torch.inf, posinf=torch.inf)


_AXES = {
    "tensor": (),
    "head": ("batch", "head"),
    "tile": ("batch", "tile", "head"),
    "row": ("batch", "row", "head"),
    "column": ("batch", "head", "column"),
}


def _where(kind: str, scores: Tensor, rows: int) -> str:
    """Name the worst slice: `batch 0, row 300, head 2`."""
    if not scores.ndim:
        return "the tensor"
    # torch.unravel_index would import sympy, which takes a second.
    place, index = int(scores.argmax()), list[int]()
    for length in reversed(scores.shape):
        place, here = divmod(place, length)
        index.insert(0, here)
    named = dict(zip(_AXES[kind], index, strict=True))
    if "tile" in named:
        named["rows from"] = _first_rows(rows)[named.pop("tile")]
    return ", ".join(f"{axis} {place}" for axis, place in named.items())
