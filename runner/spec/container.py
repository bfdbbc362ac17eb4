"""Containers and wrappers: what a profile says of them, and the words that this adds to a batch script.

Everything here goes on the srun line or behind it, never on sbatch: the batch script itself runs on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from model.config import Frozen
from runner.spec.shell import Place, Single


class NoContainer(Frozen):
    """Runs on the node as it is."""

    kind: Literal["none"] = "none"


class Edf(Frozen):
    """CSCS Container Engine: an environment definition file."""

    kind: Literal["edf"]
    name: Place = Field(description="Its name in the search path, or its path: srun --environment=NAME.")


class Uenv(Frozen):
    """CSCS user environment: a mounted image, with views that set the variables."""

    kind: Literal["uenv"]
    name: Place = Field(description="Label or squashfs file: srun --uenv=NAME; several joined by commas.")
    view: Place | None = Field(None, description="srun --view=VIEW, such as default; several by commas.")


class Pyxis(Frozen):
    """NVIDIA's pyxis: an enroot image."""

    kind: Literal["pyxis"]
    image: Place = Field(description="srun --container-image=IMAGE: [REGISTRY#]IMAGE[:TAG], or a .sqsh file.")
    mounts: list[Single] = Field(
        default=[], description="srun --container-mounts: SOURCE:TARGET[:FLAGS] each; the root needs one."
    )


class Apptainer(Frozen):
    """Apptainer, started by srun."""

    kind: Literal["apptainer"]
    image: Place = Field(description="A .sif file, or a URI such as docker://IMAGE.")
    nv: bool = Field(True, description="--nv: the host's NVIDIA driver in the container.")
    binds: list[Single] = Field(
        default=[], description="--bind: SOURCE[:TARGET[:OPTIONS]] each; the root needs one outside home."
    )


Container = Annotated[NoContainer | Edf | Uenv | Pyxis | Apptainer, Field(discriminator="kind")]
# srun's options that choose a container: given beside `container` they would contradict it.
_OPTIONS = ("--environment", "--uenv", "--view", "--container-")


def srun_args(container: Container) -> list[str]:
    """What a container adds to srun's arguments, each one word."""
    match container:
        case Edf(name=name):
            return [f"--environment={name}"]
        case Uenv(name=name, view=view):
            return [f"--uenv={name}", *([f"--view={view}"] if view else [])]
        case Pyxis(image=image, mounts=mounts):
            joined = ",".join(mounts)
            return [f"--container-image={image}", *([f"--container-mounts={joined}"] if mounts else [])]
        case _:
            return []


def argv(container: Container) -> list[str]:
    """The words before the command that runs in a container."""
    match container:
        case Apptainer(image=image, nv=nv, binds=binds):
            bound = [word for bind in binds for word in ("--bind", bind)]
            return ["apptainer", "exec", *(["--nv"] if nv else []), *bound, image]
        case _:
            return []


def require_python(container: Container, python: str | None) -> None:
    """Make sure that a profile names the Python inside its container. Raises ValueError."""
    # A uenv is mounted over the host's files, where the launching Python is found under its own path.
    if python is None and not isinstance(container, NoContainer | Uenv):
        raise ValueError(
            f"container kind {container.kind} needs `python:`, the Python inside it, such as python3"
        )


def refuse_second(container: Container, arguments: Sequence[str]) -> None:
    """Make sure that `srun_args` does not choose a container too. Raises ValueError."""
    twice = [word for word in arguments if word.startswith(_OPTIONS)]
    if twice and not isinstance(container, NoContainer):
        raise ValueError(f"srun_args has {twice[0]} beside `container`: keep one of the two")
