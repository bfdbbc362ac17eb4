"""Float32 products and sums in float32, whatever the process has allowed PyTorch for speed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def highest() -> Iterator[None]:
    """Keep TF32 and bfloat16 out of float32 matrix products in the body."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
