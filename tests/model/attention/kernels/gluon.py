"""Stands in for Gluon: runs the Hopper kernels' own text on the CPU.

What happens side by side on a GPU happens in any order that the barriers allow, drawn at random: copies by TMA, products
on the tensor cores, and partitions of warps. Found are deadlocks, memory that is read before it is written or fenced, or
overwritten too early, products that are used before they are waited for, and barriers that count wrong.

Not simulated: layouts, registers, speed, and how the two warpgroups of one partition wait for each other.
"""

from __future__ import annotations

import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

AT_A_TIME = 3  # thread blocks that run side by side


class Fault(Exception):
    """What a GPU would do in silence, or never end doing."""


class Values(Tensor):
    """A tensor in registers."""

    type = SimpleNamespace(layout=None)


@dataclass
class Pointer:
    """Into a tensor's memory, as `tensor + offset` is in Gluon."""

    memory: Tensor
    at: Any = 0

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.memory, self.at + offset)

    def to(self, dtype: object, bitcast: bool) -> Pointer:
        return self


@dataclass(eq=False)
class Allocation:
    """Shared memory. What warps store there, TMA and the tensor cores see only after a fence."""

    unfenced: set[tuple[Partition, range]] = field(default_factory=set)  # who stored, and to which addresses


def _addresses(x: Tensor) -> range:
    """From a tensor's first byte to its last."""
    steps = sum((length - 1) * stride for length, stride in zip(x.shape, x.stride(), strict=True))
    return range(x.data_ptr(), x.data_ptr() + (steps + 1) * x.element_size())


@dataclass
class Shared:
    """A part of shared memory, of which nothing is written at first: numbers begin as NaN."""

    part: Tensor
    of: Allocation
    dtype = property(lambda self: self.part.dtype)

    def index(self, i: int) -> Shared:
        return Shared(self.part[i], self.of)

    def permute(self, order: tuple[int, ...]) -> Shared:
        return Shared(self.part.permute(order), self.of)

    def slice(self, start: int, length: int, dim: int = 0) -> Shared:
        return Shared(self.part.narrow(dim, start, length), self.of)

    def _reinterpret(self, dtype: torch.dtype, shape: list[int], layout: object) -> SimpleNamespace:
        """Parts of swizzled tiles: 64 columns of a tile lie together, row after row."""
        parts, rows, columns = shape
        height, width = self.part.shape[-2:]
        tiles = [
            Shared(tile[row : row + rows, column : column + columns], self.of)
            for tile in self.part.view(-1, height, width)
            for column in range(0, width, columns)
            for row in range(0, height, rows)
        ]
        if columns != 64 or len(tiles) != parts:
            raise Fault(f"{list(self.part.shape)} is not {shape}")
        return SimpleNamespace(index=tiles.__getitem__)

    def load(self, layout: object) -> Values:
        return self.part.clone().as_subclass(Values)

    def store(self, x: Tensor) -> None:
        self.part.copy_(x)
        self.of.unfenced.add((now(), _addresses(self.part)))

    def for_hardware(self) -> Tensor:
        addresses = _addresses(self.part)
        if any(
            addresses.start < stored_range.stop and stored_range.start < addresses.stop
            for _, stored_range in self.of.unfenced
        ):
            raise Fault("the tensor cores or TMA read what was stored without a fence")
        return self.part


