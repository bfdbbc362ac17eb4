"""The passes over memory around the Hopper kernel's backward, run by Triton's interpreter where there is no GPU."""

import pytest
import torch

pytest.importorskip("triton", reason="needs triton: pip install 'assay-studies[dev]'")

from model.attention.kernels.hopper import passes

B, T, H = 2, 150, 3
STATISTICS = 152  # places of a row: T rounded up to 4
USED = [(64, 128), (128, 64), (256, 64)]  # head dim, rows of a tile
SCALE = 0.125  # from scores to logarithms


def place(row: int, column: int) -> tuple[int, int]:
    """Where `_backward.in_register_order` puts an element: bits of its row and of its column change places."""
    r, c = ([number >> bit & 1 for bit in range(9)] for number in (row, column))
    low_row = r[4] << 4 | c[4] << 3 | r[2] << 2 | r[1] << 1 | c[3]
    low_column = r[0] << 4 | c[2] << 3 | c[1] << 2 | r[3] << 1 | c[0]
    return row >> 5 << 5 | low_row, column >> 5 << 5 | low_column


def drawn(D, device, dtype=torch.bfloat16):
    """(o, do) as a model gives them: (B, T, H, D), heads of another tensor around them."""
    tensors = torch.randn(2, B, T + 7, 2 * H, D, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    return tensors[:, :, 3 : T + 3, H:].unbind()


def before(o, do, stats, rows, terms=None):
    """What the pass before gives: (lse, lost, delta, whether the tile has a large LSE), each (B, H, rows of all tiles)."""
    D, tiles = o.shape[-1], -(-T // rows)
    packed = torch.full((B, H, 4 * tiles * rows), torch.nan, device=o.device)
    dq = torch.full((B, H, tiles * rows, D), torch.nan, device=o.device)
    units = [stride // 8 for x in (o, do) for stride in x.stride()[:3]]
    passes._backward_before_kernel[(tiles, H, B)](
        o, do, packed, terms, dq, stats, T, STATISTICS, B * H, H, *units, SCALE, D, rows
    )
    assert not dq.any()
    return unpacked(packed.view(B, H, tiles, 4, rows))


def statistics(device):
    stats = torch.randn(2, B, H, STATISTICS, device=device)
    stats[0, :, 0, T - 1] = 1e7  # one row of a head's last tile
    return stats


@pytest.mark.parametrize(("D", "rows"), USED)
def test_the_pass_before_gives_delta_beside_the_statistics_and_zeros(device, D, rows) -> None:
    o, do = drawn(D, device)
    stats = statistics(device)
    lse, lost, delta, large = before(o, do, stats, rows)
    assert torch.equal((lse.double() + lost.double())[..., :T], stats.double().sum(0)[..., :T])
    assert torch.equal(lse[..., :T], stats.sum(0)[..., :T])
    assert large[:, 0, -rows:].all() and not large[:, 0, :-rows].any() and not large[:, 1:].any()
    assert not delta[..., T:].any()
    expected = (o.float() * do.float()).sum(-1).transpose(1, 2)
    torch.testing.assert_close(delta[..., :T], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("D", "rows"), USED[:2])
def test_terms_are_the_statistics_in_parts_of_16_bits(device, D, rows, dtype) -> None:
    """Scores are short of them once the tensor cores have added up what the parts count."""
    o, do = drawn(D, device, dtype)
    # Gradients that float16 has few digits for, and some whose delta it could not hold.
    do = torch.cat([do[:, :100] * 2.0**-20, do[:, 100:] * 2.0**7], 1)
    o = torch.cat([o[:, :100], o[:, 100:] * 2.0**7], 1)
    stats = statistics(device)
    terms = torch.full((B, H, -(-T // rows), 2, rows, 16), torch.nan, device=device, dtype=dtype)
    lse, lost, delta, large = before(o, do, stats, rows, terms)
    weights = torch.zeros(16, device=device, dtype=torch.float64)
    weights[:3] = torch.tensor(passes.WEIGHTS, dtype=torch.float64)
    less_lse, less_delta = (terms.double() @ weights).transpose(2, 3).flatten(3).unbind(2)
    # In one place or the other: the first where no LSE is large.
    assert torch.equal((less_lse == 0)[..., :T], (large > 0)[..., :T])
    assert torch.equal((lse == 0)[..., :T], (large == 0)[..., :T])
    assert not lost[large == 0].any()
    small = large[..., :T] == 0
    torch.testing.assert_close(
        less_lse[..., :T][small].float(), -stats.sum(0)[..., :T][small] / SCALE, rtol=2e-7, atol=1e-6
    )
    assert delta.abs().max() > torch.finfo(torch.float16).max
    torch.testing.assert_close(-less_delta.float(), delta, rtol=2e-7, atol=2e-11)


def test_a_large_lse_is_one_of_128_or_more_of_either_sign(device) -> None:
    o, do = drawn(64, device)
    for value, expected in [(127.0, False), (129.0, True), (-129.0, True), (-127.0, False)]:
        stats = torch.zeros(2, B, H, STATISTICS, device=device)
        stats[0, :, :, 5] = value
        *_, large = before(o, do, stats, 128)
        assert bool(large[..., :128].all()) == bool(large[..., :128].any()) == expected, value


def unpacked(x_BHN4R):
    """Four of (B, H, rows of all tiles): within 16 rows, a thread's 2t, 2t + 1, 2t + 8 and 2t + 9 are side by side."""
    side_by_side = [2 * t + step for t in range(4) for step in (0, 1, 8, 9)]
    rows = torch.empty_like(x_BHN4R).unflatten(-1, (-1, 16))
    rows[..., side_by_side] = x_BHN4R.unflatten(-1, (-1, 16))
    return rows.flatten(-2).transpose(2, 3).flatten(-2).unbind(2)


@pytest.mark.parametrize(("D", "rows"), USED)
def test_the_pass_after_scales_dq_and_undoes_the_order_of_registers(device, D, rows) -> None:
    tiles = -(-T // rows)
    unscaled_dq = torch.randn(B, H, tiles * rows, D, device=device)
    sums = torch.empty_like(unscaled_dq)
    places = torch.tensor([[place(row, column) for column in range(D)] for row in range(rows)])
    for tile in range(tiles):
        tile_rows = slice(tile * rows, (tile + 1) * rows)
        sums[:, :, tile_rows][:, :, places[..., 0], places[..., 1]] = unscaled_dq[:, :, tile_rows]
    dq = torch.full((B, T, H, D), torch.nan, device=device, dtype=torch.bfloat16)
    passes._backward_after_kernel[(tiles, H, B)](sums, dq, T, H, 0.25, D, rows)
    expected = (unscaled_dq[:, :, :T] * 0.25).transpose(1, 2)
    torch.testing.assert_close(dq.float(), expected, rtol=1e-2, atol=1e-2)
