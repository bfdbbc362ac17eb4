"""The backward for head dim 256: a block has 64 keys, and each of its three computing warpgroups a part of the work.

dK and dV of 128 keys would not fit into two warpgroups' registers, as in _backward. If each had half of the columns of
every product, shared memory would be busy for longer than the tensor cores: all of K, V, P and dS would be read twice.
So one warpgroup computes P and dV, one dS and dK, and one dQ. P and dS are in the registers of who needs them next, and
pass through shared memory once. The three are at different tiles, so that one has the tensor cores while another has
its exponentials, without a schedule for it.

P is handed on in 16 bits, as dV takes it, so that dS is rounded twice. (In float16, at tens of thousands of keys with
like scores, P has few digits left, in dV as before, and now in dQ and dK too.)
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

from model.attention.kernels.hopper._backward import in_register_order, is_large, mask, statistic, turn_at
from model.attention.kernels.hopper._tma import (
    ROW,
    SWIZZLED,
    arrive_at,
    block_barrier,
    meet_at,
    pass_turn_on,
    wait_for_kernel_before,
    wait_for_turn,
)
from model.attention.kernels.hopper.schedule import (
    block_of_keys,
    cut,
    first_tile,
    next_tile,
    tile_at,
    tiles_of_queries,
)

KEYS = 64  # of a block
BOX = 64  # of them in one TMA instruction
QUERIES = 64  # of a tile
_KEYS = gl.constexpr(KEYS)
_QUERIES = gl.constexpr(QUERIES)
_PART = gl.constexpr(64)  # columns of dQ in one product

# Named barriers, as _backward's. Two warpgroups meet at all but the first.
_FREE = gl.constexpr(8)  # Q and dO of a stage; and 9
_P_FULL = gl.constexpr(10)
_P_FREE = gl.constexpr(11)
_DS_FULL = gl.constexpr(12)  # and 13, of the other stage
_DS_FREE = gl.constexpr(14)  # and 15
_PAIR = gl.constexpr(256)
_READERS = gl.constexpr(384)  # of Q and dO, and who loads them


# A thread's 32 numbers are eight times four that follow each other: at rows 0, 1, 8 and 9, and 32 columns on. So one
# address does for all of them.
_ADDS = gl.constexpr(
    " ".join(
        f"red.relaxed.gpu.global.add.v4.f32 [$64+{4 * (i % 2 * 256 + i // 2 % 2 * 8 * 256 + i // 4 * 32)}], "
        f"{{${32 + 4 * i}, ${33 + 4 * i}, ${34 + 4 * i}, ${35 + 4 * i}}};"
        for i in range(8)
    )
)
_OPERANDS = gl.constexpr(",".join(["=r"] * 32 + ["r"] * 32 + ["l"] * 32 + ["~{memory}"]))


@gluon.jit
def _add(dq, BASE):
    """Add a part of a tile of dQ, in the order of registers, to the float32 numbers at BASE, rows of 256."""
    LAYOUT: gl.constexpr = dq.type.layout
    row = gl.arange(0, _QUERIES, gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, _PART, gl.SliceLayout(0, LAYOUT))
    at = BASE + ((row // 16 * 16 + row % 8 // 2 * 2)[:, None] * 256 + (column % 32 // 4 * 4)[None, :])
    at = at.to(gl.int64, bitcast=True)
    gl.inline_asm_elementwise(_ADDS, _OPERANDS, [dq, at], gl.int32, is_pure=False, pack=32)


@gluon.jit
def _load(
    n, q_desc, do_desc, stats_desc, q_smem, do_smem, stats_smem, q_full, do_full,
    first_head, batch, first, tiles, ORDERED: gl.constexpr,
):  # fmt: skip
    """The n-th tile of Q and dO."""
    head, row = tile_at(n, first_head, first, tiles, ORDERED, _QUERIES)
    stage = n % 2
    full = q_full.index(stage)
    mbarrier.expect(full, q_desc.block_type.nbytes + stats_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(q_desc, [batch, head, row, 0], full, q_smem.index(stage))
    tma.async_copy_global_to_shared(stats_desc, [batch, head, row * 4], full, stats_smem.index(stage))
    full = do_full.index(stage)
    mbarrier.expect(full, do_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(do_desc, [batch, head, row, 0], full, do_smem.index(stage))


@gluon.jit
def _load_and_compute_dq(
    q_desc, k_desc, v_desc, do_desc, stats_desc, DQ, TURNS,
    k_smem, v_smem, q_smem, do_smem, stats_smem, ds_smem, kv_full, q_full, do_full,
    T_Q, T_K, OFFSET, GROUP, HEADS, PARTS, BATCH, AT_ONCE,
    CAUSAL: gl.constexpr, D: gl.constexpr, ORDERED: gl.constexpr,
):  # fmt: skip
    """Loads K and V once, Q and dO tile by tile; and dQ (64 queries, D).

    dQ comes in parts of its columns, which the threads that have them add to global memory (FA3 does too).
    """
    DQ_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _PART, 16])
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
    none = gl.zeros([_QUERIES, _PART], gl.float32, DQ_LAYOUT)
    # Of a swizzled tile, 64 columns lie together.
    k_parts = k_smem._reinterpret(q_desc.dtype, [D // _PART, _KEYS, _PART], SWIZZLED)
    if total > 0:
        _load(0, q_desc, do_desc, stats_desc, q_smem, do_smem, stats_smem, q_full, do_full,
              first_head, batch, first, tiles, ORDERED)  # fmt: skip
    mbarrier.wait(kv_full.index(0), 0)
    for n in range(0, total):
        stage = n % 2
        if n > 0:
            meet_at(_FREE + 1 - stage, _READERS)
        if n + 1 < total:
            _load(n + 1, q_desc, do_desc, stats_desc, q_smem, do_smem, stats_smem, q_full, do_full,
                  first_head, batch, first, tiles, ORDERED)  # fmt: skip
        head, row = tile_at(n, first_head, first, tiles, ORDERED, _QUERIES)
        rows = (T_Q + _QUERIES - 1) // _QUERIES * _QUERIES  # of a head
        at = DQ + gl.cast((batch * PARTS * HEADS + head) * rows + row, gl.int64) * D
        meet_at(_DS_FULL + stage, _PAIR)
        ds = ds_smem.index(stage).permute((1, 0))
        if ORDERED:
            turn = TURNS + turn_at(batch, head, row, T_Q, HEADS, PARTS, _QUERIES)
            wait_for_turn(turn, block)
        # Not static_range: ptxas would put off additions, run out of registers and serialize wgmma (C7512).
        for each in range(0, D // _PART):
            pending = warpgroup_mma(ds, k_parts.index(each), none, use_acc=False, is_async=True)
            dq = warpgroup_mma_wait(0, deps=(pending,))
            _add(in_register_order(dq), at + each * _PART)
        arrive_at(_DS_FREE + stage, _PAIR)
        if ORDERED:
            pass_turn_on(turn)
    if total > 0:  # take what arrives after the last tile
        meet_at(_FREE + (total - 1) % 2, _READERS)


@gluon.jit
def _compute_dv(
    dv_desc, k_smem, q_smem, do_smem, p_smem, stats_smem, kv_full, q_full, do_full,
    T_Q, T_K, OFFSET, HEADS, PARTS, BATCH, AT_ONCE, scale_log2,
    CAUSAL: gl.constexpr, D: gl.constexpr, ORDERED: gl.constexpr,
):  # fmt: skip
    """P^T (64 keys, 64 queries), which is handed on, and dV (64 keys, D)."""
    ST_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _QUERIES, 16])
    DV_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D // 2, 16])
    ROW_LAYOUT: gl.constexpr = gl.SliceLayout(0, ST_LAYOUT)
    block, part, batch = block_of_keys(gl.program_id(0), T_K, PARTS, BATCH, AT_ONCE, _KEYS)
    dv = gl.zeros([_KEYS, D], gl.float32, DV_LAYOUT)
    no_scores = gl.zeros([_KEYS, _QUERIES], gl.float32, ST_LAYOUT)
    column = gl.arange(0, _QUERIES, ROW_LAYOUT)
    key = block * _KEYS + gl.arange(0, _KEYS, gl.SliceLayout(1, ST_LAYOUT))
    first, tiles = tiles_of_queries(block, T_Q, OFFSET, CAUSAL, _KEYS, _QUERIES)
    ragged = (block + 1) * _KEYS > T_K
    i = first_tile(first, tiles, ORDERED)
    total = tiles * HEADS
    mbarrier.wait(kv_full.index(0), 0)
    for n in range(0, total):
        stage = n % 2
        parity = (n // 2) & 1
        mbarrier.wait(q_full.index(stage), parity)
        st = warpgroup_mma(
            k_smem, q_smem.index(stage).permute((1, 0)), no_scores, use_acc=False, is_async=True
        )
        lse = statistic(stats_smem, stage, 0, ROW_LAYOUT, _QUERIES)
        # As in _backward: a large LSE needs two numbers, and takes the way of the mask.
        masked = ragged | is_large(stats_smem, stage, _QUERIES)
        if CAUSAL:
            masked = masked | cut(i * _QUERIES, (block + 1) * _KEYS, OFFSET)
        st = warpgroup_mma_wait(0, deps=(st,))
        factor = scale_log2
        if masked:
            st = mask(st, i * _QUERIES + column, key, T_K, OFFSET, CAUSAL)
            lost = statistic(stats_smem, stage, 1, ROW_LAYOUT, _QUERIES)
            st = st * factor - lse[None, :] - lost[None, :]
            factor = gl.to_tensor(1.0)
            lse = gl.zeros([_QUERIES], gl.float32, ROW_LAYOUT)
        pt = gl.exp2(st * factor - lse[None, :]).to(q_smem.dtype)
        if n > 0:
            meet_at(_P_FREE, _PAIR)
        p_smem.store(pt)
        arrive_at(_P_FULL, _PAIR)
        mbarrier.wait(do_full.index(stage), parity)
        operand = gl.convert_layout(pt, gl.DotOperandLayout(0, DV_LAYOUT, 2))
        dv_pending = warpgroup_mma(operand, do_smem.index(stage), dv, is_async=True)  # dV += P^T dO
        dv = warpgroup_mma_wait(0, deps=(dv_pending,))
        arrive_at(_FREE + stage, _READERS)
        i = next_tile(i, first, tiles, ORDERED)
    if total > 0:  # the last tile of dO is not needed any more either
        meet_at(_P_FREE, _PAIR)
    do_smem.index(0).store(dv.to(q_smem.dtype))
    fence_async_shared()
    block_barrier()
    tma.async_copy_shared_to_global(dv_desc, [batch, part, block * _KEYS, 0], do_smem.index(0))
    tma.store_wait(0)


@gluon.jit
def _compute_dk(
    dk_desc, v_smem, q_smem, do_smem, p_smem, ds_smem, stats_smem, kv_full, q_full, do_full,
    T_Q, T_K, OFFSET, HEADS, PARTS, BATCH, AT_ONCE, scale,
    CAUSAL: gl.constexpr, D: gl.constexpr,
):  # fmt: skip
    """dS^T (64 keys, 64 queries), which is handed on, and dK (64 keys, D)."""
    ST_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _QUERIES, 16])
    DK_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D // 2, 16])
    block, part, batch = block_of_keys(gl.program_id(0), T_K, PARTS, BATCH, AT_ONCE, _KEYS)
    dk = gl.zeros([_KEYS, D], gl.float32, DK_LAYOUT)
    no_scores = gl.zeros([_KEYS, _QUERIES], gl.float32, ST_LAYOUT)
    _, tiles = tiles_of_queries(block, T_Q, OFFSET, CAUSAL, _KEYS, _QUERIES)
    total = tiles * HEADS
    mbarrier.wait(kv_full.index(0), 0)
    for n in range(0, total):
        stage = n % 2
        parity = (n // 2) & 1
        mbarrier.wait(q_full.index(stage), parity)
        mbarrier.wait(do_full.index(stage), parity)
        dpt = warpgroup_mma(
            v_smem, do_smem.index(stage).permute((1, 0)), no_scores, use_acc=False, is_async=True
        )
        delta = statistic(stats_smem, stage, 2, gl.SliceLayout(0, ST_LAYOUT), _QUERIES)
        meet_at(_P_FULL, _PAIR)
        pt = p_smem.load(ST_LAYOUT)
        dpt = warpgroup_mma_wait(0, deps=(dpt,))
        arrive_at(_P_FREE, _PAIR)
        dst = (pt.to(gl.float32) * (dpt - delta[None, :])).to(q_smem.dtype)  # dS = P * (dP - delta)
        if n > 1:
            meet_at(_DS_FREE + stage, _PAIR)
        ds_smem.index(stage).store(dst)
        fence_async_shared()
        arrive_at(_DS_FULL + stage, _PAIR)
        operand = gl.convert_layout(dst, gl.DotOperandLayout(0, DK_LAYOUT, 2))
        dk_pending = warpgroup_mma(operand, q_smem.index(stage), dk, is_async=True)  # dK += dS^T Q
        dk = warpgroup_mma_wait(0, deps=(dk_pending,))
        arrive_at(_FREE + stage, _READERS)
    for n in range(max(total - 2, 0), total):  # take what arrives after the last tiles
        meet_at(_DS_FREE + n % 2, _PAIR)
    q_smem.index(0).store((dk * scale).to(q_smem.dtype))
    fence_async_shared()
    block_barrier()
    tma.async_copy_shared_to_global(dk_desc, [batch, part, block * _KEYS, 0], q_smem.index(0))
    tma.store_wait(0)


@gluon.jit(do_not_specialize=("T_Q", "T_K", "OFFSET", "GROUP", "HEADS", "PARTS", "BATCH", "AT_ONCE"))
def _backward_kernel(
    q_desc, k_desc, v_desc, do_desc, DQ, dk_desc, dv_desc, _, stats_desc, TURNS,
    T_Q, T_K, OFFSET, GROUP, HEADS, PARTS, BATCH, AT_ONCE, scale_log2, scale,
    CAUSAL: gl.constexpr, D: gl.constexpr, ORDERED: gl.constexpr, QUERIES: gl.constexpr,  # noqa: ARG001 - as _backward's
):  # fmt: skip
    k_smem = gl.allocate_shared_memory(q_desc.dtype, [_KEYS, D], SWIZZLED)
    v_smem = gl.allocate_shared_memory(q_desc.dtype, [_KEYS, D], SWIZZLED)
    q_smem = gl.allocate_shared_memory(q_desc.dtype, [2, _QUERIES, D], SWIZZLED)
    do_smem = gl.allocate_shared_memory(q_desc.dtype, [2, _QUERIES, D], SWIZZLED)
    p_smem = gl.allocate_shared_memory(q_desc.dtype, [_KEYS, _QUERIES], SWIZZLED)
    ds_smem = gl.allocate_shared_memory(q_desc.dtype, [2, _KEYS, _QUERIES], SWIZZLED)
    stats_smem = gl.allocate_shared_memory(gl.float32, [2, 4 * _QUERIES], ROW)  # `statistic`, and `is_large`
    kv_full = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    do_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(kv_full.index(0), count=1)
    for stage in gl.static_range(2):
        mbarrier.init(q_full.index(stage), count=1)
        mbarrier.init(do_full.index(stage), count=1)
    fence_async_shared()
    wait_for_kernel_before()
    # Registers: dV and dK take 128 of their warpgroups' each.
    gl.warp_specialize([
        (_load_and_compute_dq, (
            q_desc, k_desc, v_desc, do_desc, stats_desc, DQ, TURNS,
            k_smem, v_smem, q_smem, do_smem, stats_smem, ds_smem, kv_full, q_full, do_full,
            T_Q, T_K, OFFSET, GROUP, HEADS, PARTS, BATCH, AT_ONCE, CAUSAL, D, ORDERED)),
        (_compute_dv, (dv_desc, k_smem, q_smem, do_smem, p_smem, stats_smem, kv_full, q_full, do_full,
                       T_Q, T_K, OFFSET, HEADS, PARTS, BATCH, AT_ONCE, scale_log2, CAUSAL, D, ORDERED)),
        (_compute_dk, (dk_desc, v_smem, q_smem, do_smem, p_smem, ds_smem, stats_smem, kv_full, q_full, do_full,
                       T_Q, T_K, OFFSET, HEADS, PARTS, BATCH, AT_ONCE, scale, CAUSAL, D)),
    ], [4, 4], [208, 208])  # fmt: skip
