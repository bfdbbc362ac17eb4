"""A profile: one YAML file that defines how runs start on a cluster or on this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    ByteSize,
    Field,
    TypeAdapter,
    ValidationInfo,
    field_validator,
    model_validator,
)

from model.record.config import Positive, Strict
from model.record.errors import UserError, did_you_mean, local_path
from model.record.outcome import Outcome
from runner.inputs.batch import (
    Expandable,
    GpusPerProcess,
    SbatchOption,
    SetupLine,
    SlurmValue,
    SrunWord,
    Variable,
    Word,
    cpus_of,
    expanded,
    idle_gpus,
)
from runner.inputs.container import SRUN_OPTIONS, Container, NoContainer, Uenv, argv
from runner.inputs.document import Document, InvalidFile, KeyPath, Problem, read_document
from runner.inputs.validation import validated

DEFAULT = "local"
PLACEHOLDER = "your-project"  # in shipped profiles, where a user's own must be
GRACE_SECONDS = 120.0
_BYTES = TypeAdapter(ByteSize)


def parse_memory(text: str) -> int:
    """Convert `512MiB`, `3GiB` and the like to bytes. Raises ValueError."""
    amount = re.fullmatch(r"\d{1,6}(?:\.\d{1,6})? ?[KMGT]iB", text, re.ASCII)
    if not amount or not (parsed := _BYTES.validate_python(text)):
        raise ValueError(f"expected an amount of memory such as 512MiB or 3GiB, got '{text}'")
    return int(parsed)


def parse_time(text: str) -> int:
    """Convert `H:MM:SS` or `D-HH:MM:SS`, Slurm's format for time limits, to seconds. Raises ValueError."""
    match = re.fullmatch(r"(?:(\d{1,4})-)?(\d{1,5}):([0-5]\d):([0-5]\d)", text, re.ASCII)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0, 0)
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if not total:
        raise ValueError(f"expected a time limit such as 0:30:00 or 12:00:00, got '{text}'")
    return total


def _parsed_by(parse: Callable[[str], int]) -> BeforeValidator:
    """Check before the type is checked, so that the error for a number without a unit shows an example."""

    def check(value: Any) -> Any:
        parse(str(value))
        return value

    return BeforeValidator(check)


Memory = Annotated[str, _parsed_by(parse_memory)]
Time = Annotated[str, _parsed_by(parse_time)]


class _Queue(Strict):
    """Where Slurm queues jobs."""

    partition: SlurmValue | None = Field(None, description="--partition")
    account: SlurmValue | None = Field(None, description="--account")
    qos: SlurmValue | None = Field(None, description="--qos")
    reservation: SlurmValue | None = Field(None, description="--reservation")
    constraint: SlurmValue | None = Field(None, description="--constraint")
    gres: SlurmValue | None = Field(
        None, description="--gres, such as gpu:t4:1; default: --gpus-per-node, computed from `gpus`."
    )
    options: dict[SbatchOption, Literal[True] | SlurmValue | int] = Field(
        default={},
        description="Any other sbatch options, by name without dashes; `true` for one without a value.",
    )


class Slurm(_Queue):
    """Options for sbatch and srun."""

    exclusive: bool = Field(False, description="--exclusive: allocate whole nodes.")
    ask_memory: bool = Field(True, description="Pass --mem; set to false if the cluster rejects it.")
    ask_gpus: bool = Field(
        True, description="Ask for GPUs; set to false if every node of the partition has the same, unasked."
    )
    srun_args: list[SrunWord] = Field(
        default=[],
        description="Extra srun arguments inside the job, such as --cpu-bind=cores; `cpus` is passed anyway.",
    )
    setup: list[SetupLine] = Field(
        default=[],
        description="Shell lines run before srun, such as module loads; one that fails ends the job.",
    )
    host_suffix: SlurmValue | None = Field(
        None,
        description="What a node's name needs at its end to be reached by the network between nodes, such as "
        "`i` at JSC.",
    )


class Resources(Strict):
    """Resources for some of a study's runs; they override the profile's."""

    cpus: Positive | None = Field(None, description="CPUs per process of a run.")
    memory: Memory | None = Field(None, description="Host memory per process of a run, enforced on it.")
    time_limit: Time | None = Field(None, description="Time limit per run, H:MM:SS.")


class Budget(Strict):
    """A spending limit; what has already been spent counts toward it."""

    gpu_hours: float | None = Field(None, gt=0, description="GPU-hours; every GPU of a run counts.")
    node_hours: float | None = Field(
        None, gt=0, description="Node-hours, for whole-node allocation (`slurm.exclusive`)."
    )

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.gpu_hours is None and self.node_hours is None:
            raise ValueError("a budget needs gpu_hours, node_hours or both")
        return self


