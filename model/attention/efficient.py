"""PyTorch's memory-efficient kernel, xFormers' or AOTriton's. It has no grouped heads: K and V are copied."""

from model.attention import Kernels, Launches, Supports, _sdpa

backend = _sdpa.on_gpus(
    summary="PyTorch SDPA, memory-efficient kernel; repeats K and V for grouped heads",
    references=("ansel2024pytorch", "rabe2021memory", "lefaudeux2022xformers"),
    keeps="copies",
    kernel=_sdpa.EFFICIENT,
    launches=Launches(
        cuda=Kernels(forward=r"fmha_cutlassF", backward=r"fmha_cutlassB"),
        amd=_sdpa.by_operator("efficient"),
    ),
    supports=Supports(offset=True, cached=True, dropout=True, grouped="copied", capability=((5, 0), None)),
)
