"""Write a starter study and profile, with schemas for editors.

Examples:
  runner init mine
  runner init mine --profile leonardo
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from model.record.errors import UserError, did_you_mean
from runner.commands._console import say, show
from runner.commands._options import refuse_file_name
from runner.inputs.profile import read_cluster, shipped
from runner.inputs.schema import json_schema

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
slurm: {}  # such as {partition: gpu, account: my-project}
"""


def command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where to write.", callback=refuse_file_name)
    ] = Path(),
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile", "-p", metavar="NAME", help="Copy this shipped profile, also to where a starter is."
        ),
    ] = None,
) -> None:
    written = write_starter(folder, profile)
    for path in written:
        show(path)
    if profile is not None:
        for problem in read_cluster(str(_profile_of(folder, profile))).placeholders:
            say(str(problem))
        say("the first lines of the profile say where it is from; `runner doctor --profile FILE` tries it")


def write_starter(folder: Path, profile: str | None) -> list[Path]:
    """Write the starter files and return their paths; never overwrites a file.

    Args:
        profile: a shipped one to copy in place of the starter's. Other files that exist are left as they are.

    Raises:
        UserError: there is no such profile, a file exists (nothing is written then), or cannot be written.
    """
    if profile is None:
        copied = {_profile_of(folder, "mycluster"): PROFILE}
    elif source := shipped().get(profile):
        copied = {_profile_of(folder, profile): source.read_text(encoding="utf-8")}
    else:
        raise UserError(f"no shipped profile '{profile}' {did_you_mean(profile, sorted(shipped()))}")
    files = {
        folder / "experiments" / "first.yaml": STUDY,
        **copied,
        folder / "schemas" / "study.json": json.dumps(json_schema("study"), indent=1) + "\n",
        folder / "schemas" / "profile.json": json.dumps(json_schema("profile"), indent=1) + "\n",
    }
    if taken := [path for path in files if path.exists() or path.is_symlink()]:
        if profile is None:
            raise UserError(f"{taken[0]} already exists; choose another folder: runner init DIR")
        if (own := _profile_of(folder, profile)) in taken:
            raise UserError(
                f"{own} already exists; choose another folder: runner init DIR --profile {profile}"
            )
    new = {path: text for path, text in files.items() if path not in taken}
    for path, text in new.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from error
    return list(new)


def _profile_of(folder: Path, name: str) -> Path:
    return folder / "cluster_profiles" / f"{name}.yaml"
