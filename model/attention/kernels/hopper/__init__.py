"""FlashAttention for Hopper in Gluon, the lower level of Triton's language, which comes with PyTorch.

`model/attention/tiled.py` is the same algorithm in plain PyTorch; read that first. Papers: Dao 2023,
"FlashAttention-2" (arXiv:2307.08691), below FA2; Shah et al. 2024, "FlashAttention-3" (arXiv:2407.08608),
below FA3. Files: _forward, _backward, _backward_wide (head dim 256), passes (what surrounds the backward),
schedule (which block does what).

Shapes: B batch, T sequence, H query heads, K key/value heads, D head dim, S positions of statistics (T and
padding). Query head h reads key/value head h // (H // K). Under a causal mask query i sees the keys up to i + query_offset.

How a thread block is divided (warp specialization, FA3 section 3.1): one thread of one warpgroup (four warps)
moves tiles between global and shared memory by TMA; two or three other warpgroups compute. (In _backward_wide
the first one computes too.) They meet at mbarriers in shared memory. A barrier completes once per round, and its waiters name the parity
of the round that they wait for: round n of a ring of STAGES buffers uses buffer n % STAGES, and that
buffer's (n // STAGES)-th completion has parity (n // STAGES) & 1. Waiting for a buffer to be *free* uses
the opposite parity, so that the first wait on a fresh barrier passes at once.

Logarithms and exponentials have base 2, which the hardware has an instruction for: exp(x) = exp2(x log2(e)),
and log2(e) is folded into the scale. Statistics are a row's largest scaled score, and log2 of the sum of
exp2(score - largest), both in those units.
"""

from collections.abc import Callable, Hashable
from functools import cache

import torch
from torch import Tensor

from model.attention.kernels.dense import fits
from model.attention.kernels.hopper import _backward, _backward_wide, _forward, passes, schedule
from model.attention.kernels.hopper._tma import launch, launched, rows, tiles

LOG2_E = 1.4426950408889634
HEAD_DIMS = (64, 128, 256)
DTYPES = (torch.bfloat16, torch.float16)
# Forward only, up to head dim 128: two float32 sums of more do not fit into registers.
FP8 = torch.float8_e4m3fn
TRANSPOSED = 128  # keys of V that a program transposes
STAGES = 2  # buffers that K and V rotate through (`_forward._buffer` counts on two)


