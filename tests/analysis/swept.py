"""Studies over numeric axes, as they might come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from model.record.config import DataConfig, RunConfig, TrainConfig
from tests.analysis.fabricate import LLAMA, Folder, plan

LENGTHS = (256, 512, 1024, 2048, 4096)
RATES = (1e-4, 3e-4, 1e-3, 3e-3)
BATCHES = (1, 2, 4, 8)
Factors = dict[str, Any]


def write_sweep(
    root: Path,
    axes: Mapping[str, Sequence[Any]],
    seeds: int = 3,
    oom: Mapping[str, int] | None = None,
    study: str = "sweep",
) -> None:
    """Fabricate a study over axes, in place order, with costs that grow with the tokens of a step.

    Args:
        axes: values by factor; one of them may be `attention`.
        oom: by backend, how many tokens a step may have before it runs out of memory.
    """
    cells = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    for number, (factors, seed) in enumerate(product(cells, range(seeds))):
        _run(root, study, number, {"attention": "auto", **factors}, seed, (oom or {}))


def _run(root: Path, study: str, number: int, factors: Factors, seed: int, oom: Mapping[str, int]) -> None:
    backend = factors["attention"]
    train = {"batch_size": 1, "learning_rate": 1e-3, "sequence_length": 1024, "steps": 40}
    train |= {name.removeprefix("train."): factors[name] for name in factors if name.startswith("train.")}
    config = RunConfig(
        attention=backend,
        seed=seed,
        model=LLAMA,
        data=DataConfig(path="train.parquet"),
        train=TrainConfig.model_validate(train),
    )
    name = "-".join(str(value) for value in factors.values())
    run = plan(
        f"r{number:04}", study, backend, seed, config=config, group=f"g-{name}", title="A sweep",
        factors={**factors, "seed": seed}, why=[f"experiments/sweep.yaml:{number + 1}:3"],
    )  # fmt: skip
    folder = Folder(root, run)
    folder.start()
    tokens = config.train.sequence_length * config.train.batch_size
    if tokens > oom.get(backend, tokens):
        folder.end("oom_gpu", steps=0, final_loss=None, reason="CUDA out of memory")
        return
    slower = {"auto": 1.0, "flash": 0.93, "math": 1.6}.get(backend, 1.2)
    seconds = slower * (0.02 + tokens / 8e4 + config.train.sequence_length**2 * config.train.batch_size / 6e8)
    seconds *= 1 + 0.004 * ((number * 7) % 5 - 2)
    loss = 2.4 + 0.3 * abs(config.train.learning_rate - 1e-3) * 1e3 + 0.01 * seed - 1e-5 * tokens
    memory = int((8 + slower * tokens / 400) * 2**30)
    for step in range(5, config.train.steps + 1, 5):
        folder.step(step, seconds, loss=loss, memory_bytes=memory)
    folder.end(seconds=seconds * 40, peak_memory_bytes=memory, final_loss=loss)
