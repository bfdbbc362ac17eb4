"""Memory that reveals careless kernels: what nobody has written is NaN, not an earlier right result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# More blocks of each size than a call needs for copies of its inputs, results, gradients and workspaces.
_BLOCKS = 16
_aten = torch.ops.aten
_EMPTY = {_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided}


@contextmanager
def poisoned(q_BTHD: Tensor, k_BTKD: Tensor) -> Iterator[None]:
    """What the body's calls allocate holds NaN, as far as that can be arranged from outside.

    On a GPU, PyTorch's allocator is left with nothing to hand out but blocks full of NaN, of the sizes that
    attention on these tensors needs. On a CPU, where `malloc` promises nothing, each tensor that PyTorch
    makes without writing it is filled as well.
    """
    sizes = [x.numel() * width for x in (q_BTHD, k_BTKD) for width in (2, 4)] + [q_BTHD[..., 0].numel() * 4]
    if q_BTHD.is_cuda:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    blocks = [torch.full((size,), 255, dtype=torch.uint8, device=q_BTHD.device) for size in sizes * _BLOCKS]
    del blocks  # all bits set is NaN in every precision
    with nullcontext() if q_BTHD.is_cuda else _Filled():
        yield


class _Filled(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket in _EMPTY and made.is_floating_point():
            made.fill_(torch.nan)
        return made
