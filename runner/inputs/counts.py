"""Refuses Slurm settings that count tasks, nodes or GPUs: these numbers follow from the runs.

A job has one task for each process of its runs, and one GPU for each task. Another task would run an attempt
again, and the hours of idle GPUs would not be counted.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

from model.record.errors import UserError
from model.record.units import counted
from runner.inputs.shell import Option, Setting, inert

_TASKS = (
    "nodes", "ntasks", "ntasks-per-board", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-node",
    "ntasks-per-socket", "tasks-per-node",
)  # fmt: skip
_GPUS = ("gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task")
_SHORT = re.compile(r"-[nN]|-G(?!1$)")
_DIRECTIVE = re.compile(r"#(SBATCH|PBS|BSUB)\b")  # sbatch takes options from all three
_TASKS_FOLLOW = "tasks and nodes follow from the study's `parallel` and the profile's `gpus_per_node`"
_PACKING = (
    "runs of several GPUs set `parallel` in the study; to run on several GPUs of a node at once, set "
    "`gpus_per_node` and `slurm.exclusive`"
)


def _sbatch_option(text: str) -> str:
    name = text.replace("_", "-")
    if _among(name, _TASKS):
        raise ValueError(f"'{text}' is not allowed: {_TASKS_FOLLOW}")
    if _among(name, _GPUS):
        raise ValueError(f"'{text}' is not allowed: set `gpus` at the top of the profile; {_PACKING}")
    return text


def _srun_word(text: str) -> str:
    name, _, value = text.partition("=")
    long = name.removeprefix("--") if name.startswith("--") else None
    if long and _among(long, _TASKS):
        raise ValueError(f"'{text}' is not allowed: {_TASKS_FOLLOW}")
    if _SHORT.match(text) or (long and _among(long, _GPUS) and value != "1"):
        raise ValueError(f"'{text}' is not allowed: a task is one process with one GPU; {_PACKING}")
    return text


def _among(name: str, options: tuple[str, ...]) -> bool:
    """Whether this is one of the options; sbatch and srun also take the first letters of a name."""
    return any(option.startswith(name) for option in options)


def counts_gpus(word: str) -> bool:
    """Whether an argument of srun says how many GPUs a task has, or which."""
    name = word.partition("=")[0]
    shares = (*_GPUS, "gpu-bind", "gres")
    return bool(word.startswith("-G") or (name.startswith("--") and _among(name[2:], shares)))


def cpus_of(word: str) -> str | None:
    """How many CPUs an argument of srun gives a task; None if that is not what it says."""
    match = re.fullmatch(r"-c=?(.+)|--cpus-p[a-z-]*=(.+)", word)
    return (match[1] or match[2]) if match else None


def _setup_line(text: str) -> str:
    if "\n" in text:
        raise ValueError("a line break: make every line an item of the list")
    if _DIRECTIVE.match(text):
        raise ValueError(f"'{text}' is an option of sbatch: put it under `slurm.options`")
    return text


SbatchOption = Annotated[Option, AfterValidator(_sbatch_option)]
SrunWord = Annotated[Setting, AfterValidator(_srun_word)]
SetupLine = Annotated[str, AfterValidator(_setup_line), AfterValidator(inert)]


def at_most_one(gpus: int) -> int:
    """Check a profile's `gpus`. Raises ValueError."""
    if gpus > 1:
        idle = f"gpus: {gpus} would leave GPUs idle, since a process uses at most one"
        raise ValueError(f"{idle}; {_PACKING}, or on this machine `max_parallel`")
    return gpus


def idle_gpus(gres: str | int | None, used: int) -> str | None:
    """What is wrong with a value of --gres, such as `gpu:h100:2,gpu:1(S:0),nvme:1`; None if nothing.

    Args:
        used: how many GPUs the runs of a job use.
    """
    parts = [part.partition("(")[0].removeprefix("gres:").split(":") for part in str(gres or "").split(",")]
    asked = sum(int(words[-1]) if words[-1].isdigit() else 1 for words in parts if words[0] == "gpu")
    text = (
        f"gres {gres} asks for {counted(asked, 'GPU')}, but the runs of a job use {used}: ask for gpu:{used}"
    )
    return text if asked > used else None


def asks_for_gpus(gres: str | int | None) -> bool:
    """Whether a value of --gres has a part that asks for GPUs."""
    return any(part.removeprefix("gres:").split(":")[0] == "gpu" for part in str(gres or "").split(","))


def gres_for(gres: str, gpus: int) -> str:
    """The --gres for another number of GPUs per node: `gpu:h100:4,tmp:1` for `gpu:h100:1,tmp:1`.

    Raises:
        UserError: it does not ask for GPUs of one kind.
    """
    parts = gres.removeprefix("gres:").split(",")
    if sum(map(asks_for_gpus, parts)) != 1 or "(" in gres:
        text = f"slurm.gres {gres} cannot be changed to ask for {counted(gpus, 'GPU')}"
        raise UserError(f"{text}, which runs of several processes need: write gpu:TYPE, or leave it out")
    number = re.compile(r"(:\d+)?$")
    return ",".join(number.sub(f":{gpus}", part, count=1) if asks_for_gpus(part) else part for part in parts)
