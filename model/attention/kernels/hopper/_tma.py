"""What the Hopper kernels share: descriptors of strided tensors, and launches that cost the CPU little.

TMA (the tensor memory accelerator) moves tiles between global and shared memory, one instruction a tile. A
descriptor tells it a tensor's shape and strides: it finds tiles by their coordinates, fills what lies beyond
the tensor's end with zeros on the way in, and leaves it alone on the way out.
"""

from collections.abc import Hashable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

# The 128-byte swizzle that TMA writes and wgmma reads without bank conflicts; and rows of statistics without.
SWIZZLED = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2))
SWIZZLED_FP32 = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=2))
SWIZZLED_32 = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=32, element_bitwidth=16, rank=2))
ROW = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=1))

# Triton 3.7 renamed it.
block_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier


@builtin
def reduce_add(desc, coord, src, _semantic=None):
    """Add a tile of shared memory to global memory by TMA. Gluon has the instruction, and no name for it."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, desc.handle, coord, src.handle)


# Named hardware barriers (CUTLASS's, in FA3) with numbers that Triton leaves alone (it uses 0 to 4 here). They count
# the threads of both sides; those who hand something over only arrive, and do not wait.
_ARRIVES = gl.constexpr("bar.arrive $1, $2; mov.b32 $0, 0;")
_MEETS = gl.constexpr("bar.sync $1, $2; mov.b32 $0, 0;")
_WHOLE_BLOCK = gl.constexpr(384)


@gluon.jit
def arrive_at(number, THREADS: gl.constexpr = _WHOLE_BLOCK):
    _at_barrier(_ARRIVES, number, THREADS)


@gluon.jit
def meet_at(number, THREADS: gl.constexpr = _WHOLE_BLOCK):
    _at_barrier(_MEETS, number, THREADS)


@gluon.jit
def _at_barrier(INSTRUCTION: gl.constexpr, number, THREADS: gl.constexpr):
    asked = [gl.to_tensor(number), gl.to_tensor(THREADS)]
    gl.inline_asm_elementwise(INSTRUCTION, "=r,r,r,~{memory}", asked, gl.int32, is_pure=False, pack=1)


# Where ptxas puts what follows a barrier is up to it. Here the barrier's number takes in the sign bit of one of x. A NaN of
# CUDA has none (0x7fffffff). That x < 0 is false, ptxas knows of an exponential, and leaves the comparison out.
_ARRIVES_AFTER = gl.constexpr(
    "{ .reg .b32 n; shr.u32 n, $2, 31; add.u32 n, n, $4; bar.arrive n, $6; mov.b32 $0, 0; mov.b32 $1, 0; }"
)


@gluon.jit
def arrive_after(x, number, THREADS: gl.constexpr = _WHOLE_BLOCK):
    """Arrive once x is computed, of which a thread has two numbers, none below 0."""
    LAYOUT: gl.constexpr = x.type.layout
    n = gl.zeros(x.shape, gl.int32, LAYOUT)
    asked = [x, n + number, n + THREADS]
    gl.inline_asm_elementwise(
        _ARRIVES_AFTER, "=r,=r,r,r,r,r,r,r,~{memory}", asked, gl.int32, is_pure=False, pack=2
    )


_WAITS = gl.constexpr("griddepcontrol.wait; mov.b32 $0, 0;")


@gluon.jit
def wait_for_kernel_before():
    """A kernel that the GPU launched early (`passes.EARLY`) must not touch what the one before writes until then."""
    gl.inline_asm_elementwise(_WAITS, "=r,~{memory}", [], gl.int32, is_pure=False, pack=1)


_IN_ORDER = gl.constexpr("cp.async.bulk.wait_group 0; fence.proxy.async.global; mov.b32 $0, 0;")


@gluon.jit
def wait_for_turn(TURN, number):
    """Wait until `number` blocks have passed the turn on: blocks with lower program numbers, which have started."""
    while gl.atomic_add(TURN, 0, sem="acquire") < number:
        pass
    _order_tma()


@gluon.jit
def pass_turn_on(TURN):
    """Let the next block add, once this one's sums are in global memory: `store_wait` waits for less."""
    _order_tma()
    block_barrier()
    gl.atomic_add(TURN, 1, sem="release")


@gluon.jit
def _order_tma():
    """TMA's accesses of global memory before it are done, and later ones come after it."""
    gl.inline_asm_elementwise(_IN_ORDER, "=r", [], gl.int32, is_pure=False, pack=1)


class _Checked(TensorDescriptor):
    """A descriptor whose tensor was checked before (`fits`): TensorDescriptor's own checks are slow."""

    def __post_init__(self) -> None:
        pass


_ROWS = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=3)


def tiles(x_BTHD: Tensor, rows: int, columns: int | None = None) -> TensorDescriptor:
    """A descriptor that moves `rows` positions of one head, or some columns of them. Any strides will do.

    Its coordinates are (batch, head, position, column).
    """
    return _Checked(x_BTHD, *_geometry(x_BTHD.shape, x_BTHD.stride(), x_BTHD.element_size(), rows, columns))


@lru_cache(maxsize=4096)
def _geometry(
    shape: torch.Size, strides: tuple[int, ...], size: int, rows: int, columns: int | None
) -> tuple[list[int], list[int], list[int], gl.NVMMASharedLayout]:
    """Shape, strides, box and layout of a descriptor. Descriptors share them: an eager call has no time to make them anew."""
    B, T, H, D = shape
    b, t, h, _ = (stride if length > 1 else D for stride, length in zip(strides, shape, strict=True))
    columns = columns or D
    layout = gl.NVMMASharedLayout(
        swizzle_byte_width=min(128, size * columns), element_bitwidth=8 * size, rank=4
    )
    return [B, H, T, D], [b, h, t, 1], [1, 1, rows, columns], layout


def rows(x_BHS: Tensor, T: int, length: int) -> TensorDescriptor:
    """A descriptor that moves `length` float32 statistics of one head. Coordinates: (batch, head, position)."""
    B, H, S = x_BHS.shape
    return _Checked(x_BHS, [B, H, T], [H * S, S, 1], [1, 1, length], _ROWS)


_compiled: dict[Hashable, Any] = {}


def launch(
    kernel: Any, key: tuple[Hashable, ...], grid: tuple[int, int, int], *args: Any, **options: Any
) -> None:
    """Launch by way of the compiled kernel, which `key` has to determine, with the device and all constants.

    Triton's own way asks each time how every argument specializes the kernel: most of an eager call's time.
    """
    compiled = _compiled.get((kernel, key))
    if compiled is None:
        _compiled[kernel, key] = kernel[grid](*args, **options)
    else:
        compiled[grid](*args)


def launched(kernel: Any, key: tuple[Hashable, ...]) -> bool:
    """Whether `launch` has been called with this key, so that the kernel is on the GPU."""
    return (kernel, key) in _compiled
