"""Attention backends side by side in one process, as ratios to one of them: for a quick look at a kernel.

    python benchmarks/attention.py [--backends flash cudnn custom portable] [--shape B1,T4096,H32,K8,D128 ...]

It measures as `task: attention` does (`model.attention.timing.measure`): interleaved in a random order, new
numbers in each round, L2 cleared, eager calls and CUDA graphs apart. Medians with their 95 % intervals; "2 x
flash" is twice as fast as flash. Nothing is certified here; experiments/kernels.yaml does that too.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import replace

import torch

from model import attention
from model.attention.timing.measure import measure
from model.measure import flops
from model.record.case import Case
from model.record.kernels import KernelTime

SHAPES = [
    "B1,T4096,H32,K8,D128",
    "B1,T16384,H16,K16,D128",
    "B8,T2048,H16,K16,D128",
    "B1,T16384,H32,K32,D64",
    "B8,T2048,H32,K32,D64",
    "B1,T16384,H8,K8,D256",
    "B8,T2048,H8,K8,D256",
]


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--backends", nargs="*", default=["flash", "cudnn", "custom", "portable"])
    asked.add_argument("--shape", nargs="*", default=SHAPES)
    asked.add_argument("--dtype", default="bfloat16")
    asked.add_argument("--device", default="cuda")
    asked.add_argument("--full", action="store_true", help="without the causal mask")
    asked.add_argument("--rounds", type=int, default=31)
    asked.add_argument("--seed", type=int, default=0)
    given = asked.parse_args()
    name = torch.cuda.get_device_name() if given.device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, {given.dtype}, {'full' if given.full else 'causal'}")
    for shape in given.shape:
        sizes = [int(number) for number in re.findall(r"[BTHKD](\d+)", shape)]
        case = replace(Case(given.device, given.dtype, *sizes), causal=not given.full)
        print(f"\n{shape}", flush=True)
        backends = {each: attention.load(each) for each in given.backends}
        refused = {each: backend.unsupported_reasons(case) for each, backend in backends.items()}
        for each, reasons in refused.items():
            if reasons:
                print(f"  {each}: {'; '.join(reasons)}", file=sys.stderr)
        left = {each: backend for each, backend in backends.items() if not refused[each]}
        _show(case, measure(left, case, given.seed, given.rounds).times)


def _show(case: Case, times: list[KernelTime]) -> None:
    bases: dict[tuple[str, str], KernelTime] = {}
    for one in sorted(times, key=lambda each: (each.direction == "backward", each.mode)):
        kind = f"  {one.direction:8} {one.mode:5} {one.attention:9}"
        if one.median_seconds is None:
            print(f"{kind} {one.outcome}: {one.reason}")
            continue
        base = bases.setdefault((one.direction, one.mode), one)
        low, high = one.interval or (min(one.seconds), max(one.seconds))
        took = f"{one.median_seconds * 1e3:9.3f} ms ({low * 1e3:.3f} to {high * 1e3:.3f})"
        rate = f"{flops.attention_flop(case, one.direction) / one.median_seconds / 1e12:7.1f} TFLOP/s"
        ratio = f"{(base.median_seconds or 0) / one.median_seconds:.3f} x {base.attention}"
        print(f"{kind} {took:32} {rate}  {ratio}  {(one.memory_bytes or 0) / 2**20:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
