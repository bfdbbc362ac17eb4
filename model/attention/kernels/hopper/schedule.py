"""Which block works on what, in which order. Whole numbers only: Gluon compiles it, and Python runs it in tests.

Blocks start in the order of their numbers, as processors come free. Under a causal mask they differ in
length, so the long ones go first, or the last processors to finish would be alone. But not of all heads at
once: neighbours should share tiles in the L2 cache, so that a few heads take turns (FA3's tile scheduler).
"""

import heapq
from collections.abc import Iterable
from functools import cache

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

L2_BYTES = 32 * 2**20  # of 50 MB: what is read once passes through it too


@gluon.jit
def locate(number, blocks, heads, at_once):
    """The block of program `number`: (how many longer blocks its head has, head). `at_once` heads share a turn."""
    turn = number // (blocks * at_once)
    first = turn * at_once
    width = min(at_once, heads - first)  # the last turn has what is left
    place = number - turn * blocks * at_once
    return place // width, first + place % width


@gluon.jit
def blocks_of_program(DEALT, PLACES):
    """How many blocks the forward's program does, one after the other: one, unless they are DEALT."""
    count = gl.program_id(0) * 0 + 1
    if DEALT is not None:
        count = gl.load(DEALT + gl.program_id(0) * PLACES)
    return count


@gluon.jit
def number_of_block(turn, DEALT, PLACES):
    """Its block of that turn."""
    number = gl.program_id(0)
    if DEALT is not None:
        number = gl.load(DEALT + number * PLACES + 1 + turn)
    return number


@gluon.jit
def block_of_queries(number, T_Q, HEADS, BATCH, AT_ONCE, QUERIES: gl.constexpr):
    """The forward's (block, head, batch). Late queries see the most keys, so that they go first."""
    blocks = (T_Q + QUERIES - 1) // QUERIES
    longer, head = locate(number, blocks, HEADS * BATCH, AT_ONCE)
    return blocks - 1 - longer, head % HEADS, head // HEADS


