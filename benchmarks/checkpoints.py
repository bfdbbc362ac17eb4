"""For how long a checkpoint holds up training: written before the next step, or by a thread, in turn.

    python benchmarks/checkpoints.py [--device cuda] [--shard 1] [--folder .] [--rounds 5] [--steps 20]
        [--dim 4096] [--layers 32] [--vocabulary 131072] [--batch 1] [--sequence 4096]

Both save one state by `model.training.keeper`, as a run does, of `--shard` processes (FSDP2 where they are
several).
`held` is the time until the next step may begin; `all` is the time until the checkpoint is there, both over
`before`, the time that it takes if nothing goes on meanwhile. `step` is the median step while threads write,
over that of as many steps while nothing is written. Ratios are within a round; numbers are those of the
slowest process. The first round, in which memory for the copy is new, is shown apart.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any


def main() -> None:
    """Run the rounds in processes of their own, and print a table."""
    asked = argparse.ArgumentParser()
    asked.add_argument("--device", default="cuda")
    asked.add_argument("--folder", default=".")
    sizes = {"dim": 4096, "layers": 32, "vocabulary": 131072, "batch": 1, "sequence": 4096}
    for name, default in {"shard": 1, "rounds": 5, "steps": 20, **sizes}.items():
        asked.add_argument(f"--{name}", type=int, default=default)
    given = asked.parse_args()
    folder = Path(mkdtemp(dir=given.folder))
    try:
        found = _measured(given, folder)
    finally:
        shutil.rmtree(folder)
    _show(found)


def _measured(given: argparse.Namespace, folder: Path) -> list[dict[str, float]]:
    """What each round took, in the slowest process."""
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listening.getsockname()[1]}"
    children = [
        context.Process(target=_child, args=(given, folder, rank, address, answers))
        for rank in range(given.shard)
    ]
    for child in children:
        child.start()
    each = [answers.get() for _ in children]
    for child in children:
        child.join()
    return [{name: max(own[name] for own in same) for name in same[0]} for same in zip(*each, strict=True)]


def _child(given: argparse.Namespace, folder: Path, rank: int, address: str, answers: Any) -> None:
    import torch

    from model.record.config import ParallelConfig
    from model.training.checkpoint import TrainingState
    from model.training.keeper import Checkpoints, Keeper
    from model.training.parallel.place import Place
    from model.training.parallel.world import join

    on_gpu = given.device == "cuda"
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    world = join(Place(rank, given.shard, rank, address), ParallelConfig(shard=given.shard), device)
    config, model, optimizer, step = _training(given, world)
    keeper = Keeper(
        Checkpoints(folder, None, lambda: False, None), TrainingState(config, "data", model, optimizer), world
    )
    _timed(step, given, world)
    answers.put([_round(keeper, step, given, world) for _ in range(given.rounds + 1)])
    world.any(False)
    sys.stdout.flush()
    os._exit(0)  # gloo may abort where others have left already


def _training(given: argparse.Namespace, world: Any) -> tuple[Any, Any, Any, Callable[[], None]]:
    """Configuration, model, optimizer, and the trainer's step without its data and records."""
    import torch

    from model import attention
    from model.record.config import RunConfig
    from model.record.text import START
    from model.training.feed import Ready, own_part
    from model.training.step import TrainingStep
    from model.training.trainer import build_model

    samples, heads = given.batch * given.shard, given.dim // 64
    sizes = {"layers": given.layers, "dim": given.dim, "ffn_dim": 4 * given.dim}
    config = RunConfig.model_validate({
        "attention": "auto",
        "device": given.device,
        "model": {**sizes, "heads": heads, "kv_heads": heads, "vocab_size": given.vocabulary},
        "data": {"path": "random tokens"},
        "train": {
            "batch_size": samples, "sequence_length": given.sequence,
            "dtype": "bfloat16" if given.device == "cuda" else "float32",
        },
        "parallel": {"shard": given.shard},
    })  # fmt: skip
    model = build_model(config, attention.require(config.attention, config.attention_case), world)
    train_on = TrainingStep(config, model, world)
    rng = torch.Generator(given.device).manual_seed(0)

    def step() -> None:
        tokens = torch.randint(256, (2, samples, given.sequence), device=given.device, generator=rng)
        inputs_BT, labels_BT = (own_part(x_BT, world) for x_BT in tokens.unbind())
        train_on(Ready(inputs_BT, labels_BT, samples * given.sequence, START, None), 1)

    return config, model, train_on.optimizer, step


def _timed(step: Callable[[], None], given: argparse.Namespace, world: Any, writing: Any = None) -> float:
    """Median seconds of a step; of those that begin while somebody writes, where `writing` is given."""
    import torch

    from model.training.meter import clock

    timer = clock(torch.device(given.device))
    timer.start()
    for _ in range(given.steps):
        if writing is not None and not world.any(not writing.done()):
            break
        step()
        timer.mark()
    spans = timer.spans()
    return median(spans) if spans else float("nan")


def _round(keeper: Any, step: Callable[[], None], given: argparse.Namespace, world: Any) -> dict[str, float]:
    from model.record.errors import Interrupted
    from model.record.text import START

    def stopped() -> None:
        try:
            keeper.keep(1, START)
        except Interrupted:
            return

    alone = _timed(step, given, world)
    keeper.stopping = True
    before = _seconds(stopped, world)
    keeper.stopping = False
    begun = time.perf_counter()
    held = _seconds(lambda: keeper.keep(2, START), world)
    writing = keeper._writing
    beside = _timed(step, given, world, writing)
    writing.result()
    everything = time.perf_counter() - begun
    size = sum(path.stat().st_size for path in keeper.checkpoints.folder.glob("checkpoint/state-2*"))
    return {
        "GB": size / 1e9, "before": before, "held": held, "held/before": held / before,
        "all/before": everything / before, "step": beside / alone,
    }  # fmt: skip


def _seconds(work: Callable[[], None], world: Any) -> float:
    """From when all processes are there, with nothing left to do for their GPUs."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    world.any(False)
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _show(rounds: list[dict[str, float]]) -> None:
    first, *others = rounds
    print("first round:", {name: round(value, 4) for name, value in first.items()})
    for name in first:
        found = sorted(each[name] for each in others)
        print(f"{name:12} {median(found):.4f} ({found[0]:.4f}-{found[-1]:.4f}), n = {len(found)}")


if __name__ == "__main__":
    main()
