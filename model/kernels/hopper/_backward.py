"""The backward: one block takes 128 keys past all the queries that saw them, of one or more query heads."""

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
    first_to_see,
    next_tile,
    tile_at,
    tiles_of_queries,
)

KEYS = 128  # of a block, 64 to a warpgroup
BOX = 128  # of them in one TMA instruction
_KEYS = gl.constexpr(KEYS)


def queries(D: int, ordered: bool) -> int:
    """Of a tile. At head dim 64 longer ones have half as many barriers; taking turns was measured with 64 alone."""
    return 128 if D == 64 and not ordered else 64


# One TMA instruction brings the statistics of a tile of 64 queries, in the order of threads (`packed` in __init__). Tiles
# of 128, head dim 64's, were measured without.

# Named barriers, at which tiles are handed over.
_DQ_FULL = gl.constexpr(8)
_Q_FREE = gl.constexpr(10)  # and 11, of the other stage


@gluon.jit
def in_register_order(dq, D: gl.constexpr, QUERIES: gl.constexpr):
    """A tile of dQ with its elements moved, so that a thread's registers are 16 bytes in a row.

    Of wgmma's accumulators a thread has columns c and c + 1 (c = 2 (lane % 4)) of rows lane // 4 and
    lane // 4 + 8 in four registers. Bits of the row (r0 is the lowest) and column change places: from
    rows r5 to r0, columns .. to c0 to rows r5 r4 c4 r2 r1 c3, columns .. c5 r0 c2 c1 r3 c0. So 8 threads
    (r0 c2 c1) write 128 bytes of one row, which meet no bank conflict, however rows are swizzled.
    """
    parts = dq.reshape(
        [QUERIES // 16, 2, 4, 2, D // 32, 2, 2, 4, 2]
    )  # .. r4, r3, r2 r1, r0, .. c5, c4, c3, c2 c1, c0
    return parts.permute((0, 5, 2, 6, 4, 3, 7, 1, 8)).reshape([QUERIES, D])


@gluon.jit
def statistic(stats_smem, stage, which: gl.constexpr, LAYOUT: gl.constexpr, QUERIES: gl.constexpr):
    """Of a tile's rows: 0 and 1 are the LSE and what its rounding lost, or the maximum and log2 of the sum; 2 is delta."""
    if QUERIES == 64:
        EACH_WARP: gl.constexpr = [[0]] * 3 if gl.num_warps() == 8 else [[0]] * 2
        # Threads read 16 bytes at a time; then every 16 values get the order of rows.
        READ: gl.constexpr = gl.DistributedLinearLayout(
            [[1], [2], [16], [32]], [[4], [8], [0], [0], [0]], EACH_WARP, [], [QUERIES]
        )
        x = stats_smem.index(stage).slice(which * QUERIES, QUERIES).load(READ)
        x = x.reshape([QUERIES // 16, 4, 2, 2]).permute((0, 2, 1, 3)).reshape([QUERIES])
        return gl.convert_layout(x, LAYOUT, assert_trivial=True)
    else:  # noqa: RET505 - Triton compiles what follows a return
        return stats_smem.index(stage * 3 + which).load(LAYOUT)


@gluon.jit
def is_large(stats_smem, stage, QUERIES: gl.constexpr):
    """Whether some row of the tile needs two numbers, in every thread."""
    EACH_WARP: gl.constexpr = [[0]] * 3 if gl.num_warps() == 8 else [[0]] * 2
    ONE: gl.constexpr = gl.DistributedLinearLayout([], [[0]] * 5, EACH_WARP, [], [1])
    return gl.max(stats_smem.index(stage).slice(3 * QUERIES, 1).load(ONE), 0) > 0


@gluon.jit
def turn_at(batch, head, row, T_Q, HEADS, PARTS, QUERIES: gl.constexpr):
    """Where TURNS counts the blocks that have added to this tile of dQ."""
    return (batch * PARTS * HEADS + head) * ((T_Q + QUERIES - 1) // QUERIES) + row // QUERIES


@gluon.jit
def _move(
    q_desc, k_desc, v_desc, do_desc, dq_desc, stats_desc, delta_desc, TURNS,
    k_smem, v_smem, q_smem, do_smem, dq_smem, stats_smem,
    kv_full, q_full, dq_free,
    T_Q, T_K, OFFSET, GROUP, HEADS, PARTS, BATCH, AT_ONCE, CAUSAL: gl.constexpr, ORDERED: gl.constexpr,
    QUERIES: gl.constexpr,
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
    first, tiles = tiles_of_queries(block, T_Q, OFFSET, CAUSAL, _KEYS, QUERIES)
    total = tiles * HEADS
    for n in range(0, total + 1):
        if n < total:
            head, row = tile_at(n, first_head, first, tiles, ORDERED, QUERIES)
            stage = n % 2
            full = q_full.index(stage)
            if n > 1:
                meet_at(_Q_FREE + stage)
            STATS: gl.constexpr = 1 if QUERIES == 64 else 3
            mbarrier.expect(full, 2 * q_desc.block_type.nbytes + STATS * delta_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(q_desc, [batch, head, row, 0], full, q_smem.index(stage))
            if QUERIES == 64:
                tma.async_copy_global_to_shared(
                    delta_desc, [batch, head, row * 4], full, stats_smem.index(stage)
                )
            else:
                tma.async_copy_global_to_shared(
                    stats_desc, [batch, head, row], full, stats_smem.index(stage * 3)
                )
                tma.async_copy_global_to_shared(
                    stats_desc, [batch + BATCH, head, row], full, stats_smem.index(stage * 3 + 1)
                )
                tma.async_copy_global_to_shared(
                    delta_desc, [batch, head, row], full, stats_smem.index(stage * 3 + 2)
                )
            tma.async_copy_global_to_shared(do_desc, [batch, head, row, 0], full, do_smem.index(stage))
        if n > 0:
            head, row = tile_at(n - 1, first_head, first, tiles, ORDERED, QUERIES)
            meet_at(_DQ_FULL)
            if ORDERED:
                turn = TURNS + turn_at(batch, head, row, T_Q, HEADS, PARTS, QUERIES)
                wait_for_turn(turn, block)
            reduce_add(dq_desc, [batch, head, row, 0], dq_smem)
            tma.store_wait(0)
            mbarrier.arrive(dq_free.index(0), count=1)
            if ORDERED:
                pass_turn_on(turn)
    for n in range(max(total - 2, 0), total):  # take what has arrived at the barriers of the last tiles
        meet_at(_Q_FREE + n % 2)


@gluon.jit
def mask(st, query, key, T_K, OFFSET, CAUSAL: gl.constexpr):
    """-inf for keys after the last one, and for a query's future."""
    return gl.where(query[None, :] >= first_to_see(key[:, None], T_K, OFFSET, CAUSAL), st, float("-inf"))


@gluon.jit
def _compute(
    dk_desc, dv_desc,
    k_smem, v_smem, q_smem, do_smem, ds_smem, dq_smem, stats_smem,
    kv_full, q_full, dq_free,
    T_Q, T_K, OFFSET, HEADS, PARTS, BATCH, AT_ONCE, scale_log2, scale,
    CAUSAL: gl.constexpr, D: gl.constexpr, ORDERED: gl.constexpr, QUERIES: gl.constexpr,
):  # fmt: skip
    """Both warpgroups: dK and dV of 128 keys in registers, dQ handed on (FA2 algorithm 2).

    Scores are held transposed (keys are rows), so that P^T and dS^T are register operands of dV and dK.
    """
    # S^T (128 keys, 64 queries), dK and dV (128 keys, D): half of the keys to each warpgroup.
    ST_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, QUERIES, 16])
    DKV_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, D, 16])
    # dQ (queries, D): half of the columns to each warpgroup, or half of 128 queries.
    DQ_LAYOUT: gl.constexpr = (
        gl.NVMMADistributedLayout([3, 0], [4, 2], [16, D // 2, 16])
        if QUERIES == 64
        else gl.NVMMADistributedLayout([3, 0], [8, 1], [16, D, 16])
    )
    A_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, DKV_LAYOUT, 2)
    ROW_LAYOUT: gl.constexpr = gl.SliceLayout(0, ST_LAYOUT)
    block, part, batch = block_of_keys(gl.program_id(0), T_K, PARTS, BATCH, AT_ONCE, _KEYS)
    dk = gl.zeros([_KEYS, D], gl.float32, DKV_LAYOUT)
    dv = gl.zeros([_KEYS, D], gl.float32, DKV_LAYOUT)
    no_scores = gl.zeros([_KEYS, QUERIES], gl.float32, ST_LAYOUT)
    no_dq = gl.zeros([QUERIES, D], gl.float32, DQ_LAYOUT)
    column = gl.arange(0, QUERIES, ROW_LAYOUT)
    key = block * _KEYS + gl.arange(0, _KEYS, gl.SliceLayout(1, ST_LAYOUT))
    first, tiles = tiles_of_queries(block, T_Q, OFFSET, CAUSAL, _KEYS, QUERIES)
    ragged = (block + 1) * _KEYS > T_K
    i = first_tile(first, tiles, ORDERED)
    mbarrier.wait(kv_full.index(0), 0)
    total = tiles * HEADS
    for n in range(0, total):
        stage = n % 2
        q = q_smem.index(stage)
        do = do_smem.index(stage)
        # S^T = K Q^T and dP^T = V dO^T
        mbarrier.wait(q_full.index(stage), (n // 2) & 1)
        st = warpgroup_mma(k_smem, q.permute((1, 0)), no_scores, use_acc=False, is_async=True)
        dpt = warpgroup_mma(v_smem, do.permute((1, 0)), no_scores, use_acc=False, is_async=True)
        masked = ragged
        if CAUSAL:
            masked = ragged | cut(i * QUERIES, (block + 1) * _KEYS, OFFSET)
        if QUERIES == 64:
            # The LSE in one number saves an addition to each score. Large ones need two, and take the way of the mask.
            lse = statistic(stats_smem, stage, 0, ROW_LAYOUT, QUERIES)
            masked = masked | is_large(stats_smem, stage, QUERIES)
        st = warpgroup_mma_wait(1, deps=(st,))
        factor = scale_log2
        if masked:
            st = mask(st, i * QUERIES + column, key, T_K, OFFSET, CAUSAL)
            if QUERIES == 64:
                lost = statistic(stats_smem, stage, 1, ROW_LAYOUT, QUERIES)
                st = st * factor - lse[None, :] - lost[None, :]
                factor = gl.to_tensor(1.0)
                lse = gl.zeros([QUERIES], gl.float32, ROW_LAYOUT)
        if QUERIES == 64:
            pt = gl.exp2(st * factor - lse[None, :])
        else:  # registers are scarce: as late as possible
            row_max = statistic(stats_smem, stage, 0, ROW_LAYOUT, QUERIES)
            log_sum = statistic(stats_smem, stage, 1, ROW_LAYOUT, QUERIES)
            pt = gl.exp2(st * scale_log2 - row_max[None, :] - log_sum[None, :])
        pt_16 = gl.convert_layout(pt.to(q_smem.dtype), A_LAYOUT)
        delta = statistic(stats_smem, stage, 2, ROW_LAYOUT, QUERIES)
        dpt = warpgroup_mma_wait(0, deps=(dpt,))
        dst = (pt * (dpt - delta[None, :])).to(q_smem.dtype)  # dS = P * (dP - delta)
        # dQ = dS K sums over keys, which the warpgroups share out: dS has to pass through shared memory.
        if CAUSAL:
            ds_smem.store(dst)
            ds = ds_smem.permute((1, 0))
        else:
            ds_smem.store(dst.permute((1, 0)))
            ds = ds_smem
        dst_operand = gl.convert_layout(dst, A_LAYOUT)
        # After dS is stored: its product hides the barrier (FA3's order).
        dv_pending = warpgroup_mma(pt_16, do, dv, is_async=True)  # dV += P^T dO
        fence_async_shared()
        block_barrier()  # dS of both warpgroups is written
        # dQ before dK: it is written out while dK is still on the tensor cores (FA3's order).
        dq_pending = warpgroup_mma(ds, k_smem, no_dq, use_acc=False, is_async=True)
        dk_pending = warpgroup_mma(dst_operand, q, dk, is_async=True)  # dK += dS^T Q
        mbarrier.wait(dq_free.index(0), (n & 1) ^ 1)
        dq = warpgroup_mma_wait(1, deps=(dq_pending,))
        dq_smem.store(in_register_order(dq, D, QUERIES))
        fence_async_shared()
        arrive_at(_DQ_FULL)
        dv, dk = warpgroup_mma_wait(0, deps=(dv_pending, dk_pending))
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
    CAUSAL: gl.constexpr, D: gl.constexpr, ORDERED: gl.constexpr, QUERIES: gl.constexpr,
):  # fmt: skip
    k_smem = gl.allocate_shared_memory(q_desc.dtype, [_KEYS, D], SWIZZLED)
    v_smem = gl.allocate_shared_memory(q_desc.dtype, [_KEYS, D], SWIZZLED)
    q_smem = gl.allocate_shared_memory(q_desc.dtype, [2, QUERIES, D], SWIZZLED)
    do_smem = gl.allocate_shared_memory(q_desc.dtype, [2, QUERIES, D], SWIZZLED)
    # dS^T, or dS by transposing stores, as in FA3: 2 to 4 % faster without a mask, and 0 to 2 % slower with one.
    ds_smem = gl.allocate_shared_memory(
        q_desc.dtype, [_KEYS, QUERIES] if CAUSAL else [QUERIES, _KEYS], SWIZZLED
    )
    dq_smem = gl.allocate_shared_memory(gl.float32, [QUERIES, D], SWIZZLED_FP32)
    STATS: gl.constexpr = 4 if QUERIES == 64 else 1  # `statistic`, and `is_large`
    stats_smem = gl.allocate_shared_memory(gl.float32, [2 if QUERIES == 64 else 6, STATS * QUERIES], ROW)
    kv_full = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    dq_free = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    mbarrier.init(kv_full.index(0), count=1)
    mbarrier.init(dq_free.index(0), count=1)
    for stage in gl.static_range(2):
        mbarrier.init(q_full.index(stage), count=1)
    fence_async_shared()
    wait_for_kernel_before()
    # A fourth partition would round up to 16 warps, hence 128 registers, and ptxas would serialize wgmma.
    gl.warp_specialize([
        (_move, (q_desc, k_desc, v_desc, do_desc, dq_desc, stats_desc, delta_desc, TURNS,
                 k_smem, v_smem, q_smem, do_smem, dq_smem, stats_smem,
                 kv_full, q_full, dq_free,
                 T_Q, T_K, OFFSET, GROUP, HEADS, PARTS, BATCH, AT_ONCE, CAUSAL, ORDERED, QUERIES)),
        (_compute, (dk_desc, dv_desc, k_smem, v_smem, q_smem, do_smem, ds_smem, dq_smem, stats_smem,
                    kv_full, q_full, dq_free,
                    T_Q, T_K, OFFSET, HEADS, PARTS, BATCH, AT_ONCE, scale_log2, scale,
                    CAUSAL, D, ORDERED, QUERIES)),
    ], [8], [240])  # fmt: skip
