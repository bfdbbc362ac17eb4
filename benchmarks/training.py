"""The training step beside the loop that studies usually start from (benchmarks/reference.py), on one GPU.

    python benchmarks/training.py [--rounds 3] [--steps 20] [--sequence 4096] [--batch 1] [--only NAME ...]

Every round trains each variant in a process of its own, one after the other, on random tokens, and takes the
median of its steps' times by device events. Rates are medians over rounds, with the lowest and the highest;
ratios are taken within a round, to `reference compiled`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

BASE = "reference compiled"
ALL = {"compile": True, "loss": "linear_cross_entropy", "optimizer": "adamw_one_pass"}
OURS: dict[str, dict[str, Any]] = {  # options of `train`
    "eager": {},
    "compiled blocks": {"compile": True},
    "+ joined loss": {"compile": True, "loss": "linear_cross_entropy"},
    "+ one-pass AdamW": ALL,
    "all, float8 by tensor": {**ALL, "float8": "tensorwise"},
    "all, float8 by row": {**ALL, "float8": "rowwise"},
}
VARIANTS = ("reference", BASE, *OURS)
WARM_UP = 4  # steps after the first, untimed
RATE = 5e-6


def main() -> None:
    """Run the rounds, or one variant in this process."""
    asked = argparse.ArgumentParser()
    for name, default in (("rounds", 3), ("steps", 20), ("sequence", 4096), ("batch", 1)):
        asked.add_argument(f"--{name}", type=int, default=default)
    asked.add_argument("--attention", default="cudnn")
    asked.add_argument("--only", nargs="*", choices=VARIANTS, default=VARIANTS)
    asked.add_argument(
        "--variant", choices=VARIANTS, help="run this one here, and print what it took as JSON"
    )
    given = asked.parse_args()
    if given.variant:
        print(json.dumps(_measured(given)))
        return
    found: dict[str, list[dict[str, float]]] = {}
    for number in range(given.rounds):
        for name in given.only:
            found.setdefault(name, []).append(_in_a_process(name))
            print(f"round {number + 1}, {name}: {found[name][-1]}", file=sys.stderr, flush=True)
    _show(found)


def _in_a_process(name: str) -> dict[str, float]:
    command = [sys.executable, *sys.argv, "--variant", name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def _measured(given: argparse.Namespace) -> dict[str, float]:
    """Median seconds a step, tokens/s, MFU in %, peak GiB, and seconds from start to the end of step 1."""
    started = time.perf_counter()
    import torch

    from model.measure.flops import flop_per_token, peak
    from model.record.config import ModelConfig

    torch.manual_seed(0)
    shape = ModelConfig()
    step = _reference(given, shape) if given.variant not in OURS else _ours(given, shape)
    size = given.batch, given.sequence

    def once() -> Any:
        tokens = torch.randint(256, (2, *size), device="cuda")
        return step(*tokens.unbind())

    once().item()
    first = time.perf_counter() - started
    for _ in range(WARM_UP):
        once()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(given.steps + 1)]
    for event in events[:-1]:
        event.record()
        once()
    events[-1].record()
    torch.cuda.synchronize()
    seconds = median(a.elapsed_time(b) for a, b in pairwise(events)) / 1e3
    rate = given.batch * given.sequence / seconds
    fastest = peak(torch.cuda.get_device_name(), "bfloat16")
    share = 100 * rate * flop_per_token(shape, given.sequence) / fastest.flops if fastest else float("nan")
    memory = torch.cuda.max_memory_allocated() / 2**30
    return {"seconds": seconds, "rate": rate, "mfu": share, "peak_gib": memory, "first_step": first}


def _reference(given: argparse.Namespace, shape: Any) -> Callable[..., Any]:
    from functools import partial

    import reference
    import torch

    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = reference.Reference(shape, given.sequence)
    torch.set_default_dtype(torch.float32)
    if given.variant == BASE:
        model.compile()
    return partial(
        reference.step, model, torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.01, fused=True)
    )


def _ours(given: argparse.Namespace, shape: Any) -> Callable[..., Any]:
    """The trainer's step, without its data and records."""

    from model import attention
    from model.record.config import RunConfig
    from model.training import optim
    from model.training.loss import LOSSES
    from model.training.trainer import build_model

    sizes = {"batch_size": given.batch, "sequence_length": given.sequence}
    config = RunConfig.model_validate(
        {
            "attention": given.attention,
            "model": shape.model_dump(),
            "data": {"path": "random tokens"},
            "train": {**sizes, **OURS[given.variant]},
        }
    )
    model = build_model(config, attention.require(config.attention, config.attention_case))
    optimizer = optim.OPTIMIZERS[config.train.optimizer](model.named_parameters(), 0.01)

    def step(inputs_BT: Any, labels_BT: Any) -> Any:
        loss = LOSSES[config.train.loss](model, inputs_BT, labels_BT, labels_BT.numel())
        loss.backward()
        optimizer.clipped_step(RATE, 1.0)
        return loss

    return step


def _show(found: dict[str, list[dict[str, float]]]) -> None:
    print(f"{'':20} {'tokens/s':>24} {'MFU %':>6} {'GiB':>6} {'first step s':>12}  of {BASE}")
    for name, rounds in found.items():
        rates = [each["rate"] for each in rounds]
        spread = f"{median(rates):,.0f} ({min(rates):,.0f}-{max(rates):,.0f})"
        share, gib, first = (
            median(each[key] for each in rounds) for key in ("mfu", "peak_gib", "first_step")
        )
        ratios = [mine / base["rate"] for mine, base in zip(rates, found.get(BASE, []), strict=False)]
        beside = f"{median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})" if ratios else ""
        print(f"{name:20} {spread:>24} {share:6.1f} {gib:6.1f} {first:12.1f}  {beside}")


if __name__ == "__main__":
    main()
