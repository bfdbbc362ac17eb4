"""Compiles this project's Triton kernels for AMD GPUs, without one, and prints what the compiler says of each, as JSON.

    python -m tests.model.attention.kernels.compiled_amd gfx90a

They are compiled as their callers launch them. A process of its own, like `compiled.py`.
"""

import json
import os
import re
import sys
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)
os.environ["TRITON_DISABLE_LINE_INFO"] = "1"  # a tenth of the time

import torch
import triton
from triton.backends.compiler import GPUTarget

from model import attention
from model.attention.kernels.portable import backward, forward, tiles
from model.training.kernels import adamw, cross_entropy

HEAD_DIMS = (16, 64, 128, 256)  # 32 has the tiles of 64
Case = tuple[int, int, int, int, bool, torch.dtype]  # queries, keys, heads, key heads, causal, precision
FULL_TILES: Case = (256, 256, 8, 2, True, torch.bfloat16)
CUT_TILES: Case = (100, 259, 3, 1, True, torch.float16)
ONE_QUERY: Case = (1, 2048, 8, 2, False, torch.bfloat16)


class NoDriver:
    """What Triton asks of a GPU before it compiles."""

    get_current_target = staticmethod(lambda: GPUTarget("hip", sys.argv[1], 64))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device=None: 0)
    get_active_torch_device = staticmethod(lambda: torch.device("cpu"))
    map_python_to_cpp_type = staticmethod(lambda ty: ty)


reports: dict[str, dict[str, Any]] = {}  # by kernel and head dim; the worst of its variants counts


def instead_of_launches(label: str) -> Any:
    """Compile each kernel that is launched, and note what the compiler says."""

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        compiled = original_run(kernel, *args, grid=grid, warmup=True, **options)
        report = _report(compiled)
        previous = reports.get(f"{kernel.__name__} {label}", report)
        reports[f"{kernel.__name__} {label}"] = {
            quantity: max(value, previous[quantity]) for quantity, value in report.items()
        }

    return run


def _report(compiled: Any) -> dict[str, Any]:
    listing = compiled.asm["amdgcn"]

    def number(field: str) -> int:
        return int(re.search(rf"\.{field}:\s+(\d+)", listing)[1])  # type: ignore[index]

    return {
        "shared_bytes": compiled.metadata.shared,
        "threads": number("max_flat_workgroup_size"),
        "stack_bytes": number("private_segment_fixed_size"),
        "without_matrix_cores": "v_mfma" not in listing,
    }


def compile_attention(label: str, head_dim: int, case: Case, *dropout: Any) -> None:
    """Both passes; of one query, the forward."""
    triton.runtime.jit.JITFunction.run = instead_of_launches(f"D{head_dim}{label}")
    queries, keys, heads, kv_heads, causal, dtype = case
    q, do = torch.zeros(2, 1, queries, heads, head_dim, dtype=dtype)
    k, v = torch.zeros(2, 1, keys, kv_heads, head_dim, dtype=dtype)
    o, lse = forward.forward(q, k, v, causal, keys - queries, None, *dropout)
    if queries > 1:
        backward.backward(do, q, k, v, o, lse, causal, keys - queries, None, *dropout)


def compile_in_turn(head_dim: int, turn: bool) -> None:
    """In 16 bits always. What else changes the code comes at a head dim for one of two GPUs, and for the other at the next."""
    compile_attention("", head_dim, CUT_TILES if turn else FULL_TILES)
    if turn:
        compile_attention(" dropout", head_dim, FULL_TILES, 2, torch.zeros((), dtype=torch.int64))
    else:
        compile_attention("", head_dim, ONE_QUERY)
        compile_attention(" float32", head_dim, (*CUT_TILES[:-1], torch.float32))


def compile_training(dtype: torch.dtype) -> None:
    """The optimizer's step, the norm, and the loss."""
    p, g, m, v = (torch.zeros(5000, dtype=dtype) for _ in range(4))
    unit = torch.ones(1)
    adamw.step(p, g, m, v, unit, rate=1e-3, decay=0.1, betas=(0.9, 0.95), epsilon=1e-8, count=1)
    adamw.norms([g])
    cross_entropy.loss_and_gradient(
        torch.zeros(4, 32000, dtype=dtype), torch.zeros(4, dtype=torch.long), unit, -100
    )


if __name__ == "__main__":
    triton.runtime.driver.set_active(NoDriver())
    original_run = triton.runtime.jit.JITFunction.run
    tiles.chosen = lambda kernel, head_dim, dtype, device: tiles.for_gpu(None, dtype)[kernel][
        max(64, head_dim)
    ]
    second = attention.load("portable").supports.amd.index(sys.argv[1])
    for place, head_dim in enumerate(HEAD_DIMS):
        compile_in_turn(head_dim, (place + second) % 2 == 1)
    triton.runtime.jit.JITFunction.run = instead_of_launches("training")
    compile_training(torch.bfloat16)
    sys.stdout.write(json.dumps(reports))
