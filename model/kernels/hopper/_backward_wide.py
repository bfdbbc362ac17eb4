"""The backward for head dim 256: as _backward, with smaller blocks of keys and less of everything else in memory.

dK and dV of 128 keys would not fit into two warpgroups' registers: a block has 64 keys, and each warpgroup half of
their columns. So every product needs all of P or dS, which pass through shared memory. That holds one tile of dO,
and one half of dQ's columns at a time.
"""

# ruff: noqa: PIE808 - Gluon compiles these loops: it knows neither enumerate nor every form of range.

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from model.kernels.hopper._backward import in_register_order, mask, turn_at
from model.kernels.hopper._tma import (
    ROW,
    SWIZZLED,
    SWIZZLED_FP32,
    arrive_at,
    block_barrier,
    meet_at,
    pass_turn_on,
    reduce_add,
    wait_for_kernel_before,
    wait_for_turn,
)
from model.kernels.hopper.schedule import (
    block_of_keys,
    cut,
    first_tile,
    next_tile,
    tile_at,
    tiles_of_queries,
)

KEYS = 64  # of a block
BOX = 64  # of them in one TMA instruction
DQ_BOXES = 2  # that the columns of a tile of dQ are moved in
QUERIES = 64  # of a tile
_KEYS = gl.constexpr(KEYS)
_QUERIES = gl.constexpr(QUERIES)

# Named barriers, as _backward's.
_DQ_FULL = gl.constexpr(8)  # twice for each tile of dQ: once for each half of its columns
_DO_FREE = gl.constexpr(9)
_Q_FREE = gl.constexpr(10)  # and 11, of the other stage


