"""PyTorch's scaled_dot_product_attention, with one kernel pinned, in the seam's layout.

Pinning keeps a run honest: under `sdpa_kernel([X])` PyTorch runs kernel X or raises.

With fewer queries than keys, `is_causal` lets the first query see only the first key, while the seam puts the
last query at the last key. For that, the flash and efficient kernels have a bias on NVIDIA GPUs; math, CPUs
and AMD GPUs take a mask in memory. cuDNN has no bias, and a mask would grow with T^2.

On AMD GPUs flash and efficient launch the same kernels, by default AOTriton's.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from model.attention import Attend, Backend, Case, Fp8, Kernels, Launches, Supports, _reasons
from model.record import rocm
from model.record.backends import Keeps

if TYPE_CHECKING:
    from torch import Tensor
    from torch.backends.cuda import SDPAParams
    from torch.nn.attention import SDPBackend

# Names of torch.nn.attention.SDPBackend: to list backends and refuse cases takes no torch.
CUDNN = "CUDNN_ATTENTION"
EFFICIENT = "EFFICIENT_ATTENTION"
FLASH = "FLASH_ATTENTION"
MATH = "MATH"


def _named(kernel: str) -> SDPBackend:
    from torch.nn.attention import SDPBackend

    named: SDPBackend = getattr(SDPBackend, kernel)
    return named


def by_operator(name: str) -> Kernels:
    """PyTorch's operator of a kernel, where the names of the kernels tell nothing."""
    operator = f"^aten::_scaled_dot_product_{name}_attention"
    return Kernels(forward=f"{operator}$", backward=f"{operator}_backward$", operators=True)


def on_gpus(
    summary: str,
    references: tuple[str, ...],
    kernel: str,
    launches: Launches,
    supports: Supports,
    keeps: Keeps = "",
    fp8: Fp8 | None = None,
) -> Backend:
    """The backend of one GPU kernel. PyTorch itself is asked about what `supports` does not settle."""
    copies_heads = supports.grouped == "copied"

    def unsupported_reasons(case: Case) -> list[str]:
        if declared := _reasons.declared(case, supports, fp8):
            return declared
        return fp8.lacking(case) if case.fp8 and fp8 else refusals(kernel, case, copies_heads=copies_heads)

    return Backend(
        summary=summary,
        unsupported_reasons=unsupported_reasons,
        attend=pin(kernel, copies_heads=copies_heads),
        launches=launches,
        supports=supports,
        references=references,
        keeps=keeps,
        fp8=fp8,
    )


def pin(kernel: str, *, copies_heads: bool = False) -> Attend:
    """Attention by this kernel alone. Copying K and V for each query head, where needed, is timed with it."""

    def attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool, dropout: float = 0.0) -> Tensor:
        if copies_heads:
            group = q_BTHD.shape[2] // k_BTKD.shape[2]
            k_BTKD, v_BTKD = (x.repeat_interleave(group, dim=2) for x in (k_BTKD, v_BTKD))
        return pinned(kernel, q_BTHD, k_BTKD, v_BTKD, causal, dropout)

    return attend


def pinned(
    kernel: str, q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool, dropout: float = 0.0
) -> Tensor:
    """Attention by this kernel, or a RuntimeError where PyTorch cannot run it on these tensors."""
    from torch.nn.attention import sdpa_kernel

    with sdpa_kernel([_named(kernel)]):
        return _attention(q_BTHD, k_BTKD, v_BTKD, causal, kernel, dropout)


def free(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool) -> Tensor:
    """Attention by whichever kernel PyTorch picks; K and V heads are shared within their group."""
    return _attention(q_BTHD, k_BTKD, v_BTKD, causal)


