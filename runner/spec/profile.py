"""A profile: one YAML file that says how runs start on a cluster or on this machine."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from model.config import Frozen
from model.errors import UserError, did_you_mean
from runner.spec import container as containers
from runner.spec.container import Container, NoContainer, refuse_second, require_python
from runner.spec.document import Document, read_document
from runner.spec.quantities import Memory, Time, parse_memory, parse_time
from runner.spec.shell import Inert, Option, Setting, Variable, Word
from runner.spec.validation import validated

DEFAULT = "local"
GRACE_SECONDS = 120.0


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
        default=[], description="Further arguments of srun inside the job, such as --cpus-per-task=8."
    )
    setup: list[Inert] = Field(default=[], description="Shell lines before srun, such as module loads.")
    options: dict[Option, Setting | int] = Field(
        default={}, description="Any further sbatch option: name without dashes, value."
    )


class Resources(Frozen):
    """What some runs of a study may use, where that is not what the profile says."""

    cpus: int | None = Field(None, gt=0, description="CPUs a run.")
    memory: Memory | None = Field(None, description="Host memory a run, enforced on its process.")
    time_limit: Time | None = Field(None, description="Longest time of a run, H:MM:SS.")


class Budget(Frozen):
    """The most that may be spent; what is spent already counts."""

    gpu_hours: float | None = Field(None, gt=0, description="GPU-hours, each GPU of a run counted.")
    node_hours: float | None = Field(
        None, gt=0, description="Node-hours, for nodes that are handed out whole (`slurm.exclusive`)."
    )

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.gpu_hours is None and self.node_hours is None:
            raise ValueError("a budget needs gpu_hours, node_hours or both")
        return self


class Debug(Frozen):
    """What differs for a rehearsal; what is not given here is as for a run."""

    partition: Setting | None = Field(None, description="--partition")
    account: Setting | None = Field(None, description="--account")
    qos: Setting | None = Field(None, description="--qos")
    reservation: Setting | None = Field(None, description="--reservation")
    time_limit: Time | None = Field(None, description="Longest time of a rehearsed run, H:MM:SS.")
    max_parallel: int | None = Field(None, gt=0, description="Rehearsed runs at once.")
    max_queued: int | None = Field(None, gt=0, description="Jobs in Slurm's queue at once.")


class Profile(Frozen):
    """The keys of a profile's YAML file."""

    description: str = ""
    executor: Literal["local", "slurm"] = Field(
        description="`local`: this machine, a queue. `slurm`: submitit."
    )
    scale: str = Field("full", description="Scale of a study that names none on the command line.")
    cpus: int = Field(1, gt=0, description="CPUs a run.")
    gpus: int = Field(0, ge=0, description="GPUs a run.")
    gpus_per_node: int | None = Field(
        None,
        gt=0,
        description="GPUs that a node hands out. Where nodes are handed out whole (`slurm.exclusive`, or "
        "this machine) as many runs as fit share a node, one slot each.",
    )
    memory: Memory | None = Field(
        None,
        description="Host memory a run, such as 3GiB, enforced on its process; else the scheduler's default.",
    )
    time_limit: Time | None = Field(None, description="Longest time of a run, H:MM:SS.")
    grace: Time | None = Field(
        None,
        description="Time before the limit at which a run saves its state and stops, H:MM:SS; without this "
        "key two minutes, or a quarter of a limit under eight.",
    )
    checkpoint_every: Time | None = Field(
        None, description="Longest time between checkpoints, H:MM:SS; without this key only when stopped."
    )
    requeue: bool = Field(
        True,
        description="On Slurm: go on in the queue after a checkpoint before the time limit, or a requeue.",
    )
    retries: int = Field(
        2, ge=0, description="New attempts after a node failure or preemption; no other cause is retried."
    )
    max_queued: int | None = Field(
        None, gt=0, description="Jobs in Slurm's queue at once; an array's elements count one by one."
    )
    max_parallel: int = Field(1, gt=0, description="Runs at once; more than one on a machine spoils timings.")
    env: dict[Variable, Inert] = Field(default={}, description="Environment variables of a run.")
    python: Inert | None = Field(
        None,
        min_length=1,
        description="Python on the nodes, or in the container; the launching one without this key.",
    )
    container: Container = Field(default=NoContainer(), description="What runs start in.")
    wrapper: list[Word] = Field(
        default=[], description="Command right before python, such as [numactl, --membind=0-3]."
    )
    peak_tflops: float | None = Field(
        None,
        gt=0,
        description="Dense peak of one GPU at the study's precision, where the table lacks or misjudges it.",
    )
    budget: Budget | None = Field(
        None, description="Most that all runs of this profile under a root may cost."
    )
    debug: Debug | None = Field(None, description="Where rehearsals go; without this key, where runs go.")
    slurm: Slurm | None = Field(None, description="Needed by executor slurm.")

    @property
    def memory_bytes(self) -> int | None:
        """Host memory a run, in bytes."""
        return parse_memory(self.memory) if self.memory else None

    @property
    def time_limit_seconds(self) -> int | None:
        """Longest time of a run, in seconds."""
        return parse_time(self.time_limit) if self.time_limit else None

    @property
    def checkpoint_seconds(self) -> int | None:
        """Longest time between checkpoints, in seconds."""
        return parse_time(self.checkpoint_every) if self.checkpoint_every else None

    @property
    def grace_seconds(self) -> float:
        """Time before the limit at which a run stops, in seconds."""
        if self.grace:
            return parse_time(self.grace)
        limit = self.time_limit_seconds
        return min(GRACE_SECONDS, limit / 4) if limit else GRACE_SECONDS

    @property
    def slots(self) -> int:
        """Runs that share a node, each with GPUs of its own: more than one only where nodes are whole."""
        whole = self.slurm is None or self.slurm.exclusive
        return self.gpus_per_node // self.gpus if whole and self.gpus and self.gpus_per_node else 1

    @property
    def runs_per_job(self) -> int:
        """Runs that one job on a whole node takes, as far as so many may run at once."""
        return min(self.slots, self.max_parallel)

    @property
    def python_command(self) -> list[str]:
        """The words that start Python on a node: the container's command, the wrapper, Python."""
        return [*containers.argv(self.container), *self.wrapper, self.python or sys.executable]

    def allowing(self, resources: Resources) -> Profile:
        """This profile for runs that get other resources."""
        return self.model_copy(update=resources.model_dump(exclude_none=True))

    @property
    def rehearsal(self) -> Profile:
        """The profile that rehearsals go by."""
        if not (self.debug and self.slurm):
            return self
        given: dict[str, Any] = self.debug.model_dump(exclude_none=True)
        names = [name for name in Slurm.model_fields if name in given]
        place: dict[str, Any] = {name: given.pop(name) for name in names}
        if "time_limit" in given:
            given["grace"] = None  # a shorter limit has its own
        return self.model_copy(update={**given, "slurm": self.slurm.model_copy(update=place)})

    @field_validator("debug", "max_queued", "requeue")
    @classmethod
    def _needs_slurm(cls, value: object, info: ValidationInfo) -> object:
        if info.data.get("executor") == "local":
            raise ValueError(f"`{info.field_name}` needs executor: slurm")
        return value

    @field_validator("gpus_per_node")
    @classmethod
    def _run_fits_on_a_node(cls, on_node: int | None, info: ValidationInfo) -> int | None:
        if on_node and (gpus := info.data.get("gpus", 0)) > on_node:
            raise ValueError(f"a run of {gpus} GPUs does not fit on a node of {on_node}")
        return on_node

    @field_validator("grace")
    @classmethod
    def _grace_fits_in_the_limit(cls, grace: str | None, info: ValidationInfo) -> str | None:
        limit = info.data.get("time_limit")
        if grace and limit and parse_time(grace) >= parse_time(limit):
            raise ValueError(f"grace {grace} leaves nothing of the time limit {limit}")
        return grace

    @field_validator("container")
    @classmethod
    def _container_can_start(cls, container: Container, info: ValidationInfo) -> Container:
        if not isinstance(container, NoContainer) and info.data.get("executor") == "local":
            raise ValueError("a container needs executor: slurm; on this machine start runner inside it")
        require_python(container, info.data.get("python"))
        return container

    @field_validator("wrapper")
    @classmethod
    def _wrapper_is_a_command(cls, wrapper: list[str]) -> list[str]:
        if wrapper and wrapper[0].startswith("-"):
            raise ValueError(f"wrapper starts with '{wrapper[0]}': a command is needed first")
        return wrapper

    @field_validator("slurm")
    @classmethod
    def _container_is_given_once(cls, slurm: Slurm | None, info: ValidationInfo) -> Slurm | None:
        if slurm and (container := info.data.get("container")):
            refuse_second(container, slurm.srun_args)
        return slurm

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
    home = Path(__file__).parents[2]  # the repository, or site-packages
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
