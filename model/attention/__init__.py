"""The registry of attention backends: every file here whose name has no leading underscore is one.

A backend file defines `backend = Backend(...)`. Other packages add backends through the entry-point
group `assay.attention`; docs/backends.md explains how. Listing names imports neither these files nor torch.

Shapes: B batch, T sequence, H query heads, K key/value heads, D head dim. Every backend takes
`q_BTHD`, `k_BTKD`, `v_BTKD` and returns `o_BTHD`, whatever layout its kernel uses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from model import modules
from model.errors import Unsupported, UserError, did_you_mean, one_line, out_of_host_memory
from model.versions import rocm

if TYPE_CHECKING:
    import torch

ENTRY_POINT_GROUP = "assay.attention"


@dataclass(frozen=True)
class Case:
    """What a run needs from a backend: the shapes, precision, device and mask of one attention call.

    Attributes:
        device: "cuda" or "cpu".
        dtype: "bfloat16", "float16" or "float32".
        sequence_length: of K and V, and of Q unless `queries` says otherwise.
        compile: whether torch.compile traces the model around the call.
        new_tokens: number of tokens that a run decodes after this call, each by one of `decoding`'s calls.
        queries: rows of Q; None: as many as keys. Under the causal mask they are the last of the keys' rows,
            like those of a part of a sequence. Without a mask they are new tokens, and only run forward.
        any_size: it stands for otherwise equal calls of any batch, length and number of heads.
        context: number of processes that share each sample's tokens, and make the calls of `parts`.
    """

    device: str
    dtype: str
    batch: int
    sequence_length: int
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool = True
    compile: bool = False
    new_tokens: int = 0
    queries: int | None = None
    any_size: bool = False
    context: int = 1

    @cache  # noqa: B019  one for each length that a run decodes at
    def decoding(self, keys: int) -> Case:
        """The call for one decoded token, whose query sees this many keys: no mask, no graph."""
        return replace(self, sequence_length=keys, causal=False, compile=False, new_tokens=0, queries=1)

    @property
    def offset(self) -> int:
        """The position of the first query among the keys, under the causal mask."""
        return self.sequence_length - self.queries if self.causal and self.queries is not None else 0

    @property
    def trains(self) -> bool:
        """Whether gradients flow through the call."""
        return self.queries is None or self.causal

    @property
    def calls(self) -> list[Case]:
        """This call or its parts; if tokens are decoded after it, also the first and last of those calls."""
        lengths = dict.fromkeys((self.sequence_length + 1, self.sequence_length + self.new_tokens))
        after = [self.decoding(keys) for keys in lengths] if self.new_tokens else []
        return [*(self.parts or [replace(self, new_tokens=0)]), *after]

    @cached_property
    def parts(self) -> list[Case]:
        """The calls of all processes that share a sample's tokens, in order; empty if one has them all.

        Each sequence is cut into two parts per process. A part's queries see all keys up to its end. The
        calls stay outside a graph, as the keys come from other processes.
        """
        count = 2 * self.context if self.context > 1 else 0
        rows = self.sequence_length // max(1, count)
        part = replace(self, context=1, compile=False)
        ends = [rows * (n + 1) for n in range(count)]
        return [replace(part, sequence_length=end, queries=rows if end > rows else None) for end in ends]


Attend = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor", bool], "torch.Tensor"]


@dataclass(frozen=True)
class Supports:
    """What a backend takes, as far as that is known without a GPU; `_reasons.declared` refuses the rest.

    Attributes:
        devices, dtypes: of the run.
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
        versions: of the packages it needs, for people to read.
    """

    devices: tuple[str, ...] = ("cuda",)
    dtypes: tuple[str, ...] = ("bfloat16", "float16", "float32")
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
    versions: str = ""


@dataclass(frozen=True)
class Kernels:
    """What the profiler must see on one device, as regular expressions to search for in each name.

    Attributes:
        forward, backward: at least one name in each pass must match, and what matches must do most of the
            pass's work. No other backend may launch these.
        operators: match PyTorch's operators (`aten::...`) and autograd functions even on a GPU: for backends
            without GPU kernels of their own. Otherwise GPU kernels are matched there.
        common_backward: its backward consists of kernels that other backends launch too, and may.
    """

    forward: str
    backward: str
    operators: bool = False
    common_backward: bool = False


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
        launches: the kernels that it runs. `model.verify` refuses a backend that declares none.
        supports: what it takes, for tables; `unsupported_reasons` decides.
        modules: other people's modules that it computes with; a certificate records their versions.
        packages: the names under which their versions are recorded, where these are not the modules' own.
        compiles: every new shape or precision takes seconds to compile, so verify looks at fewer of them.
        graph_break: why torch.compile must leave the call out of its graph; "" where it need not. Asked only
            when there are no reasons against the backend. See `for_compile`.
    """

    summary: str
    unsupported_reasons: Callable[[Case], list[str]]
    attend: Attend
    launches: Launches | None = None
    supports: Supports | None = None
    modules: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    compiles: bool = False
    graph_break: Callable[[], str] = lambda: ""


