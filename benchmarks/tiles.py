"""What the compiler makes of the portable attention kernels, for any GPU and without one; on one also times.

    python benchmarks/tiles.py --gpu 90 80 86 75 gfx90a gfx942   registers, bytes of stack, shared memory
    python benchmarks/tiles.py --kernel dkdv --head-dim 128 --tile 64,128,8,2 --tile 32,128,8,3
    python benchmarks/tiles.py --time --kernel forward --head-dim 128 --tile 128,128,8,2 --tile 128,64,8,3

A GPU is named by its compute capability, one of AMD's by its architecture. A tile is rows,keys,warps,stages;
by default those of model/attention/kernels/portable/tiles.py. `--time` runs on this machine's GPU: in turns,
medians with the lowest and highest, L2 cleared before each call, causal bfloat16, four heads a group.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from unittest.mock import patch

os.environ.pop("TRITON_INTERPRET", None)
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from model.attention.kernels.portable import backward, forward, tiles
from model.record import rocm

KERNELS = {
    "forward": forward._portable_forward,
    "few": forward._portable_forward,
    "dq": backward._portable_backward_dq,
    "dkdv": backward._portable_backward_dkdv,
}
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
GROUP = 4


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--gpu", nargs="*", default=["90"])
    asked.add_argument("--kernel", nargs="*", choices=KERNELS, default=list(KERNELS))
    asked.add_argument("--head-dim", type=int, nargs="*", default=[64, 128, 256])
    asked.add_argument("--tile", action="append", type=lambda text: tiles.Tile(*map(int, text.split(","))))
    asked.add_argument("--time", action="store_true")
    asked.add_argument("--sequence", type=int, default=4096)
    asked.add_argument("--rounds", type=int, default=20)
    given = asked.parse_args()
    print(f"triton {triton.__version__}")
    for gpu in [_here()] if given.time else given.gpu:
        of_gpu = tiles.for_gpu(None if gpu.startswith("gfx") else divmod(int(gpu), 10), torch.bfloat16)
        for kernel in given.kernel:
            for head_dim in given.head_dim:
                own = of_gpu[kernel][max(64, head_dim)]
                found = {tile: resources(kernel, gpu, head_dim, tile) for tile in given.tile or [own]}
                taken = timed(kernel, head_dim, list(found), given) if given.time else {}
                for tile, what in found.items():
                    name = f"{gpu} {kernel} D{head_dim} {','.join(map(str, tile))}"
                    print(f"{name:40} {what}{taken.get(tile, '')}")


def _here() -> str:
    major, minor = torch.cuda.get_device_capability()
    return rocm.architecture() or f"{major}{minor}"


def resources(kernel: str, gpu: str, head_dim: int, tile: tiles.Tile) -> str:
    """For contiguous tensors of four heads a group, with a causal mask."""
    values = {"CAUSAL": True, "EVEN": True, "SPLIT": kernel == "few", "GROUP": GROUP, "D": head_dim}
    values |= {"ROWS": tile.rows, "KEYS": tile.keys, "DROP": 0, "SEED": None}
    signature, constants, attributes = {}, {}, {}
    for place, parameter in enumerate(KERNELS[kernel].params):
        name = parameter.name
        if name in values or re.fullmatch(r"stride_.d", name):
            signature[name], constants[place,] = "constexpr", values.get(name, 1)
        elif name.isupper():
            element = "fp32" if name in ("LSE", "DELTA") else "fp16" if gpu == "75" else "bf16"
            signature[name], attributes[place,] = f"*{element}", [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32" if name.startswith("scale") else "i32"
            if name.startswith("stride"):
                attributes[place,] = [["tt.divisibility", 16]]
    source = ASTSource(KERNELS[kernel], signature, constants, attributes)
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    if gpu.startswith("gfx"):
        made = triton.compile(source, target=GPUTarget("hip", gpu, 64), options=options)
        listing = made.asm["amdgcn"]
        registers, stack = (
            re.search(rf"\.{what}:\s+(\d+)", listing) for what in ("vgpr_count", "private_segment_fixed_size")
        )
        assert registers and stack, listing
        return _said(registers[1], stack[1], made.metadata.shared, matrix_cores="v_mfma" in listing)
    made = triton.compile(source, target=GPUTarget("cuda", int(gpu), 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        shown = subprocess.check_output([CUOBJDUMP, "-res-usage", file.name], text=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", shown)
    assert found, shown
    return _said(found[1], found[2], made.metadata.shared, matrix_cores="mma" in made.asm["ptx"])


def _said(registers: str, stack: str, shared: int, *, matrix_cores: bool) -> str:
    memory = f"{stack:>4} bytes of stack, {shared:6} of shared memory"
    return f"{registers:>3} registers, {memory}{'' if matrix_cores else ', no tensor cores'}"


def timed(
    kernel: str, head_dim: int, each: list[tiles.Tile], given: argparse.Namespace
) -> dict[tiles.Tile, str]:
    """Of the forward ("few": of one query), else of the whole backward, whose other kernel keeps its tile."""
    heads = 4096 // head_dim
    q, k, v, do = (
        torch.randn(1, given.sequence, some, head_dim, device="cuda", dtype=torch.bfloat16)
        for some in (heads, heads // GROUP, heads // GROUP, heads)
    )
    if kernel == "few":
        q = q[:, -1:]
    o, lse = forward.forward(q, k, v, True, given.sequence - q.shape[1])
    if kernel in ("forward", "few"):
        work = partial(forward.forward, q, k, v, True, given.sequence - q.shape[1])
    else:
        work = partial(backward.backward, do, q, k, v, o, lse, True, 0)
    took: dict[tiles.Tile, list[float]] = {tile: [] for tile in each}
    for number in range(given.rounds + 1):
        for tile in each:
            milliseconds = once(partial(_with, kernel, tile, work))
            if number:  # the first round compiles
                took[tile].append(milliseconds)
    best = min(map(median, took.values()))
    return {
        tile: f", {median(x):.3f} ms ({min(x):.3f} to {max(x):.3f}), x {median(x) / best:.3f}"
        for tile, x in took.items()
    }


def _with(kernel: str, tile: tiles.Tile, work: Callable[[], object]) -> None:
    usual = tiles.chosen
    with patch.object(tiles, "chosen", lambda which, *rest: tile if which == kernel else usual(which, *rest)):
        work()


def once(work: Callable[[], object]) -> float:
    """Milliseconds by device events, after L2 was cleared."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.empty(2**28, dtype=torch.int8, device="cuda").zero_()
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


if __name__ == "__main__":
    main()
