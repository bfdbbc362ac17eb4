"""FlashAttention's algorithm in plain PyTorch: what the custom kernel does, slow, exact, and made to be read.

Plain attention writes the T x T scores to memory. Here a tile of queries meets one tile of keys after
another, and the softmax is corrected as larger scores turn up, so that only tiles ever exist. The
backward computes the scores again from Q, K and one number per row, the log-sum-exp L.

Papers: Dao et al. 2022, "FlashAttention" (arXiv:2205.14135), below FA1; Dao 2023, "FlashAttention-2"
(arXiv:2307.08691), below FA2. Line numbers are those of their algorithms.

Shapes: B batch, T sequence, H = K * G query heads, K key/value heads, G query heads sharing one of them,
D head dim. Of a tile: U keys, and R = G * (queries) rows. The G queries at one position that share a key
head are stacked as rows of one matrix, so that grouped heads need no copy of K or V, and the product that
gives dK sums over the group by itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from model.attention import Backend, Case, Kernels, Launches, Supports, _reasons

TILE = 256  # queries or keys in a tile: small enough for a CPU's cache, large enough for its BLAS
Span = tuple[int, int]  # [first, last) positions


class Tiling(NamedTuple):
    """The keys that a query may see, and how many of either a tile holds.

    Attributes:
        offset: the key at which the first query stands, under the causal mask.
    """

    causal: bool
    tile: int = TILE
    offset: int = 0

    def spans(self, start: int, end: int) -> list[Span]:
        """Cut [start, end) into tiles; the last one may be shorter."""
        return [(first, min(first + self.tile, end)) for first in range(start, end, self.tile)]


def attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool, tile: int = TILE) -> Tensor:
    """softmax(Q K^T / sqrt(D)) V with O(T) extra memory, on any device and in any float precision.

    Under the causal mask the last query stands at the last key.
    """
    B, T, H, D = q_BTHD.shape
    K = k_BTKD.shape[2]
    q_BKGTD = q_BTHD.reshape(B, T, K, H // K, D).permute(0, 2, 3, 1, 4)
    k_BKTD, v_BKTD = k_BTKD.transpose(1, 2), v_BTKD.transpose(1, 2)
    tiling = Tiling(causal, tile, offset=k_BKTD.shape[2] - T)
    o_BKGTD: Tensor = _Tiled.apply(q_BKGTD, k_BKTD, v_BKTD, tiling)  # type: ignore[no-untyped-call]
    return o_BKGTD.permute(0, 3, 1, 2, 4).reshape(B, T, H, D)


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_BKGTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, tiling: Tiling) -> Tensor:
        """FA2 algorithm 1: one row of tiles at a time, each independent of the others."""
        o_BKGTD = torch.empty_like(q_BKGTD)
        lse_BKGT1 = q_BKGTD.new_empty(*q_BKGTD.shape[:-1], 1, dtype=_wide(q_BKGTD))
        for queries in tiling.spans(0, q_BKGTD.shape[3]):
            q_BKRD = _rows(q_BKGTD, queries)
            max_BKR1 = torch.full_like(q_BKRD[..., :1], -torch.inf)
            sum_BKR1 = torch.zeros_like(max_BKR1)
            acc_BKRD = torch.zeros_like(q_BKRD)
            # Under a causal mask the tiles above the diagonal are empty: they are never visited.
            last_key = queries[1] + tiling.offset if tiling.causal else k_BKTD.shape[2]
            for keys in tiling.spans(0, last_key):  # the online softmax: section 2.3.1, lines 5-12
                s_BKRU = _scores(q_BKRD, _keys(k_BKTD, keys), queries, keys, tiling)
                new_max_BKR1 = torch.maximum(max_BKR1, s_BKRU.amax(-1, keepdim=True))
                p_BKRU = s_BKRU.sub_(new_max_BKR1).exp_()
                # The sums so far are relative to the old maximum: exp(m_old - m_new) corrects them.
                shrink_BKR1 = torch.exp(max_BKR1 - new_max_BKR1)
                sum_BKR1 = sum_BKR1 * shrink_BKR1 + p_BKRU.sum(-1, keepdim=True)
                acc_BKRD = acc_BKRD * shrink_BKR1 + p_BKRU @ _keys(v_BKTD, keys)
                max_BKR1 = new_max_BKR1
            # One division at the end instead of one a tile, and L = m + log(l) for the backward.
            _unstack(o_BKGTD, queries).copy_(_as_group(acc_BKRD / sum_BKR1, o_BKGTD))
            _unstack(lse_BKGT1, queries).copy_(_as_group(max_BKR1 + sum_BKR1.log(), lse_BKGT1))
        # The backward needs only O and L beside the inputs: the T x T probabilities follow from them.
        ctx.save_for_backward(q_BKGTD, k_BKTD, v_BKTD, o_BKGTD, lse_BKGT1)
        ctx.tiling = tiling
        return o_BKGTD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do_BKGTD: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """FA2 algorithm 2: the outer loop is over tiles of keys, so that dK and dV stay at hand.

        With S = Q K^T / sqrt(D), P = softmax(S), O = P V (FA1 appendix B.2):
            dV = P^T dO,  dP = dO V^T,  dS = P * (dP - delta),  dQ = dS K / sqrt(D),  dK = dS^T Q / sqrt(D)
        where delta = rowsum(P * dP) = rowsum(dO * O) gives the softmax's gradient without another T x T pass.
        """
        q_BKGTD, k_BKTD, v_BKTD, o_BKGTD, lse_BKGT1 = ctx.saved_tensors
        wide, T, tiling = _wide(q_BKGTD), q_BKGTD.shape[3], ctx.tiling
        delta_BKGT1 = (do_BKGTD.to(wide) * o_BKGTD.to(wide)).sum(-1, keepdim=True)
        dq_BKGTD = torch.zeros_like(q_BKGTD, dtype=wide)
        dk_BKTD, dv_BKTD = torch.empty_like(k_BKTD), torch.empty_like(v_BKTD)
        for keys in tiling.spans(0, k_BKTD.shape[2]):
            k_BKUD, v_BKUD = _keys(k_BKTD, keys), _keys(v_BKTD, keys)
            dk_BKUD, dv_BKUD = torch.zeros_like(k_BKUD), torch.zeros_like(v_BKUD)
            # Queries before this tile of keys never saw it.
            for queries in tiling.spans(max(0, keys[0] - tiling.offset) if tiling.causal else 0, T):
                q_BKRD, do_BKRD = _rows(q_BKGTD, queries), _rows(do_BKGTD, queries)
                s_BKRU = _scores(q_BKRD, k_BKUD, queries, keys, tiling)
                p_BKRU = s_BKRU.sub_(_rows(lse_BKGT1, queries)).exp_()  # line 11: P again, by way of L
                dv_BKUD += p_BKRU.mT @ do_BKRD  # line 12; the product sums over the stacked group
                dp_BKRU = do_BKRD @ v_BKUD.mT  # line 13
                ds_BKRU = p_BKRU.mul_(dp_BKRU.sub_(_rows(delta_BKGT1, queries)))  # line 14
                _unstack(dq_BKGTD, queries).add_(_as_group(ds_BKRU @ k_BKUD, dq_BKGTD))  # line 15
                dk_BKUD += ds_BKRU.mT @ q_BKRD  # line 16
            dk_BKTD[:, :, slice(*keys)] = dk_BKUD * _scale(q_BKGTD)
            dv_BKTD[:, :, slice(*keys)] = dv_BKUD
        return (dq_BKGTD * _scale(q_BKGTD)).to(q_BKGTD.dtype), dk_BKTD, dv_BKTD, None


def _scores(q_BKRD: Tensor, k_BKUD: Tensor, queries: Span, keys: Span, tiling: Tiling) -> Tensor:
    """One tile of Q K^T / sqrt(D), -inf where a query would see its future."""
    s_BKRU = (q_BKRD * _scale(q_BKRD)) @ k_BKUD.mT
    first = queries[0] + tiling.offset
    if tiling.causal and keys[1] - 1 > first:  # the tile touches the diagonal; tiles below it have no mask
        count = queries[1] - queries[0]
        query_R = torch.arange(first, first + count, device=q_BKRD.device).repeat(q_BKRD.shape[2] // count)
        key_U = torch.arange(*keys, device=q_BKRD.device)
        s_BKRU.masked_fill_(key_U > query_R[:, None], -torch.inf)
    return s_BKRU


def _rows(x_BKGTD: Tensor, queries: Span) -> Tensor:
    """A tile of queries, its group stacked as rows, in the precision of the sums: (B, K, R, D)."""
    return _unstack(x_BKGTD, queries).to(_wide(x_BKGTD)).flatten(2, 3)


def _unstack(x_BKGTD: Tensor, queries: Span) -> Tensor:
    """A tile of queries as a view, with the group as its own dimension."""
    return x_BKGTD[:, :, :, slice(*queries)]


def _as_group(x_BKRD: Tensor, like_BKGTD: Tensor) -> Tensor:
    """Undo the stacking of rows: (B, K, R, D) to (B, K, G, queries, D)."""
    B, K, R, D = x_BKRD.shape
    G = like_BKGTD.shape[2]
    return x_BKRD.view(B, K, G, R // G, D)


def _keys(x_BKTD: Tensor, keys: Span) -> Tensor:
    """A tile of keys or values, in the precision of the sums: (B, K, U, D)."""
    return x_BKTD[:, :, slice(*keys)].to(_wide(x_BKTD))


def _wide(x: Tensor) -> torch.dtype:
    """Sums are kept in float32 or wider: 16 bits would lose what many small terms add up to."""
    return torch.promote_types(x.dtype, torch.float32)


def _scale(x_D: Tensor) -> float:
    return float(x_D.shape[-1] ** -0.5)


SUPPORTS = Supports(offset=True, cached=True, devices=("cuda", "cpu"))
# Its work is PyTorch's matrix products and exponentials; the autograd function around them identifies it.
KERNELS = Kernels(forward=r"^_Tiled$", backward=r"^_TiledBackward$", operators=True)


def unsupported_reasons(case: Case) -> list[str]:
    """Plain PyTorch runs everywhere."""
    return _reasons.declared(case, SUPPORTS)


backend = Backend(
    summary="FlashAttention's algorithm in plain PyTorch, the readable reference",
    references=("dao2022flashattention", "dao2023flashattention2"),
    unsupported_reasons=unsupported_reasons,
    attend=attend,
    launches=Launches(cuda=KERNELS, cpu=KERNELS),
    supports=SUPPORTS,
)