class Debug(_Queue):
    """Overrides for rehearsals; anything not set here is the same as for ordinary runs."""

    exclusive: bool | None = Field(None, description="--exclusive: allocate whole nodes.")
    time_limit: Time | None = Field(None, description="Time limit per rehearsal run, H:MM:SS.")
    max_parallel: Positive | None = Field(None, description="Maximum number of concurrent rehearsal runs.")
    max_queued: Positive | None = Field(None, description="Maximum number of jobs in Slurm's queue.")


class Profile(Strict):
    """The keys of a profile's YAML file."""

    description: str = ""
    executor: Literal["local", "slurm"] = Field(
        description="`local`: a queue on this machine. `slurm`: Slurm jobs, through submitit."
    )
    scale: str = Field("full", description="Scale to use if the command line does not name one.")
    cpus: Positive | None = Field(
        None,
        description="CPUs per process of a run, and so its threads; default: 1 on Slurm; on this machine its "
        "cores, divided among what runs there.",
    )
    gpus: GpusPerProcess = Field(
        0, ge=0, description="GPUs per process of a run: 0 or 1.", json_schema_extra={"maximum": 1}
    )
    gpus_per_node: int | None = Field(
        None,
        gt=0,
        description="GPUs per node; needed for runs of several processes. With whole-node allocation "
        "(`slurm.exclusive`, or this machine), as many runs as fit share a node, one slot each.",
    )
    processes_per_node: Positive | None = Field(
        None,
        description="Without GPUs: processes of a run per node; default: 8 with executor local; on Slurm, "
        "needed for runs of several processes.",
    )
    memory: Memory | None = Field(
        None,
        description="Host memory per process of a run, such as 3GiB, enforced on it; default: the "
        "scheduler's.",
    )
    gpu_memory: Memory | None = Field(
        None, description="Memory of one GPU, such as 79GiB: a launch names runs that will not fit."
    )
    time_limit: Time | None = Field(
        None, description="Time limit per run, H:MM:SS; default: on Slurm the partition's, here none."
    )
    grace: Time | None = Field(
        None,
        description="How long before the limit a run saves a checkpoint and stops, H:MM:SS; default: two "
        "minutes, or a quarter of the time limit if that is less.",
    )
    checkpoint_every: Time | None = Field(
        None, description="Time between checkpoints, H:MM:SS; default: only when the run is stopped."
    )
    chain: bool = Field(
        True,
        description="On Slurm: a run that nears its time limit goes on in a next job, from its checkpoint.",
    )
    requeue: bool = Field(
        True,
        description="On Slurm: the next job is this one, requeued, and a run that Slurm requeues resumes; "
        "false where jobs cannot be requeued: a new job is submitted, which waits for this one.",
    )
    retries: int = Field(
        2,
        ge=0,
        lt=1000,
        description="Retries of a run by `launch --wait` after an ending that it had no part in "
        f"({', '.join(outcome for outcome in Outcome if outcome.of_machine)}). Others do not count.",
    )
    max_queued: Positive | None = Field(
        None, description="Maximum number of jobs in Slurm's queue; each array element counts."
    )
    max_parallel: Positive = Field(
        1, description="Maximum number of concurrent runs; more than one per machine distorts timings."
    )
    env: dict[Variable, Expandable] = Field(
        default={},
        description="Environment variables to set in runs. $NAME is expanded where a run starts; $$ is a $.",
    )
    python: Word | None = Field(
        None,
        description="Python on the nodes or in the container; default: the Python that launches. On Slurm, "
        "$NAME is expanded in the job.",
    )
    container: Container = Field(default=NoContainer(), description="The container that runs start in.")
    wrapper: list[Word] = Field(
        default=[], description="Command to put before python, such as [numactl, --membind=0-3]."
    )
    peak_tflops: float | None = Field(
        None,
        gt=0,
        description="Dense peak TFLOP/s of one GPU at the study's `train.dtype`, not in float8; overrides "
        "the built-in table.",
    )
    budget: Budget | None = Field(
        None, description="Spending limit for all runs of this profile under a root."
    )
    debug: Debug | None = Field(None, description="Overrides for rehearsals.")
    slurm: Slurm | None = Field(None, description="Slurm options; required by executor slurm.")

    @property
    def gpu_memory_bytes(self) -> int | None:
        """Memory of one GPU, if the profile says."""
        return parse_memory(self.gpu_memory) if self.gpu_memory else None

    @property
    def memory_bytes(self) -> int | None:
        """Host memory per process of a run; None for no limit."""
        return parse_memory(self.memory) if self.memory else None

    @property
    def time_limit_seconds(self) -> int | None:
        """Time limit per run; None for no limit."""
        return parse_time(self.time_limit) if self.time_limit else None

    @property
    def checkpoint_seconds(self) -> int | None:
        """Time between checkpoints; None to save only when stopped."""
        return parse_time(self.checkpoint_every) if self.checkpoint_every else None

    @property
    def grace_seconds(self) -> float:
        """How long before the time limit a run stops."""
        if self.grace:
            return parse_time(self.grace)
        limit = self.time_limit_seconds
        return min(GRACE_SECONDS, limit / 4) if limit else GRACE_SECONDS

    @property
    def slots(self) -> int:
        """Runs of one process that fit on a node; 1 unless nodes are allocated whole."""
        whole = self.slurm is None or self.slurm.exclusive
        return self.gpus_per_node if whole and self.gpus and self.gpus_per_node else 1

    @property
    def runs_per_job(self) -> int:
        """Runs of one process that share one job on a whole node, capped at `max_parallel`."""
        return min(self.slots, self.max_parallel)

    @property
    def python_command(self) -> list[str]:
        """The argv that starts Python: container command, wrapper, Python. On Slurm it may have $NAME."""
        words = [
            *argv(self.container),
            *self.wrapper,
            self.python or sys.executable.replace("$", "$$"),
        ]
        return words if self.slurm else [expanded(word) for word in words]

    @property
    def env_here(self) -> dict[str, str]:
        """The variables to set in runs on this machine, expanded."""
        return {name: expanded(value) for name, value in self.env.items()}

    @property
    def rehearsal(self) -> Profile:
        """This profile with the overrides from `debug` applied."""
        if not (self.debug and self.slurm):
            return self
        given: dict[str, Any] = self.debug.model_dump(exclude_none=True)
        names = [*_Queue.model_fields, "exclusive"]
        queue: dict[str, Any] = {name: given.pop(name) for name in names if name in given}
        queue["options"] = {**self.slurm.options, **self.debug.options}
        if "time_limit" in given:
            given["grace"] = None  # recomputed for the new limit
        return self.model_copy(update={**given, "slurm": self.slurm.model_copy(update=queue)})

    @field_validator("debug", "max_queued", "chain", "requeue")
    @classmethod
    def _needs_slurm(cls, value: object, info: ValidationInfo) -> object:
        if info.data.get("executor") == "local":
            raise ValueError(f"`{info.field_name}` needs executor: slurm")
        return value

    @field_validator("env", "python", "wrapper")
    @classmethod
    def _can_be_expanded_here(cls, value: Any, info: ValidationInfo) -> object:
        if info.data.get("executor") == "local":
            texts = (
                value.values() if isinstance(value, dict) else [value] if isinstance(value, str) else value
            )
            for text in texts or ():
                expanded(text)
        return value

    @field_validator("processes_per_node")
    @classmethod
    def _needs_no_gpus(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value and info.data.get("gpus"):
            raise ValueError(
                "`processes_per_node` is for runs without GPUs: with gpus: 1, set `gpus_per_node`"
            )
        return value

    @field_validator("grace")
    @classmethod
    def _grace_fits_in_the_limit(cls, grace: str | None, info: ValidationInfo) -> str | None:
        limit = info.data.get("time_limit")
        if grace and limit and parse_time(grace) >= parse_time(limit):
            raise ValueError(f"grace {grace} must be shorter than the time limit {limit}")
        return grace

    @field_validator("container")
    @classmethod
    def _container_can_start(cls, container: Container, info: ValidationInfo) -> Container:
        if not isinstance(container, NoContainer) and info.data.get("executor") == "local":
            raise ValueError("a container needs executor: slurm; with executor local, start runner inside it")
        # A uenv is mounted over the host's files, so the launching Python keeps its path.
        if info.data.get("python") is None and not isinstance(container, NoContainer | Uenv):
            raise ValueError(
                f"container kind {container.kind} needs `python:`, the Python inside it, such as python3"
            )
        return container

    @field_validator("wrapper")
    @classmethod
    def _wrapper_is_a_command(cls, wrapper: list[str]) -> list[str]:
        if wrapper and wrapper[0].startswith("-"):
            raise ValueError(f"wrapper must start with a command, not with the option '{wrapper[0]}'")
        return wrapper

    @field_validator("slurm")
    @classmethod
    def _container_is_given_once(cls, slurm: Slurm | None, info: ValidationInfo) -> Slurm | None:
        twice = [word for word in slurm.srun_args if word.startswith(SRUN_OPTIONS)] if slurm else []
        if twice and not isinstance(info.data.get("container", NoContainer()), NoContainer):
            raise ValueError(f"srun_args has {twice[0]} in addition to `container`: keep one of the two")
        return slurm

    @model_validator(mode="after")
    def _slurm_has_settings(self) -> Self:
        if self.executor == "slurm" and self.slurm is None:
            raise ValueError("executor slurm needs a `slurm:` section; it may be empty: `slurm: {}`")
        if self.executor == "local" and self.slurm is not None:
            raise ValueError("a `slurm:` section needs executor: slurm")
        return self


@dataclass(frozen=True)
class Cluster:
    """A profile with its name and source document."""

    name: str
    profile: Profile
    document: Document

    @property
    def file(self) -> Path:
        """Absolute path of its file."""
        return Path(self.document.source).absolute()

    @property
    def placeholders(self) -> list[Problem]:
        """The settings that still name no project of the user's."""
        return [
            Problem(self.document.mark(path), f"'{text}': put your own project in place of {PLACEHOLDER}")
            for path, text in _texts(self.document.data)
            if PLACEHOLDER in text
        ]


def profile_files(study: Path | None = None) -> dict[str, Path]:
    """Profile files by name: those shipped, those beside a study's folder, those in the working directory.

    Later ones override earlier ones.
    """
    folders = [
        *([study.absolute().parent.parent / "cluster_profiles"] if study else []),
        Path.cwd() / "cluster_profiles",
    ]
    return shipped() | _by_name(folders)


def shipped() -> dict[str, Path]:
    """The profile files that come with this project, by name."""
    home = Path(__file__).parents[2]  # the repository, or site-packages
    return _by_name([home / "assay_data" / "cluster_profiles", home / "cluster_profiles"])


def _by_name(folders: Sequence[Path]) -> dict[str, Path]:
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}