@cache
def names() -> tuple[str, ...]:
    """Every backend's name, sorted: the files of this folder, and what other packages register."""
    return tuple(sorted({*modules(Path(__file__).parent), *_foreign()}))


def check_name(name: str) -> None:
    """Check a name without importing anything.

    Raises:
        UserError: there is no backend of that name.
    """
    if name not in names():
        raise UserError(f"unknown attention backend '{name}' {did_you_mean(name, names())}")


@cache
def load(name: str) -> Backend:
    """Import one backend; this project's own import torch only where their classes need it.

    Raises:
        UserError: there is no backend of that name, several have it, or a foreign one is not a `Backend` or
            cannot be imported.
    """
    check_name(name)
    if name not in _foreign():
        backend: object = import_module(f"model.attention.{name}").backend
    else:
        backend = _imported(_entry(name))
    if not isinstance(backend, Backend):
        raise UserError(f"attention backend '{name}' is of type {type(backend).__name__}, not Backend")
    return backend


def _entry(name: str) -> EntryPoint:
    """The entry point of a foreign backend. Raises UserError if the name is also another backend's."""
    first, *others = entry_points(group=ENTRY_POINT_GROUP, name=name)
    owners = [f"package {point.dist.name}" for point in (first, *others) if point.dist]
    if name in modules(Path(__file__).parent):
        owners = ["this project", *owners]
    if others or "this project" in owners:
        named = " and ".join(owners)
        raise UserError(f"several attention backends are named '{name}', of {named}: uninstall or rename one")
    return first


def _imported(point: EntryPoint) -> object:
    try:
        return point.load()
    except Exception as error:
        if out_of_host_memory(error):
            raise
        text = f"attention backend '{point.name}' ({point.value}) cannot be imported: {one_line(error)}"
        raise UserError(text) from error


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


def refusals(backend: Backend, case: Case) -> list[str]:
    """Every reason why the backend cannot run the calls of a case here."""
    found = list[str]()
    for call in case.calls:
        lacks = _lacks(backend, call)
        found += [lacks] if lacks else reasons_of(backend, call)
    return list(dict.fromkeys(found))


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
    """Which kinds of calls of a case the backend takes on no device."""
    return list(dict.fromkeys(filter(None, (_lacks(backend, call) for call in case.calls))))


def _lacks(backend: Backend, call: Case) -> str:
    supports = backend.supports or Supports()
    if call.offset and not supports.offset:
        return NOT_OFFSET
    return NOT_CACHED if not call.trains and not supports.cached else ""


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
    backend: Backend, case: Case, q_BTHD: torch.Tensor, k_BTKD: torch.Tensor, v_BTKD: torch.Tensor
) -> torch.Tensor:
    """Call a backend through the seam, which checks every tensor against the case's layout.

    Where several processes share a sample's tokens, all of their calls are made, one after another.

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
    o_BTHD = backend.attend(q_BTHD, k_BTKD, v_BTKD, case.causal)
    _check("output", o_BTHD, queries, case.heads, case)
    return o_BTHD


def _check(what: str, tensor: torch.Tensor, length: int, heads: int, case: Case) -> None:
    wanted = (case.batch, length, heads, case.head_dim)
    if tuple(tensor.shape) != wanted:
        raise ValueError(f"{what} has shape {tuple(tensor.shape)}; expected (B, T, heads, D) =  {wanted}")


def is_foreign(name: str) -> bool:
    """Whether the backend comes from another package."""
    return name in _foreign()


def entry_module(name: str) -> str:
    """The module that defines another package's backend; empty if no entry point names it."""
    return next((point.module for point in entry_points(group=ENTRY_POINT_GROUP, name=name)), "")


@cache
def _foreign() -> tuple[str, ...]:
    return tuple(point.name for point in entry_points(group=ENTRY_POINT_GROUP))
