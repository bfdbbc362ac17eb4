"""Which block of the Hopper kernel works on what: the functions that Gluon compiles, run by Python."""

from collections import Counter
from itertools import product

import pytest

pytest.importorskip("triton", reason="needs triton: pip install 'assay-studies[dev]'")

from model.attention.kernels.hopper import schedule

# Tiles small enough to look at every query and key: the kernel's own are 32 times as large.
LENGTHS = [(1, 1), (4, 4), (9, 9), (16, 16), (3, 11), (8, 5), (13, 29)]
OFFSETS = [0, 1, 4, 7, 8, 30]
CASES = list(product(LENGTHS, OFFSETS))


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in vars(schedule).items():
        if hasattr(value, "fn"):
            monkeypatch.setattr(schedule, name, value.fn)
            value.fn.fn = value.fn  # what Python calls, where both run
    monkeypatch.setattr(schedule.gl, "minimum", min)


@pytest.mark.parametrize(("blocks", "heads", "at_once"), list(product([1, 3, 8], [1, 5, 12], [1, 4, 20])))
def test_each_block_of_each_head_is_done_once_and_long_ones_of_a_turn_first(blocks, heads, at_once) -> None:
    locations = [schedule.locate(number, blocks, heads, at_once) for number in range(blocks * heads)]
    assert sorted(locations) == sorted(product(range(blocks), range(heads)))
    for start in range(0, len(locations), blocks * at_once):
        turn = locations[start : start + blocks * at_once]
        assert [block for block, _ in turn] == sorted(block for block, _ in turn)
        assert {head // at_once for _, head in turn} == {turn[0][1] // at_once}


def test_the_forward_starts_with_late_queries_and_the_backward_with_early_keys() -> None:
    forward = [schedule.block_of_queries(n, 10, 3, 2, 2, 4) for n in range(3 * 3 * 2)]
    backward = [schedule.block_of_keys(n, 10, 3, 2, 2, 4) for n in range(3 * 3 * 2)]
    assert sorted(forward) == sorted(backward) == sorted(product(range(3), range(3), range(2)))
    assert forward[:6] == [(2, 0, 0), (2, 1, 0), (1, 0, 0), (1, 1, 0), (0, 0, 0), (0, 1, 0)]
    assert backward[:6] == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0), (2, 0, 0), (2, 1, 0)]


def _visible(T_Q: int, T_K: int, offset: int, causal: bool) -> set[tuple[int, int]]:
    return {(q, k) for q in range(T_Q) for k in range(T_K) if not causal or k <= q + offset}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("keys", [4, 2])  # head dim 256 has half as many keys to a tile as queries to a block
