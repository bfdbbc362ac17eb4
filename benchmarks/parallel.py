"""The training step on several GPUs beside the same step on one, tokens/s a GPU, on one machine.

    python benchmarks/parallel.py [--gpus 2] [--ways one FSDP2 DDP] [--rounds 3] [--steps 20] [--batch 2]
        [--sequence 4096] [--attention cudnn] [--eager] [--profile]

Each round runs every way in processes of its own, one way after the other, on random tokens: the 8B llama
with compiled blocks, joined loss and one-pass AdamW, and `--batch` samples a GPU (where GPUs share context or
heads: of all of them together). The time of a step is the median by device events, of the slowest process.
Rates are medians over rounds, with the lowest and the highest; efficiency is a GPU's rate over that of `one`,
within a round. `once` is FSDP2 with `reshard: false`. With `--profile`, the parts of a step follow, in ms, of
the first process in the last round, and what of them was hidden beside other work.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import sys
from collections.abc import Iterator
from statistics import median
from typing import Any

WAYS = {
    "one": {},
    "FSDP2": {"shard": 1},
    "once": {"reshard": False, "shard": 1},
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
    asked.add_argument("--profile", action="store_true")
    given = asked.parse_args()
    found: dict[str, list[dict[str, Any]]] = {}
    for number in range(given.rounds):
        for name in given.ways:
            found.setdefault(name, []).append(_measured(given, name))
            print(f"round {number + 1}, {name}: {found[name][-1]}", file=sys.stderr, flush=True)
    _show(found)


def _parallel(name: str, gpus: int) -> dict[str, int]:
    axes = dict(WAYS[name])
    for axis in list(axes)[-1:]:
        axes[axis] = gpus // axes.get("replicate", 1) if axis == "shard" else gpus
    return axes


def _measured(given: argparse.Namespace, name: str) -> dict[str, Any]:
    """Seconds of a step, tokens/s a GPU, the peak GiB of the largest process, and the parts of a step."""
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
    seconds = max(seconds for seconds, _, _ in each)
    tokens = _batch(given, parallel) * given.sequence
    return {
        "seconds": seconds,
        "rate": tokens / seconds / size,
        "gib": max(gib for _, gib, _ in each),
        "parts": next((parts for _, _, parts in each if parts), {}),
    }


def _batch(given: argparse.Namespace, parallel: dict[str, int]) -> int:
    """Samples of the global batch."""
    return int(given.batch * parallel.get("replicate", 1) * parallel.get("shard", 1))


def _child(
    given: argparse.Namespace, parallel: dict[str, int], rank: int, size: int, address: str, answers: Any
) -> None:
    import torch

    from model.record.config import ParallelConfig
    from model.training.parallel.place import Place
    from model.training.parallel.world import join

    on_gpu = given.device == "cuda"
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    world = join(Place(rank, size, rank, address), ParallelConfig(**parallel), device)
    trained = _trained(given, parallel, world)
    for _ in range(1 + WARM_UP):
        trained.step()
    seconds = _timed(trained.step, given.steps, on_gpu)
    gib = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0
    parts = _profile(trained) if given.profile else {}
    answers.put((seconds, gib, parts if rank == 0 else {}))
    world.any(False)
    sys.stdout.flush()
    os._exit(0)  # gloo may abort where others have left already


def _profile(trained: Any) -> dict[str, float]:
    """Milliseconds of each part of a step, and of what is hidden."""
    from model import attention
    from model.training.profile import profiled

    config = trained.config
    launches = attention.load(config.attention).launches
    parts = profiled(trained, "", 1, launches.on(config.device) if launches else None).parts
    seconds = {each.part: each.seconds for each in parts}
    seconds |= {f"{each.part}, hidden": each.hidden_seconds for each in parts if each.hidden_seconds}
    return {name: 1e3 * each for name, each in seconds.items()}


def _trained(given: argparse.Namespace, parallel: dict[str, int], world: Any) -> Any:
    """What does the trainer's step, without its data and records."""
    import torch

    from model import attention
    from model.record.config import RunConfig
    from model.record.text import START
    from model.training.feed import Ready, own_part
    from model.training.step import TrainingStep
    from model.training.trainer import Trained, build_model

    batch = _batch(given, parallel)
    config = RunConfig.model_validate(
        {
            "attention": given.attention,
            "device": given.device,
            "model": {"layers": given.layers, "dim": given.dim},
            "data": {"path": "random tokens"},
            "train": {
                "batch_size": batch,
                "sequence_length": given.sequence,
                "learning_rate": RATE,
                "warmup_steps": 0,
                **({} if given.eager else ALL),
            },
            "parallel": parallel,
        }
    )
    model = build_model(config, attention.require(config.attention, config.attention_case), world)
    rng = torch.Generator(given.device).manual_seed(0)

    def stream() -> Iterator[Ready]:
        while True:
            tokens = torch.randint(256, (2, batch, given.sequence), device=given.device, generator=rng)
            inputs_BT, labels_BT = (own_part(x_BT, world) for x_BT in tokens.unbind())
            yield Ready(inputs_BT, labels_BT, batch * given.sequence, START, None)

    return Trained(config, model, TrainingStep(config, model, world), stream())


def _timed(step: Any, steps: int, on_gpu: bool) -> float:
    """Median seconds of a step."""
    import torch

    from model.training.meter import clock

    timer = clock(torch.device("cuda" if on_gpu else "cpu"))
    timer.start()
    for _ in range(steps):
        step()
        timer.mark()
    return median(timer.spans())


def _show(found: dict[str, list[dict[str, Any]]]) -> None:
    print(f"{'':8} {'tokens/s a GPU':>26} {'GiB':>6}  efficiency")
    for name, rounds in found.items():
        rates = [each["rate"] for each in rounds]
        spread = f"{median(rates):,.0f} ({min(rates):,.0f}-{max(rates):,.0f})"
        ratios = [mine / one["rate"] for mine, one in zip(rates, found.get("one", []), strict=False)]
        beside = f"{median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})" if ratios else ""
        print(f"{name:8} {spread:>26} {max(each['gib'] for each in rounds):6.1f}  {beside}")
    for name, rounds in found.items():
        if parts := rounds[-1]["parts"]:
            print(f"{name:8} " + ", ".join(f"{part} {ms:.1f}" for part, ms in parts.items()))


if __name__ == "__main__":
    main()
