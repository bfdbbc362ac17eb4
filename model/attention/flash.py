"""PyTorch's own FlashAttention: FlashAttention-2 on NVIDIA GPUs, AOTriton on AMD GPUs, C++ on a CPU.

The CPU kernel takes float32, any head dim, and grouped heads without copies. Its 16-bit gradients are too
inexact: see `_reasons.float32_on_cpu`.
"""

from __future__ import annotations

from model.attention import Backend, Case, Kernels, Launches, Supports, _reasons, _sdpa
from model.record import rocm, traffic


def unsupported_reasons(case: Case) -> list[str]:
    """A GPU refuses what the kernel or PyTorch refuses, a CPU everything but float32."""
    if case.device != "cuda":
        return _reasons.declared(case, ON_CPU) + _reasons.float32_on_cpu(case)
    import torch.nn.attention

    reasons = _reasons.declared(case, SUPPORTS)
    # PyTorch lets a process put FlashAttention 3 or 4 behind this very kernel: not under this name.
    current = getattr(torch.nn.attention, "current_flash_attention_impl", lambda: None)()
    if current is not None:
        reasons.append(
            f"this process has replaced PyTorch's own kernel with {current}: "
            "call torch.nn.attention.restore_flash_attention_impl() first"
        )
    # As PyTorch calls AOTriton's kernel, the first query stands at the first key.
    if case.offset and rocm.version() is not None:
        reasons.append(
            "cannot take part of a sequence on an AMD GPU, where its mask begins at the first key: "
            "use --set attention=auto, or --set parallel.context=1"
        )
    return reasons or _sdpa.refusals(_sdpa.FLASH, case)


SUPPORTS = Supports(
    offset=True,
    cached=True,
    dropout=True,
    devices=("cuda", "cpu"),
    dtypes=("bfloat16", "float16"),
    largest_head_dim=256,
    capability=((8, 0), None),
)
ON_CPU = Supports(offset=True, cached=True, devices=("cpu",))

backend = Backend(
    summary="PyTorch SDPA, its own FlashAttention (FlashAttention-2 on NVIDIA GPUs)",
    references=("ansel2024pytorch", "dao2022flashattention", "dao2023flashattention2"),
    unsupported_reasons=unsupported_reasons,
    attend=_sdpa.pin(_sdpa.FLASH),
    launches=Launches(
        cuda=Kernels(forward=r"\bpytorch_flash::flash_fwd", backward=r"\bpytorch_flash::flash_bwd"),
        amd=_sdpa.by_operator("flash"),
        cpu=Kernels(
            forward=r"^aten::_scaled_dot_product_flash_attention_for_cpu$",
            backward=r"^aten::_scaled_dot_product_flash_attention_for_cpu_backward$",
        ),
    ),
    supports=SUPPORTS,
    moves=traffic.by_flash_2,
)
