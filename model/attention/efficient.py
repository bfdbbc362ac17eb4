"""PyTorch's memory-efficient kernel, from xFormers. It has no grouped heads: K and V are copied."""

from model.attention import Kernels, Supports, _sdpa

backend = _sdpa.on_gpus(
    summary="PyTorch SDPA, memory-efficient kernel; repeats K and V for grouped heads",
    kernel=_sdpa.EFFICIENT,
    kernels=Kernels(forward=r"fmha_cutlassF", backward=r"fmha_cutlassB"),
    supports=Supports(offset=True, cached=True, grouped="copied", capability=((5, 0), None)),
)
