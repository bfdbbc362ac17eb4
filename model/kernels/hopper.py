"""FlashAttention for Hopper in Gluon: forward and backward, causal, bfloat16, head dim 128.

Gluon is the lower level of Triton's language and comes with PyTorch: no compiler and no extra package.
`model/attention/tiled.py` is the same algorithm in plain PyTorch; read that first. Papers: Dao 2023,
"FlashAttention-2" (arXiv:2307.08691), below FA2; Shah et al. 2024, "FlashAttention-3" (arXiv:2407.08608),
below FA3.

Shapes: T sequence, D head dim, R = (batch * heads * T) rows of a matrix with D columns. Query head h reads
key/value head h // GROUP; with the batch folded into the heads this stays true, as H = K * GROUP.
T is a multiple of 128. Row offsets are 32-bit.

How a thread block is divided (warp specialization, FA3 section 3.1): one warpgroup of four warps, of which
one thread works, moves tiles between global and shared memory by TMA; eight warps (two warpgroups) compute.
They meet at mbarriers in shared memory. A barrier completes once per round, and its waiters name the parity
of the round that they wait for: round n of a ring of STAGES buffers uses buffer n % STAGES, and that
buffer's (n // STAGES)-th completion has parity (n // STAGES) & 1. Waiting for a buffer to be *free* uses
the opposite parity, so that the first wait on a fresh barrier passes at once.

Logarithms and exponentials have base 2, which the hardware has an instruction for: exp(x) = exp2(x log2(e)),
and log2(e) is folded into the scale. LSE is the log2-sum-exp2 of a row's scaled scores, in those units.

Known limit: LSE is one number, not a maximum and a sum apart. At very large logits (far beyond what a
trained model has) the backward loses precision.
"""

# ruff: noqa: PIE808, SIM113 - Gluon compiles these loops: it knows neither enumerate nor every form of range.

import torch
from torch import Tensor
from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

TILE = 128  # keys in a tile, and queries of a forward block: two warpgroups with HALF queries each
HALF = 64  # rows of one wgmma instruction; queries in a tile of the backward
STAGES = 2  # buffers that K and V (forward) or Q and dO (backward) rotate through
HEAD_DIM = 128
LOG2_E = 1.4426950408889634

# Gluon reads globals at compile time only as constexpr.
_TILE = gl.constexpr(TILE)
_HALF = gl.constexpr(HALF)

# The 128-byte swizzle that TMA writes and wgmma reads without bank conflicts.
LAYOUT_BF16 = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
LAYOUT_FP32 = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=2)

# Triton 3.7 renamed it.
_block_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier


