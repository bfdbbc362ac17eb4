"""Cross-entropy and its gradient, which takes the place of the logits: two reads and one write of them.

The first pass keeps a running maximum and sum (Milakov & Gimelshein 2018, arXiv:1805.02867), in float32.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 8192  # logits of a row that a program holds at a time


@triton.jit
def _row(logits, labels, losses, count, ignore, vocabulary: tl.constexpr, BLOCK: tl.constexpr):
    """One row: compute its loss, and replace its logits by (softmax - one-hot) / count, or 0 if it is ignored."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * vocabulary
    label = tl.load(labels + row)
    largest = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    for start in range(0, vocabulary, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(logits + at, mask=at < vocabulary, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(largest, tl.max(x))
        total = total * tl.exp(largest - higher) + tl.sum(tl.exp(x - higher))
        largest = higher
    counted = label != ignore
    own = tl.load(logits + tl.where(counted, label, 0)).to(tl.float32)
    tl.store(losses + row, tl.where(counted, tl.log(total) + largest - own, 0.0))
    tl.debug_barrier()  # all have read the label's logit before any writes over it
    scale = tl.where(counted, 1.0 / tl.load(count), 0.0)
    for start in range(0, vocabulary, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(logits + at, mask=at < vocabulary, other=float("-inf")).to(tl.float32)
        y = tl.exp(x - largest) / total - tl.where(at == label, 1.0, 0.0)
        tl.store(logits + at, (y * scale).to(logits.dtype.element_ty), mask=at < vocabulary)


def loss_and_gradient(logits_NV: Tensor, labels_N: Tensor, count: Tensor, ignore: int) -> Tensor:
    """The mean loss in float32. The logits become its gradient by them.

    Args:
        count: how many labels are not `ignore`, one float32.
    """
    rows, vocabulary = logits_NV.shape
    losses_N = torch.empty(rows, dtype=torch.float32, device=logits_NV.device)
    _row[(rows,)](logits_NV, labels_N, losses_N, count, ignore, vocabulary, BLOCK, num_warps=16)
    return losses_N.sum() / count
