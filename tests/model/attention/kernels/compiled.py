"""Compiles the Hopper kernels for sm_90a without a GPU, and prints what ptxas says of each, as JSON.

    python -m tests.model.attention.kernels.compiled '[{"head_dim": 128, "dtype": "bfloat16", "causal": true}]'

A process of its own: Triton decides at its first import whether kernels are compiled or interpreted.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)
os.environ["TRITON_DISABLE_LINE_INFO"] = "1"  # a tenth of the time

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend

from model.attention.kernels import hopper


class NoDriver:
    """What Triton asks of a GPU before it compiles."""

    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device=None: 0)
    get_active_torch_device = staticmethod(lambda: torch.device("cpu"))
    map_python_to_cpp_type = staticmethod(lambda ty: ty)


def compile_case(
    head_dim: int, dtype: str, causal: bool, deterministic: bool = False, query_offset: int = 0
) -> dict[str, dict[str, Any]]:
    """{kernel: what ptxas says} of a forward and, but for FP8, a backward."""
    reports: dict[str, dict[str, Any]] = {}

    def instead_of_launch(kernel: Any, key: Any, grid: Any, *args: Any, **options: Any) -> None:
        report = _report(kernel.warmup(*args, grid=grid, **options))
        previous = reports.get(kernel.__name__, report)  # the forward has variants: the worst counts
        reports[kernel.__name__] = {
            quantity: max(value, previous[quantity]) for quantity, value in report.items()
        }

    hopper.launch = instead_of_launch
    q = torch.zeros(1, 256, 2, head_dim, dtype=getattr(torch, dtype))
    if q.dtype == hopper.FP8:
        hopper.forward(q, q, q, causal, query_offset, torch.ones(3, 1, 2))
        return reports
    o, stats = hopper.forward(q, q, q, causal, query_offset)
    hopper.backward(o, q, q, q, o, stats, causal, query_offset, deterministic)
    k = q.new_zeros(1, 1000, 1, head_dim)  # which programs share
    hopper.forward(q[:, :1], k, k, causal, 999)
    return reports


def _report(compiled: Any) -> dict[str, Any]:
    """Triton would run ptxas itself, and keep its warnings to itself."""
    with tempfile.TemporaryDirectory() as folder:
        ptx = Path(folder) / "kernel.ptx"
        ptx.write_text(compiled.asm["ptx"])
        command = [triton.knobs.nvidia.ptxas.path, "-v", "--gpu-name=sm_90a", str(ptx), "-o", f"{ptx}.cubin"]
        stderr = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return {
        "registers": int(re.search(r"Used (\d+) registers", stderr)[1]),  # type: ignore[index]
        "spilled_bytes": int(re.search(r"(\d+) bytes spill stores", stderr)[1]),  # type: ignore[index]
        "shared_bytes": compiled.metadata.shared,
        "products": max(re.findall(r"wgmma\.mma_async\S*\.(\w+\.\w+) ", compiled.asm["ptx"]), default=""),
        "bytes_stored": len(re.findall(r"st\.global\.b8", compiled.asm["ptx"])),
        "early": compiled.metadata.launch_pdl,
        "additions": _additions(compiled.asm["ttgir"], compiled.asm["ptx"]),
        "divisors": len(set(re.findall(r"div\.full\.f32\s+%\w+, %\w+, (%\w+);", compiled.asm["ptx"]))),
        "waits": "griddepcontrol.wait" in compiled.asm["ptx"].partition("cp.async.bulk")[0],
        # The compiler gave up running wgmma asynchronously.
        "serialized": sorted(set(re.findall(r"C75\d\d", stderr))),
    }


def _additions(ttgir: str, ptx: str) -> list[list]:
    """Where the registers of what is added to global memory are in its tile (bases, as Triton has them), and the bytes
    from the thread's address to which each four of them are added."""
    if not (types := re.search(r"red\.relaxed.*tensor<\d+x\d+xf32, (#\w+)>", ttgir)):
        return []
    layout = re.search(rf"^{types[1]} = .*?register = (\[\[.*?\]\]), lane", ttgir, re.MULTILINE)
    bytes_on = re.findall(r"red\.relaxed\.gpu\.global\.add\.v4\.f32 \[%rd\d+\+(\d+)\]", ptx)
    return [json.loads(layout[1]), list(map(int, bytes_on))]  # type: ignore[index]


if __name__ == "__main__":
    triton.runtime.driver.set_active(NoDriver())
    CUDABackend.make_cubin = lambda *_: b""
    triton.knobs.cache.dir = str(Path(triton.knobs.cache.dir) / "without_binaries")
    torch.Tensor.is_cuda = True
    torch.cuda.is_current_stream_capturing = lambda: False
    hopper._processors = lambda device: 2  # so that programs of the forward do several blocks
    sys.stdout.write(json.dumps([compile_case(**case) for case in json.loads(sys.argv[1])]))
