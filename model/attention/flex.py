"""PyTorch's flex_attention: a Triton kernel compiled for this mask, these heads and this GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model.attention import Backend, Case, Kernels, Launches, Supports, _reasons

if TYPE_CHECKING:
    from torch import Tensor


def attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool) -> Tensor:
    """Grouped heads share K and V in the kernel; blocks of keys that no query may see are skipped."""
    from model.attention import _flex

    return _flex.attend(q_BTHD, k_BTKD, v_BTKD, causal)


def unsupported_reasons(case: Case) -> list[str]:
    """An Ampere or later GPU, whose Triton compiles it. On a CPU PyTorch has its forward alone."""
    if case.device != "cuda":
        return _reasons.nvidia_gpu(case)
    return (
        _reasons.declared(case, SUPPORTS)
        + _wide_in_float32(case)
        + _reasons.package("triton", "jit", "install PyTorch for CUDA on Linux, which brings it")
    )


def _wide_in_float32(case: Case) -> list[str]:
    """A backward tile of 256 float32 numbers a row is more than the GPU's shared memory holds."""
    if case.dtype != "float32" or case.head_dim <= 128:
        return []
    return [
        f"takes head dims up to 128 in float32, not {case.head_dim}: use --set train.dtype=bfloat16, "
        "or change model.heads"
    ]


SUPPORTS = Supports(
    layout="BHTD",
    smallest_head_dim=16,
    largest_head_dim=256,
    capability=((8, 0), None),
    versions="torch 2.11 or later with triton",
)

backend = Backend(
    summary="PyTorch flex_attention: a Triton kernel compiled for the mask",
    unsupported_reasons=unsupported_reasons,
    attend=attend,
    launches=Launches(
        cuda=Kernels(forward=r"^triton_.*flex_attention", backward=r"^triton_.*flex_attention_backward")
    ),
    supports=SUPPORTS,
    modules=("triton",),
    compiles=True,
)
