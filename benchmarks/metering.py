"""What feeding and metering cost a training step: the trainer's loop beside its bare step, in turn.

    python benchmarks/metering.py TEXT.parquet [--device cuda] [--small] [--rounds 5] [--steps 40]

The bare loop has one batch, which lies on the device, and reads nothing from it. The other one takes its
batches from `Feed`, marks its steps and makes a record every `--log-every` steps, as the trainer does. Both
train one model. A block of steps of each is timed by the host's clock, from idle device to idle device;
ratios are of blocks that follow each other. `steps` is the time that records say; `all` also has the records
themselves and the collection of garbage, but not the writing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from model import attention
from model.record.config import RunConfig
from model.record.text import Source
from model.training import data, optim
from model.training.feed import Feed, Ready
from model.training.loss import LOSSES
from model.training.meter import Meter, no_collector
from model.training.trainer import build_model

SMALL = {"dim": 512, "layers": 4, "heads": 8, "kv_heads": 8, "ffn_dim": 1024, "vocab_size": 1024}


def main() -> None:
    """Run the rounds and print a table."""
    asked = argparse.ArgumentParser()
    asked.add_argument("text", type=Path)
    asked.add_argument("--device", default="cuda")
    asked.add_argument("--attention", default="auto")
    asked.add_argument("--compile", action="store_true")
    asked.add_argument("--small", action="store_true", help="a model of which a step takes milliseconds")
    for name, default in (("rounds", 5), ("steps", 40), ("log-every", 10)):
        asked.add_argument(f"--{name}", type=int, default=default)
    given = asked.parse_args()
    config = _config(given)
    step = _step(config)
    device = torch.device(config.device)
    feed = Feed(data.Batches(config, Source(given.text)), device)
    batch = next(feed)
    for _ in range(5):
        step(batch)
    with no_collector():
        rounds = [_round(step, batch, feed, Meter(device), given) for _ in range(given.rounds)]
    bare, steps, everything = zip(*rounds, strict=True)
    print(f"a bare step: {1e3 * median(bare):.3f} ms ({1e3 * min(bare):.3f}-{1e3 * max(bare):.3f})")
    for name, found in (("steps", steps), ("all", everything)):
        over = [100 * (mine / base - 1) for mine, base in zip(found, bare, strict=True)]
        print(f"{name:5}: {median(over):+.3f} % ({min(over):+.3f} to {max(over):+.3f})")


def _config(given: argparse.Namespace) -> RunConfig:
    sizes = {"sequence_length": 512, "batch_size": 1} if given.small else {}
    dtype = "bfloat16" if given.device == "cuda" else "float32"
    return RunConfig.model_validate({
        "attention": given.attention,
        "device": given.device,
        "model": SMALL if given.small else {},
        "data": {"path": str(given.text), "mode": "pack", "tokenizer": "bytes"},
        "train": {**sizes, "compile": given.compile, "dtype": dtype},
    })  # fmt: skip


def _step(config: RunConfig) -> Callable[[Ready], tuple[torch.Tensor, torch.Tensor]]:
    model = build_model(config, attention.require(config.attention, config.attention_case))
    optimizer = optim.OPTIMIZERS[config.train.optimizer](model.named_parameters(), 0.01)

    def step(batch: Ready) -> tuple[torch.Tensor, torch.Tensor]:
        loss = LOSSES[config.train.loss](model, batch.inputs_BT, batch.labels_BT, batch.training_tokens)
        loss.backward()
        return loss.detach(), optimizer.clipped_step(1e-6, 1.0)[1]

    return step


def _round(step: Any, batch: Ready, feed: Feed, meter: Meter, given: argparse.Namespace) -> list[float]:
    """Seconds of a bare step, of a metered one, and of one with its share of records."""
    bare = _timed(lambda: [step(batch) for _ in range(given.steps)][-1], given.device)
    said = []

    def metered() -> None:
        for number in range(1, given.steps + 1):
            loss, norm = step(meter.count(next(feed)))
            meter.done()
            if number % given.log_every == 0:
                record = meter.record(number, loss, norm, 1e-6)
                said.append(record.step_seconds * record.steps)
                meter.restart()

    meter.restart()
    everything = _timed(metered, given.device)
    counted = given.steps // given.log_every * given.log_every
    return [bare / given.steps, sum(said) / counted, everything / given.steps]


def _timed(work: Callable[[], Any], device: str) -> float:
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
