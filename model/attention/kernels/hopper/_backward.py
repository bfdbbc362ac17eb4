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

from model.attention.kernels.hopper._tma import (
    ROW,
    SWIZZLED,
    SWIZZLED_32,
    SWIZZLED_FP32,
    arrive_at,
    block_barrier,
    meet_at,
    pass_turn_on,
    reduce_add,
    wait_for_kernel_before,
    wait_for_turn,
)
from model.attention.kernels.hopper.passes import WEIGHTS
from model.attention.kernels.hopper.schedule import (
    block_of_keys,
    cut,
    first_tile,
    first_to_see,
    next_tile,
    tile_at,
    tiles_of_queries,
)

KEYS = 128  # of a block
BOX = 64  # of them in one TMA instruction
_KEYS = gl.constexpr(KEYS)
_OWN = gl.constexpr(BOX)  # keys of a warpgroup, and the queries and columns of dQ that it computes


def queries(D: int) -> int:
    """Queries of a tile. At head dim 64 longer tiles have half as many barriers."""
    return 128 if D == 64 else 64


_FIRST, _SECOND, _THIRD = map(gl.constexpr, WEIGHTS)
FLOATS = 256  # of a tile's statistics in one TMA instruction
_FLOATS = gl.constexpr(FLOATS)

# Named barriers, at which tiles are handed over.
_DQ_FULL = gl.constexpr(8)  # and 9, of the second warpgroup
_Q_FREE = gl.constexpr(10)  # and 11, of the other stage
_DS_FULL = gl.constexpr(12)  # to 15, by stage and warpgroup
_PAIR = gl.constexpr(256)  # threads that meet there: both warpgroups, or one and who moves tiles


