"""The project's own kernel: FlashAttention for Hopper in Gluon, with PyTorch's own Triton (model/kernels)."""

from __future__ import annotations

from torch import Tensor

from model.attention import Backend, Case, Kernels, Launches, Supports, _reasons


def attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool) -> Tensor:
    """Grouped heads share K and V in the kernel; dK and dV are summed over each group afterwards."""
    from model.kernels import op  # defines operators of PyTorch, which only their first call needs

    if not causal:
        raise ValueError("custom: the kernel is causal only")
    return op.attend(q_BTHD, k_BTKD, v_BTKD)


def unsupported_reasons(case: Case) -> list[str]:
    """The kernel is written for Hopper and one head dim, with 32-bit offsets, in some versions of Gluon."""
    return _reasons.declared(case, SUPPORTS) + _size(case) + _gluon()


def _size(case: Case) -> list[str]:
    folded_heads = case.batch * case.heads
    if folded_heads > 65535 or folded_heads * case.sequence_length * case.head_dim >= 2**31:
        return [
            "uses 32-bit offsets and takes at most 65535 batch x heads, which this case exceeds: "
            "lower train.batch_size or train.sequence_length"
        ]
    return []


def _gluon() -> list[str]:
    """Gluon is experimental and still changes: 3.5 lacks what the kernel needs, 3.9 renamed it."""
    install = "install PyTorch 2.11 for CUDA, which brings triton 3.6"
    if missing := _reasons.package("triton.experimental.gluon.language.nvidia.hopper", "tma", install):
        return missing
    import triton

    found = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if (3, 6) <= found < (3, 9):
        return []
    return [f"is written for triton 3.6 to 3.8, and {triton.__version__} is installed: {install}"]


SUPPORTS = Supports(
    dtypes=("bfloat16",),
    layout="BHTD",
    causal=(True,),
    smallest_head_dim=128,
    largest_head_dim=128,
    length_multiple=128,
    capability=((9, 0), (9, 1)),
    versions="triton 3.6 to 3.8",
)

backend = Backend(
    summary="This project's Gluon kernel for Hopper: bfloat16, head dim 128, causal",
    unsupported_reasons=unsupported_reasons,
    attend=attend,
    launches=Launches(cuda=Kernels(forward=r"^_forward_kernel\b", backward=r"^_backward_kernel\b")),
    supports=SUPPORTS,
    modules=("triton",),
)
