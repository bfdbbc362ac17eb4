"""A study of scaling, as it might come out: strong, weak, over context, with profiles of the steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model.record.config import DataConfig, ParallelConfig, RunConfig, TrainConfig
from tests.analysis.fabricate import LLAMA, Folder, plan, profile

# Of one process with one sample, in seconds; what is exposed and hidden grows with the processes.
ALONE = {"products": 0.30, "attention": 0.05, "optimizer": 0.03, "elementwise": 0.04, "idle": 0.01}


def write_scaling(root: Path, repeats: int = 1, study: str = "scaling", **where: Any) -> None:
    """Strong scaling of a batch of 8 and weak scaling of 2 a process, sharded over 1, 2, 4, 8 GPUs.

    Beside them, replicated models of 2 a process, and one sample of growing length over context.

    Args:
        where: fields of the manifests, such as `gpus=0` for a CPU.
    """
    cells: list[dict[str, int]] = [{"batch_size": 8, "shard": count} for count in (1, 2, 4, 8)]
    cells += [{"batch_size": 2 * count, "shard": count} for count in (1, 2, 8)]  # 8 on 4 are above
    cells += [{"batch_size": 2 * count, "replicate": count} for count in (2, 4)]
    cells += [{"batch_size": 1, "context": count, "length": 4096 * count} for count in (1, 2, 4)]
    cells += [{"batch_size": 1, "context": count, "length": 16384} for count in (2, 8)]
    for number, cell in enumerate(cells):
        for repeat in range(1, repeats + 1):
            _run(root, study, number, repeat, dict(cell), where)


def _run(root: Path, study: str, number: int, repeat: int, cell: dict[str, int], where: Any) -> None:
    batch, length = cell.pop("batch_size"), cell.pop("length", 4096)
    parallel = ParallelConfig(**cell)
    count = parallel.processes
    train = TrainConfig(steps=60, batch_size=batch, sequence_length=length, log_every=1)
    config = RunConfig(
        attention="auto", model=LLAMA, data=DataConfig(path="train.parquet"), train=train, parallel=parallel
    )
    factors = {f"parallel.{axis}": getattr(parallel, axis) for axis in ("shard", "replicate", "context")}
    factors |= {"train.batch_size": batch, "train.sequence_length": length}
    run = plan(
        f"r{number:02}{repeat}", study, config=config, group=f"g{number}", repeat=repeat, title="Scaling",
        factors=factors, why=[f"experiments/scaling.yaml:{number + 1}:3"],
    )  # fmt: skip
    folder = Folder(root, run)
    folder.start(**{"gpus": count} | where)
    if cell == {"context": 2} and length == 16384:
        folder.end("oom_gpu", steps=0, final_loss=None, reason="CUDA out of memory on rank 1")
        return
    share = batch / count * length / 4096
    parts = {name: seconds * share for name, seconds in ALONE.items()}
    parts["attention"] *= length / 4096
    parts["communication"] = 0.0 if count == 1 else 0.02 * share**0.5 * (count - 1) ** 0.5
    step_seconds = sum(parts.values()) * (1 + 0.002 * ((repeat * 7 + number) % 5 - 2))
    for step in range(1, 61):
        folder.step(step, step_seconds * (1 + 0.004 * ((step * 7) % 5 - 2)), steps=1)
    folder.end(seconds=step_seconds * 60, final_loss=9.4)
    profile(folder, hidden={"communication": 0.0 if count == 1 else 0.1 * share}, **parts)