@dataclass
class Descriptor:
    """A strided tensor that TMA moves tiles of."""

    base: Tensor
    shape: list[int]
    strides: list[int]
    block_shape: list[int]
    layout: object
    dtype = property(lambda self: self.base.dtype)

    @property
    def block_type(self) -> SimpleNamespace:
        size = self.base.element_size()
        for length in self.block_shape:
            size *= length
        return SimpleNamespace(nbytes=size)

    def _inside(self, coordinates: list[int]) -> tuple[Tensor, tuple[slice, ...]]:
        """The part of the tensor that lies under the tile, and where in the tile it is."""
        tensor = torch.as_strided(self.base, self.shape, self.strides, self.base.storage_offset())
        ends = [min(c + b, s) for c, b, s in zip(coordinates, self.block_shape, self.shape, strict=True)]
        part = tensor[tuple(slice(c, max(c, end)) for c, end in zip(coordinates, ends, strict=True))]
        return part, tuple(slice(0, size) for size in part.shape)

    def read(self, coordinates: list[int], out: Tensor) -> None:
        part, slices = self._inside(coordinates)
        tile = torch.zeros(self.block_shape, dtype=self.dtype)
        tile[slices] = part
        out.copy_(tile.reshape(out.shape))

    def write(self, coordinates: list[int], tile: Tensor, add: bool) -> None:
        part, slices = self._inside(coordinates)
        values = tile.reshape(self.block_shape)[slices]
        part.copy_(part + values if add else values)


@dataclass
class Barrier:
    """An mbarrier: a phase ends when all have arrived and all bytes are there."""

    count: int = 0
    missing: int = 0
    bytes: int = 0
    phase: int = 0

    def arrive(self, count: int = 1) -> None:
        self.missing -= count
        if self.missing < 0:
            raise Fault("more arrive at an mbarrier than it counts")
        self._end()

    def transferred(self, size: int) -> None:
        self.bytes -= size
        self._end()

    def _end(self) -> None:
        if not self.missing and not self.bytes:
            self.phase, self.missing = self.phase + 1, self.count


@dataclass
class Named:
    """A named barrier, which counts threads."""

    rounds: int = 0
    arrived: list[Partition] = field(default_factory=list)

    def arrive(self, threads: int) -> int:
        partition = now()
        if partition in self.arrived:
            raise Fault("warps arrive twice in one round of a named barrier")
        self.arrived.append(partition)
        arrived_threads, round_number = sum(32 * member.warps for member in self.arrived), self.rounds
        if arrived_threads > threads:
            raise Fault("more threads at a named barrier than it counts")
        if arrived_threads == threads:
            self.rounds, self.arrived = round_number + 1, []
        return round_number


@dataclass
class Product:
    """A matrix product that is on its way: of no use until it is waited for."""

    a: Shared | Tensor
    b: Shared
    acc: Tensor | Product | None
    value: Tensor | None = None

    def run(self) -> None:
        a = self.a.for_hardware() if isinstance(self.a, Shared) else self.a
        value = a.float() @ self.b.for_hardware().float()
        acc = self.acc.value if isinstance(self.acc, Product) else self.acc  # the one before, in order
        self.value = (value if acc is None else value + acc).as_subclass(Values)


@dataclass(eq=False)
class Partition:
    """Some warps of a thread block that run one function. All are threads, of which one runs at a time."""

    block: Block
    warps: int
    work: Callable[[], None]
    ready: Callable[[], bool] = lambda: True
    products: deque[Product] = field(default_factory=deque)
    stores: list[Callable[[], None]] = field(default_factory=list)
    polled: dict[int, int] = field(default_factory=dict)
    ended: bool = False
    failure: BaseException | None = None

    def __post_init__(self) -> None:
        self.turn = threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.turn.acquire()
        try:
            self.work()
        except BaseException as failure:
            self.failure = failure
        self.ended = True
        self.block.machine.turn.release()

    def wait(self, ready: Callable[[], bool] = lambda: True) -> None:
        """Let others run, at least until this can go on."""
        self.ready = ready
        self.block.machine.turn.release()
        self.turn.acquire()


@dataclass(eq=False)
class Block:
    """A thread block: its number, its barriers and its partitions."""

    machine: Machine
    number: int
    named: dict[int, Named] = field(default_factory=dict)
    partitions: list[Partition] = field(default_factory=list)
    allocations: list[Allocation] = field(default_factory=list)