@gluon.jit
def in_register_order(dq):
    """A tile of dQ with its elements moved, so that a thread's registers are 16 bytes in a row.

    Of wgmma's accumulators a thread has columns c and c + 1 (c = 2 (lane % 4)) of rows lane // 4 and
    lane // 4 + 8 in four registers. Bits of the row (r0 is the lowest) and column change places: from
    rows r5 to r0, columns .. to c0 to rows r5 r4 c4 r2 r1 c3, columns .. c5 r0 c2 c1 r3 c0. So 8 threads
    (r0 c2 c1) write 128 bytes of one row, which meet no bank conflict, however rows are swizzled.
    """
    parts = dq.reshape(
        [dq.shape[0] // 16, 2, 4, 2, dq.shape[1] // 32, 2, 2, 4, 2]
    )  # .. r4, r3, r2 r1, r0, .. c5, c4, c3, c2 c1, c0
    return parts.permute((0, 5, 2, 6, 4, 3, 7, 1, 8)).reshape(dq.shape)


@gluon.jit
def _statistics(stats_smem, stage, which: gl.constexpr, COUNT: gl.constexpr, QUERIES: gl.constexpr):
    """Where the first COUNT numbers of a kind are, of a tile (`passes._backward_before_kernel`)."""
    piece = stats_smem.index(stage * QUERIES // 64 + which * QUERIES // _FLOATS)
    return piece.slice(which * QUERIES % _FLOATS, COUNT)


@gluon.jit
def statistic(stats_smem, stage, which: gl.constexpr, LAYOUT: gl.constexpr, QUERIES: gl.constexpr):
    """A statistic of a tile's rows: 0 and 1 are the LSE and what its rounding lost, 2 is delta."""
    # Threads read 16 bytes at a time; then every 16 values get the order of rows.
    EACH_THREAD: gl.constexpr = [[1], [2], [16], [32]] if QUERIES == 64 else [[1], [2], [16], [32], [64]]
    READ: gl.constexpr = gl.DistributedLinearLayout(
        EACH_THREAD, [[4], [8], [0], [0], [0]], [[0]] * 2, [], [QUERIES]
    )
    x = _statistics(stats_smem, stage, which, QUERIES, QUERIES).load(READ)
    x = x.reshape([QUERIES // 16, 4, 2, 2]).permute((0, 2, 1, 3)).reshape([QUERIES])
    return gl.convert_layout(x, LAYOUT, assert_trivial=True)


@gluon.jit
def is_large(stats_smem, stage, QUERIES: gl.constexpr):
    """Whether some row of the tile needs two numbers, in every thread."""
    ONE: gl.constexpr = gl.DistributedLinearLayout([], [[0]] * 5, [[0]] * 2, [], [1])
    return gl.max(_statistics(stats_smem, stage, 3, 1, QUERIES).load(ONE), 0) > 0


@gluon.jit
def turn_at(batch, head, row, T_Q, HEADS, PARTS, QUERIES: gl.constexpr):
    """Where TURNS counts the blocks that have added to this tile of dQ."""
    return (batch * PARTS * HEADS + head) * ((T_Q + QUERIES - 1) // QUERIES) + row // QUERIES


@gluon.jit
def _move(
    q_desc, k_desc, v_desc, do_desc, dq_desc, terms_desc, stats_desc, TURNS,
    k_smem, v_smem, q_smem, do_smem, dq_smem, stats_smem, terms_smem,
    kv_full, q_full, dq_free,
    T_Q, T_K, OFFSET, GROUP, HEADS, PARTS, BATCH, AT_ONCE, CAUSAL: gl.constexpr, ORDERED: gl.constexpr,
    QUERIES: gl.constexpr,
):  # fmt: skip
    """Loads K and V once and Q, dO tile by tile; adds each tile of dQ to global memory, one tile behind."""
    block, part, batch = block_of_keys(gl.program_id(0), T_K, PARTS, BATCH, AT_ONCE, _KEYS)
    first_head = part * HEADS
    mbarrier.expect(kv_full.index(0), 2 * (k_desc.block_type.nbytes + v_desc.block_type.nbytes))
    for half in gl.static_range(2):
        at = [batch, first_head // GROUP, block * _KEYS + half * _OWN, 0]
        tma.async_copy_global_to_shared(k_desc, at, kv_full.index(0), k_smem.index(half))
        tma.async_copy_global_to_shared(v_desc, at, kv_full.index(0), v_smem.index(half))
    first, tiles = tiles_of_queries(block, T_Q, OFFSET, CAUSAL, _KEYS, QUERIES)
    total = tiles * HEADS
    for n in range(0, total + 1):
        if n < total:
            head, row = tile_at(n, first_head, first, tiles, ORDERED, QUERIES)
            stage = n % 2
            full = q_full.index(stage)
            if n > 1:
                meet_at(_Q_FREE + stage)
            PIECES: gl.constexpr = 4 * QUERIES // _FLOATS
            mbarrier.expect(
                full,
                2 * q_desc.block_type.nbytes
                + terms_desc.block_type.nbytes
                + PIECES * stats_desc.block_type.nbytes,
            )
            tma.async_copy_global_to_shared(
                terms_desc, [batch, head, row * 2, 0], full, terms_smem.index(stage)
            )
            tma.async_copy_global_to_shared(q_desc, [batch, head, row, 0], full, q_smem.index(stage))
            tma.async_copy_global_to_shared(do_desc, [batch, head, row, 0], full, do_smem.index(stage))
            for piece in gl.static_range(PIECES):
                place = row * 4 + piece * _FLOATS
                tma.async_copy_global_to_shared(
                    stats_desc, [batch, head, place], full, stats_smem.index(stage * PIECES + piece)
                )
        if n > 0:
            head, row = tile_at(n - 1, first_head, first, tiles, ORDERED, QUERIES)
            meet_at(_DQ_FULL, _PAIR)
            if ORDERED:
                turn = TURNS + turn_at(batch, head, row, T_Q, HEADS, PARTS, QUERIES)
                wait_for_turn(turn, block)
            reduce_add(dq_desc, [batch, head, row, 0], dq_smem.index(0))
            meet_at(_DQ_FULL + 1, _PAIR)
            if QUERIES == 64:
                reduce_add(dq_desc, [batch, head, row, _OWN], dq_smem.index(1))
            else:
                reduce_add(dq_desc, [batch, head, row + _OWN, 0], dq_smem.index(1))
            tma.store_wait(1)
            mbarrier.arrive(dq_free.index(0), count=1)
            tma.store_wait(0)
            mbarrier.arrive(dq_free.index(1), count=1)
            if ORDERED:
                pass_turn_on(turn)
    for n in range(max(total - 2, 0), total):  # take what has arrived at the barriers of the last tiles
        meet_at(_Q_FREE + n % 2)


@gluon.jit
def mask(st, query, key, T_K, OFFSET, CAUSAL: gl.constexpr):
    """-inf for keys after the last one, and for a query's future."""
    return gl.where(query[None, :] >= first_to_see(key[:, None], T_K, OFFSET, CAUSAL), st, float("-inf"))


@gluon.jit
def weights_of_parts(DTYPE: gl.constexpr, LAYOUT: gl.constexpr):
    """(64, 16): what the parts of a term count (`passes._in_parts`), for every key."""
    part = gl.arange(0, 16, gl.SliceLayout(0, LAYOUT))
    weight = gl.where(part == 0, _FIRST, gl.where(part == 1, _SECOND, gl.where(part == 2, _THIRD, 0.0)))
    return (gl.zeros([_OWN, 16], gl.float32, LAYOUT) + weight[None, :]).to(DTYPE)


@gluon.jit
def _compute(
    dk_desc, dv_desc,
    k_smem, v_smem, q_smem, do_smem, ds_smem, dq_smem, stats_smem, terms_smem,
    kv_full, q_full, dq_free,
    T_Q, T_K, OFFSET, HEADS, PARTS, BATCH, AT_ONCE, scale_log2, scale,
    CAUSAL: gl.constexpr, D: gl.constexpr, ORDERED: gl.constexpr, QUERIES: gl.constexpr, WHICH: gl.constexpr,
):  # fmt: skip
    """Warpgroup WHICH (0 or 1): dK and dV of 64 keys in registers, dQ handed on (FA2 algorithm 2).

    Scores are held transposed (keys are rows), so that P^T and dS^T are register operands of dV and dK.
    """
    ST_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, QUERIES, 16])
    DKV_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    DQ_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _OWN, 16])
    A_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, DKV_LAYOUT, 2)
    ROW_LAYOUT: gl.constexpr = gl.SliceLayout(0, ST_LAYOUT)
    block, part, batch = block_of_keys(gl.program_id(0), T_K, PARTS, BATCH, AT_ONCE, _KEYS)
    dk = gl.zeros([_OWN, D], gl.float32, DKV_LAYOUT)
    dv = gl.zeros([_OWN, D], gl.float32, DKV_LAYOUT)
    no_scores = gl.zeros([_OWN, QUERIES], gl.float32, ST_LAYOUT)
    no_dq = gl.zeros([_OWN, _OWN], gl.float32, DQ_LAYOUT)
    column = gl.arange(0, QUERIES, ROW_LAYOUT)
    weights = weights_of_parts(q_smem.dtype, gl.DotOperandLayout(0, ST_LAYOUT, 2))
    first_key = block * _KEYS + WHICH * _OWN
    key = first_key + gl.arange(0, _OWN, gl.SliceLayout(1, ST_LAYOUT))
    first, tiles = tiles_of_queries(block, T_Q, OFFSET, CAUSAL, _KEYS, QUERIES)
    ragged = first_key + _OWN > T_K
    i = first_tile(first, tiles, ORDERED)
    # Of a swizzled tile, 64 columns lie together.
    k_parts = k_smem._reinterpret(q_smem.dtype, [2 * D // 64, _OWN, 64], SWIZZLED)
    ds_parts = ds_smem._reinterpret(q_smem.dtype, [4 * QUERIES // 64, 64, 64], SWIZZLED)
    mbarrier.wait(kv_full.index(0), 0)
    total = tiles * HEADS
    for n in range(0, total):
        stage = n % 2
        q = q_smem.index(stage)
        do = do_smem.index(stage)
        # S^T = K Q^T - LSE and dP^T = V dO^T - delta. The tensor cores subtract: a warp's loads from shared memory would
        # wait for all products that it has issued before.
        mbarrier.wait(q_full.index(stage), (n // 2) & 1)
        masked = ragged | is_large(stats_smem, stage, QUERIES)
        if CAUSAL:
            masked = masked | cut(i * QUERIES, first_key + _OWN, OFFSET)
        less_lse = terms_smem.index(stage).slice(0, QUERIES).permute((1, 0))
        less_delta = terms_smem.index(stage).slice(QUERIES, QUERIES).permute((1, 0))
        st = warpgroup_mma(weights, less_lse, no_scores, use_acc=False, is_async=True)
        st = warpgroup_mma(k_smem.index(WHICH), q.permute((1, 0)), st, is_async=True)
        dpt = warpgroup_mma(weights, less_delta, no_scores, use_acc=False, is_async=True)
        dpt = warpgroup_mma(v_smem.index(WHICH), do.permute((1, 0)), dpt, is_async=True)
        st = warpgroup_mma_wait(1, deps=(st,))
        # Exponentials in both branches: ptxas would put them behind the wait for dP, which would not hide them.
        if masked:
            st = mask(st, i * QUERIES + column, key, T_K, OFFSET, CAUSAL)
            # Large LSEs are not subtracted yet, and need two numbers. Of other tiles both are 0.
            lse = statistic(stats_smem, stage, 0, ROW_LAYOUT, QUERIES)
            lost = statistic(stats_smem, stage, 1, ROW_LAYOUT, QUERIES)
            pt = gl.exp2(st * scale_log2 - lse[None, :] - lost[None, :])
        else:
            pt = gl.exp2(st * scale_log2)
        pt_16 = gl.convert_layout(pt.to(q_smem.dtype), A_LAYOUT)
        dpt = warpgroup_mma_wait(0, deps=(dpt,))
        dst = (pt * dpt).to(q_smem.dtype)  # dS = P * (dP - delta)
        # dQ = dS K sums over keys, which the warpgroups share out: dS has to pass through shared memory.
        own = ds_smem.index(stage * 2 + WHICH)
        if CAUSAL:
            own.store(dst)
        else:
            own.store(dst.permute((1, 0)))
        dst_operand = gl.convert_layout(dst, A_LAYOUT)
        if D == 64:
            # Before dV's product, for which the fence would wait. At head dim 128 the tensor cores would wait for the fence.
            fence_async_shared()
            arrive_at(_DS_FULL + stage * 2 + 1 - WHICH, _PAIR)
            dv_pending = warpgroup_mma(pt_16, do, dv, is_async=True)  # dV += P^T dO
            meet_at(_DS_FULL + stage * 2 + WHICH, _PAIR)
        else:
            dv_pending = warpgroup_mma(pt_16, do, dv, is_async=True)
            fence_async_shared()
            meet_at(_DS_FULL, _PAIR)
        # dS of both warpgroups is written.
        dq_pending = no_dq
        for half in gl.static_range(2):
            if QUERIES == 64:
                ds = ds_parts.index(stage * 2 + half)
                k = k_parts.index(half * (D // 64) + WHICH)
            else:
                ds = ds_parts.index((stage * 2 + half) * 2 + WHICH)
                k = k_parts.index(half)
            if CAUSAL:
                ds = ds.permute((1, 0))
            dq_pending = warpgroup_mma(ds, k, dq_pending, use_acc=half > 0, is_async=True)
        mbarrier.wait(dq_free.index(WHICH), (n & 1) ^ 1)
        dv, dq = warpgroup_mma_wait(0, deps=(dv_pending, dq_pending))
        dq_smem.index(WHICH).store(in_register_order(dq))
        # After dQ is stored: its stores would wait for this product.
        dk_pending = warpgroup_mma(dst_operand, q, dk, is_async=True)  # dK += dS^T Q
        fence_async_shared()
        arrive_at(_DQ_FULL + WHICH, _PAIR)
        dk = warpgroup_mma_wait(0, deps=(dk_pending,))
        arrive_at(_Q_FREE + stage)
        i = next_tile(i, first, tiles, ORDERED)
    # K and V are not needed any more, once both have come here: their shared memory takes dK and dV, and TMA clips what has
    # no key.
    meet_at(_DS_FULL + total % 2 * 2, _PAIR)
    k_smem.index(WHICH).store((dk * scale).to(q_smem.dtype))
    v_smem.index(WHICH).store(dv.to(q_smem.dtype))
    fence_async_shared()
    block_barrier()
    tma.async_copy_shared_to_global(dk_desc, [batch, part, first_key, 0], k_smem.index(WHICH))
    tma.async_copy_shared_to_global(dv_desc, [batch, part, first_key, 0], v_smem.index(WHICH))
    tma.store_wait(0)


@gluon.jit(do_not_specialize=("T_Q", "T_K", "OFFSET", "GROUP", "HEADS", "PARTS", "BATCH", "AT_ONCE"))
def _backward_kernel(
    q_desc, k_desc, v_desc, do_desc, dq_desc, dk_desc, dv_desc, terms_desc, stats_desc, TURNS,
    T_Q, T_K, OFFSET, GROUP, HEADS, PARTS, BATCH, AT_ONCE, scale_log2, scale,
    CAUSAL: gl.constexpr, D: gl.constexpr, ORDERED: gl.constexpr, QUERIES: gl.constexpr,
):  # fmt: skip
    k_smem = gl.allocate_shared_memory(q_desc.dtype, [2, _OWN, D], SWIZZLED)
    v_smem = gl.allocate_shared_memory(q_desc.dtype, [2, _OWN, D], SWIZZLED)
    q_smem = gl.allocate_shared_memory(q_desc.dtype, [2, QUERIES, D], SWIZZLED)
    do_smem = gl.allocate_shared_memory(q_desc.dtype, [2, QUERIES, D], SWIZZLED)
    # dS^T, or dS by transposing stores, as in FA3: 2 to 4 % faster without a mask, and 0 to 2 % slower with one.
    ds_smem = gl.allocate_shared_memory(
        q_desc.dtype, [4, _OWN, QUERIES] if CAUSAL else [4, QUERIES, _OWN], SWIZZLED
    )
    dq_smem = gl.allocate_shared_memory(gl.float32, [2, _OWN, _OWN], SWIZZLED_FP32)
    terms_smem = gl.allocate_shared_memory(q_desc.dtype, [2, 2 * QUERIES, 16], SWIZZLED_32)
    stats_smem = gl.allocate_shared_memory(gl.float32, [8 * QUERIES // _FLOATS, _FLOATS], ROW)
    kv_full = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    dq_free = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(kv_full.index(0), count=1)
    for stage in gl.static_range(2):
        mbarrier.init(dq_free.index(stage), count=1)
        mbarrier.init(q_full.index(stage), count=1)
    fence_async_shared()
    wait_for_kernel_before()
    # A fourth partition would round up to 16 warps, hence 128 registers, and ptxas would serialize wgmma.
    gl.warp_specialize([
        (_move, (q_desc, k_desc, v_desc, do_desc, dq_desc, terms_desc, stats_desc, TURNS,
                 k_smem, v_smem, q_smem, do_smem, dq_smem, stats_smem, terms_smem,
                 kv_full, q_full, dq_free,
                 T_Q, T_K, OFFSET, GROUP, HEADS, PARTS, BATCH, AT_ONCE, CAUSAL, ORDERED, QUERIES)),
        (_compute, (dk_desc, dv_desc, k_smem, v_smem, q_smem, do_smem, ds_smem, dq_smem, stats_smem, terms_smem,
                    kv_full, q_full, dq_free,
                    T_Q, T_K, OFFSET, HEADS, PARTS, BATCH, AT_ONCE, scale_log2, scale,
                    CAUSAL, D, ORDERED, QUERIES, 0)),
        (_compute, (dk_desc, dv_desc, k_smem, v_smem, q_smem, do_smem, ds_smem, dq_smem, stats_smem, terms_smem,
                    kv_full, q_full, dq_free,
                    T_Q, T_K, OFFSET, HEADS, PARTS, BATCH, AT_ONCE, scale_log2, scale,
                    CAUSAL, D, ORDERED, QUERIES, 1)),
    ], [4, 4], [240, 240])  # fmt: skip
