"""NVIDIA cuDNN's fused attention, through PyTorch. Which head dims it takes depends on cuDNN's version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model.attention import Case, Fp8, Kernels, Launches, Supports, _reasons, _sdpa

if TYPE_CHECKING:
    from torch import Tensor


def attend_fp8(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool, scales_3BK: Tensor) -> Tensor:
    """Numbers of 8 bits, through NVIDIA's frontend of cuDNN, and its output brought to bfloat16."""
    from model.attention import _frontend

    return _frontend.attend(q_BTHD, k_BTKD, v_BTKD, causal, scales_3BK)


def no_frontend(case: Case) -> list[str]:
    """PyTorch has no numbers of 8 bits for cuDNN, whose frontend is a package of its own."""
    install = "pip install nvidia-cudnn-frontend==1.18.0"
    lacks = _reasons.cuda_package(case, "cudnn", "pygraph", install)
    if lacks or case.device != "cuda":
        return lacks
    import cudnn

    from model.attention import _frontend

    if cudnn.backend_version() == _frontend.REFUSED:
        return ["cuDNN 9.10.0 computes wrong numbers of 8 bits: install another release of cuDNN"]
    return []


backend = _sdpa.on_gpus(
    summary="PyTorch SDPA, NVIDIA cuDNN's kernel",
    references=("ansel2024pytorch", "chetlur2014cudnn"),
    kernel=_sdpa.CUDNN,
    launches=Launches(cuda=Kernels(forward=r"cudnn.*sdpa.*fprop", backward=r"cudnn.*sdpa.*bprop")),
    supports=Supports(
        cached=True,
        dropout=True,
        dtypes=("bfloat16", "float16"),
        capability=((8, 0), None),
        amd=(),
        versions="cuDNN 9, from PyTorch",
    ),
    fp8=Fp8(attend=attend_fp8, lacking=no_frontend, one_scale=True, rounds_output=True),
)