class Machine:
    """Runs the thread blocks of a grid, some of them side by side, in an order that the seed gives."""

    running: Partition | None = None

    def __init__(self, seed: int, late: str = "") -> None:
        """What is `late` ("warps", "copies", "products" or "stores") happens only when nothing else can."""
        self.seed, self.late = seed, late
        self.turn = threading.Semaphore(0)
        self.copies: list[Callable[[], None]] = []  # into shared memory

    def run(self, kernel: Callable[..., None], programs: int, inputs: tuple[Any, ...]) -> None:
        """Run a grid of one dimension; tensors become pointers."""
        self.random = random.Random(self.seed)  # the same order, whatever ran before
        arguments = [Pointer(x) if isinstance(x, Tensor) else x for x in inputs]
        waiting = deque(range(programs))
        active: list[Partition] = []
        while waiting or active or self.copies:
            while waiting and len({partition.block for partition in active}) < AT_A_TIME:
                block = Block(self, waiting.popleft())
                first_partition = Partition(block, 4, partial(kernel, *arguments))
                block.partitions.append(first_partition)
                active.append(first_partition)
            self._step(active)
            blocks = list(dict.fromkeys(partition.block for partition in active))
            active = [partition for block in blocks for partition in block.partitions if _busy(partition)]
            for block in blocks:
                _left_over(block)

    def _step(self, active: list[Partition]) -> None:
        """One of the things that can happen now happens."""
        ready = [partition for partition in active if not partition.ended and partition.ready()]
        kinds: dict[str, list[Callable[[], None]]] = {
            "warps": [partial(self._go_on, partition) for partition in ready if not self._is_late(partition)],
            "partition": [partial(self._go_on, partition) for partition in ready if self._is_late(partition)],
            "copies": [partial(self._take, self.copies, i) for i in range(len(self.copies))],
            "products": [partial(self._multiply, partition) for partition in active if partition.products],
            "stores": [partial(self._take, partition.stores, 0) for partition in active if partition.stores],
        }
        late = kinds.pop(self.late.rstrip("0123"), [])
        choices = [action for kind in kinds.values() for action in kind] or late
        if not choices:
            raise Fault("deadlock: all wait for each other")
        self.random.choice(choices)()

    def _is_late(self, partition: Partition) -> bool:
        """Whether it is the one of its block that is late: 2 of "partition2"."""
        return self.late == f"partition{partition.block.partitions.index(partition)}"

    def _go_on(self, partition: Partition) -> None:
        Machine.running = partition
        partition.turn.release()
        self.turn.acquire()
        if partition.failure:
            raise partition.failure

    @staticmethod
    def _take(queue: list[Callable[[], None]], i: int) -> None:
        queue.pop(i)()

    @staticmethod
    def _multiply(partition: Partition) -> None:
        partition.products[0].run()
        partition.products.popleft()


def _busy(partition: Partition) -> bool:
    return bool(not partition.ended or partition.products or partition.stores)


def _left_over(block: Block) -> None:
    """What a thread block must not leave behind."""
    if any(member.ended and member.stores for member in block.partitions):
        raise Fault("warps end before what they store has left shared memory")
    if not any(map(_busy, block.partitions)) and any(member.arrived for member in block.named.values()):
        raise Fault("a block ends, and warps have arrived at a named barrier that nobody meets them at")


def now() -> Partition:
    """The partition that runs."""
    assert Machine.running
    return Machine.running


# Gluon's names, as far as the kernels use them.


def _warp_specialize(functions: list[tuple[Callable, tuple]], warps: list[int], registers: list[int]) -> None:
    partition = now()
    (first_work, arguments), *other_functions = functions
    for (work, work_arguments), count in zip(other_functions, warps, strict=True):
        partition.block.partitions.append(Partition(partition.block, count, partial(work, *work_arguments)))
    first_work(*arguments)


