"""The registry of attention backends: every file here whose name has no leading underscore is one.

A backend file defines `backend = Backend(...)`. Other packages add backends through the entry-point
group `assay.attention`; docs/backends.md explains how. Listing names imports neither these files nor torch.

Shapes: B batch, T sequence, H query heads, K key/value heads, D head dim. Every backend takes
`q_BTHD`, `k_BTKD`, `v_BTKD` and returns `o_BTHD`, whatever layout its kernel uses.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING

from model.record import backends, rocm, traffic
from model.record.case import Case as Case
from model.record.errors import Unsupported, UserError, did_you_mean, one_line, out_of_host_memory

if TYPE_CHECKING:
    import torch

Attend = Callable[..., "torch.Tensor"]  # (q_BTHD, k_BTKD, v_BTKD, causal) -> o_BTHD, see `Backend.attend`
AttendByTile = Callable[..., "torch.Tensor"]  # (q_BTHD, k_BTKD, v_BTKD, causal, (queries, keys)) -> o_BTHD
AttendFp8 = Callable[..., "torch.Tensor"]  # (q_BTHD, k_BTKD, v_BTKD, causal, scales_3BK) -> o_BTHD


@dataclass(frozen=True)
class Supports:
    """The cases that a backend takes, as far as known without a GPU; `_reasons.declared` refuses others.

    Attributes:
        devices, dtypes: of the run.
        float32_lost: where float32 is no such dtype, what would become of it, as the end of a clause.
        layout: of the tensors that its kernel reads: "BTHD", "BHTD", or "any".
        grouped: "shared": the kernel reads each key head once per group; "copied": K and V are repeated.
        causal: with a mask, without, or both.
        largest_head_dim: None means no limit.
        smallest_head_dim, head_dim_multiple, length_multiple: required by the kernel's tiles.
        capability: of NVIDIA GPUs the lowest compute capability, and the first too new (None: no limit).
        amd: of AMD GPUs the architectures, by how their names begin: `gfx90a` is MI200, `gfx942` MI300, and
            `gfx` any; empty: NVIDIA only.
        offset: it takes fewer queries than keys under the causal mask, the queries being the last of the
            keys' rows, forward and backward. Training with `parallel.context` needs this.
        cached: it takes one query without a mask and any number of keys, which may be the first part of a
            longer tensor, forward only. Decoding with a cache needs this.
        dropout: `attend` takes a probability by the name `dropout`, draws from PyTorch's generator of the
            device, and advances it.
        versions: of the packages it needs, for people to read.
    """

    devices: tuple[str, ...] = ("cuda",)
    dtypes: tuple[str, ...] = ("bfloat16", "float16", "float32")
    float32_lost: str = ""
    layout: str = "any"
    grouped: str = "shared"
    causal: tuple[bool, ...] = (True, False)
    largest_head_dim: int | None = None
    smallest_head_dim: int = 1
    head_dim_multiple: int = 1
    length_multiple: int = 1
    capability: tuple[tuple[int, int], tuple[int, int] | None] | None = None
    amd: tuple[str, ...] = ("gfx",)
    offset: bool = False
    cached: bool = False
    dropout: bool = False
    versions: str = ""


@dataclass(frozen=True)
class Fp8:
    """How a backend attends to Q, K and V of 8 bits (E4M3), forward only, and the arithmetic it is judged by.

    `_fp8.quantised` makes the numbers and their scales, outside of the call.

    Attributes:
        attend: (q_BTHD, k_BTKD, v_BTKD, causal, scales_3BK) -> o_BTHD in bfloat16. `scales_3BK` are float32:
            what each key head's numbers of Q (of its group), K and V count.
        lacking: why it cannot be called here, for lack of a package of its own; empty if it can.
        largest_head_dim, head_dim_multiple: of these calls.
        offset: it takes fewer queries than keys under the causal mask.
        one_scale: it takes one scale for all heads; then all of `scales_3BK[0]` are equal, and so on.
        keys_summed: of how many keys tensor cores add up the products of weights and values, before float32
            takes the sum; None: of all. They keep about 14 bits of such a sum.
        rounds_output: it gives its output in 8 bits, with V's scale, before that becomes bfloat16.
    """

    attend: AttendFp8
    lacking: Callable[[Case], list[str]] = lambda _case: []
    largest_head_dim: int = 128
    head_dim_multiple: int = 16
    offset: bool = False
    one_scale: bool = False
    keys_summed: int | None = None
    rounds_output: bool = False


@dataclass(frozen=True)
class Kernels:
    """Names that the profiler must see on one device, as regular expressions to search for in each name.

    Attributes:
        forward, backward: at least one name in each pass must match, and what matches must do most of the
            pass's work. No other backend may launch these (docs/backends.md).
        operators: match PyTorch's operators (`aten::...`) and autograd functions even on a GPU: for backends
            without GPU kernels of their own. Otherwise GPU kernels are matched there.
        common_backward: its backward consists of kernels that other backends launch too, and may.
    """

    forward: str
    backward: str
    operators: bool = False
    common_backward: bool = False

    def claims(self, name: str) -> bool:
        """Whether it is declared as this backend's own."""
        patterns = [self.forward] if self.common_backward else [self.forward, self.backward]
        return any(re.search(pattern, name) for pattern in patterns)


