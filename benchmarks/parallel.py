"""The training step on several GPUs beside the same step on one, tokens/s a GPU, on one machine.

    python benchmarks/parallel.py [--gpus 2] [--ways one FSDP2 DDP] [--rounds 3] [--steps 20] [--batch 2]
        [--sequence 4096] [--attention cudnn] [--eager]

Each round runs every way in processes of its own, one way after the other, on random tokens: the 8B llama
with compiled blocks, joined loss and one-pass AdamW, and `--batch` samples a GPU (where GPUs share context or
heads: of all of them together). The time of a step is the median by device events, of the slowest process.
Rates are medians over rounds, with the lowest and the highest; efficiency is a GPU's rate over that of `one`,
within a round.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import sys
from statistics import median
from typing import Any

WAYS = {
    "one": {},
    "FSDP2": {"shard": 1},
    "DDP": {"replicate": 1},
    "HSDP": {"replicate": 2, "shard": 1},
    "CP": {"context": 1},
    "TP": {"tensor": 1},
}  # the last axis is multiplied until all GPUs have a process
ALL = {"compile": True, "loss": "linear_cross_entropy", "optimizer": "adamw_one_pass"}
WARM_UP = 4  # steps after the first, untimed
RATE = 5e-6


def main() -> None:
    """Run the rounds, and show them."""
    asked = argparse.ArgumentParser()
    for name, default in (
        ("gpus", 2),
        ("rounds", 3),
        ("steps", 20),
        ("sequence", 4096),
        ("batch", 2),
        ("layers", 32),
    ):
        asked.add_argument(f"--{name}", type=int, default=default)
    asked.add_argument("--attention", default="cudnn")
    asked.add_argument("--ways", nargs="*", choices=WAYS, default=["one", "FSDP2", "DDP"])
    asked.add_argument("--eager", action="store_true", help="neither compiled nor with kernels of ours")
    asked.add_argument("--dim", type=int, default=4096, help="smaller, to try this script")
    asked.add_argument("--device", default="cuda", help="cpu, to try this script")
    given = asked.parse_args()
    found: dict[str, list[dict[str, float]]] = {}
    for number in range(given.rounds):
        for name in given.ways:
            found.setdefault(name, []).append(_measured(given, name))
            print(f"round {number + 1}, {name}: {found[name][-1]}", file=sys.stderr, flush=True)
    _show(found)


def _parallel(name: str, gpus: int) -> dict[str, int]:
    axes = dict(WAYS[name])
    taken = 1
    for size in axes.values():
        taken *= size
    for axis in list(axes)[-1:]:
        axes[axis] = gpus // taken
    return axes


def _measured(given: argparse.Namespace, name: str) -> dict[str, float]:
    """Seconds of a step, tokens/s a GPU, and the peak GiB of the largest process."""
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listening.getsockname()[1]}"
    parallel = _parallel(name, given.gpus)
    size = given.gpus if parallel else 1
    children = [
        context.Process(target=_child, args=(given, parallel, rank, size, address, answers))
        for rank in range(size)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
        if child.exitcode:
            sys.exit(f"{name}: a process ended with {child.exitcode}")
    each = [answers.get() for _ in children]
    seconds = max(seconds for seconds, _ in each)
    tokens = _batch(given, parallel) * given.sequence
    return {"seconds": seconds, "rate": tokens / seconds / size, "gib": max(gib for _, gib in each)}


def _batch(given: argparse.Namespace, parallel: dict[str, int]) -> int:
    """Samples of the global batch."""
    return int(given.batch * parallel.get("replicate", 1) * parallel.get("shard", 1))


def _child(
    given: argparse.Namespace, parallel: dict[str, int], rank: int, size: int, address: str, answers: Any
) -> None:
    import torch

    from model.config import ParallelConfig
    from model.parallel.place import Place
    from model.parallel.world import join

    on_gpu = given.device == "cuda"
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    world = join(Place(rank, size, rank, address), ParallelConfig(**parallel), device)
    step = _step(given, parallel, world)
    step()
    for _ in range(WARM_UP):
        step()
    seconds = _timed(step, given.steps, on_gpu)
    answers.put((seconds, torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0))
    world.any(False)
    sys.stdout.flush()
    os._exit(0)  # gloo may abort where others have left already


def _step(given: argparse.Namespace, parallel: dict[str, int], world: Any) -> Any:
    """The trainer's step, without its data and records."""
    import torch

    from model import attention, optim
    from model.config import RunConfig
    from model.parallel.objective import Objective
    from model.parallel.part import Part, of
    from model.trainer import build_model

    batch = _batch(given, parallel)
    config = RunConfig.model_validate(
        {
            "attention": given.attention,
            "device": given.device,
            "model": {"layers": given.layers, "dim": given.dim},
            "data": {"path": "random tokens"},
            "train": {"batch_size": batch, "sequence_length": given.sequence, **({} if given.eager else ALL)},
            "parallel": parallel,
        }
    )
    model = build_model(config, attention.require(config.attention, config.attention_case), world)
    objective = Objective(config, model, world)
    optimizer = optim.OPTIMIZERS[config.train.optimizer](model.named_parameters(), 0.01, world)
    rng = torch.Generator(given.device).manual_seed(0)

    def step() -> None:
        tokens = torch.randint(256, (2, batch, given.sequence), device=given.device, generator=rng)
        inputs_BT, labels_BT = (of(x_BT, world) for x_BT in tokens.unbind())
        share = objective.share(Part(inputs_BT, labels_BT, last=True), batch * given.sequence)
        objective.backward(share)
        world.total(share.detach(), world.parallel.tensor)
        optimizer.clipped_step(RATE, 1.0)

    return step


def _timed(step: Any, steps: int, on_gpu: bool) -> float:
    """Median seconds of a step."""
    import torch

    from model.measure.meter import clock

    timer = clock(torch.device("cuda" if on_gpu else "cpu"))
    timer.start()
    for _ in range(steps):
        step()
        timer.mark()
    return median(timer.spans())


def _show(found: dict[str, list[dict[str, float]]]) -> None:
    print(f"{'':8} {'tokens/s a GPU':>26} {'GiB':>6}  efficiency")
    for name, rounds in found.items():
        rates = [each["rate"] for each in rounds]
        spread = f"{median(rates):,.0f} ({min(rates):,.0f}-{max(rates):,.0f})"
        ratios = [mine / one["rate"] for mine, one in zip(rates, found.get("one", []), strict=False)]
        beside = f"{median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})" if ratios else ""
        print(f"{name:8} {spread:>26} {max(each['gib'] for each in rounds):6.1f}  {beside}")


if __name__ == "__main__":
    main()