def _attention(
    q_BTHD: Tensor,
    k_BTKD: Tensor,
    v_BTKD: Tensor,
    causal: bool,
    kernel: str | None = None,
    dropout: float = 0.0,
) -> Tensor:
    from torch.nn.functional import scaled_dot_product_attention

    # The fused kernels need the numbers of a head side by side; they usually are, so this rarely copies.
    dense = (x if x.stride(-1) == 1 else x.contiguous() for x in (q_BTHD, k_BTKD, v_BTKD))
    q_BHTD, k_BKTD, v_BKTD = (x.transpose(1, 2) for x in dense)
    grouped = q_BHTD.shape[1] != k_BKTD.shape[1]
    square = q_BHTD.shape[2] == k_BKTD.shape[2]
    mask = _lower_right(q_BHTD, k_BKTD, kernel) if causal and not square else None
    o_BHTD = scaled_dot_product_attention(
        q_BHTD, k_BKTD, v_BKTD, mask, dropout, is_causal=causal and square, enable_gqa=grouped
    )
    return o_BHTD.transpose(1, 2)


def _lower_right(q_BHTD: Tensor, k_BKTD: Tensor, kernel: str | None) -> Tensor:
    """The causal mask whose last row sees all keys: a bias that stands for it, or (queries, keys) numbers."""
    queries, keys = q_BHTD.shape[2], k_BKTD.shape[2]
    if kernel == CUDNN:
        raise ValueError("cudnn: PyTorch has no causal mask for it with fewer queries than keys")
    if q_BHTD.is_cuda and kernel != MATH and rocm.version() is None:
        from torch.nn.attention.bias import causal_lower_right  # imports torch._dynamo, which takes seconds

        return causal_lower_right(queries, keys)
    import torch

    return torch.ones(queries, keys, dtype=torch.bool, device=q_BHTD.device).tril(keys - queries)


def refusals(kernel: str, case: Case, *, copies_heads: bool = False) -> list[str]:
    """PyTorch's own reasons why this kernel does not take this case on this GPU."""
    import torch
    from torch.nn.attention import sdpa_kernel

    can_use = {
        CUDNN: torch.backends.cuda.can_use_cudnn_attention,
        EFFICIENT: torch.backends.cuda.can_use_efficient_attention,
        FLASH: torch.backends.cuda.can_use_flash_attention,
    }
    try:
        with warnings.catch_warnings(record=True) as caught, sdpa_kernel([_named(kernel)]):
            warnings.simplefilter("always")  # PyTorch gives its reasons as warnings
            if can_use[kernel](_params(case, copies_heads), True):
                return []
        reason = "; ".join(_first_sentence(str(w.message)) for w in caught) or "no reason given"
    except RuntimeError as error:  # out of memory, or a GPU in a bad state
        reason = _first_sentence(str(error))
    return [f"PyTorch refuses its {kernel.lower()} kernel ({reason}): choose another backend or shape"]


def _params(case: Case, copies_heads: bool) -> SDPAParams:
    """A short sequence stands for a long one: the kernels limit dtype, heads and head dim, not length."""
    import torch
    from torch.backends.cuda import SDPAParams

    keys = min(case.sequence_length, 128)
    queries = min(case.queries or keys, keys)
    kv_heads = case.heads if copies_heads else case.kv_heads
    q_BHTD, k_BKTD, v_BKTD = (
        torch.empty(
            (case.batch, length, heads, case.head_dim),
            dtype=getattr(torch, case.dtype),
            device=case.device,
            requires_grad=case.trains,
        ).transpose(1, 2)
        for length, heads in ((queries, case.heads), (keys, kv_heads), (keys, kv_heads))
    )
    # PyTorch asks about the bias of `_lower_right` in the same way: about the kernel without a mask.
    causal = case.causal and not case.offset
    return SDPAParams(q_BHTD, k_BKTD, v_BKTD, None, case.dropout, causal, case.heads != kv_heads)


def _first_sentence(text: str) -> str:
    return text.partition(" (Triggered internally")[0].strip().partition("\n")[0].rstrip(".")
