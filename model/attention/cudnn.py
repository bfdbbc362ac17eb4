"""NVIDIA cuDNN's fused attention, through PyTorch. Which head dims it takes depends on cuDNN's version."""

from model.attention import Kernels, Supports, _sdpa

backend = _sdpa.on_gpus(
    summary="PyTorch SDPA, NVIDIA cuDNN's kernel",
    kernel=_sdpa.CUDNN,
    kernels=Kernels(forward=r"cudnn.*sdpa.*fprop", backward=r"cudnn.*sdpa.*bprop"),
    supports=Supports(
        cached=True,
        dtypes=("bfloat16", "float16"),
        capability=((8, 0), None),
        versions="cuDNN 9, from PyTorch",
    ),
)