def read_cluster(name: str | None = None, study: Path | None = None) -> Cluster:
    """Read a profile by name or path. The default is RUNNER_PROFILE, or else `local`.

    Args:
        study: a study's file, whose neighbours `runner init` writes profiles to.

    Raises:
        UserError: no such profile.
        InvalidFile: the profile has errors.
    """
    asked = "" if name is not None else "RUNNER_PROFILE: "
    name = name if name is not None else os.environ.get("RUNNER_PROFILE") or DEFAULT
    path = local_path(name) if name.endswith((".yaml", ".yml")) else profile_files(study).get(name)
    if path is None:
        choices = did_you_mean(name, sorted(profile_files(study)))
        raise UserError(f"{asked}no profile '{name}' {choices}; or give the path of a .yaml file")
    document = read_document(path)
    profile = validated(document, Profile)
    if problems := [*_wrong_slurm(profile, document)]:
        raise InvalidFile(problems)
    return Cluster(path.stem, profile, document)


def _wrong_slurm(profile: Profile, document: Document) -> Iterator[Problem]:
    """GPUs that no run would use, what two settings ask of Slurm that only one can say, a broken `setup`."""
    slurm, cpus = profile.slurm or Slurm(), str(profile.cpus or 1)
    used = max(1, profile.gpus) * profile.runs_per_job
    settings = {("slurm", "gres"): slurm.gres, ("slurm", "options", "gres"): slurm.options.get("gres")}
    for path, gres in settings.items():
        if problem := idle_gpus(gres, used):
            yield Problem(document.mark(path), problem)
    for index, word in enumerate(slurm.srun_args):
        if cpus_of(word) not in (None, cpus):
            text = f"{word} contradicts `cpus: {cpus}`, which srun gets: set `cpus` alone"
            yield Problem(document.mark(("slurm", "srun_args", index)), text)
    elsewhere = {"cpus-per-task": "cpus", "time": "time_limit"}
    for option in slurm.options:
        name, mark = option.replace("_", "-"), document.mark(("slurm", "options", option))
        if name in elsewhere or getattr(slurm, name, None):
            key = elsewhere.get(name, f"slurm.{name}")
            yield Problem(mark, f"'{option}' is set by `{key}`: keep that one")
        if name.startswith("mem") and profile.memory and slurm.ask_memory:
            yield Problem(
                mark, f"'{option}' contradicts `memory`, which is passed as --mem: set `ask_memory: false`"
            )
    # A line of `setup` that bash does not take: an open quote would make text of the lines below.
    if slurm.setup and shutil.which("bash"):
        script = "\n".join(slurm.setup)
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        if match := re.search(r"line (\d+): (.+)", done.stderr):
            index = min(int(match[1]), len(slurm.setup)) - 1
            yield Problem(document.mark(("slurm", "setup", index)), f"no line for bash: {match[2]}")


def _texts(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """The texts among the values of a document, each with its path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(part, (*path, key))
