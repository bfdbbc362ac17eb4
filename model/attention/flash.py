"""PyTorch's own FlashAttention: the FlashAttention-2 kernels built into it on a GPU, a C++ kernel on a CPU.

The CPU kernel takes float32, any head dim, and grouped heads as they are. It takes 16 bits too, but not well:
see `_reasons.float32_on_cpu`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from model.attention import Backend, Case, Kernels, Launches, Supports, _reasons

if TYPE_CHECKING:
    from torch import Tensor


def attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool) -> Tensor:
    """SDPA's FLASH_ATTENTION kernel alone."""
    from model.attention import _sdpa

    return _sdpa.pinned(_sdpa.FLASH, q_BTHD, k_BTKD, v_BTKD, causal)


def unsupported_reasons(case: Case) -> list[str]:
    """On a GPU: sm80 or later, 16 bits, head dims up to 256, and PyTorch's own word. On a CPU: float32."""
    if case.device != "cuda":
        return _reasons.declared(case, ON_CPU) + _reasons.float32_on_cpu(case)
    if reasons := _reasons.declared(case, SUPPORTS) + _replaced():
        return reasons
    from model.attention import _sdpa

    return _sdpa.refusals(_sdpa.FLASH, case)


def _replaced() -> list[str]:
    """PyTorch lets a process put FlashAttention 3 or 4 behind this very kernel: not under this name."""
    import torch.nn.attention

    current = getattr(torch.nn.attention, "current_flash_attention_impl", lambda: None)()
    if current is None:
        return []
    return [
        f"this process has put {current} in the place of PyTorch's own kernel: "
        "call torch.nn.attention.restore_flash_attention_impl() first"
    ]


SUPPORTS = Supports(
    devices=("cuda", "cpu"),
    dtypes=("bfloat16", "float16"),
    layout="any",
    largest_head_dim=256,
    capability=((8, 0), None),
)
ON_CPU = Supports(devices=("cpu",))

backend = Backend(
    summary="PyTorch SDPA, its own FlashAttention (FlashAttention-2 on GPUs)",
    unsupported_reasons=unsupported_reasons,
    attend=attend,
    launches=Launches(
        cuda=Kernels(forward=r"\bpytorch_flash::flash_fwd", backward=r"\bpytorch_flash::flash_bwd"),
        cpu=Kernels(
            forward=r"^aten::_scaled_dot_product_flash_attention_for_cpu$",
            backward=r"^aten::_scaled_dot_product_flash_attention_for_cpu_backward$",
        ),
    ),
    supports=SUPPORTS,
)
