"""PyTorch's own FlashAttention: the FlashAttention-2 kernels built into it on a GPU, a C++ kernel on a CPU.

The CPU kernel takes float32, any head dim, and grouped heads without copies. Its 16-bit gradients are too
inexact: see `_reasons.float32_on_cpu`.
"""

from __future__ import annotations

from model.attention import Backend, Case, Kernels, Launches, Supports, _reasons, _sdpa


def unsupported_reasons(case: Case) -> list[str]:
    """A GPU refuses what the kernel or PyTorch refuses, a CPU everything but float32."""
    if case.device != "cuda":
        return _reasons.declared(case, ON_CPU) + _reasons.float32_on_cpu(case)
    return _reasons.declared(case, SUPPORTS) + _replaced() or _sdpa.refusals(_sdpa.FLASH, case)


def _replaced() -> list[str]:
    """PyTorch lets a process put FlashAttention 3 or 4 behind this very kernel: not under this name."""
    import torch.nn.attention

    current = getattr(torch.nn.attention, "current_flash_attention_impl", lambda: None)()
    if current is None:
        return []
    return [
        f"this process has replaced PyTorch's own kernel with {current}: "
        "call torch.nn.attention.restore_flash_attention_impl() first"
    ]


SUPPORTS = Supports(
    offset=True,
    cached=True,
    devices=("cuda", "cpu"),
    dtypes=("bfloat16", "float16"),
    largest_head_dim=256,
    capability=((8, 0), None),
)
ON_CPU = Supports(offset=True, cached=True, devices=("cpu",))

backend = Backend(
    summary="PyTorch SDPA, its own FlashAttention (FlashAttention-2 on GPUs)",
    unsupported_reasons=unsupported_reasons,
    attend=_sdpa.pin(_sdpa.FLASH),
    launches=Launches(
        cuda=Kernels(forward=r"\bpytorch_flash::flash_fwd", backward=r"\bpytorch_flash::flash_bwd"),
        cpu=Kernels(
            forward=r"^aten::_scaled_dot_product_flash_attention_for_cpu$",
            backward=r"^aten::_scaled_dot_product_flash_attention_for_cpu_backward$",
        ),
    ),
    supports=SUPPORTS,
)