def forward(
    q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool = True, query_offset: int = 0,
    scales_3BK: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention of tensors of any strides that TMA can address (`fits`); keys may be more than queries.

    Args:
        scales_3BK: of Q, K and V in E4M3, float32: what each key head's numbers, and those of its query heads, count.

    Returns:
        (o_BTHD, stats_2BHS): the output, and float32 statistics for `backward`, S = T rounded up to 4. The output of
        E4M3 is bfloat16.

    Raises:
        ValueError: shapes, precision or strides that the kernel does not take.
    """
    _check(q_BTHD, k_BTKD, v_BTKD, query_offset)
    B, T, H, D = q_BTHD.shape
    T_K, K = k_BTKD.shape[1:3]
    fp8 = q_BTHD.dtype == FP8
    _check_scales(scales_3BK, (3, B, K) if fp8 else None, q_BTHD.device)
    if causal and T == 1:
        # One query sees the first keys, all of them: no length of a cache needs a kernel of its own.
        k_BTKD, v_BTKD, causal = k_BTKD[:, : query_offset + 1], v_BTKD[:, : query_offset + 1], False
        T_K, query_offset = k_BTKD.shape[1], 0
    o_BTHD = torch.empty(q_BTHD.shape, device=q_BTHD.device, dtype=torch.bfloat16 if fp8 else q_BTHD.dtype)
    stats_2BHS = torch.empty(2, B, H, _padded(T), device=q_BTHD.device, dtype=torch.float32)
    device, kernel = q_BTHD.device, _forward._forward_kernel
    ROWS, keys = _forward.ROWS, _forward.KEYS[D]
    processors = _processors(device)

    def variant(consumers: int, table: Tensor | None) -> tuple[Hashable, ...]:
        skewed = causal and schedule.skewed(query_offset, consumers * ROWS, keys)
        return device, q_BTHD.dtype, D, causal, skewed, consumers, table is None

    def share_keys() -> bool:
        """One query's, if there are enough of them; whether it is done."""
        most = processors // (B * K)
        parts, each = schedule.parts_of_keys(-(-T_K // keys), most)
        return parts > 1 and _of_parts(q_BTHD, k_BTKD, v_BTKD, o_BTHD, stats_2BHS, parts, each * keys, most)

    one_query = T == 1 and not fp8
    # A capture of few keys may need the plain kernel.
    if one_query and launched(kernel, variant(2, None)) and share_keys():
        return o_BTHD, stats_2BHS
    chosen = _forward.consumers(D, causal, T, T_K, B * H, processors)
    blocks = -(-T // (chosen * ROWS))
    turn = schedule.in_step(blocks, B * H, processors, causal)
    dealt = None
    if blocks > 1 and blocks * B * H > processors:
        dealt = _dealt(device, T, T_K, query_offset, B * H, turn, chosen * ROWS, keys, causal)

    v = tiles(_transposed(v_BTKD), D, keys) if fp8 else tiles(v_BTKD, keys)

    for consumers, table in _todo((chosen, dealt), variant):
        key = variant(consumers, table)
        programs, places = (-(-T // (consumers * ROWS)) * B * H, 0) if table is None else table.shape
        launch(
            kernel, key, (programs, 1, 1),
            tiles(q_BTHD, ROWS), tiles(k_BTKD, keys), v, tiles(o_BTHD, ROWS),
            stats_2BHS, T, T_K, query_offset, H, H // K, B, turn, table, places, None, None, _padded(T), scales_3BK, D**-0.5 * LOG2_E, causal, key[4], keys, D, STAGES, consumers,
            num_warps=4,
        )  # fmt: skip
    if one_query:
        share_keys()  # whose results then count
    return o_BTHD, stats_2BHS


def _of_parts(
    q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, o_BTHD: Tensor, stats_2BHS: Tensor, parts: int, span: int, most: int
) -> bool:  # fmt: skip
    """One query, which sees all keys: programs share these, or most of a GPU would be idle ("Flash-Decoding", Dao et al.
    2023, pytorch.org/blog/flash-decoding). A group's heads are the rows of a block, which reads its keys once.

    Args:
        most: parts, whatever the number of keys is.

    Returns:
        Whether it is done: while a graph is captured no kernel can be loaded.
    """
    (B, _, H, D), K = q_BTHD.shape, k_BTKD.shape[2]
    group, device = H // K, q_BTHD.device
    most = 1 << (most - 1).bit_length()
    keys, stats_length = _forward.KEYS[D], _padded(group)
    variant, merging = (device, q_BTHD.dtype, D, "parts"), (device, q_BTHD.dtype, D, most)
    kernels = ((_forward._forward_kernel, variant), (passes._merge_kernel, merging))
    if torch.cuda.is_current_stream_capturing() and not all(launched(*kernel) for kernel in kernels):
        return False
    of_parts = stats_2BHS.new_empty(
        B * parts * K * (2 * stats_length + group * D)
    )  # statistics, then outputs
    queries = tiles(q_BTHD[:, 0].unflatten(1, (K, group)).transpose(1, 2), _forward.ROWS)
    blocks = -(-group // (2 * _forward.ROWS))
    launch(
        _forward._forward_kernel, variant, (blocks * K * B * parts, 1, 1),
        queries, tiles(k_BTKD, keys), tiles(v_BTKD, keys), queries,
        of_parts, group, k_BTKD.shape[1], 0, K, 1, B * parts, K * B * parts, None, 0, parts, span, stats_length, None,
        D**-0.5 * LOG2_E, False, False, keys, D, STAGES, 2,
        num_warps=4,
    )  # fmt: skip
    launch(
        passes._merge_kernel, merging, (B * H, D // 64, 1),
        of_parts, o_BTHD, stats_2BHS, parts, K, group, stats_length, B * H, most, D, 64,
    )  # fmt: skip
    return True


def _transposed(v_BTKD: Tensor) -> Tensor:
    """V with keys as columns, in `passes._transpose_kernel`'s order: (B, D, K, keys and zeros)."""
    B, T, K, D = v_BTKD.shape
    columns = -(-T // 16) * 16  # rows begin at multiples of 16 bytes, as TMA needs them
    out_BKDT = v_BTKD.new_empty(B, K, D, columns)
    launch(
        passes._transpose_kernel, (v_BTKD.device, D), (-(-columns // TRANSPOSED), K, B),
        v_BTKD.view(torch.uint8), out_BKDT.view(torch.uint8), T, K, *_units(v_BTKD), D, TRANSPOSED,
    )  # fmt: skip
    return out_BKDT.transpose(1, 2)


def _todo(
    wanted: tuple[int, Tensor | None], variant: Callable[[int, Tensor | None], tuple[Hashable, ...]]
) -> list[tuple[int, Tensor | None]]:
    """The variants of the forward to launch (consumers and table of blocks), of which the last one's results count."""
    plain = (2, None)

    def loaded(choice: tuple[int, Tensor | None]) -> bool:
        return launched(_forward._forward_kernel, variant(*choice))

    if torch.cuda.is_current_stream_capturing():
        # No kernel can be loaded now. All compute the same, some more slowly.
        choices = (choice for choice in (wanted, (wanted[0], None), plain) if loaded(choice))
        return [next(choices, wanted)]
    # A capture of other lengths may need the plain one.
    return [wanted] if variant(*wanted) == variant(*plain) or loaded(plain) else [plain, wanted]


def backward(
    do_BTHD: Tensor, q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, o_BTHD: Tensor, stats_2BHS: Tensor,
    causal: bool = True, query_offset: int = 0, deterministic: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients (dq_BTHD, dk_BTKD, dv_BTKD).

    Blocks of keys add to dQ as they come, so that its last bits vary, unless `deterministic` makes them take turns.
    """
    _check(q_BTHD, k_BTKD, v_BTKD, query_offset, do_BTHD, o_BTHD)
    B, T, H, D = q_BTHD.shape
    # Whoever keeps saved tensors elsewhere may give back others than `forward` gave.
    shape = (2, B, H, _padded(T))
    same = (stats_2BHS.shape, stats_2BHS.dtype, stats_2BHS.device) == (shape, torch.float32, q_BTHD.device)
    if not (same and stats_2BHS.is_contiguous() and fits(stats_2BHS)):
        raise ValueError(
            f"the Hopper kernel's backward takes the statistics of its forward, dense float32 {shape} that begin at "
            f"a multiple of 16 bytes; got {tuple(stats_2BHS.shape)} {stats_2BHS.dtype} on {stats_2BHS.device} "
            f"with strides {stats_2BHS.stride()}"
        )
    T_K, K = k_BTKD.shape[1:3]
    own = _backward if D <= 128 else _backward_wide
    queries = _backward.queries(D)  # head dim 256 has as many as 128
    passes_grid = (-(-T // queries), H, B)
    padded = queries * passes_grid[0]
    packed_BHS = stats_2BHS.new_empty(B, H, 4 * padded)
    terms_BHSC = q_BTHD.new_empty(B, H, 2 * padded, 16) if own is _backward else None
    dq_BHTD = stats_2BHS.new_empty(B, H, padded, D)
    turns = None  # of blocks at each tile of dQ
    if deterministic:
        turns = torch.zeros(B, H, -(-T // queries), device=q_BTHD.device, dtype=torch.int32)
    key = (q_BTHD.device, q_BTHD.dtype, D, deterministic)
    scale_log2 = D**-0.5 * LOG2_E
    launch(
        passes._backward_before_kernel, key, passes_grid,
        o_BTHD, do_BTHD, packed_BHS, terms_BHSC, dq_BHTD, stats_2BHS, T, _padded(T), B * H, H,
        *_units(o_BTHD), *_units(do_BTHD), scale_log2, D, queries,
    )  # fmt: skip
    processors = _processors(q_BTHD.device)
    blocks = -(-T_K // own.KEYS)
    heads = 1 if deterministic else schedule.heads_per_block(blocks, B * K, H // K, processors)
    parts = H // heads
    turn = schedule.in_step(blocks, B * parts, processors, causal)
    if deterministic:  # blocks of one head wait for each other
        of_head = 4 * q_BTHD.numel() * q_BTHD.element_size() // (B * parts)  # Q, dO and dQ in float32
        turn = schedule.in_order(blocks, B * parts, of_head, processors)
    dk_BTPD, dv_BTPD = (
        torch.empty(B, T_K, parts, D, device=x.device, dtype=x.dtype) for x in (k_BTKD, v_BTKD)
    )
    dq, terms = dq_BHTD, None
    if terms_BHSC is not None:
        dq = tiles(dq_BHTD.transpose(1, 2), own.BOX, own.BOX)
        terms = tiles(terms_BHSC.transpose(1, 2), 2 * queries)
    launch(
        own._backward_kernel, (*key, causal), (blocks * B * parts, 1, 1),
        tiles(q_BTHD, queries), tiles(k_BTKD, own.BOX), tiles(v_BTKD, own.BOX),
        tiles(do_BTHD, queries), dq, tiles(dk_BTPD, own.BOX), tiles(dv_BTPD, own.BOX),
        terms, rows(packed_BHS, 4 * padded, _backward.FLOATS), turns,
        T, T_K, query_offset, H // K, heads, parts, B, turn, scale_log2, D**-0.5, causal, D, deterministic, queries,
        num_warps=4, launch_pdl=True,
    )  # fmt: skip
    dq_BTHD = torch.empty(q_BTHD.shape, device=q_BTHD.device, dtype=q_BTHD.dtype)
    launch(passes._backward_after_kernel, key, passes_grid, dq_BHTD, dq_BTHD, T, H, D**-0.5, D, queries)
    return dq_BTHD, _sum_parts(dk_BTPD, K), _sum_parts(dv_BTPD, K)


def _check(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, query_offset: int, *like_q: Tensor) -> None:
    """The kernels read memory as if all this were so: anything else would be garbage, not an error."""
    B, T, H, D = q_BTHD.shape
    T_K, K = k_BTKD.shape[1:3]
    shapes = k_BTKD.shape == v_BTKD.shape == (B, T_K, K, D) and all(x.shape == q_BTHD.shape for x in like_q)
    everything = (q_BTHD, k_BTKD, v_BTKD, *like_q)
    same = all(x.dtype == q_BTHD.dtype and x.device == q_BTHD.device and fits(x) for x in everything)
    of_8 = q_BTHD.dtype == FP8 and D <= 128 and not like_q
    taken = D in HEAD_DIMS and (q_BTHD.dtype in DTYPES or of_8) and q_BTHD.is_cuda
    if not (shapes and same and taken and min(B, T, T_K, H, K) > 0 and H % K == 0 and query_offset >= 0):
        given = ", ".join(f"{tuple(x.shape)} {x.dtype} with strides {x.stride()}" for x in everything)
        raise ValueError(
            f"the Hopper kernel takes (B, T, heads, D) of a GPU, head dim {' or '.join(map(str, HEAD_DIMS))}, "
            f"16 bits (or, in a forward up to head dim 128, {FP8}), dense rows that begin at multiples of 16 bytes, and query_offset >= 0; "
            f"got {given}, query_offset {query_offset}"
        )


def _check_scales(scales_3BK: Tensor | None, shape: tuple[int, ...] | None, device: torch.device) -> None:
    """Numbers of 8 bits come with scales, and others without."""
    if scales_3BK is None or shape is None:
        right = scales_3BK is None and shape is None
    else:
        same = (scales_3BK.shape, scales_3BK.dtype, scales_3BK.device) == (shape, torch.float32, device)
        right = same and scales_3BK.is_contiguous() and scales_3BK.data_ptr() % 16 == 0
    if not right:
        given = (
            "none"
            if scales_3BK is None
            else f"{tuple(scales_3BK.shape)} {scales_3BK.dtype} on {scales_3BK.device}"
        )
        wanted = f"scales, dense float32 {shape}, with {FP8}" if shape else f"no scales but with {FP8}"
        raise ValueError(f"the Hopper kernel takes {wanted}; got {given}")


_BESIDE_COLLECTIVES = 4  # docs/kernel-log.md, "custom", 26
_tables: dict[tuple[Hashable, ...], Tensor] = {}  # never dropped: a CUDA graph may read them


def _dealt(
    device: torch.device, T: int, T_K: int, offset: int, heads: int, at_once: int, queries: int, keys: int,
    causal: bool,
) -> Tensor | None:  # fmt: skip
    """How many blocks each program of a forward does, and their numbers: (programs, 1 + most blocks).

    Returns:
        None if a CUDA graph is being captured before any call with as many tiles: no table could be copied there.
        Then each block has a program of its own, which is slower. The output is the same.
    """
    blocks = -(-T // queries)
    # Lengths with as many tiles have about the same work: they share a table, or each prompt's length would leave one
    # behind. Without a mask all blocks have the same.
    T_K, offset = (-(-length // keys) * keys if causal else 0 for length in (T_K, offset))
    # One program for each processor; or several short ones where a run has other processes, whose collectives take
    # processors for themselves. A program that finds its processor taken waits until another one ends, which then
    # counts for as little.
    alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
    programs = min(_processors(device) * (1 if alone else _BESIDE_COLLECTIVES), blocks * heads)
    key = device, programs, blocks, T_K, offset, heads, at_once, queries, keys, causal
    if key not in _tables:
        if torch.cuda.is_current_stream_capturing():
            return None
        work = schedule.work_of_blocks(blocks, T_K, offset, heads, at_once, queries, keys, causal)
        dealt = schedule.deal(work, programs)
        if programs > _processors(device):
            # They cannot all start at once, and the last to end should be short.
            dealt.sort(key=lambda own: -sum(work[number] for number in own))
        most = max(map(len, dealt))
        rows = [[len(own), *own, *[0] * (most - len(own))] for own in dealt]
        # Of two threads the first one's is kept: a graph that it captured may read it already.
        return _tables.setdefault(key, torch.tensor(rows, dtype=torch.int32, device=device))
    return _tables[key]


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _padded(T: int) -> int:
    """Rows of statistics begin at multiples of 16 bytes, as TMA needs them."""
    return -(-T // 4) * 4


def _units(x_BTHD: Tensor) -> list[int]:
    """Strides of all dimensions but the last, in units of 16 bytes."""
    return [stride * x_BTHD.element_size() // 16 for stride in x_BTHD.stride()[:3]]


def _sum_parts(dx_BTPD: Tensor, K: int) -> Tensor:
    """PyTorch sums 16 bits in float32 and rounds once."""
    B, T, P, D = dx_BTPD.shape
    return dx_BTPD if P == K else dx_BTPD.view(B, T, K, P // K, D).sum(3)