@pytest.mark.parametrize(("lengths", "offset"), CASES)
def test_the_forward_sees_every_visible_pair_once_and_no_other(lengths, offset, keys, causal) -> None:
    (T_Q, T_K), queries = lengths, 4
    skewed = causal and schedule.skewed(offset, queries, keys)
    pairs: Counter[tuple[int, int]] = Counter()
    for block, half in product(range(-(-T_Q // queries)), range(2)):
        count = schedule.tiles_of_keys(block, T_K, offset, causal, queries, keys)
        assert count > 0
        first_query = block * queries + half * queries // 2
        for tile in range(count):
            masked = tile == count - 1 or (skewed and schedule.cut(first_query, (tile + 1) * keys, offset))
            rows = range(first_query, first_query + queries // 2)
            pairs.update(
                (q, k)
                for q, k in product(rows, _tile(tile, keys))
                if q < T_Q and (not masked or k < schedule.keys_seen(q, T_K, offset, causal))
            )
    assert pairs == Counter(_visible(T_Q, T_K, offset, causal))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("keys", [4, 2])
@pytest.mark.parametrize(("lengths", "offset"), CASES)
def test_the_backward_sees_every_visible_pair_once_and_no_other(lengths, offset, keys, causal) -> None:
    (T_Q, T_K), queries = lengths, 2
    pairs: Counter[tuple[int, int]] = Counter()
    for block in range(-(-T_K // keys)):
        first_tile, count = schedule.tiles_of_queries(block, T_Q, offset, causal, keys, queries)
        ragged = (block + 1) * keys > T_K
        for tile in range(first_tile, first_tile + count):
            masked = ragged or (causal and schedule.cut(tile * queries, (block + 1) * keys, offset))
            pairs.update(
                (q, k)
                for q, k in product(_tile(tile, queries), _tile(block, keys))
                if q < T_Q and (not masked or q >= schedule.first_to_see(k, T_K, offset, causal))
            )
    assert pairs == Counter(_visible(T_Q, T_K, offset, causal))


def _tile(number: int, length: int) -> range:
    return range(number * length, (number + 1) * length)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("lengths", "offset"), CASES)
def test_blocks_that_take_turns_at_a_tile_wait_for_none_that_starts_later(lengths, offset, causal) -> None:
    """Block n waits until n blocks have added to the tile: those must be the ones before it, and have started."""
    (T_Q, T_K), keys, queries, parts = lengths, 4, 2, 3
    added: Counter[tuple[int, int]] = Counter()
    for number in range(-(-T_K // keys) * parts):
        block, part, _ = schedule.block_of_keys(number, T_K, parts, 1, 2, keys)
        first_tile, count = schedule.tiles_of_queries(block, T_Q, offset, causal, keys, queries)
        for tile in range(first_tile, first_tile + count):
            assert added[part, tile] == block
            added[part, tile] += 1


@pytest.mark.parametrize("ordered", [False, True])
def test_tiles_come_head_by_head_and_the_last_queries_first_where_blocks_take_turns(ordered) -> None:
    first_tile, tiles, heads = 3, 4, 2
    positions = [schedule.tile_at(n, 5, first_tile, tiles, ordered, 10) for n in range(tiles * heads)]
    rows = [60, 50, 40, 30] if ordered else [30, 40, 50, 60]
    assert positions == list(product([5, 6], rows))
    tile = schedule.first_tile(first_tile, tiles, ordered)
    for _, row in positions:
        assert tile * 10 == row
        tile = schedule.next_tile(tile, first_tile, tiles, ordered)


@pytest.mark.parametrize("tiles", range(1, 70))
@pytest.mark.parametrize("most", [0, 1, 4, 16, 132])
def test_keys_are_shared_among_parts_of_which_none_is_empty(tiles: int, most: int) -> None:
    parts, each = schedule.parts_of_keys(tiles, most)
    assert parts == 1 or (parts <= most and each >= 2)
    assert (parts - 1) * each < tiles <= parts * each
    keys, span = 64 * tiles - 5, 64 * each
    shares = [schedule.part_of_keys.fn(3 * parts + part, keys, parts, span) for part in range(parts)]
    assert all(batch == 3 for batch, _, _ in shares)
    seen = [first + n for _, first, count in shares for n in range(count)]
    assert seen == list(range(keys))
    assert schedule.part_of_keys.fn(3, keys, None, None) == (3, 0, keys)


def test_a_block_sums_up_as_many_heads_as_leave_enough_blocks() -> None:
    assert schedule.heads_per_block(blocks=128, kv_heads=8, group=4, processors=132) == 4
    assert schedule.heads_per_block(blocks=32, kv_heads=8, group=4, processors=132) == 4
    assert schedule.heads_per_block(blocks=16, kv_heads=8, group=4, processors=132) == 2
    assert schedule.heads_per_block(blocks=1, kv_heads=1, group=6, processors=132) == 1


@pytest.mark.parametrize(
    ("blocks", "heads", "megabytes", "to_a_turn"),
    [(32, 32, 0.5, 32), (64, 16, 4, 8), (128, 16, 8, 4), (256, 16, 16, 2), (1000, 6, 64, 1), (4, 512, 0.5, 128), (32, 7, 8, 7)],
)  # fmt: skip
def test_turns_are_equal_and_share_the_cache(blocks, heads, megabytes, to_a_turn) -> None:
    assert schedule.in_order(blocks, heads, int(megabytes * 2**20), 132) == to_a_turn
    assert heads % to_a_turn == 0


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("blocks", "heads", "to_a_turn"),
    [(16, 64, 8), (32, 64, 4), (32, 32, 4), (256, 8, 1), (8, 256, 16), (4, 512, 32), (4, 8, 8), (16, 7, 7), (1, 131, 131)],
)  # fmt: skip
def test_few_heads_keep_all_processors_busy(blocks, heads, to_a_turn, causal) -> None:
    assert schedule.in_step(blocks, heads, 132, causal) == to_a_turn


@pytest.mark.parametrize(("blocks", "heads"), [(32, 12), (16, 24), (16, 40), (4, 96), (16, 100), (64, 10)])
def test_more_heads_share_a_turn_where_the_last_one_would_leave_processors_idle(blocks, heads) -> None:
    ends = {
        turn: schedule.last_end(blocks, heads, turn, 132) for turn in range(1, heads + 1) if heads % turn == 0
    }
    chosen = schedule.in_step(blocks, heads, 132, causal=True)
    assert ends[chosen] <= 1.03 * min(end for turn, end in ends.items() if turn * blocks >= 119)
    assert schedule.in_step(blocks, heads, 132, causal=False) <= chosen


@pytest.mark.parametrize(
    "turn_of",
    [
        lambda blocks, heads, tokens: schedule.in_order(blocks, heads, tokens * 128 * 4, 132),
        lambda blocks, heads, _: schedule.in_step(blocks, heads, 132, True),
    ],
    ids=["in order", "in step"],
)
@pytest.mark.parametrize(
    ("tokens", "heads"), [(2048, 128), (4096, 32), (4096, 64), (8192, 16), (16384, 16), (16384, 32)]
)
def test_no_processor_waits_long_for_the_last_one(tokens: int, heads: int, turn_of) -> None:
    """A processor that comes free takes the next program; 3 % of the time is what they may idle at the end."""
    blocks = tokens // 128
    turn = turn_of(blocks, heads, tokens)
    busy_until = [0] * 132
    for number in range(blocks * heads):
        block, _ = schedule.locate(number, blocks, heads, turn)
        busy_until[busy_until.index(min(busy_until))] += blocks - block + 1
    assert sum(busy_until) / 132 / max(busy_until) > 0.97


@pytest.mark.parametrize(
    ("work", "programs"), [([5, 4, 3, 2, 1], 2), ([1] * 9, 4), ([7], 3), (range(100, 0, -1), 7)]
)
def test_every_block_is_dealt_once_in_order_and_no_program_has_much_more_to_do(work, programs) -> None:
    dealt = schedule.deal(work, programs)
    assert sorted(number for program in dealt for number in program) == list(range(len(work)))
    assert all(program == sorted(program) for program in dealt)
    loads = [sum(work[number] for number in program) for program in dealt]
    assert max(loads) - min(loads) <= max(work)
