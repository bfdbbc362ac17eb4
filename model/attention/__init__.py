"""The registry of attention backends: every file here whose name has no leading underscore is one.

A backend file defines `backend = Backend(...)`. Other packages add backends through the entry-point
group `assay.attention`. Listing names imports neither the files nor torch.

Shapes: B batch, T sequence, H query heads, K key/value heads, D head dim. Every backend takes
`q_BTHD`, `k_BTKD`, `v_BTKD` and gives `o_BTHD`, whatever layout its kernel wants inside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from model.errors import Unsupported, UserError, did_you_mean

if TYPE_CHECKING:
    import torch

ENTRY_POINT_GROUP = "assay.attention"


@dataclass(frozen=True)
class Case:
    """What a run asks of a backend: the shapes, precision and device of one causal attention."""

    device: str  # "cuda" or "cpu"
    dtype: str  # "bfloat16", "float16" or "float32"
    batch: int
    sequence_length: int
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool = True


Attend = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor", bool], "torch.Tensor"]


@dataclass(frozen=True)
class Backend:
    """One way to compute softmax(Q K^T / sqrt(D)) V.

    Attributes:
        summary: one line for tables and reports.
        unsupported_reasons: for a `Case`, every reason why it cannot run here, each saying what to do
            about it; an empty list means that it runs. Never raises for a missing package or GPU.
        attend: (q_BTHD, k_BTKD, v_BTKD, causal) -> o_BTHD. Called only when there are no reasons against.
    """

    summary: str
    unsupported_reasons: Callable[[Case], list[str]]
    attend: Attend


@cache
def names() -> tuple[str, ...]:
    """Every backend's name, sorted: the files of this folder, then what other packages register."""
    files = {path.stem for path in Path(__file__).parent.glob("[!_]*.py")}
    return tuple(sorted(files | set(_foreign())))


@cache
def load(name: str) -> Backend:
    """Import one backend.

    Raises:
        UserError: there is no backend of that name, or a foreign one is not a `Backend`.
    """
    if name not in names():
        raise UserError(f"unknown attention backend '{name}' {did_you_mean(name, names())}")
    if name not in _foreign():
        backend: object = import_module(f"model.attention.{name}").backend
    else:
        backend = next(iter(entry_points(group=ENTRY_POINT_GROUP, name=name))).load()
    if not isinstance(backend, Backend):
        raise UserError(f"attention backend '{name}' gives a {type(backend).__name__}, not a Backend")
    return backend


def require(name: str, case: Case) -> Backend:
    """Give the backend, or refuse with every reason why it cannot run this case here.

    Raises:
        Unsupported: with the backend's own reasons. Another backend is never put in its place.
    """
    backend = load(name)
    if reasons := backend.unsupported_reasons(case):
        raise Unsupported(reasons)
    return backend


def attend(
    backend: Backend, case: Case, q_BTHD: torch.Tensor, k_BTKD: torch.Tensor, v_BTKD: torch.Tensor
) -> torch.Tensor:
    """Call a backend through the seam, which refuses tensors of another layout than the case's.

    Raises:
        ValueError: a tensor's shape is not (B, T, heads, head dim) as the case says.
    """
    _check("q", q_BTHD, case.heads, case)
    _check("k", k_BTKD, case.kv_heads, case)
    _check("v", v_BTKD, case.kv_heads, case)
    o_BTHD = backend.attend(q_BTHD, k_BTKD, v_BTKD, case.causal)
    _check("output", o_BTHD, case.heads, case)
    return o_BTHD


def _check(what: str, tensor: torch.Tensor, heads: int, case: Case) -> None:
    wanted = (case.batch, case.sequence_length, heads, case.head_dim)
    if tuple(tensor.shape) != wanted:
        raise ValueError(
            f"{what} has shape {tuple(tensor.shape)}; the seam takes (B, T, heads, D) = {wanted}"
        )


@cache
def _foreign() -> tuple[str, ...]:
    return tuple(point.name for point in entry_points(group=ENTRY_POINT_GROUP))
