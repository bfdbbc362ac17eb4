"""For how long a checkpoint holds up training: written before the next step, or by a thread, in turn.

    python benchmarks/checkpoints.py TEXT.parquet [--device cuda] [--folder .] [--rounds 5] [--steps 20]
        [--dim 512] [--layers 8] [--attention auto]

Both save one state by `model.keeper`, as a run does. `held` is the time until the next step may begin, `all`
the time until the checkpoint is there; `step` is the median step while the thread writes, over that of as
many steps while nothing is written. Ratios are of one round; the first, in which memory for the copy is new,
is shown apart.
"""

from __future__ import annotations

import argparse
import shutil
import time
from concurrent.futures import wait
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any

import torch

from model import attention, data, optim
from model.config import RunConfig
from model.disk.checkpoint import State
from model.errors import Interrupted
from model.feed import Feed
from model.keeper import Checkpoints, Keeper
from model.loss import LOSSES
from model.measure.meter import clock
from model.text import START, Source
from model.trainer import build_model


def main() -> None:
    """Run the rounds and print a table."""
    asked = argparse.ArgumentParser()
    asked.add_argument("text", type=Path)
    for name, default in (("device", "cuda"), ("attention", "auto"), ("folder", ".")):
        asked.add_argument(f"--{name}", default=default)
    for name, default in (("rounds", 5), ("steps", 20), ("dim", 512), ("layers", 8)):
        asked.add_argument(f"--{name}", type=int, default=default)
    given = asked.parse_args()
    config = _config(given)
    model = build_model(config, attention.require(config.attention, config.attention_case))
    optimizer = optim.OPTIMIZERS[config.train.optimizer](model.named_parameters(), 0.01)
    state = State(config, "data", model, optimizer)
    feed = Feed(data.Batches(config, Source(given.text)), torch.device(config.device))
    folder = Path(mkdtemp(dir=given.folder))
    keeper = Keeper(Checkpoints(folder, None, lambda: False, None), state)

    def steps(while_: Any = lambda: True) -> list[float]:
        """Seconds of each step, at most `--steps` of them."""
        marks = clock(torch.device(config.device))
        marks.start()
        for done in range(given.steps):
            if done and not while_():
                break
            batch = next(feed)
            loss = LOSSES[config.train.loss](model, batch.inputs_BT, batch.labels_BT, batch.training_tokens)
            loss.backward()
            optimizer.clipped_step(1e-6, 1.0)
            marks.mark()
        return marks.spans()

    try:
        steps()
        _show([_round(keeper, steps, folder) for _ in range(given.rounds + 1)])
    finally:
        shutil.rmtree(folder)


def _round(keeper: Keeper, steps: Any, folder: Path) -> dict[str, float]:
    alone = median(steps())
    keeper.stopping = True
    before = _seconds(lambda: _stopped(keeper))
    keeper.stopping = False
    begun = time.perf_counter()
    held = _seconds(lambda: keeper.keep(2, START))
    writing = keeper._writing
    assert writing is not None
    beside = steps(lambda: not writing.done())
    wait([writing])
    everything = time.perf_counter() - begun
    (file,) = (folder / "checkpoint").glob("state-*")
    return {
        "GB": file.stat().st_size / 1e9,
        "before": before,
        "held": held,
        "held/before": held / before,
        "all/before": everything / before,
        "step": median(beside) / alone,
    }


def _stopped(keeper: Keeper) -> None:
    try:
        keeper.keep(1, START)
    except Interrupted:
        return


def _seconds(work: Any) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _show(rounds: list[dict[str, float]]) -> None:
    first, *others = rounds
    print("first round:", {name: round(value, 4) for name, value in first.items()})
    for name in first:
        found = sorted(each[name] for each in others)
        print(f"{name:12} {median(found):.4f} ({found[0]:.4f}-{found[-1]:.4f}), n = {len(found)}")


def _config(given: argparse.Namespace) -> RunConfig:
    model = {
        "dim": given.dim, "layers": given.layers, "heads": given.dim // 64, "kv_heads": given.dim // 64,
        "ffn_dim": 4 * given.dim, "vocab_size": 32000,
    }  # fmt: skip
    small = {"sequence_length": 64, "batch_size": 1} if given.device == "cpu" else {"batch_size": 1}
    return RunConfig.model_validate({
        "attention": given.attention,
        "device": given.device,
        "model": model,
        "data": {"path": str(given.text), "mode": "pack", "tokenizer": "bytes"},
        "train": {**small, "dtype": "float32" if given.device == "cpu" else "bfloat16"},
    })  # fmt: skip


if __name__ == "__main__":
    main()
