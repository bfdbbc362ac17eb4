"""Which part of a training step each piece of work belongs to, as a profiler saw it. Pure.

Marks say when the host was at which part of the step (`model.training.profile` sets them). A piece of work, a
kernel on a GPU and an operator on a CPU, belongs to the part at which the host launched it. But a matrix
product counts as one wherever it is, except in attention. Compiled code has no marks inside: there attention
is recognised by the names of its kernels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from model.record.speed import PartTime, ProfilePart

PARTS: tuple[ProfilePart, ...] = (
    "products", "attention", "loss", "optimizer", "elementwise", "copies", "communication", "idle",
)  # fmt: skip
_PRODUCTS = re.compile(
    r"gemm|nvjet|xmma|cutlass|splitk|triton_tem|gemv"  # kernels of cuBLAS, CUTLASS, inductor
    r"|^aten::(mm|bmm|addmm|addbmm|baddbmm|matmul|linear|_scaled_mm|mkldnn_linear|_mkldnn)",
    re.IGNORECASE,
)
_ATTENTION = r"flash|fmha|sdpa|_attn_|scaled_dot_product"
_COPIES = re.compile(r"^Memcpy|^Memset|^aten::copy_$")
_COMMUNICATION = re.compile(r"nccl|^c10d::|^gloo:", re.IGNORECASE)
_HIDDEN: tuple[ProfilePart, ...] = ("copies", "communication")  # other work hides these, copies the latter


@dataclass(frozen=True)
class Piece:
    """A kernel, a copy, or an operator's own time. All times are microseconds of one clock.

    Attributes:
        asked: when the host asked for it; None where that is not known.
    """

    name: str
    start: float
    microseconds: float
    asked: float | None

    @property
    def end(self) -> float:
        """When it was done."""
        return self.start + self.microseconds


@dataclass(frozen=True)
class Span:
    """When the host was at a part of the step, from its marks."""

    part: ProfilePart
    start: float
    end: float


def part_of(piece: Piece, spans: Iterable[Span], attention: str | None) -> ProfilePart:
    """The part of one piece.

    Args:
        attention: a regular expression that finds the kernels of the run's backend; None where marks tell.
    """
    at = {span.part for span in spans if piece.asked is not None and span.start <= piece.asked < span.end}
    if _COMMUNICATION.search(piece.name):
        return "communication"
    if "attention" in at or (attention and re.search(f"{_ATTENTION}|{attention}", piece.name)):
        return "attention"
    if _PRODUCTS.search(piece.name):
        return "products"
    marked: tuple[ProfilePart, ...] = ("optimizer", "loss")
    marked_part = next((part for part in marked if part in at), None)
    return marked_part or ("copies" if _COPIES.search(piece.name) else "elementwise")


def split(
    pieces: Sequence[Piece], spans: Sequence[Span], attention: str | None, steps: int, step_seconds: float
) -> list[PartTime]:
    """Seconds of a step by part; they add up to the step, or to all pieces if these take longer.

    Copies and communication get only the time in which nothing else ran; the rest of their time is hidden by
    other work. Time in which both ran is the copies'. What is left of the step is idle: the device waits for
    the host, or, on a CPU, Python is between two operators.

    Args:
        pieces: of all profiled steps.
        step_seconds: of a step, on a GPU without the profiler, which slows the host.
    """
    pieces_of: dict[str, list[Piece]] = {part: [] for part in PARTS}
    for piece in pieces:
        pieces_of[part_of(piece, spans, attention)].append(piece)
    totals = {part: sum(piece.microseconds for piece in pieces_of[part]) for part in PARTS}
    hidden: dict[str, float] = {}
    taken = _merged(_times(piece for part in PARTS if part not in _HIDDEN for piece in pieces_of[part]))
    for part in _HIDDEN:
        own = _merged(_times(pieces_of[part]))
        together = _merged([*taken, *own])
        totals[part] = max(0.0, _length(together) - _length(taken))
        hidden[part] = max(
            0.0, round(_length(own) - totals[part], 3)
        )  # of a nanosecond, the rest is rounding
        taken = together
    seconds = {part: microseconds / 1e6 / steps for part, microseconds in totals.items()}
    seconds["idle"] = max(0.0, step_seconds - sum(seconds.values()))
    beside = {part: microseconds / 1e6 / steps for part, microseconds in hidden.items()}
    by_name = attention is not None
    return [
        PartTime(part=part, seconds=seconds[part], hidden_seconds=beside.get(part), by_name=by_name)
        for part in PARTS
    ]


_Times = list[tuple[float, float]]  # starts and ends


def _times(pieces: Iterable[Piece]) -> _Times:
    return [(piece.start, piece.end) for piece in pieces]


def _merged(times: _Times) -> _Times:
    """When any of them ran, in order and without overlaps."""
    merged: _Times = []
    for start, end in sorted(times):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def _length(merged: _Times) -> float:
    return sum(end - start for start, end in merged)
