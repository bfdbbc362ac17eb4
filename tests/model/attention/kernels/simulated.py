"""Runs the Hopper kernels on the CPU, in Gluon's stand-in, and prints how wrong their results are, as JSON.

    python -m tests.model.attention.kernels.simulated <<<'[{"head_dim": 128, "dtype": "bfloat16", "causal": true}]'

It answers each line of its input by one. A process of its own: the kernels are imported with the stand-in, and Triton decides at its first import whether the
passes around the backward are compiled or interpreted.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import pytest
import torch
from torch import Tensor

from tests.model.attention.kernels import interpreted
from tests.model.attention.kernels.gluon import Fault, Machine, stand_in

with stand_in():
    from model.attention.kernels import hopper


def run(
    head_dim: int, dtype: str, causal: bool, lengths: tuple[int, int] = (200, 200), heads: tuple[int, int] = (2, 1),
    query_offset: int = 0, deterministic: bool = False, logits: float = 1, alike: bool = False, processors: int = 2,
    consumers: int = 2, seed: int = 0, late: str = "", batch: int = 1, mixed: bool = False, backward: bool = True,
    dark: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """A forward and, but for FP8, a backward.

    Args:
        logits: what they are multiplied by.
        alike: whether all keys are the same.
        processors: of the GPU; so many programs a forward of several blocks has.
        consumers: that share a block of the forward.
        seed, late: of `Machine`.
        mixed: whether the logits of every second 64 queries are 1e7 times as large.
        backward: whether it is run at all; it takes most of the time.
        dark: so many first keys have scores beyond the smallest that the kernel tells from none.

    Returns:
        Of each result the relative error of the row that is most wrong, and a sum of its bits.
    """
    (T_Q, T_K), (H, K), D = lengths, heads, head_dim
    torch.manual_seed(0)
    shapes = ((batch, T_Q, H, D), (batch, T_K, K, D), (batch, T_K, K, D), (batch, T_Q, H, D))
    q, k, v, do = (
        (torch.randn(shape) * factor).to(getattr(torch, dtype))
        for shape, factor in zip(shapes, (logits, 1, 1, 1), strict=True)
    )
    if mixed:
        q[:, torch.arange(T_Q) // 64 % 2 == 1] *= 1e7
    if alike:
        k = k[:, :1].repeat(1, T_K, 1, 1)
    if dark:
        q.fill_(1e17)
        k.zero_()[:, :dark] = -1e17
    hopper.launch = _launcher(Machine(seed, late))
    hopper._processors = lambda device: processors
    hopper._forward.consumers = lambda *_: consumers
    if q.dtype == hopper.FP8:
        scales = torch.linspace(0.5, 1.5, 3 * batch * K).view(3, batch, K)
        o, _ = hopper.forward(q, k, v, causal, query_offset, scales)
        pairs = zip((q, k, v), scales.double(), strict=True)
        exact = [
            x.double() * scale.repeat_interleave(x.shape[2] // K, 1)[:, None, :, None] for x, scale in pairs
        ]
        return {
            "o": {
                "error": _error(o, _attention(*exact, causal, query_offset)),
                "bits": int(o.view(torch.int16).long().sum()),
            }
        }
    o, stats = hopper.forward(q, k, v, causal, query_offset)
    inputs = [x.double().requires_grad_() for x in (q, k, v)]
    exact_output = _attention(*inputs, causal, query_offset)
    if not backward:
        return {
            "o": {"error": _error(o, exact_output.detach()), "bits": int(o.view(torch.int16).long().sum())}
        }
    results = (o, *hopper.backward(do, q, k, v, o, stats, causal, query_offset, deterministic))
    expected = (exact_output.detach(), *torch.autograd.grad(exact_output, inputs, do.double()))
    return {
        name: {"error": _error(x, y), "bits": int(x.view(torch.int16).long().sum())}
        for name, x, y in zip(("o", "dq", "dk", "dv"), results, expected, strict=True)
    }


def _launcher(machine: Machine) -> Callable[..., None]:
    def launch(kernel: Any, key: object, grid: tuple[int, int, int], *arguments: Any, **options: Any) -> None:
        if hasattr(kernel, "__code__"):
            machine.run(kernel, grid[0], arguments)
        else:
            kernel[grid](*arguments, **options)  # plain Triton, in its own interpreter

    return launch


def _attention(q: Tensor, k: Tensor, v: Tensor, causal: bool, query_offset: int) -> Tensor:
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)))
    s = q @ k.transpose(2, 3) * q.shape[3] ** -0.5
    if causal:
        future = torch.arange(k.shape[2])[None, :] > torch.arange(q.shape[2])[:, None] + query_offset
        s = s.masked_fill(future, float("-inf"))
    return (s.softmax(3) @ v).transpose(1, 2)


def _error(x: Tensor, exact: Tensor) -> float:
    """Relative to the row or to the mean one, and to an element of 0.01 where all are 0 or nearly."""
    distance, length = (x.double() - exact).norm(dim=-1), exact.norm(dim=-1)
    smallest = max(float(length.mean()), 0.01 * x.shape[-1] ** 0.5)
    return float((distance / length.clamp(min=smallest)).nan_to_num(float("inf")).max())


def changed(module: str, old: str, new: str, **case: Any) -> dict[str, Any]:
    """Run a case after a change of the kernels' text."""
    path = Path(hopper.__file__).with_name(f"{module}.py")
    text, namespace = path.read_text(), vars(getattr(hopper, module))
    if old not in text:
        raise ValueError(f"{path} has no {old!r}")
    with stand_in():
        exec(compile(text.replace(old, new), path, "exec"), namespace)
    try:
        return run(**case)
    finally:
        with stand_in():
            exec(compile(text, path, "exec"), namespace)


def main(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What `run` or `changed` finds in each case, or {"fault": what would go wrong}."""
    hopper._check = lambda *_: None
    hopper.launched = lambda *_: True
    torch.cuda.is_current_stream_capturing = lambda: False
    results = []
    for case in cases:
        try:
            results.append(changed(**case) if "module" in case else run(**case))
        except (Fault, ZeroDivisionError) as fault:  # a GPU divides by zero without a word
            results.append({"fault": str(fault)})
    return results


if __name__ == "__main__":
    interpreted.hasten(pytest.MonkeyPatch())
    interpreted.mend(pytest.MonkeyPatch())
    for line in sys.stdin:
        sys.stdout.write(json.dumps(main(json.loads(line))) + "\n")
        sys.stdout.flush()