@dataclass(frozen=True)
class Launches:
    """The kernels of a backend by device; None where it does not run.

    Attributes:
        amd: where a ROCm build of PyTorch has others than `cuda`.
        free: it may launch any of PyTorch's own kernels. Only `auto` may say so.
    """

    cuda: Kernels | None = None
    cpu: Kernels | None = None
    amd: Kernels | None = None
    free: bool = False

    def on(self, device: str) -> Kernels | None:
        """The kernels for device "cuda" or "cpu", with this PyTorch."""
        if device != "cuda":
            return self.cpu
        return self.amd if self.amd and rocm.version() else self.cuda


@dataclass(frozen=True)
class Backend:
    """One way to compute softmax(Q K^T / sqrt(D)) V.

    Attributes:
        summary: one line for tables and reports.
        unsupported_reasons: for a `Case`, every reason why it cannot run here, each saying what to do
            about it; an empty list means that it runs. Never raises for a missing package or GPU.
        attend: (q_BTHD, k_BTKD, v_BTKD, causal) -> o_BTHD. Called only when there are no reasons against it.
        attend_by_tile: the same in tiles of so many queries and keys; None: it has tiles of its own, or none.
        launches: the kernels that it runs. `model.attention.verify` refuses it on a device without any.
        supports: what it takes, for tables; `unsupported_reasons` decides.
        references: keys of what a text about it cites, in `analysis/writeup/references.py`.
        keeps: what it keeps for its backward pass, as far as known, from which memory is forecast.
        holds: what a call needs beside that only while it runs, as far as known.
        fp8: how it takes numbers of 8 bits; None: it does not.
        modules: other people's modules that it computes with; a certificate records their versions.
        packages: the names under which their versions are recorded, where these are not the modules' own.
        compiles: every new shape or precision takes seconds to compile, so verify looks at fewer of them.
        graph_break: why torch.compile must leave the call out of its graph; "" where it need not. Asked only
            when there are no reasons against the backend. See `for_compile`.
        moves: bytes that a call of a case moves on a GPU, by formula: `model.record.traffic`.
    """

    summary: str
    unsupported_reasons: Callable[[Case], list[str]]
    attend: Attend
    launches: Launches
    supports: Supports | None = None
    references: tuple[str, ...] = ()
    keeps: backends.Keeps = ""
    modules: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    compiles: bool = False
    graph_break: Callable[[], str] = lambda: ""
    attend_by_tile: AttendByTile | None = None
    holds: backends.Holds = ""
    fp8: Fp8 | None = None
    moves: traffic.Moves = traffic.unknown


@cache
def load(name: str) -> Backend:
    """Import one backend; this project's own import torch only where their classes need it.

    Raises:
        UserError: there is no backend of that name, several have it, or it is not a `Backend` or cannot be
            imported.
    """
    backends.check_name(name)
    point = backends.entry_point(name) if backends.is_foreign(name) else None
    try:
        backend: object = point.load() if point else import_module(f"model.attention.{name}").backend
    except Exception as error:
        if out_of_host_memory(error):
            raise
        where = point.value if point else f"model/attention/{name}.py"
        cause = _of_fields(error) or one_line(error)
        raise UserError(f"attention backend '{name}' ({where}) cannot be imported: {cause}") from error
    if not isinstance(backend, Backend):
        raise UserError(f"attention backend '{name}' is of type {type(backend).__name__}, not Backend")
    return backend


def _of_fields(error: Exception) -> str:
    """Which fields of `Backend(...)` are missing or not there, if that is the error; empty otherwise."""
    wrong = re.match(r"Backend\.__init__\(\) (missing|got an unexpected keyword)", str(error))
    if not isinstance(error, TypeError) or not wrong:
        return ""
    names = re.findall(r"'(\w+)'", str(error))
    (*_, call) = traceback.extract_tb(error.__traceback__)
    place = f"{call.filename}:{call.lineno}"
    if wrong[1] != "missing":
        valid = [field.name for field in fields(Backend)]
        return f"{place}: `Backend` has no field '{names[0]}' {did_you_mean(names[0], valid)}"
    meanings = dict(re.findall(r"^ {8}(\w+): ([^.;]*)", Backend.__doc__ or "", re.MULTILINE))
    lacks = "; ".join(f"`{name}` ({' '.join(meanings.get(name, '').split())})" for name in names)
    return f"{place}: `Backend(...)` lacks {lacks}: see docs/backends.md"


def require(name: str, case: Case) -> Backend:
    """Load the backend, or refuse with every reason why it cannot run this case here.

    Raises:
        Unsupported: with the backend's own reasons. No other backend is put in its place.
    """
    backend = load(name)
    if reasons := refusals(backend, case):
        raise Unsupported(reasons)
    return backend


NOT_CACHED = (
    "cannot decode with a cache, which takes one query against many keys: "
    "choose another backend, or use --set inference.new_tokens=0 for the prefill alone"
)


