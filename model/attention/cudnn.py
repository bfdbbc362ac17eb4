"""NVIDIA cuDNN's fused attention, through PyTorch. Which head dims it takes depends on cuDNN's version."""

from model.attention import Kernels, Launches, Supports, _sdpa

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
)