@gluon.jit
def _move(
    q_desc, k_desc, v_desc, do_desc, dq_desc, stats_desc, delta_desc, TURNS,
    k_smem, v_smem, q_smem, do_smem, dq_smem, stats_smem, delta_smem,
    kv_full, q_full, do_full, dq_free,
    T_Q, T_K, OFFSET, GROUP, HEADS, PARTS, BATCH, AT_ONCE,
    CAUSAL: gl.constexpr, D: gl.constexpr, ORDERED: gl.constexpr,
):  # fmt: skip
    """Loads K and V once and Q, dO tile by tile; adds each tile of dQ to global memory, one tile behind."""
    block, part, batch = block_of_keys(gl.program_id(0), T_K, PARTS, BATCH, AT_ONCE, _KEYS)
    first_head = part * HEADS
    mbarrier.expect(kv_full.index(0), k_desc.block_type.nbytes + v_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(
        k_desc, [batch, first_head // GROUP, block * _KEYS, 0], kv_full.index(0), k_smem
    )
    tma.async_copy_global_to_shared(
        v_desc, [batch, first_head // GROUP, block * _KEYS, 0], kv_full.index(0), v_smem
    )
    first, tiles = tiles_of_queries(block, T_Q, OFFSET, CAUSAL, _KEYS, _QUERIES)
    total = tiles * HEADS
    for n in range(0, total + 1):
        if n < total:
            head, row = tile_at(n, first_head, first, tiles, ORDERED, _QUERIES)
            stage = n % 2
            full = q_full.index(stage)
            if n > 1:
                meet_at(_Q_FREE + stage)
            mbarrier.expect(full, q_desc.block_type.nbytes + 2 * stats_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(q_desc, [batch, head, row, 0], full, q_smem.index(stage))
            tma.async_copy_global_to_shared(stats_desc, [batch, head, row], full, stats_smem.index(stage * 2))
            tma.async_copy_global_to_shared(
                stats_desc, [batch + BATCH, head, row], full, stats_smem.index(stage * 2 + 1)
            )
            full = do_full.index(0)
            if n > 0:
                meet_at(_DO_FREE)
            mbarrier.expect(full, do_desc.block_type.nbytes + delta_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(do_desc, [batch, head, row, 0], full, do_smem)
            tma.async_copy_global_to_shared(delta_desc, [batch, head, row], full, delta_smem.index(0))
        if n > 0:
            head, row = tile_at(n - 1, first_head, first, tiles, ORDERED, _QUERIES)
            if ORDERED:
                turn = TURNS + turn_at(batch, head, row, T_Q, HEADS, PARTS, _QUERIES)
                wait_for_turn(turn, block)
            for half in gl.static_range(2):
                meet_at(_DQ_FULL)
                reduce_add(dq_desc, [batch, head, row, half * (D // 2)], dq_smem)
                tma.store_wait(0)
                mbarrier.arrive(dq_free.index(0), count=1)
            if ORDERED:
                pass_turn_on(turn)
    # Take what has arrived at the barriers of the last tiles.
    if total > 0:
        meet_at(_DO_FREE)
    for n in range(max(total - 2, 0), total):
        meet_at(_Q_FREE + n % 2)


@gluon.jit
def _compute(
    dk_desc, dv_desc,
    k_smem, v_smem, q_smem, do_smem, p_smem, ds_smem, dq_smem, stats_smem, delta_smem,
    kv_full, q_full, do_full, dq_free,
    T_Q, T_K, OFFSET, HEADS, PARTS, BATCH, AT_ONCE, scale_log2, scale,
    CAUSAL: gl.constexpr, D: gl.constexpr, ORDERED: gl.constexpr,
):  # fmt: skip
    """Both warpgroups: each half of the columns of S^T, dP^T (64 keys, 64 queries), dK, dV (64 keys, D) and dQ."""
    ST_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, _QUERIES // 2, 16])
    DKV_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, D // 2, 16])
    # Of half of dQ's columns: (64 queries, D / 2).
    DQ_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, D // 4, 16])
    ROW_LAYOUT: gl.constexpr = gl.SliceLayout(0, ST_LAYOUT)
    block, part, batch = block_of_keys(gl.program_id(0), T_K, PARTS, BATCH, AT_ONCE, _KEYS)
    dk = gl.zeros([_KEYS, D], gl.float32, DKV_LAYOUT)
    dv = gl.zeros([_KEYS, D], gl.float32, DKV_LAYOUT)
    no_scores = gl.zeros([_KEYS, _QUERIES], gl.float32, ST_LAYOUT)
    no_dq = gl.zeros([_QUERIES, D // 2], gl.float32, DQ_LAYOUT)
    column = gl.arange(0, _QUERIES, ROW_LAYOUT)
    key = block * _KEYS + gl.arange(0, _KEYS, gl.SliceLayout(1, ST_LAYOUT))
    first, tiles = tiles_of_queries(block, T_Q, OFFSET, CAUSAL, _KEYS, _QUERIES)
    ragged = (block + 1) * _KEYS > T_K
    i = first_tile(first, tiles, ORDERED)
    mbarrier.wait(kv_full.index(0), 0)
    for n in range(0, tiles * HEADS):
        stage = n % 2
        q = q_smem.index(stage)
        mbarrier.wait(q_full.index(stage), (n // 2) & 1)
        st = warpgroup_mma(k_smem, q.permute((1, 0)), no_scores, use_acc=False, is_async=True)
        mbarrier.wait(do_full.index(0), n & 1)
        dpt = warpgroup_mma(v_smem, do_smem.permute((1, 0)), no_scores, use_acc=False, is_async=True)
        row_max = stats_smem.index(stage * 2).load(ROW_LAYOUT)
        log_sum = stats_smem.index(stage * 2 + 1).load(ROW_LAYOUT)
        delta = delta_smem.index(0).load(ROW_LAYOUT)
        st = warpgroup_mma_wait(1, deps=(st,))
        masked = ragged
        if CAUSAL:
            masked = ragged | cut(i * _QUERIES, (block + 1) * _KEYS, OFFSET)
        if masked:
            st = mask(st, i * _QUERIES + column, key, T_K, OFFSET, CAUSAL)
        pt = gl.exp2(st * scale_log2 - row_max[None, :] - log_sum[None, :])
        p_smem.store(pt.to(q_smem.dtype))
        dpt = warpgroup_mma_wait(0, deps=(dpt,))
        ds_smem.store((pt * (dpt - delta[None, :])).to(q_smem.dtype))  # dS = P * (dP - delta)
        fence_async_shared()
        block_barrier()  # P and dS of both warpgroups are written
        dv_pending = warpgroup_mma(p_smem, do_smem, dv, is_async=True)  # dV += P^T dO
        # dQ = dS K before dK: it is written out while dK is still on the tensor cores (FA3's order).
        left_pending = warpgroup_mma(
            ds_smem.permute((1, 0)), k_smem.slice(0, D // 2, dim=1), no_dq, use_acc=False, is_async=True
        )
        right_pending = warpgroup_mma(
            ds_smem.permute((1, 0)), k_smem.slice(D // 2, D // 2, dim=1), no_dq, use_acc=False, is_async=True
        )
        dk_pending = warpgroup_mma(ds_smem, q, dk, is_async=True)  # dK += dS^T Q
        dv = warpgroup_mma_wait(3, deps=(dv_pending,))
        arrive_at(_DO_FREE)
        left = warpgroup_mma_wait(2, deps=(left_pending,))
        mbarrier.wait(dq_free.index(0), 1)
        dq_smem.store(in_register_order(left, D // 2, _QUERIES))
        fence_async_shared()
        arrive_at(_DQ_FULL)
        right = warpgroup_mma_wait(1, deps=(right_pending,))
        mbarrier.wait(dq_free.index(0), 0)
        dq_smem.store(in_register_order(right, D // 2, _QUERIES))
        fence_async_shared()
        arrive_at(_DQ_FULL)
        dk = warpgroup_mma_wait(0, deps=(dk_pending,))
        arrive_at(_Q_FREE + stage)
        i = next_tile(i, first, tiles, ORDERED)
    # K and V are not needed any more: their shared memory takes dK and dV, and TMA clips what has no key.
    block_barrier()
    k_smem.store((dk * scale).to(q_smem.dtype))
    v_smem.store(dv.to(q_smem.dtype))
    fence_async_shared()
    block_barrier()
    tma.async_copy_shared_to_global(dk_desc, [batch, part, block * _KEYS, 0], k_smem)
    tma.async_copy_shared_to_global(dv_desc, [batch, part, block * _KEYS, 0], v_smem)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=("T_Q", "T_K", "OFFSET", "GROUP", "HEADS", "PARTS", "BATCH", "AT_ONCE"))
def _backward_kernel(
    q_desc, k_desc, v_desc, do_desc, dq_desc, dk_desc, dv_desc, stats_desc, delta_desc, TURNS,
    T_Q, T_K, OFFSET, GROUP, HEADS, PARTS, BATCH, AT_ONCE, scale_log2, scale,
    CAUSAL: gl.constexpr, D: gl.constexpr, ORDERED: gl.constexpr, QUERIES: gl.constexpr,  # noqa: ARG001 - one launch for both
):  # fmt: skip
    k_smem = gl.allocate_shared_memory(q_desc.dtype, [_KEYS, D], SWIZZLED)
    v_smem = gl.allocate_shared_memory(q_desc.dtype, [_KEYS, D], SWIZZLED)
    q_smem = gl.allocate_shared_memory(q_desc.dtype, [2, _QUERIES, D], SWIZZLED)
    do_smem = gl.allocate_shared_memory(q_desc.dtype, [_QUERIES, D], SWIZZLED)
    p_smem = gl.allocate_shared_memory(q_desc.dtype, [_KEYS, _QUERIES], SWIZZLED)
    ds_smem = gl.allocate_shared_memory(q_desc.dtype, [_KEYS, _QUERIES], SWIZZLED)
    dq_smem = gl.allocate_shared_memory(gl.float32, [_QUERIES, D // 2], SWIZZLED_FP32)
    # Of each stage: the rows' maximum, and log2 of their sum.
    stats_smem = gl.allocate_shared_memory(gl.float32, [4, _QUERIES], ROW)
    delta_smem = gl.allocate_shared_memory(gl.float32, [1, _QUERIES], ROW)
    kv_full = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    do_full = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    dq_free = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    mbarrier.init(kv_full.index(0), count=1)
    mbarrier.init(do_full.index(0), count=1)
    mbarrier.init(dq_free.index(0), count=1)
    for stage in gl.static_range(2):
        mbarrier.init(q_full.index(stage), count=1)
    fence_async_shared()
    wait_for_kernel_before()
    gl.warp_specialize([
        (_move, (q_desc, k_desc, v_desc, do_desc, dq_desc, stats_desc, delta_desc, TURNS,
                 k_smem, v_smem, q_smem, do_smem, dq_smem, stats_smem, delta_smem,
                 kv_full, q_full, do_full, dq_free,
                 T_Q, T_K, OFFSET, GROUP, HEADS, PARTS, BATCH, AT_ONCE, CAUSAL, D, ORDERED)),
        (_compute, (dk_desc, dv_desc,
                    k_smem, v_smem, q_smem, do_smem, p_smem, ds_smem, dq_smem, stats_smem, delta_smem,
                    kv_full, q_full, do_full, dq_free,
                    T_Q, T_K, OFFSET, HEADS, PARTS, BATCH, AT_ONCE, scale_log2, scale,
                    CAUSAL, D, ORDERED)),
    ], [8], [240])  # fmt: skip
