"""The forward: a block is 128 or 192 queries of one head and all the keys that they may see. A program does several.

All blocks of a program are one stream of tiles. So the next block's tiles arrive while the last one's output leaves
(a persistent kernel, as FA3's).
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

from model.attention.kernels.hopper._tma import SWIZZLED, arrive_after, arrive_at, block_barrier, meet_at
from model.attention.kernels.hopper.schedule import (
    block_of_queries,
    blocks_of_program,
    cut,
    keys_seen,
    number_of_block,
    part_of_keys,
    tiles_of_keys,
)

ROWS = 64  # queries of a consumer, which is a warpgroup: the rows of one wgmma instruction
_ROWS = gl.constexpr(ROWS)
KEYS = {64: 128, 128: 128, 256: 64}  # of a tile, by head dim: as many as shared memory holds twice


def consumers(D: int, causal: bool, T_Q: int, T_K: int, heads: int, processors: int) -> int:
    """How many share a block: two, or three, which hide more of each one's softmax.

    Three have registers at head dim 64 only, and as a block of theirs is longer, they fill processors less evenly. Under a
    mask such blocks also start and end more slowly, which pays above 4,096 keys (docs/kernel-log.md, "custom", 17).
    """
    if D != 64 or (causal and T_K <= 4096):
        return 2

    def rows(count: int) -> int:
        """Rows of all rounds of blocks together."""
        blocks = -(-T_Q // (count * ROWS)) * heads
        return -(-blocks // processors) * count * ROWS

    return 3 if rows(3) < 1.16 * rows(2) else 2  # rows are so much faster where three share a block


# Of rows that have seen no key yet. Finite: -inf less -inf would be NaN.
_LOWEST = gl.constexpr(-1e30)

# A row's reference, which its exponents are relative to, is its maximum or up to this much less (log2): while it stays, O needs
# no new scale (FlashAttention-4's rule). A smaller slack is more exact, as more rows have a P of 1, which 16 bits hold exactly, and
# lets O be scaled more often where scores vary widely (docs/kernel-log.md, "custom", 24).
_SLACK = gl.constexpr(8.0)

# E4M3 holds from 2^-9 to 448. A P of up to 2^8 keeps eight more of the small ones, as in FA3; the sums have the same factor.
_LIFT = gl.constexpr(8.0)

# Named barriers. The consumers take turns at the tensor cores, and give tiles of K and V back.
_TURN = gl.constexpr(8)  # consumer 0's, and 9 and 10: those of the others
_PAIR = gl.constexpr(256)  # threads that meet there: who gives the turn, and who takes it
_K_FREE = gl.constexpr(11)  # and 12, of the other stage
_V_FREE = gl.constexpr(13)  # and 14


@gluon.jit
def _buffer(tile):
    """A tile's buffer, of two, and the parity of its round. In bits: / and % of numbers with a sign take more
    instructions, which a consumer has before its turn."""
    return tile & 1, (tile >> 1) & 1


@gluon.jit
def _load(
    q_desc, k_desc, v_desc,
    q_smem, k_smem, v_smem,
    q_full, q_free, k_full, v_full,
    T_Q, T_K, OFFSET, HEADS, GROUP, BATCH, AT_ONCE, DEALT, PLACES, PARTS, SPAN,
    CAUSAL: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr, CONSUMERS: gl.constexpr,
):  # fmt: skip
    """Producer: of each block Q once, then K and V from the last visible key down to the first."""
    FP8: gl.constexpr = q_smem.dtype == gl.float8e4nv
    QUERIES: gl.constexpr = CONSUMERS * _ROWS
    ALL: gl.constexpr = (CONSUMERS + 1) * 128
    first_tile = gl.program_id(0) * 0  # of the block, counted over all blocks
    for turn in range(0, blocks_of_program(DEALT, PLACES)):
        number = number_of_block(turn, DEALT, PLACES)
        block, head, batch = block_of_queries(number, T_Q, HEADS, BATCH, AT_ONCE, QUERIES)
        batch, first_key, keys = part_of_keys(batch, T_K, PARTS, SPAN)
        count = tiles_of_keys(block, keys, OFFSET, CAUSAL, QUERIES, KEYS)
        for n in range(0, count):
            at = first_key + (count - 1 - n) * KEYS
            tile = first_tile + n
            stage, _parity = _buffer(tile)
            if tile >= STAGES:
                meet_at(_K_FREE + stage, ALL)
            mbarrier.expect(k_full.index(stage), k_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(
                k_desc, [batch, head // GROUP, at, 0], k_full.index(stage), k_smem.index(stage)
            )
            if n == 0:
                for which in gl.static_range(CONSUMERS):
                    row = (block * CONSUMERS + which) * _ROWS
                    full = q_full.index(which)
                    mbarrier.wait(q_free.index(which), (turn & 1) ^ 1)
                    mbarrier.expect(full, q_desc.block_type.nbytes)
                    tma.async_copy_global_to_shared(q_desc, [batch, head, row, 0], full, q_smem.index(which))
            if tile >= STAGES:
                meet_at(_V_FREE + stage, ALL)
            mbarrier.expect(v_full.index(stage), v_desc.block_type.nbytes)
            v_at = [batch, head // GROUP, 0, at] if FP8 else [batch, head // GROUP, at, 0]
            tma.async_copy_global_to_shared(v_desc, v_at, v_full.index(stage), v_smem.index(stage))
        first_tile += count
    for tile in range(max(first_tile - STAGES, 0), first_tile):  # take what arrives after the last tiles
        stage, _parity = _buffer(tile)
        meet_at(_K_FREE + stage, ALL)
        meet_at(_V_FREE + stage, ALL)


@gluon.jit
def _mask(s, query, first_key, column, T_K, OFFSET, CAUSAL: gl.constexpr):
    """-inf for keys after the last one, and for a query's future."""
    seen = keys_seen(query[:, None], T_K, OFFSET, CAUSAL) - first_key
    return gl.where(column[None, :] < seen, s, float("-inf"))


