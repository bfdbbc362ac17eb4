"""Write a starter study and profile, with schemas for editors.

Examples:
  runner init mine
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from model.errors import UserError
from runner.commands._console import show
from runner.commands._options import folder_name
from runner.spec.schema import json_schema

STUDY = """\
# yaml-language-server: $schema=../schemas/study.json
# Run it with: runner launch experiments/first.yaml
title: My first study
description: Does a larger learning rate train a small llama faster?

# Settings that all runs share. `runner schema study` lists every setting.
base:
  attention: auto
  device: cpu
  model: {dim: 128, layers: 2, heads: 4, kv_heads: 2, ffn_dim: 384, vocab_size: 512}
  # Create it with: runner data FOLDER --out data/text.parquet
  data: {path: ../data/text.parquet}
  train: {steps: 60, sequence_length: 256, batch_size: 4, warmup_steps: 10, dtype: float32}

# What varies: each combination is a run.
matrix:
  train.learning_rate: [1e-3, 3e-3]
  seed: [0, 1, 2]

# What the other group is compared with, seed by seed, and which differences are too small to matter.
baseline: {train.learning_rate: 1e-3}
margins: {loss: 0.02, tokens_per_second: 5%}
"""

PROFILE = """\
# yaml-language-server: $schema=../schemas/profile.json
# Use it with: runner launch experiments/first.yaml --profile mycluster
# A study finds the profiles in the folder cluster_profiles beside its own, from wherever you launch it.
description: My Slurm cluster, one GPU per process of a run
executor: slurm
cpus: 8
gpus: 1
# gpus_per_node: 4  # needed for runs of several processes (`parallel` in a study)
memory: 64GiB
time_limit: 4:00:00
max_parallel: 8
slurm:
  # partition: gpu
  # account: my-project
  srun_args: ["--cpus-per-task=8"]
"""


def command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where to write.", callback=folder_name)
    ] = Path(),
) -> None:
    for path in write_starter(folder):
        show(path)


def write_starter(folder: Path) -> list[Path]:
    """Write the starter files and return their paths; never overwrites a file.

    Raises:
        UserError: one of them exists (nothing is written then), or a file cannot be written.
    """
    files = dict(_files(folder))
    if taken := [path for path in files if path.exists()]:
        raise UserError(f"{taken[0]} already exists; choose another folder: runner init DIR")
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from error
    return list(files)


def _files(folder: Path) -> Iterator[tuple[Path, str]]:
    yield folder / "experiments" / "first.yaml", STUDY
    yield folder / "cluster_profiles" / "mycluster.yaml", PROFILE
    yield folder / "schemas" / "study.json", json.dumps(json_schema("study"), indent=1) + "\n"
    yield folder / "schemas" / "profile.json", json.dumps(json_schema("profile"), indent=1) + "\n"
