"""Translates a profile into submitit's parameters for sbatch and srun."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.spec import container
from runner.spec.profile import Profile
from runner.state.code import snapshot
from runner.state.tasks import Shape, Task

if TYPE_CHECKING:
    from submitit import SlurmExecutor


@dataclass(frozen=True)
class Array:
    """A job array: one call of sbatch. All its runs have the same shape and code snapshot.

    Attributes:
        packs: the runs of each array element, which share a job.
        limit: maximum number of elements that run at once.
        exclude: nodes to avoid.
        after: id of an array that must end first (a dependency).
    """

    name: str
    packs: Sequence[Sequence[Task]]
    limit: int
    exclude: Sequence[str] = ()
    after: str | None = None

    @property
    def tasks(self) -> list[Task]:
        """The tasks of all elements, in order."""
        return [task for pack in self.packs for task in pack]


def script(profile: Profile, folder: Path, name: str, shape: Shape, count: int) -> str:
    """The batch script that `submit` would pass to sbatch for `count` runs of a shape. Needs no Slurm."""
    from submitit.slurm import slurm

    python = _python(profile, folder.parent, snapshot.current())
    command = f"{python} -u -m submitit.core._submit {shlex.quote(str(folder))}"
    elements, at_once = -(-count // profile.runs_per_job), profile.max_parallel // profile.runs_per_job
    several = {"map_count": elements} if elements > 1 else {}
    parameters = _parameters(profile, name, shape, at_once) | several
    return slurm._make_sbatch_string(command=command, folder=folder, **parameters)


def executor(array: Array, profile: Profile, folder: Path) -> SlurmExecutor:
    """Create submitit's executor for an array; its files go to `folder`."""
    from submitit import SlurmExecutor

    first = array.tasks[0]
    made = SlurmExecutor(folder=folder, python=_python(profile, folder.parent, first.code))
    parameters = _parameters(profile, array.name, first.shape, array.limit)
    if array.after:
        parameters["dependency"] = f"afterany:{array.after}"
    if array.exclude:
        parameters["exclude"] = ",".join(sorted(array.exclude))
    made.update_parameters(**parameters)
    return made


def _python(profile: Profile, study: Path, code: str | None) -> str:
    return shlex.join([*profile.python_command, *snapshot.options(study, code)])


def _parameters(profile: Profile, name: str, shape: Shape, limit: int) -> dict[str, Any]:
    slurm = profile.slurm
    assert slurm
    memory, seconds, share = shape.memory_bytes, shape.time_limit_seconds, profile.runs_per_job
    exports = [f"export {key}={shlex.quote(value)}" for key, value in profile.env.items()]
    reservation = {"reservation": slurm.reservation} if slurm.reservation else {}
    requeue = {"requeue": True} if profile.requeue else {"no-requeue": True}  # the default varies by cluster
    asked: dict[str, Any] = {
        "job_name": name,
        "time": -(-seconds // 60) if seconds else None,  # minutes, rounded up
        "mem": f"{memory * share // 2**20}M" if memory and slurm.ask_memory else None,
        "cpus_per_task": shape.cpus or profile.cpus,
        "gpus_per_node": profile.gpus * share if profile.gpus and not slurm.gres else None,
        "ntasks_per_node": share if share > 1 else None,
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "gres": slurm.gres,
        "exclusive": slurm.exclusive or None,
        "array_parallelism": limit,
        "srun_args": [*_slot_args(profile), *slurm.srun_args, *container.srun_args(profile.container)],
        "setup": [*slurm.setup, *exports],
        # Submitit requests SIGUSR2 well before the limit. With a short limit it arrives before Python handles
        # it, and kills the run. Runs use their own deadline instead, so request a signal that does nothing.
        "additional_parameters": {"signal": "CONT@1", **reservation, **requeue, **slurm.options},
    }
    given = {key: value for key, value in asked.items() if value is not None}
    return {**given, "wckey": None}  # clusters that track wckeys reject submitit's default


def _slot_args(profile: Profile) -> list[str]:
    """Options of srun that isolate runs on a shared node: separate GPUs; a failed run leaves the others."""
    if profile.runs_per_job == 1:
        return []
    assert profile.slurm
    bound = any(word.startswith("--gpus-per-task") for word in profile.slurm.srun_args)
    return [*([] if bound else [f"--gpus-per-task={profile.gpus}"]), "--kill-on-bad-exit=0", "--wait=0"]
