"""A profile: one YAML file that says how runs start on a cluster or on this machine."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from model.config import Frozen
from model.errors import UserError, did_you_mean
from runner.document import Document, read_document
from runner.validation import validated

DEFAULT = "local"
_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def parse_memory(text: str) -> int:
    """Bytes of `512MiB`, `3GiB`, ... Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(KiB|MiB|GiB|TiB)", text)
    if not match or float(match[1]) <= 0:
        raise ValueError(f"expected an amount of memory such as 512MiB or 3GiB, got '{text}'")
    return int(float(match[1]) * _UNITS[match[2]])


def parse_time(text: str) -> int:
    """Seconds of `H:MM:SS`, as Slurm writes a time limit; days as `D-HH:MM:SS`. Raises ValueError."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)", text)
    seconds = (
        sum(int(part or 0) * unit for part, unit in zip(match.groups(), (86400, 3600, 60, 1), strict=True))
        if match
        else 0
    )
    if not seconds:
        raise ValueError(f"expected a time limit such as 0:30:00 or 12:00:00, got '{text}'")
    return seconds


def _memory(text: str) -> str:
    parse_memory(text)
    return text


def _time(text: str) -> str:
    parse_time(text)
    return text


def _inert(text: str) -> str:
    # A line break in an #SBATCH line starts a new line of the batch script, which the shell then runs.
    if match := re.search(r"[\x00-\x1f\x7f\u2028\u2029]", text):
        raise ValueError(
            f"a control character (U+{ord(match[0]):04X}) is not allowed in what reaches a batch script"
        )
    return text


def _setting(text: str) -> str:
    if not re.fullmatch(r"[\w.,:;=+/@%()\[\]*&|!~ -]*", _inert(text), re.ASCII):
        raise ValueError(
            "only letters, digits, spaces and .,:;=+/@%()[]*&|!~- are allowed in a scheduler's setting"
        )
    return text


Inert = Annotated[str, AfterValidator(_inert)]
Setting = Annotated[str, AfterValidator(_setting)]


class Slurm(Frozen):
    """What sbatch and srun are told."""

    partition: Setting | None = Field(None, description="--partition")
    account: Setting | None = Field(None, description="--account")
    qos: Setting | None = Field(None, description="--qos")
    reservation: Setting | None = Field(None, description="--reservation")
    constraint: Setting | None = Field(None, description="--constraint")
    gres: Setting | None = Field(
        None, description="--gres, such as gpu:t4:1; else --gpus-per-node from `gpus`."
    )
    exclusive: bool = Field(False, description="--exclusive: whole nodes.")
    ask_memory: bool = Field(True, description="Pass --mem; false where a cluster refuses it.")
    srun_args: list[Setting] = Field(
        default=[], description="Arguments of srun inside the job, such as --environment=NAME."
    )
    setup: list[Inert] = Field(default=[], description="Shell lines before srun, such as module loads.")
    options: dict[Setting, Setting | int] = Field(
        default={}, description="Any further sbatch option: name without dashes, value."
    )


class Profile(Frozen):
    """The keys of a profile's YAML file."""

    description: str = ""
    executor: Literal["local", "slurm"] = Field(
        description="`local`: this machine, a queue. `slurm`: submitit."
    )
    scale: str = Field("full", description="Scale of a study that names none on the command line.")
    cpus: int = Field(1, gt=0, description="CPUs a run.")
    gpus: int = Field(0, ge=0, description="GPUs a run.")
    memory: Annotated[str, AfterValidator(_memory)] | None = Field(
        None,
        description="Host memory a run, such as 3GiB, enforced on its process; else the scheduler's default.",
    )
    time_limit: Annotated[str, AfterValidator(_time)] | None = Field(
        None, description="Longest time of a run, H:MM:SS."
    )
    max_parallel: int = Field(1, gt=0, description="Runs at once; more than one on a machine spoils timings.")
    env: dict[str, Inert] = Field(default={}, description="Environment variables of a run.")
    python: Inert | None = Field(None, description="Python on the nodes; the launching one without this key.")
    peak_tflops: float | None = Field(
        None,
        gt=0,
        description="Dense peak of one GPU at the study's precision, where the table lacks or misjudges it.",
    )
    slurm: Slurm | None = Field(None, description="Needed by executor slurm.")

    @property
    def memory_bytes(self) -> int | None:
        """Host memory a run, in bytes."""
        return parse_memory(self.memory) if self.memory else None

    @property
    def time_limit_seconds(self) -> int | None:
        """Longest time of a run, in seconds."""
        return parse_time(self.time_limit) if self.time_limit else None

    @model_validator(mode="after")
    def _slurm_has_settings(self) -> Self:
        if self.executor == "slurm" and self.slurm is None:
            raise ValueError("executor slurm needs a `slurm:` section, which may be empty: {}")
        if self.executor == "local" and self.slurm is not None:
            raise ValueError("a `slurm:` section needs executor: slurm")
        return self


@dataclass(frozen=True)
class Cluster:
    """A profile with its name and the document that it was read from."""

    name: str
    profile: Profile
    document: Document


def profile_files() -> dict[str, Path]:
    """Profiles by name: the project's own, then those that come with the package."""
    home = Path(__file__).parent.parent  # the repository, or site-packages
    folders = [
        home / "assay_data" / "cluster_profiles",
        home / "cluster_profiles",
        Path.cwd() / "cluster_profiles",
    ]
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}


def read_cluster(name: str | None = None) -> Cluster:
    """Read a profile by name or path; without one RUNNER_PROFILE decides, else `local`.

    Raises:
        UserError: no such profile.
        InvalidFile: FILE:LINE:COL of what is wrong in it.
    """
    name = name or os.environ.get("RUNNER_PROFILE") or DEFAULT
    path = Path(name) if name.endswith((".yaml", ".yml")) else profile_files().get(name)
    if path is None:
        choices = did_you_mean(name, sorted(profile_files()))
        raise UserError(f"no profile '{name}' {choices}; or give a path that ends in .yaml")
    document = read_document(path)
    return Cluster(path.stem, validated(document, Profile), document)