# Triton's own way takes three instructions more to bring four numbers into one register.
_FOUR_OF_8_BITS = gl.constexpr(
    "{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, $2, $1; cvt.rn.satfinite.e4m3x2.f32 high, $4, $3; "
    "mov.b32 $0, {low, high}; }"
)


@gluon.jit
def _as_operand(p, DTYPE: gl.constexpr, P_LAYOUT: gl.constexpr):
    """P goes from the registers that hold S straight into the next product: it never sees shared memory.

    Of 8 bits, a thread has four columns side by side where S has two, and two of the next eight. So columns change places,
    as V's rows do (`passes._transpose_kernel`).
    """
    if gl.float8e4nv == DTYPE:
        p = p.reshape([p.shape[0], p.shape[1] // 16, 2, 4, 2]).permute((0, 1, 3, 2, 4)).reshape(p.shape)
        p = gl.convert_layout(p, P_LAYOUT)
        operand = gl.inline_asm_elementwise(
            _FOUR_OF_8_BITS, "=r,r,r,r,r", [p], gl.float8e4nv, is_pure=True, pack=4
        )
    else:
        operand = gl.convert_layout(p.to(DTYPE), P_LAYOUT)
    return operand


@gluon.jit
def _in_quads(x):
    """Columns as (eights, four threads, pairs), the way in which a quad of threads holds a row of a product."""
    return x.reshape([x.shape[0], x.shape[1] // 8, 4, 2])


@gluon.jit
def _sums_of_threads(p):
    """(rows, 4): what each thread of a quad has of a row, without a word between them."""
    return gl.sum(gl.sum(_in_quads(p), 3), 1)


@gluon.jit
def _of_first_columns(p):
    """(rows, 4): the largest of each thread in an eighth of the columns."""
    x = gl.max(gl.max(p.reshape([p.shape[0], 8, p.shape[1] // 64, 4, 2]), 4), 2)
    for _ in gl.static_range(3):  # halve the eighths
        x, _rest = gl.split(x.reshape([x.shape[0], 2, x.shape[1] // 2, 4]).permute((0, 2, 3, 1)))
    return x.reshape([x.shape[0], 4])


@gluon.jit
def _row_max(s):
    """In four chains of a thread and not two, which are half as long."""
    return gl.convert_layout(gl.max(gl.max(gl.max(_in_quads(s), 1), 2), 1), gl.SliceLayout(1, s.type.layout))


@gluon.constexpr_function
def _scaling(count):
    """PTX that multiplies a thread's numbers, unless all factors are 1 in its warp. It has two rows, by turns in pairs."""
    products = "".join(f"mul.f32 ${i}, ${i + count}, ${i + 2 * count}; " for i in range(count))
    copies = "".join(f"mov.f32 ${i}, ${i + count}; " for i in range(count))
    one, row, next_row = "0f3F800000", f"${2 * count}", f"${2 * count + 2}"
    some = f"setp.neu.f32 p, {row}, {one}; setp.neu.or.f32 p, {next_row}, {one}, p; vote.sync.any.pred p, p, 0xffffffff; "
    return f"{{ .reg .pred p; {some}{copies}@!p bra.uni DONE; {products}DONE: }}"


@gluon.constexpr_function
def _scaled_numbers(count):
    return ",".join(["=&f"] * count + ["f"] * (2 * count))


@gluon.jit
def _scale(acc, factors):
    """acc * factors[:, None]. Where most factors are 1, as with scores of a standard deviation of 1, a branch is cheaper."""
    LAYOUT: gl.constexpr = acc.type.layout
    COUNT: gl.constexpr = acc.shape[1] // 2  # numbers of a thread, of 128
    each = gl.zeros(acc.shape, gl.float32, LAYOUT) + factors[:, None]
    return gl.inline_asm_elementwise(
        _scaling(COUNT), _scaled_numbers(COUNT), [acc, each], gl.float32, is_pure=True, pack=COUNT
    )


@gluon.jit
def _compute(
    o_desc, STATS,
    q_smem, k_smem, v_smem, o_smem,
    q_full, q_free, k_full, v_full,
    T_Q, T_K, OFFSET, HEADS, GROUP, BATCH, AT_ONCE, DEALT, PLACES, PARTS, SPAN, T_STATS, SCALES, scale_log2,
    CAUSAL: gl.constexpr, SKEWED: gl.constexpr, KEYS: gl.constexpr, D: gl.constexpr,
    CONSUMERS: gl.constexpr, WHICH: gl.constexpr,
):  # fmt: skip
    """Consumer WHICH (0, 1 or 2): the online softmax over its 64 of each block's queries (FA2 algorithm 1)."""
    QUERIES: gl.constexpr = CONSUMERS * _ROWS
    ALL: gl.constexpr = (CONSUMERS + 1) * 128
    DTYPE: gl.constexpr = q_smem.dtype
    FP8: gl.constexpr = gl.float8e4nv == DTYPE
    WIDTH: gl.constexpr = 4 if FP8 else 2  # numbers in a register
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 8 * WIDTH])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 8 * WIDTH])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, WIDTH)
    LIFT: gl.constexpr = _LIFT if FP8 else 0.0
    # Kernels of one head dim give the same bits, so that a capture may take either.
    KEEPING: gl.constexpr = D != 128 and not FP8
    # With such scores 1.01 to 1.07 times as fast where O has many numbers, or three warpgroups wait for issue slots; else up to
    # 1.5 % slower.
    SPARING: gl.constexpr = (D == 256 or CONSUMERS == 3) and not FP8
    MINE: gl.constexpr = _TURN + WHICH
    NEXT: gl.constexpr = _TURN + (WHICH + 1) % CONSUMERS
    no_scores = gl.zeros([_ROWS, KEYS], gl.float32, S_LAYOUT)
    no_output = gl.zeros([_ROWS, D], gl.float32, O_LAYOUT)
    column = gl.arange(0, KEYS, gl.SliceLayout(0, S_LAYOUT))
    q = q_smem.index(WHICH)
    o = o_smem.index(WHICH)
    if WHICH == CONSUMERS - 1:  # consumer 0 has the first turn
        arrive_at(NEXT, _PAIR)
    first_tile = gl.program_id(0) * 0  # of the block, counted over all blocks
    for turn in range(0, blocks_of_program(DEALT, PLACES)):
        number = number_of_block(turn, DEALT, PLACES)
        block, head, batch = block_of_queries(number, T_Q, HEADS, BATCH, AT_ONCE, QUERIES)
        _batch, _first_key, keys = part_of_keys(batch, T_K, PARTS, SPAN)
        count = tiles_of_keys(block, keys, OFFSET, CAUSAL, QUERIES, KEYS)
        end_tile = first_tile + count
        acc = gl.zeros([_ROWS, D], gl.float32, O_LAYOUT)
        first_row = (block * CONSUMERS + WHICH) * _ROWS
        query = first_row + gl.arange(0, _ROWS, gl.SliceLayout(1, S_LAYOUT))
        scale = scale_log2
        if FP8:
            pairs = BATCH * (HEADS // GROUP)
            pair = batch * (HEADS // GROUP) + head // GROUP
            scale = scale_log2 * gl.load(SCALES + pair) * gl.load(SCALES + pairs + pair)
            shrink_acc = gl.full([_ROWS], 1.0, gl.float32, gl.SliceLayout(1, O_LAYOUT))
        mbarrier.wait(q_full.index(WHICH), turn & 1)

        # The last tile comes first: the only one with a mask, unless the diagonal cuts two tiles (SKEWED).
        stage, parity = _buffer(first_tile)
        mbarrier.wait(k_full.index(stage), parity)
        s = warpgroup_mma(q, k_smem.index(stage).permute((1, 0)), no_scores, use_acc=False, is_async=True)
        block_barrier()
        s = warpgroup_mma_wait(0, deps=(s,))
        arrive_at(_K_FREE + stage, ALL)
        s = _mask(s, query, (count - 1) * KEYS, column, keys, OFFSET, CAUSAL)
        row_max = gl.maximum(_row_max(s) * scale - LIFT, _LOWEST)
        p = gl.exp2(s * scale - row_max[:, None])
        row_sums = _sums_of_threads(p)
        SUMS_LAYOUT: gl.constexpr = row_sums.type.layout
        if not FP8:
            p_narrow = _as_operand(p, DTYPE, P_LAYOUT)

        for n in range(1, count):
            tile = first_tile + n
            stage, parity = _buffer(tile)
            last_stage, last_parity = _buffer(tile - 1)
            # S(n) = Q K(n)^T, then O += P(n-1) V(n-1), which still runs while the softmax of S(n) begins (FA3 section
            # 3.2, algorithm 2). Consumers take turns: one has its products while the other has its softmax (section
            # 3.1). A turn holds nothing but products: whatever else is in it, the tensor cores wait for. V, which is there
            # by now, is asked for while they compute S.
            if FP8:
                p_narrow = _as_operand(p, DTYPE, P_LAYOUT)
            mbarrier.wait(k_full.index(stage), parity)
            meet_at(MINE, _PAIR)
            s = warpgroup_mma(q, k_smem.index(stage).permute((1, 0)), no_scores, use_acc=False, is_async=True)
            mbarrier.wait(v_full.index(last_stage), last_parity)
            if FP8:
                # The tensor cores add up numbers of 8 bits with 14 bits or so. A tile's sum has no more terms than its keys.
                v = v_smem.index(last_stage).permute((1, 0))
                pending = warpgroup_mma(p_narrow, v, no_output, use_acc=False, is_async=True)
            else:
                pending = warpgroup_mma(p_narrow, v_smem.index(last_stage), acc, is_async=True)
            arrive_at(NEXT, _PAIR)
            block_barrier()  # Triton wants one between waits for the same mbarrier, and would put it before the turn
            s = warpgroup_mma_wait(1, deps=(s,))
            if SKEWED and cut(first_row, (count - n) * KEYS, OFFSET):
                s = _mask(s, query, (count - 1 - n) * KEYS, column, keys, OFFSET, CAUSAL)
            new_max = gl.maximum(row_max, _row_max(s) * scale - LIFT)
            if KEEPING:
                new_max = gl.where(new_max > row_max + _SLACK, new_max, row_max)
            p = gl.exp2(s * scale - new_max[:, None])
            shrink = gl.exp2(row_max - new_max)
            shrink_sums = gl.convert_layout(shrink, gl.SliceLayout(1, SUMS_LAYOUT))[:, None]
            row_sums = row_sums * shrink_sums + _sums_of_threads(p)
            row_max = new_max
            # ptxas moves the wait for PV up to this barrier, and the barrier to the softmax's beginning: 3 to 5 % slower. So
            # it waits for some exponentials.
            arrive_after(_of_first_columns(p), _K_FREE + stage, ALL)
            added = warpgroup_mma_wait(0, deps=(pending,))
            arrive_at(_V_FREE + last_stage, ALL)
            if not FP8:
                p_narrow = _as_operand(p, DTYPE, P_LAYOUT)
            if FP8:  # one instruction a number: the factor is the one before
                acc = acc * shrink_acc[:, None] + added
                shrink_acc = gl.convert_layout(shrink, gl.SliceLayout(1, O_LAYOUT))
            else:
                shrink_acc = gl.convert_layout(shrink, gl.SliceLayout(1, O_LAYOUT))
                acc = _scale(added, shrink_acc) if SPARING else added * shrink_acc[:, None]

        if D < 256:
            mbarrier.arrive(q_free.index(WHICH), count=1)
        last_stage, last_parity = _buffer(end_tile - 1)
        mbarrier.wait(v_full.index(last_stage), last_parity)
        meet_at(MINE, _PAIR)
        if FP8:
            p_narrow = _as_operand(p, DTYPE, P_LAYOUT)
            v = v_smem.index(last_stage).permute((1, 0))
            pending = warpgroup_mma(p_narrow, v, no_output, use_acc=False, is_async=True)
        else:
            pending = warpgroup_mma(p_narrow, v_smem.index(last_stage), acc, is_async=True)
        arrive_at(NEXT, _PAIR)
        added = warpgroup_mma_wait(0, deps=(pending,))
        arrive_at(_V_FREE + last_stage, ALL)
        acc = acc * shrink_acc[:, None] + added if FP8 else added
        row_sum = gl.convert_layout(gl.sum(row_sums, 1), gl.SliceLayout(1, S_LAYOUT))
        # Not a division of each number, which takes four instructions.
        share = 1 / row_sum
        if FP8:
            share *= gl.load(SCALES + 2 * pairs + pair)
        acc = acc * gl.convert_layout(share, gl.SliceLayout(1, O_LAYOUT))[:, None]
        plane = BATCH * HEADS * T_STATS
        if PARTS is None:
            tma.store_wait(0)  # the output of the block before has left
            o.store(acc.to(o_smem.dtype))
            fence_async_shared()
            tma.async_copy_shared_to_global(o_desc, [batch, head, first_row, 0], o)
        else:  # in float32, behind the statistics: `passes._merge_kernel` rounds it
            row = first_row + gl.arange(0, _ROWS, gl.SliceLayout(1, O_LAYOUT))[:, None]
            number_in_row = gl.arange(0, D, gl.SliceLayout(0, O_LAYOUT))[None, :]
            o_at = 2 * plane + ((batch * HEADS + head) * T_Q + row) * D + number_in_row
            gl.store(STATS + o_at, acc, mask=(row < T_Q) & (number_in_row < D))
        # The maximum and the sum stay apart: at very large logits their sum would lose the smaller one's digits.
        at = (batch * HEADS + head) * T_STATS + query
        gl.store(STATS + at, row_max, mask=query < T_Q)
        gl.store(STATS + plane + at, gl.log2(row_sum), mask=query < T_Q)
        if D == 256:  # O lies where Q was
            tma.store_wait(0)
            mbarrier.arrive(q_free.index(WHICH), count=1)
        first_tile += count
    if WHICH == 0:  # take the turn that was given last
        meet_at(MINE, _PAIR)
    tma.store_wait(0)


@gluon.jit(
    do_not_specialize=("T_Q", "T_K", "OFFSET", "HEADS", "GROUP", "BATCH", "AT_ONCE", "PLACES", "PARTS", "SPAN",
                       "T_STATS")
)  # fmt: skip
def _forward_kernel(
    q_desc, k_desc, v_desc, o_desc, STATS,
    T_Q, T_K, OFFSET, HEADS, GROUP, BATCH, AT_ONCE, DEALT, PLACES, PARTS, SPAN, T_STATS, SCALES, scale_log2,
    CAUSAL: gl.constexpr, SKEWED: gl.constexpr, KEYS: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr,
    CONSUMERS: gl.constexpr,
):  # fmt: skip
    FP8: gl.constexpr = q_desc.dtype == gl.float8e4nv
    BITS: gl.constexpr = 8 if FP8 else 16
    OF_D: gl.constexpr = gl.NVMMASharedLayout(min(128, D * BITS // 8), element_bitwidth=BITS, rank=2)
    OF_V: gl.constexpr = gl.NVMMASharedLayout(min(128, KEYS), element_bitwidth=8, rank=2) if FP8 else SWIZZLED
    q_smem = gl.allocate_shared_memory(q_desc.dtype, [CONSUMERS, _ROWS, D], OF_D)
    k_smem = gl.allocate_shared_memory(q_desc.dtype, [STAGES, KEYS, D], OF_D)
    # Tensor cores read numbers of 8 bits along the sum alone: V comes with keys as columns.
    v_smem = gl.allocate_shared_memory(q_desc.dtype, [STAGES, D, KEYS] if FP8 else [STAGES, KEYS, D], OF_V)
    o_smem = q_smem  # head dim 256 has no room for both
    if D < 256:
        o_smem = gl.allocate_shared_memory(o_desc.dtype, [CONSUMERS, _ROWS, D], SWIZZLED)
    q_full = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], mbarrier.MBarrierLayout())
    q_free = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for which in gl.static_range(CONSUMERS):
        mbarrier.init(q_full.index(which), count=1)
        mbarrier.init(q_free.index(which), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(v_full.index(stage), count=1)
    fence_async_shared()
    # Registers: the consumers take 240 each, or 160 if there are three, which leaves the producer the few that it needs.
    if CONSUMERS == 2:
        gl.warp_specialize([
            (_load, (q_desc, k_desc, v_desc, q_smem, k_smem, v_smem, q_full, q_free, k_full, v_full,
                     T_Q, T_K, OFFSET, HEADS, GROUP, BATCH, AT_ONCE, DEALT, PLACES, PARTS, SPAN, CAUSAL, KEYS, STAGES, CONSUMERS)),
            (_compute, (o_desc, STATS, q_smem, k_smem, v_smem, o_smem, q_full, q_free, k_full, v_full,
                        T_Q, T_K, OFFSET, HEADS, GROUP, BATCH, AT_ONCE, DEALT, PLACES, PARTS, SPAN, T_STATS, SCALES, scale_log2,
                        CAUSAL, SKEWED, KEYS, D, CONSUMERS, 0)),
            (_compute, (o_desc, STATS, q_smem, k_smem, v_smem, o_smem, q_full, q_free, k_full, v_full,
                        T_Q, T_K, OFFSET, HEADS, GROUP, BATCH, AT_ONCE, DEALT, PLACES, PARTS, SPAN, T_STATS, SCALES, scale_log2,
                        CAUSAL, SKEWED, KEYS, D, CONSUMERS, 1)),
        ], [4, 4], [240, 240])  # fmt: skip
    else:
        gl.warp_specialize([
            (_load, (q_desc, k_desc, v_desc, q_smem, k_smem, v_smem, q_full, q_free, k_full, v_full,
                     T_Q, T_K, OFFSET, HEADS, GROUP, BATCH, AT_ONCE, DEALT, PLACES, PARTS, SPAN, CAUSAL, KEYS, STAGES, CONSUMERS)),
            (_compute, (o_desc, STATS, q_smem, k_smem, v_smem, o_smem, q_full, q_free, k_full, v_full,
                        T_Q, T_K, OFFSET, HEADS, GROUP, BATCH, AT_ONCE, DEALT, PLACES, PARTS, SPAN, T_STATS, SCALES, scale_log2,
                        CAUSAL, SKEWED, KEYS, D, CONSUMERS, 0)),
            (_compute, (o_desc, STATS, q_smem, k_smem, v_smem, o_smem, q_full, q_free, k_full, v_full,
                        T_Q, T_K, OFFSET, HEADS, GROUP, BATCH, AT_ONCE, DEALT, PLACES, PARTS, SPAN, T_STATS, SCALES, scale_log2,
                        CAUSAL, SKEWED, KEYS, D, CONSUMERS, 1)),
            (_compute, (o_desc, STATS, q_smem, k_smem, v_smem, o_smem, q_full, q_free, k_full, v_full,
                        T_Q, T_K, OFFSET, HEADS, GROUP, BATCH, AT_ONCE, DEALT, PLACES, PARTS, SPAN, T_STATS, SCALES, scale_log2,
                        CAUSAL, SKEWED, KEYS, D, CONSUMERS, 2)),
        ], [4, 4, 4], [160, 160, 160])  # fmt: skip