@gluon.jit
def block_of_keys(number, T_K, PARTS, BATCH, AT_ONCE, KEYS: gl.constexpr):
    """The backward's (block, part, batch): a part is a key head, or one for some of its query heads.

    Early keys are seen by the most queries, so that they go first.
    """
    block, part = locate(number, (T_K + KEYS - 1) // KEYS, PARTS * BATCH, AT_ONCE)
    return block, part % PARTS, part // PARTS


@gluon.jit
def part_of_keys(batch, T_K, PARTS, SPAN):
    """(batch, first key, keys): of a batch and one of its PARTS of SPAN keys, or all keys where these are not shared."""
    first, keys = batch * 0, T_K
    if PARTS is not None:
        first = batch % PARTS * SPAN
        keys = min(SPAN, T_K - first)
        batch = batch // PARTS
    return batch, first, keys


@gluon.jit
def tiles_of_keys(block, T_K, OFFSET, CAUSAL: gl.constexpr, QUERIES: gl.constexpr, KEYS: gl.constexpr):
    """How many tiles of keys a block of queries reads: from the first key to the last that one of them sees."""
    end = T_K
    if CAUSAL:
        end = min(end, OFFSET + (block + 1) * QUERIES)
    return (end + KEYS - 1) // KEYS


@gluon.jit
def tiles_of_queries(block, T_Q, OFFSET, CAUSAL: gl.constexpr, KEYS: gl.constexpr, QUERIES: gl.constexpr):
    """(first, count) of the tiles of queries that a block of keys reads: from the first that sees one of them."""
    first = block * 0
    if CAUSAL:
        first = max(block * KEYS - OFFSET, 0) // QUERIES
    return first, max((T_Q + QUERIES - 1) // QUERIES - first, 0)


@gluon.jit
def tile_at(n, first_head, first, tiles, ORDERED: gl.constexpr, QUERIES: gl.constexpr):
    """(head, first row) of the n-th tile of queries that a block of keys reads, head by head.

    The last queries come first where blocks take turns: all blocks see those, so that each begins one tile after
    the block before it, and not as late as its own first query.
    """
    place = n % tiles
    if ORDERED:
        place = tiles - 1 - place
    return first_head + n // tiles, (first + place) * QUERIES


@gluon.jit
def first_tile(first, tiles, ORDERED: gl.constexpr):
    """The tile of queries that `tile_at` begins with."""
    tile = first + 0
    if ORDERED:
        tile = first + tiles - 1
    return tile


@gluon.jit
def next_tile(tile, first, tiles, ORDERED: gl.constexpr):
    """The tile of queries after this one in `tile_at`, without its division."""
    if ORDERED:
        tile -= 1
        if tile < first:
            tile = first + tiles - 1
    else:
        tile += 1
        if tile == first + tiles:
            tile = first + 0
    return tile


@gluon.jit
def cut(first_query, end_of_keys, OFFSET):
    """Whether the diagonal of a causal mask hides some key before `end_of_keys` from `first_query`."""
    return first_query + OFFSET < end_of_keys - 1


# A mask compares each score once: what a row has in common is computed for the row.
FAR = gl.constexpr(2**30)


@gluon.jit
def keys_seen(query, T_K, OFFSET, CAUSAL: gl.constexpr):
    """How many keys a query sees, from the first one on; also for a tensor of queries."""
    seen = T_K
    if CAUSAL:
        seen = gl.minimum(query + OFFSET + 1, T_K)
    return seen


@gluon.jit
def first_to_see(key, T_K, OFFSET, CAUSAL: gl.constexpr):
    """The first query that sees a key; none sees one after the last. Also for a tensor of keys."""
    query = (key >= T_K) * FAR
    if CAUSAL:
        query += key - OFFSET
    return query


def skewed(offset: int, queries: int, keys: int) -> bool:
    """Whether the diagonal cuts another tile of keys of a block of queries than the last."""
    return keys < queries or offset % keys != 0


@cache
def in_step(blocks: int, heads: int, processors: int, causal: bool) -> int:
    """Heads to a turn: as few as keep nearly all processors busy.

    The blocks that run side by side then read the same tiles at the same time, and the backward's add to the same tiles of dQ.
    That they find those in the L2 cache counts for more than that the last processors wait a little.

    Args:
        blocks: of one head.
        heads: of all batches.
    """
    enough = _turns(blocks, heads, -(-9 * processors // 10))
    if not causal or blocks * heads >= 16 * processors:  # blocks are alike, or the last turn is a small part
        return enough[0]
    ends = {at_once: last_end(blocks, heads, at_once, processors) for at_once in enough}
    return next(at_once for at_once, end in ends.items() if 0.97 * end <= min(ends.values()))


def _turns(blocks: int, heads: int, least: int) -> list[int]:
    """The heads that turns can have, all as many, with at least so many blocks to a turn; or else all heads."""
    equal = (at_once for at_once in range(1, heads + 1) if heads % at_once == 0)
    return [at_once for at_once in equal if at_once * blocks >= least] or [heads]


def last_end(blocks: int, heads: int, at_once: int, processors: int) -> int:
    """When the last block under a causal mask ends, in tiles: a processor that comes free takes the next one."""
    work = [blocks - locate.fn(number, blocks, heads, at_once)[0] + 1 for number in range(blocks * heads)]
    return max(sum(work[number] for number in numbers) for numbers in deal(work, processors))


@cache
def in_order(blocks: int, heads: int, head_bytes: int, processors: int) -> int:
    """Heads to a turn where blocks of one head wait for each other: as many as share the L2 cache, and at least two
    rounds of blocks on every processor.

    All turns have as many: one head that is left for the last would keep few processors busy.

    Args:
        blocks: of one head.
        heads: of all batches.
        head_bytes: that the blocks of one head read.
    """
    enough = _turns(blocks, heads, 2 * processors)
    return max((at_once for at_once in enough if at_once * head_bytes <= L2_BYTES), default=enough[0])


def parts_of_keys(tiles: int, most: int) -> tuple[int, int]:
    """(parts, tiles of each) among which keys are shared: at most so many, none empty, each of two tiles or more."""
    each = max(2, -(-tiles // max(most, 1)))
    return -(-tiles // each), each


def work_of_blocks(
    blocks: int, T_K: int, offset: int, heads: int, at_once: int, queries: int, keys: int, causal: bool
) -> list[int]:
    """The tiles of each block of queries and one more: its start and end cost about as much as a tile."""
    longer = [locate.fn(number, blocks, heads, at_once)[0] for number in range(blocks * heads)]
    tiles_of = tiles_of_keys.fn
    return [tiles_of(blocks - 1 - count, T_K, offset, causal, queries, keys) + 1 for count in longer]


def deal(work: Iterable[int], programs: int) -> list[list[int]]:
    """The numbers of the blocks that each program does: in their order, each goes to the program that is free first.

    Args:
        work: of each block, in any unit.
    """
    dealt: list[list[int]] = [[] for _ in range(programs)]
    free = [(0, program) for program in range(programs)]
    for number, duration in enumerate(work):
        busy, program = free[0]
        dealt[program].append(number)
        heapq.heapreplace(free, (busy + duration, program))
    return dealt


def heads_per_block(blocks: int, kv_heads: int, group: int, processors: int) -> int:
    """Query heads whose dK and dV a block of the backward sums up by itself: as many as leave enough blocks.

    Args:
        blocks: blocks of keys in one head.
        kv_heads: of all batches.
        group: query heads that share one of them.
    """
    choices = [heads for heads in range(group, 0, -1) if group % heads == 0]
    enough = (own for own in choices if 2 * blocks * kv_heads * (group // own) >= 3 * processors)
    return next(enough, 1)