NOT_OFFSET = (
    "cannot take part of a sequence, whose queries are the last of the keys' rows under the causal mask: "
    "choose another backend, or use --set parallel.context=1"
)


NOT_FP8 = "takes no numbers of 8 bits: choose cudnn, custom or flash3 on a GPU, or another precision"


def no_tiles(case: Case) -> str:
    """Refuse a case with tiles, and say which backends of its device take them."""
    others = "tiled" if case.device == "cpu" else "flash1, portable and tiled"
    only = f"name in call.backends only those that take one: {others}"
    return f"takes no size of tiles: leave call.tile out, or {only}"


def no_dropout(case: Case) -> str:
    """Refuse a case with dropout, and say which backends of its device have it."""
    others = (
        "math or tiled"
        if case.device == "cpu"
        else "math, tiled, efficient, flash, flash2, cudnn or portable"
    )
    where = " on a CPU" if case.device == "cpu" else ""
    return f"has no dropout{where}: choose {others}, or use --set train.attention_dropout=0"


def refusals(backend: Backend, case: Case) -> list[str]:
    """Every reason why the backend cannot run the calls of a case here."""
    reasons = list[str]()
    for call in case.calls:
        lacks = _lacks(backend, call)
        reasons += [lacks] if lacks else reasons_of(backend, call)
    return list(dict.fromkeys(reasons))


def reasons_of(backend: Backend, call: Case) -> list[str]:
    """The backend's own reasons against a call.

    Raises:
        UserError: it returned no list: each letter of a text would count as a reason.
    """
    reasons: object = backend.unsupported_reasons(call)
    if not isinstance(reasons, list | tuple):
        raise UserError(f"`unsupported_reasons` returned {reasons!r}, not a list of sentences")
    return [*reasons]


def lacking(backend: Backend, case: Case) -> list[str]:
    """Say which kinds of calls of a case the backend takes on no device."""
    return list(dict.fromkeys(filter(None, (_lacks(backend, call) for call in case.calls))))


def _lacks(backend: Backend, call: Case) -> str:
    supports = backend.supports or Supports()
    if call.fp8 and not backend.fp8:
        return NOT_FP8
    if call.offset and not (backend.fp8.offset if call.fp8 and backend.fp8 else supports.offset):
        return NOT_OFFSET
    if call.queries and not call.causal and not supports.cached:
        return NOT_CACHED
    if call.tile and not backend.attend_by_tile:
        return no_tiles(call)
    return no_dropout(call) if call.dropout and not supports.dropout else ""


def for_compile(backend: Backend) -> Backend:
    """The backend for models that torch.compile traces: its call stays outside the graph where it must.

    Not for other models: `torch.compiler.disable` imports `torch._dynamo`, which takes seconds.
    """
    reason = backend.graph_break()
    if not reason:
        return backend
    import torch

    outside: Attend = torch.compiler.disable(backend.attend, reason=reason)  # type: ignore[no-untyped-call]
    return replace(backend, attend=outside)


def attend(
    backend: Backend,
    case: Case,
    q_BTHD: torch.Tensor,
    k_BTKD: torch.Tensor,
    v_BTKD: torch.Tensor,
    scales_3BK: torch.Tensor | None = None,
) -> torch.Tensor:
    """Call a backend through the seam, which checks every tensor against the case's layout.

    Numbers of 8 bits come with scales (`Fp8.attend`), and others without. Where several processes share a
    sample's tokens, all of their calls are made, one after another.

    Raises:
        ValueError: a tensor's shape is not the (B, T, heads, head dim) of the case.
    """
    if case.context > 1:
        from model.attention import _parts  # imports torch

        calls = [partial(attend, backend, part) for part in case.parts]
        return _parts.joined(calls, q_BTHD, _parts.shared(k_BTKD, case), _parts.shared(v_BTKD, case))
    queries, keys = case.queries or case.sequence_length, case.sequence_length
    _check("q", q_BTHD, queries, case.heads, case)
    _check("k", k_BTKD, keys, case.kv_heads, case)
    _check("v", v_BTKD, keys, case.kv_heads, case)
    drops = {"dropout": case.dropout} if case.dropout else {}
    if case.fp8:
        assert backend.fp8  # `refusals` says so of others
        o_BTHD = backend.fp8.attend(q_BTHD, k_BTKD, v_BTKD, case.causal, scales_3BK)
    elif case.tile is None:
        o_BTHD = backend.attend(q_BTHD, k_BTKD, v_BTKD, case.causal, **drops)
    else:
        assert backend.attend_by_tile  # `refusals` says so of others
        o_BTHD = backend.attend_by_tile(q_BTHD, k_BTKD, v_BTKD, case.causal, case.tile, **drops)
    _check("output", o_BTHD, queries, case.heads, case)
    return o_BTHD


def _check(what: str, tensor: torch.Tensor, length: int, heads: int, case: Case) -> None:
    wanted = (case.batch, length, heads, case.head_dim)
    if tuple(tensor.shape) != wanted:
        raise ValueError(f"{what} has shape {tuple(tensor.shape)}; expected (B, T, heads, D) =  {wanted}")
