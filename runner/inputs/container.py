"""Containers: a profile's settings for them, and the arguments that these add to a batch script.

All of them go on the srun line or after it, never on sbatch: the batch script itself runs on the host.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from model.record.config import Frozen
from runner.inputs.batch import ContainerPath, Mount


class NoContainer(Frozen):
    """Runs directly on the node."""

    kind: Literal["none"] = "none"


class Edf(Frozen):
    """CSCS Container Engine, configured by an environment definition file."""

    kind: Literal["edf"]
    name: ContainerPath = Field(
        description="The file's path, or its name on the search path: srun --environment=NAME."
    )


class Uenv(Frozen):
    """CSCS user environment: a mounted image with views that set environment variables."""

    kind: Literal["uenv"]
    name: ContainerPath = Field(
        description="Label or squashfs file; separate several by commas: srun --uenv=NAME."
    )
    view: ContainerPath | None = Field(
        None, description="A view such as default, or several separated by commas: srun --view=VIEW."
    )


class Pyxis(Frozen):
    """An enroot image, started by NVIDIA's pyxis plugin."""

    kind: Literal["pyxis"]
    image: ContainerPath = Field(
        description="srun --container-image=IMAGE: [REGISTRY#]IMAGE[:TAG], or a .sqsh file."
    )
    mounts: list[Mount] = Field(
        default=[],
        description="srun --container-mounts: a list of SOURCE:TARGET[:FLAGS]; must include the root.",
    )


class Apptainer(Frozen):
    """An Apptainer or Singularity image, started by srun."""

    kind: Literal["apptainer"]
    image: ContainerPath = Field(description="A .sif file, or a URI such as docker://IMAGE.")
    command: Literal["apptainer", "singularity"] = Field("apptainer", description="What the cluster has.")
    nv: bool = Field(True, description="--nv: use the host's NVIDIA driver in the container.")
    rocm: bool = Field(False, description="--rocm, in place of --nv: use the host's AMD driver.")
    binds: list[Mount] = Field(
        default=[],
        description="--bind: a list of SOURCE[:TARGET[:OPTIONS]]; must include the root, if outside home.",
    )


Container = Annotated[NoContainer | Edf | Uenv | Pyxis | Apptainer, Field(discriminator="kind")]
# Options of srun that select a container.
SRUN_OPTIONS = ("--environment", "--uenv", "--view", "--container-image", "--container-mounts")


def srun_args(container: Container) -> list[str]:
    """The arguments that a container adds to srun, one list item each."""
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
    """The argv prefix that runs a command in a container."""
    match container:
        case Apptainer(command=command, image=image, nv=nv, rocm=rocm, binds=binds):
            bound = [word for bind in binds for word in ("--bind", bind)]
            driver = ["--rocm"] if rocm else ["--nv"] if nv else []
            return [command, "exec", *driver, *bound, image]
        case _:
            return []