@builtin
def tma_reduce_add(desc, coord, src, _semantic=None):
    """Add a tile of shared memory to global memory by TMA. Gluon has the instruction, and no name for it."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, desc.handle, coord, src.handle)


@gluon.jit
def _forward_load(
    q_desc, k_desc, v_desc,
    q_smem, k_smem, v_smem,
    q_full, k_full, k_free, v_full, v_free,
    T, GROUP, STAGES: gl.constexpr,
):  # fmt: skip
    """Producer: Q once, then K and V from the diagonal down to the first key."""
    # Late queries see the most keys: they go first, so that no long block is left alone at the end.
    block = gl.num_programs(0) - 1 - gl.program_id(0)
    head = gl.program_id(1)
    q_row = head * T + block * _TILE
    kv_row = (head // GROUP) * T
    for half in gl.static_range(2):
        mbarrier.expect(q_full.index(half), q_desc.block_type.nbytes)
        half_row = q_row + half * _HALF
        tma.async_copy_global_to_shared(q_desc, [half_row, 0], q_full.index(half), q_smem.index(half))
    n = 0
    for i in range(0, block + 1):
        key = (block - i) * _TILE
        stage = n % STAGES
        parity = (n // STAGES) & 1
        mbarrier.wait(k_free.index(stage), parity ^ 1)
        mbarrier.expect(k_full.index(stage), k_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(k_desc, [kv_row + key, 0], k_full.index(stage), k_smem.index(stage))
        mbarrier.wait(v_free.index(stage), parity ^ 1)
        mbarrier.expect(v_full.index(stage), v_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(v_desc, [kv_row + key, 0], v_full.index(stage), v_smem.index(stage))
        n += 1


@gluon.jit
def _forward_compute(
    o_desc, LSE,
    q_smem, k_smem, v_smem,
    q_full, k_full, k_free, v_full, v_free,
    T, scale_log2, D: gl.constexpr, STAGES: gl.constexpr, WHICH: gl.constexpr,
):  # fmt: skip
    """Consumer WHICH (0 or 1): the online softmax over half of the block's queries (FA2 algorithm 1)."""
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _TILE, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    # P goes from the registers that hold S straight into the next product: it never sees shared memory.
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    block = gl.num_programs(0) - 1 - gl.program_id(0)
    head = gl.program_id(1)
    row_max = gl.full([_HALF], float("-inf"), gl.float32, gl.SliceLayout(1, S_LAYOUT))
    row_sum = gl.full([_HALF], 0.0, gl.float32, gl.SliceLayout(1, S_LAYOUT))
    acc = gl.zeros([_HALF, D], gl.float32, O_LAYOUT)
    q = q_smem.index(WHICH)
    mbarrier.wait(q_full.index(WHICH), 0)
    no_scores = gl.zeros([_HALF, _TILE], gl.float32, S_LAYOUT)

    # The tile on the diagonal comes first: the only one with a mask, and it gives every row a finite maximum.
    mbarrier.wait(k_full.index(0), 0)
    s = warpgroup_mma(q, k_smem.index(0).permute((1, 0)), no_scores, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, deps=(s,))
    mbarrier.arrive(k_free.index(0), count=1)
    query = WHICH * _HALF + gl.arange(0, _HALF, gl.SliceLayout(1, S_LAYOUT))
    key = gl.arange(0, _TILE, gl.SliceLayout(0, S_LAYOUT))
    s = gl.where(query[:, None] >= key[None, :], s, float("-inf"))
    new_max = gl.maximum(row_max, gl.max(s, 1) * scale_log2)
    p = gl.exp2(s * scale_log2 - new_max[:, None])
    row_sum = gl.sum(p, 1)
    row_max = new_max

    n = 1
    for _ in range(1, block + 1):
        stage = n % STAGES
        parity = (n // STAGES) & 1
        last_stage = (n - 1) % STAGES
        last_parity = ((n - 1) // STAGES) & 1
        # Start S(n) = Q K(n)^T, then O += P(n-1) V(n-1), and do the softmax of S(n) while the second one
        # still runs on the tensor cores (FA3 section 3.2, algorithm 2).
        mbarrier.wait(k_full.index(stage), parity)
        s = warpgroup_mma(q, k_smem.index(stage).permute((1, 0)), no_scores, use_acc=False, is_async=True)
        mbarrier.wait(v_full.index(last_stage), last_parity)
        p_bf16 = gl.convert_layout(p.to(gl.bfloat16), P_LAYOUT)
        acc_pending = warpgroup_mma(p_bf16, v_smem.index(last_stage), acc, is_async=True)
        s = warpgroup_mma_wait(1, deps=(s,))  # all but the newest: S is there, O may not be
        mbarrier.arrive(k_free.index(stage), count=1)
        new_max = gl.maximum(row_max, gl.max(s, 1) * scale_log2)
        p = gl.exp2(s * scale_log2 - new_max[:, None])
        shrink = gl.exp2(row_max - new_max)
        row_sum = row_sum * shrink + gl.sum(p, 1)
        row_max = new_max
        acc = warpgroup_mma_wait(0, deps=(acc_pending,))
        mbarrier.arrive(v_free.index(last_stage), count=1)
        acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, O_LAYOUT))[:, None]
        n += 1

    last_stage = (n - 1) % STAGES
    last_parity = ((n - 1) // STAGES) & 1
    mbarrier.wait(v_full.index(last_stage), last_parity)
    p_bf16 = gl.convert_layout(p.to(gl.bfloat16), P_LAYOUT)
    acc_pending = warpgroup_mma(p_bf16, v_smem.index(last_stage), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=(acc_pending,))
    acc = acc / gl.convert_layout(row_sum, gl.SliceLayout(1, O_LAYOUT))[:, None]
    # Q is read for the last time: its buffer takes O on the way out.
    q.store(acc.to(gl.bfloat16))
    fence_async_shared()
    tma.async_copy_shared_to_global(o_desc, [head * T + block * _TILE + WHICH * _HALF, 0], q)
    tma.store_wait(0)
    lse_at = LSE + head * T + block * _TILE + WHICH * _HALF + gl.arange(0, _HALF, gl.SliceLayout(1, S_LAYOUT))
    gl.store(lse_at, row_max + gl.log2(row_sum))


@gluon.jit
def _forward_kernel(
    q_desc, k_desc, v_desc, o_desc, LSE, T, GROUP, scale_log2, D: gl.constexpr, STAGES: gl.constexpr
):
    """One block: 128 queries of one head against all the keys that they may see."""
    q_smem = gl.allocate_shared_memory(gl.bfloat16, [2, _HALF, D], q_desc.layout)
    k_smem = gl.allocate_shared_memory(gl.bfloat16, [STAGES, _TILE, D], k_desc.layout)
    v_smem = gl.allocate_shared_memory(gl.bfloat16, [STAGES, _TILE, D], v_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for half in gl.static_range(2):
        mbarrier.init(q_full.index(half), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(k_free.index(stage), count=2)  # both consumers have to let go
        mbarrier.init(v_free.index(stage), count=2)
    fence_async_shared()
    # Registers: the consumers take 240 each, which leaves the producer the few that it needs.
    gl.warp_specialize([
        (_forward_load, (q_desc, k_desc, v_desc, q_smem, k_smem, v_smem, q_full, k_full, k_free, v_full, v_free,
                         T, GROUP, STAGES)),
        (_forward_compute, (o_desc, LSE, q_smem, k_smem, v_smem, q_full, k_full, k_free, v_full, v_free,
                            T, scale_log2, D, STAGES, 0)),
        (_forward_compute, (o_desc, LSE, q_smem, k_smem, v_smem, q_full, k_full, k_free, v_full, v_free,
                            T, scale_log2, D, STAGES, 1)),
    ], [4, 4], [240, 240])  # fmt: skip


@gluon.jit
def _backward_move(
    q_desc, k_desc, v_desc, do_desc, dq_desc,
    k_smem, v_smem, q_smem, do_smem, dq_smem,
    kv_full, q_full, q_free, dq_full, dq_free,
    T, GROUP,
):  # fmt: skip
    """Loads K and V once and Q, dO tile by tile; adds each tile of dQ to global memory, one tile behind."""
    block = gl.program_id(0)
    head = gl.program_id(1)
    kv_row = (head // GROUP) * T + block * _TILE
    mbarrier.expect(kv_full.index(0), k_desc.block_type.nbytes + v_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(k_desc, [kv_row, 0], kv_full.index(0), k_smem)
    tma.async_copy_global_to_shared(v_desc, [kv_row, 0], kv_full.index(0), v_smem)
    first = block * 2  # in tiles of 64 queries: earlier ones never saw these keys
    end = T // _HALF
    n = 0
    for i in range(first, end + 1):
        if i < end:
            stage = n % 2
            parity = (n // 2) & 1
            mbarrier.wait(q_free.index(stage), parity ^ 1)
            mbarrier.expect(q_full.index(stage), q_desc.block_type.nbytes + do_desc.block_type.nbytes)
            row = head * T + i * _HALF
            tma.async_copy_global_to_shared(q_desc, [row, 0], q_full.index(stage), q_smem.index(stage))
            tma.async_copy_global_to_shared(do_desc, [row, 0], q_full.index(stage), do_smem.index(stage))
        if i > first:
            mbarrier.wait(dq_full.index(0), (n - 1) & 1)
            tma_reduce_add(dq_desc, [head * T + (i - 1) * _HALF, 0], dq_smem)
            tma.store_wait(0)
            mbarrier.arrive(dq_free.index(0), count=1)
        n += 1


@gluon.jit
def _backward_compute(
    DK, DV, LSE, DELTA,
    k_smem, v_smem, q_smem, do_smem, ds_smem, dq_smem,
    kv_full, q_full, q_free, dq_full, dq_free,
    T, scale_log2, scale, D: gl.constexpr,
):  # fmt: skip
    """Both warpgroups: dK and dV of 128 keys in registers, dQ handed on (FA2 algorithm 2).

    Scores are held transposed (keys are rows), so that P^T and dS^T are register operands of dV and dK.
    """
    # S^T (128 keys, 64 queries), dK and dV (128 keys, D): half of the keys to each warpgroup.
    ST_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, 64, 16])
    DKV_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, D, 16])
    # dQ (64 queries, D): half of the columns to each warpgroup.
    DQ_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, D // 2, 16])
    A_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, DKV_LAYOUT, 2)
    block = gl.program_id(0)
    head = gl.program_id(1)
    dk = gl.zeros([_TILE, D], gl.float32, DKV_LAYOUT)
    dv = gl.zeros([_TILE, D], gl.float32, DKV_LAYOUT)
    no_scores = gl.zeros([_TILE, _HALF], gl.float32, ST_LAYOUT)
    no_dq = gl.zeros([_HALF, D], gl.float32, DQ_LAYOUT)
    query = gl.arange(0, _HALF, gl.SliceLayout(0, ST_LAYOUT))
    key = gl.arange(0, _TILE, gl.SliceLayout(1, ST_LAYOUT))
    mbarrier.wait(kv_full.index(0), 0)
    n = 0
    for i in range(block * 2, T // _HALF):
        stage = n % 2
        parity = (n // 2) & 1
        row = head * T + i * _HALF
        lse = gl.load(LSE + row + query)
        delta = gl.load(DELTA + row + query)
        q = q_smem.index(stage)
        do = do_smem.index(stage)
        mbarrier.wait(q_full.index(stage), parity)
        # S^T = K Q^T and dP^T = V dO^T
        st = warpgroup_mma(k_smem, q.permute((1, 0)), no_scores, use_acc=False, is_async=True)
        dpt = warpgroup_mma(v_smem, do.permute((1, 0)), no_scores, use_acc=False, is_async=True)
        st = warpgroup_mma_wait(1, deps=(st,))
        if i * _HALF < (block + 1) * _TILE:  # only tiles that touch the diagonal are masked
            st = gl.where((i * _HALF + query)[None, :] >= (block * _TILE + key)[:, None], st, float("-inf"))
        pt = gl.exp2(st * scale_log2 - lse[None, :])
        pt_bf16 = gl.convert_layout(pt.to(gl.bfloat16), A_LAYOUT)
        dv_pending = warpgroup_mma(pt_bf16, do, dv, is_async=True)  # dV += P^T dO
        dpt = warpgroup_mma_wait(1, deps=(dpt,))
        dst = (pt * (dpt - delta[None, :])).to(gl.bfloat16)  # dS = P * (dP - delta)
        # dQ = dS K sums over keys, which the warpgroups share out: dS has to pass through shared memory.
        ds_smem.store(dst)
        fence_async_shared()
        dst_operand = gl.convert_layout(dst, A_LAYOUT)
        dk_pending = warpgroup_mma(dst_operand, q, dk, is_async=True)  # dK += dS^T Q
        _block_barrier()  # dS of both warpgroups is written
        dq = warpgroup_mma(ds_smem.permute((1, 0)), k_smem, no_dq, use_acc=False, is_async=True)
        dv = warpgroup_mma_wait(2, deps=(dv_pending,))
        dk = warpgroup_mma_wait(1, deps=(dk_pending,))
        dq = warpgroup_mma_wait(0, deps=(dq,))
        mbarrier.arrive(q_free.index(stage), count=1)
        mbarrier.wait(dq_free.index(0), (n & 1) ^ 1)
        dq_smem.store(dq)
        fence_async_shared()
        mbarrier.arrive(dq_full.index(0), count=1)
        n += 1
    dkv_row = head * T + block * _TILE + gl.arange(0, _TILE, gl.SliceLayout(1, DKV_LAYOUT))
    dkv_at = dkv_row[:, None] * D + gl.arange(0, D, gl.SliceLayout(0, DKV_LAYOUT))[None, :]
    gl.store(DV + dkv_at, dv.to(gl.bfloat16))
    gl.store(DK + dkv_at, (dk * scale).to(gl.bfloat16))


@gluon.jit
def _backward_kernel(
    q_desc, k_desc, v_desc, do_desc, dq_desc, DK, DV, LSE, DELTA, T, GROUP, scale_log2, scale, D: gl.constexpr
):
    """One block: 128 keys of one query head against all the queries that saw them."""
    k_smem = gl.allocate_shared_memory(gl.bfloat16, [_TILE, D], k_desc.layout)
    v_smem = gl.allocate_shared_memory(gl.bfloat16, [_TILE, D], v_desc.layout)
    q_smem = gl.allocate_shared_memory(gl.bfloat16, [2, _HALF, D], q_desc.layout)
    do_smem = gl.allocate_shared_memory(gl.bfloat16, [2, _HALF, D], do_desc.layout)
    ds_smem = gl.allocate_shared_memory(gl.bfloat16, [_TILE, _HALF], k_desc.layout)
    dq_smem = gl.allocate_shared_memory(gl.float32, [_HALF, D], dq_desc.layout)
    kv_full = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    q_free = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    dq_full = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    dq_free = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    mbarrier.init(kv_full.index(0), count=1)
    mbarrier.init(dq_full.index(0), count=1)
    mbarrier.init(dq_free.index(0), count=1)
    for stage in gl.static_range(2):
        mbarrier.init(q_full.index(stage), count=1)
        mbarrier.init(q_free.index(stage), count=1)
    fence_async_shared()
    # A fourth partition would round up to 16 warps, hence 128 registers, and ptxas would serialize wgmma.
    gl.warp_specialize([
        (_backward_move, (q_desc, k_desc, v_desc, do_desc, dq_desc, k_smem, v_smem, q_smem, do_smem, dq_smem,
                          kv_full, q_full, q_free, dq_full, dq_free, T, GROUP)),
        (_backward_compute, (DK, DV, LSE, DELTA, k_smem, v_smem, q_smem, do_smem, ds_smem, dq_smem,
                             kv_full, q_full, q_free, dq_full, dq_free, T, scale_log2, scale, D)),
    ], [8], [240])  # fmt: skip


def forward(q_HTD: Tensor, k_KTD: Tensor, v_KTD: Tensor) -> tuple[Tensor, Tensor]:
    """Causal attention of contiguous bfloat16 tensors, the batch folded into the heads.

    Returns:
        (o_HTD in bfloat16, lse_HT in float32 and log2 units)
    """
    _check(q_HTD, k_KTD, v_KTD)
    H, T, D = q_HTD.shape
    o_HTD = torch.empty_like(q_HTD)
    lse_HT = torch.empty(H, T, device=q_HTD.device, dtype=torch.float32)
    _forward_kernel[(T // TILE, H)](
        _rows(q_HTD, HALF), _rows(k_KTD, TILE), _rows(v_KTD, TILE), _rows(o_HTD, HALF),
        lse_HT, T, H // k_KTD.shape[0], D**-0.5 * LOG2_E, D, STAGES,
        num_warps=4,
    )  # fmt: skip
    return o_HTD, lse_HT


def backward(
    do_HTD: Tensor, q_HTD: Tensor, k_KTD: Tensor, v_KTD: Tensor, o_HTD: Tensor, lse_HT: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients, all in bfloat16. dQ is summed by atomic additions: its last bits vary from run to run.

    Returns:
        (dq_HTD, dk_HTD, dv_HTD): dK and dV are per *query* head; the caller sums them over the group.
    """
    _check(do_HTD, q_HTD, k_KTD, v_KTD, o_HTD)
    H, T, D = q_HTD.shape
    delta_HT = (o_HTD.float() * do_HTD.float()).sum(-1)
    dq_HTD = torch.zeros(H, T, D, device=q_HTD.device, dtype=torch.float32)
    dk_HTD, dv_HTD = torch.empty_like(q_HTD), torch.empty_like(q_HTD)
    scale = D**-0.5
    _backward_kernel[(T // TILE, H)](
        _rows(q_HTD, HALF), _rows(k_KTD, TILE), _rows(v_KTD, TILE), _rows(do_HTD, HALF),
        _rows(dq_HTD, HALF, LAYOUT_FP32), dk_HTD, dv_HTD, lse_HT, delta_HT,
        T, H // k_KTD.shape[0], scale * LOG2_E, scale, D,
        num_warps=4,
    )  # fmt: skip
    return (dq_HTD * scale).to(torch.bfloat16), dk_HTD, dv_HTD


def _check(*tensors_HTD: Tensor) -> None:
    """The kernels read memory as if all this were so: anything else would be garbage, not an error."""
    T = tensors_HTD[0].shape[1]
    for x in tensors_HTD:
        fits = x.dtype == torch.bfloat16 and x.shape[1:] == (T, HEAD_DIM) and x.is_contiguous()
        if not fits or T % TILE:
            raise ValueError(
                f"the Hopper kernel takes contiguous bfloat16 (heads, T, {HEAD_DIM}), T a multiple of {TILE}; "
                f"got {x.dtype} {tuple(x.shape)} with strides {x.stride()}"
            )


def _rows(x_HTD: Tensor, rows: int, layout: gl.NVMMASharedLayout = LAYOUT_BF16) -> TensorDescriptor:
    """A TMA descriptor that moves `rows` rows of the (heads * T, D) matrix at a time."""
    D = x_HTD.shape[-1]
    return TensorDescriptor.from_tensor(x_HTD.view(-1, D), [rows, D], layout)