def _asm(instruction: str, constraints: str, operands: list[Any], *_: object, **__: object) -> Any:
    partition, opcode = now(), instruction.split(maxsplit=1)[0]
    if "bar.arrive n" in instruction:  # `arrive_after`, whose numbers come as tensors
        opcode, operands = "bar.arrive", [x.view(-1)[0] for x in operands[1:]]
    if opcode == "griddepcontrol.wait;":  # kernels run one after another here
        return 0
    if opcode in ("bar.arrive", "bar.sync"):
        barrier = partition.block.named.setdefault(int(operands[0]), Named())
        round_number = barrier.arrive(int(operands[1]))
        partition.wait((lambda: barrier.rounds > round_number) if opcode == "bar.sync" else lambda: True)
        return 0
    if "vote.sync.any" in instruction:  # `_forward._scale`
        return operands[0] * operands[1]
    if "e4m3x2" in instruction:
        return operands[0].clamp(max=448).to(torch.float8_e4m3fn)
    if opcode == "red.relaxed.gpu.global.add.v4.f32":
        _add_in_register_order(*operands)
        partition.wait()
        return 0
    assert opcode == "cp.async.bulk.wait_group", instruction
    partition.wait(lambda: not partition.stores)
    return 0


def _add_in_register_order(x: Tensor, pointer: Pointer) -> None:
    """A thread's first address counts, and what follows from it for its 32 numbers (`_backward_wide._add`)."""
    row, column = torch.arange(x.shape[0])[:, None], torch.arange(x.shape[1])
    stride = pointer.memory.shape[-1]
    offsets = (row % 2 + row // 8 % 2 * 8) * stride + column // 32 * 32 + column % 4
    indices = pointer.at.as_subclass(Tensor) + offsets
    if indices.max() >= pointer.memory.numel():
        raise Fault("numbers are added beyond a tensor's end")
    pointer.memory.view(-1).index_add_(0, indices.flatten(), x.flatten().as_subclass(Tensor))


class _Barriers(list):
    index = list.__getitem__  # type: ignore[assignment]


def _allocate(dtype: torch.dtype, shape: list[int], layout: object) -> Any:
    if dtype == torch.int64:
        return _Barriers(Barrier() for _ in range(shape[0]))
    now().block.allocations.append(allocation := Allocation())
    return Shared(torch.full(shape, float("nan"), dtype=dtype), allocation)


def _mma(a: Any, b: Shared, acc: Tensor, use_acc: bool = True, is_async: bool = False) -> Product:
    assert is_async
    now().products.append(product := Product(a, b, acc if use_acc else None))
    now().wait()
    return product


def _mma_wait(outstanding: int, deps: tuple[Product, ...]) -> Any:
    partition = now()
    partition.wait(lambda: len(partition.products) <= outstanding)
    values = [product.value for product in deps]
    if any(value is None for value in values):
        raise Fault("a product is used before it is waited for")
    return values[0] if len(values) == 1 else values


def _copy_in(descriptor: Descriptor, coordinates: list[int], barrier: Barrier, out: Shared) -> None:
    def arrives() -> None:
        descriptor.read(coordinates, out.part)
        barrier.transferred(descriptor.block_type.nbytes)

    now().block.machine.copies.append(arrives)
    now().wait()


def _copy_out(descriptor: Descriptor, coordinates: list[int], source: Shared, add: bool = False) -> None:
    now().stores.append(lambda: descriptor.write(coordinates, source.for_hardware(), add))
    now().wait()


def _store_wait(outstanding: int) -> None:
    partition = now()
    partition.wait(lambda: len(partition.stores) <= outstanding)


def _expect(barrier: Barrier, size: int) -> None:
    barrier.bytes += size
    barrier.arrive()


def _arrive(barrier: Barrier, count: int) -> None:
    barrier.arrive(count)
    now().wait()


def _wait(barrier: Barrier, parity: int) -> None:
    """Of a phase: what has ended before it begins has the other parity, so a wait for that passes at once."""
    now().wait(lambda: barrier.phase & 1 != parity)


def _init(barrier: Barrier, count: int) -> None:
    barrier.count = barrier.missing = count


def _fence() -> None:
    partition = now()
    for allocation in partition.block.allocations:
        allocation.unfenced = {store for store in allocation.unfenced if store[0] is not partition}


def _atomic_add(pointer: Pointer, number: int, sem: str) -> int:
    """Who asks again and again, by adding 0, goes on when there is news: a GPU's blocks do not wait for it."""
    partition, cells = now(), pointer.memory.view(-1)
    polled_value = partition.polled.pop(pointer.at, None)
    partition.wait(lambda: bool(number) or int(cells[pointer.at]) != polled_value)
    previous = int(cells[pointer.at])
    cells[pointer.at] += number
    if not number:
        partition.polled[pointer.at] = previous
    return previous


def _store(pointer: Pointer, values: Tensor, mask: Tensor) -> None:
    pointer.memory.view(-1)[pointer.at[mask]] = values[mask]


def _values(x: Tensor) -> Values:
    return x.as_subclass(Values)


def _nothing(*_: object, **__: object) -> None:
    pass


def _same(x: Any, *_: object, **__: object) -> Any:
    return x


def _jit(function: Any) -> Any:
    function.fn = function  # what runs where Python calls it
    return function


GLUON = {
    "float32": torch.float32, "float8e4nv": torch.float8_e4m3fn, "int32": torch.int32, "int64": torch.int64,
    "constexpr": _same, "static_range": range, "to_tensor": _same, "cast": _same, "convert_layout": _same,
    **dict.fromkeys(
        ("NVMMASharedLayout", "NVMMADistributedLayout", "DotOperandLayout", "SliceLayout",
         "DistributedLinearLayout", "thread_barrier"), _nothing),
    "program_id": lambda axis: now().block.number, "num_warps": lambda: now().warps,
    "zeros": lambda shape, dtype, layout: _values(torch.zeros(shape, dtype=dtype)),
    "arange": lambda start, end, layout: _values(torch.arange(start, end)),
    "exp2": torch.exp2, "log2": torch.log2, "where": torch.where,
    "maximum": lambda x, y: torch.maximum(x, torch.as_tensor(y)),
    "minimum": lambda x, y: torch.minimum(x, torch.as_tensor(y)),
    "max": torch.amax, "sum": torch.sum, "split": lambda x: x.unbind(-1),
    "full": lambda shape, value, dtype, layout: _values(torch.full(shape, value, dtype=dtype)),
    "load": lambda pointer: pointer.memory.view(-1)[pointer.at].item(),
    "store": _store, "atomic_add": _atomic_add, "inline_asm_elementwise": _asm,
    "allocate_shared_memory": _allocate, "warp_specialize": _warp_specialize,
}  # fmt: skip
HOPPER = {
    "fence_async_shared": _fence,
    "warpgroup_mma": _mma,
    "warpgroup_mma_wait": _mma_wait,
    "mbarrier": SimpleNamespace(
        init=_init, expect=_expect, wait=_wait, arrive=_arrive, MBarrierLayout=_nothing
    ),
    "tma": SimpleNamespace(
        async_copy_global_to_shared=_copy_in, async_copy_shared_to_global=_copy_out, store_wait=_store_wait
    ),
}
LANGUAGE = "triton.experimental.gluon.language"
MODULES: dict[str, dict[str, Any]] = {
    "triton.experimental": {},
    "triton.experimental.gluon": {
        "jit": lambda function=None, **_: _jit(function) if function else _jit,
        "constexpr_function": _same,
    },
    LANGUAGE: GLUON,
    f"{LANGUAGE}._core": {"builtin": lambda function: partial(_copy_out, add=True)},  # `reduce_add`
    f"{LANGUAGE}.nvidia.hopper": HOPPER,
    "triton.experimental.gluon.nvidia.hopper": {"TensorDescriptor": Descriptor},
}


@contextmanager
def stand_in() -> Iterator[None]:
    """For what is imported or executed meanwhile. Triton needs the real ones itself."""
    import triton._C.libtriton
    import triton.experimental.gluon.language._core
    import triton.experimental.gluon.language.nvidia.hopper
    import triton.experimental.gluon.nvidia.hopper  # noqa: F401

    real_modules = {name: sys.modules[name] for name in MODULES}
    for name, members in MODULES.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(members)
    for name in ("triton.experimental.gluon", LANGUAGE):  # `from package import module` asks the package
        package, _, module = name.rpartition(".")
        setattr(sys.modules[package], module, sys.modules[name])
    try:
        yield
    finally:
        sys.modules.update(real_modules)
