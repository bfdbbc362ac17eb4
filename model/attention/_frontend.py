"""cuDNN's attention to numbers of 8 bits, which PyTorch does not offer: through NVIDIA's `cudnn` frontend.

On Hopper it takes one scale for each whole tensor, and its output has 8 bits too. An average of V's rows is
no larger than the largest of them, so V's scale serves the output.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

REFUSED = 91000  # cuDNN 9.10.0, whose bugs the frontend refuses too
_P_SCALE = 256.0  # of the weights: they are at most 1


def attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool, scales_3BK: Tensor) -> Tensor:
    """Attention of one graph of cuDNN's, and a product that brings its output from 8 bits to bfloat16."""
    import cudnn

    inputs = [x if x.stride(-1) == 1 else x.contiguous() for x in (q_BTHD, k_BTKD, v_BTKD)]
    device = q_BTHD.device
    with torch.cuda.device(device):
        layouts = tuple((_heads_first(x.shape), _heads_first(x.stride())) for x in inputs)
        graph, tensors, size = _graph(device, causal, *layouts)
        o_BTHD = torch.empty(q_BTHD.shape, dtype=torch.float8_e4m3fn, device=device)
        amax_2 = torch.empty(2, dtype=torch.float32, device=device)
        of_tensors = [scales_3BK[which, 0, :1] for which in range(3)]
        fixed_2 = _of_weights(device)
        given = [
            *inputs,
            *of_tensors,
            fixed_2[:1],
            fixed_2[1:],
            1 / of_tensors[2],
            o_BTHD,
            amax_2[:1],
            amax_2[1:],
        ]
        workspace = torch.empty(max(1, size), dtype=torch.uint8, device=device)
        handle = _handle(device)
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute(dict(zip(tensors, given, strict=True)), workspace, handle=handle)
        wide_BTHD = o_BTHD.to(torch.bfloat16)
        # PyTorch multiplies in float32 and rounds once.
        return torch.mul(wide_BTHD, of_tensors[2], out=torch.empty_like(wide_BTHD))


def _heads_first(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Shape or strides of (B, T, heads, D) as those of (B, heads, T, D)."""
    batch, length, heads, dim = numbers
    return batch, heads, length, dim


@cache
def _handle(_device: torch.device) -> Any:
    """A handle of the current device."""
    import cudnn

    return cudnn.create_handle()


@cache
def _of_weights(device: torch.device) -> Tensor:
    """What divides the weights after they were multiplied by the other, so that they fill E4M3's range."""
    return torch.tensor([1 / _P_SCALE, _P_SCALE], device=device)


Layout = tuple[tuple[int, ...], tuple[int, ...]]  # sizes and strides of (B, heads, T, D)


@cache
def _graph(device: torch.device, causal: bool, q: Layout, k: Layout, v: Layout) -> tuple[Any, list[Any], int]:
    """A graph built for these layouts, its tensors in the order of `attend`, and bytes of its workspace."""
    import cudnn

    kind = cudnn.data_type
    graph = cudnn.pygraph(
        io_data_type=kind.FP8_E4M3,
        intermediate_data_type=kind.FLOAT,
        compute_data_type=kind.FLOAT,
        handle=_handle(device),
    )
    inputs = [
        graph.tensor(dim=list(dim), stride=list(stride), data_type=kind.FP8_E4M3) for dim, stride in (q, k, v)
    ]
    ones = [1, 1, 1, 1]
    scalars = [graph.tensor(dim=ones, stride=ones, data_type=kind.FLOAT) for _ in range(6)]
    names = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
    batch, heads, length, dim = q[0]
    o, _, *largest = graph.sdpa_fp8(
        q=inputs[0],
        k=inputs[1],
        v=inputs[2],
        **dict(zip(names, scalars, strict=True)),
        attn_scale=dim**-0.5,
        use_causal_mask=causal,
        generate_stats=False,
    )
    strides = [length * heads * dim, dim, heads * dim, 1]
    o.set_output(True).set_dim([batch, heads, length, dim]).set_stride(strides).set_data_type(kind.FP8_E4M3)
    for amax in largest:
        amax.set_output(True).set_dim(ones).set_stride(ones).set_data_type(kind.FLOAT)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    return graph, [*inputs, *scalars, o, *largest], graph.get_workspace_size()
