"""Checks the texts of a profile that go into a batch script or to Slurm, and writes them there.

Quoting alone would not make them safe. Nor may an option count tasks, nodes or GPUs: these numbers follow
from the runs. A job has one task for each process of its runs, and one GPU for each task. Another task would
run an attempt again, and the hours of idle GPUs would not be counted.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator, Field

from model.record.errors import UserError
from model.record.units import counted
from runner.inputs.document import HIDDEN, code_point

_VALUE = re.compile(r"[\w.,:;=+/@%()\[\]*&|!~ -]*", re.ASCII)
_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
# A `$$`, a `$NAME` or `${NAME}`, or a dollar sign that is neither.
_DOLLAR = re.compile(rf"\$(?:(?P<escaped>\$)|(?P<name>{_NAME})|\{{(?P<braced>{_NAME})\}}|)")
_DIRECTIVE = re.compile(r"#(SBATCH|PBS|BSUB)\b")  # sbatch takes options from all three

# Options that the launcher sets itself: of two values for one option, the later would win.
_OURS = frozenset({
    "array", "error", "job-name", "no-requeue", "open-mode", "output", "parsable", "requeue", "signal",
    "test-only", "wait", "wrap",
})  # fmt: skip
_TASKS = (
    "nodes", "ntasks", "ntasks-per-board", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-node",
    "ntasks-per-socket", "tasks-per-node",
)  # fmt: skip
_GPUS = ("gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task")
_SHORT_COUNT = re.compile(r"-[nN]|-G(?!1$)")
_TASKS_FOLLOW = "tasks and nodes follow from the study's `parallel` and the profile's `gpus_per_node`"
_PACKING = (
    "runs of several GPUs set `parallel` in the study; to run on several GPUs of a node at once, set "
    "`gpus_per_node` and `slurm.exclusive`"
)


def _inert(text: str) -> str:
    if match := HIDDEN.search(text):
        raise ValueError(
            f"a control character ({code_point(match[0])}) is not allowed in text for a batch script"
        )
    return text


def check_path(path: object) -> None:
    """Check that a path is safe in a batch script.

    Raises:
        UserError: it contains a line break or another control character.
    """
    try:
        _inert(str(path))
    except ValueError as error:
        raise UserError(f"{str(path)!r}: {error}; choose another place with --root") from error


def _expandable(text: str) -> str:
    if not all(match.lastgroup for match in _DOLLAR.finditer(_inert(text))):
        raise ValueError(f"'{text}': only $NAME and ${{NAME}} are expanded; write $$ for a dollar sign")
    if "`" in text or text.startswith("~"):
        raise ValueError(f"'{text}': only $NAME and ${{NAME}} are expanded: write it out in full")
    return text


def expanded(text: str) -> str:
    """A text with its variables as they are set here. Raises ValueError if one is not."""

    def value(match: re.Match[str]) -> str:
        name = match["name"] or match["braced"]
        if name and name not in os.environ:
            raise ValueError(f"'{text}': {name} is not set here")
        return os.environ[name] if name else "$"

    return _DOLLAR.sub(value, text)


def quoted(text: str) -> str:
    """A text as one word of a batch script, whose shell expands the variables."""
    if "$" not in text:
        return shlex.quote(text)

    def value(match: re.Match[str]) -> str:
        name = match["name"] or match["braced"]
        return f"${{{name}?is not set in the job}}" if name else r"\$"

    escaped = re.sub(r'([\\"])', r"\\\1", text)
    return f'"{_DOLLAR.sub(value, escaped)}"'


def _variable(text: str) -> str:
    if not re.fullmatch(_NAME, text):
        raise ValueError(f"{text!r} is not a valid environment variable name: use letters, digits and _")
    return text


def _slurm_value(text: str) -> str:
    if not _VALUE.fullmatch(_inert(text)):
        raise ValueError(
            "only letters, digits, spaces and .,:;=+/@%()[]*&|!~- are allowed in a Slurm setting"
        )
    return text


def _container_path(text: str) -> str:
    if "$" in _inert(text) or "`" in text or text.startswith("~"):
        raise ValueError(f"'{text}' is passed on verbatim, without shell expansion: write it out in full")
    if text.startswith("-"):
        raise ValueError(f"'{text}' would be read as an option: give a name or path")
    if ".." in re.split(r"[/:,]", text):
        raise ValueError(f"'{text}' contains '..': write the absolute path")
    return text


def _mount(text: str) -> str:
    if "," in _container_path(text):
        raise ValueError(f"'{text}' contains a comma: make each part a separate list item")
    return text


def _sbatch_option(text: str) -> str:
    name = text.replace("_", "-")
    if not _OPTION.fullmatch(text):
        raise ValueError(f"{text!r} is not an sbatch option: give its name without leading dashes")
    if "clusters".startswith(text):
        raise ValueError(f"'{text}' is not allowed: submit to another cluster from its own login node")
    if _begins_one_of(_OURS, name):
        raise ValueError(f"'{text}' is set by the launcher, as are {', '.join(sorted(_OURS - {text}))}")
    if _begins_one_of(_TASKS, name):
        raise ValueError(f"'{text}' is not allowed: {_TASKS_FOLLOW}")
    if _begins_one_of(_GPUS, name):
        raise ValueError(f"'{text}' is not allowed: set `gpus` at the top of the profile; {_PACKING}")
    return text


def _srun_word(text: str) -> str:
    name, _, value = text.partition("=")
    long = name.removeprefix("--") if name.startswith("--") else None
    if long and _begins_one_of(_TASKS, long):
        raise ValueError(f"'{text}' is not allowed: {_TASKS_FOLLOW}")
    if _SHORT_COUNT.match(text) or (long and _begins_one_of(_GPUS, long) and value != "1"):
        raise ValueError(f"'{text}' is not allowed: a task is one process with one GPU; {_PACKING}")
    return text


def _begins_one_of(options: Iterable[str], name: str) -> bool:
    """Whether this is one of the options; sbatch and srun also take the first letters of a name."""
    return any(option.startswith(name) for option in options)


def _setup_line(text: str) -> str:
    if "\n" in text:
        raise ValueError("a line break: make every line an item of the list")
    if _DIRECTIVE.match(text):
        raise ValueError(f"'{text}' is an option of sbatch: put it under `slurm.options`")
    return _inert(text)


def _at_most_one(gpus: int) -> int:
    if gpus > 1:
        idle = f"gpus: {gpus} would leave GPUs idle, since a process uses at most one"
        raise ValueError(f"{idle}; {_PACKING}, or on this machine `max_parallel`")
    return gpus


# Types of a profile's values. `Expandable` and `Word` may have $NAME and ${NAME}, and $$ for a dollar sign.
Expandable = Annotated[str, AfterValidator(_expandable)]
Word = Annotated[str, Field(min_length=1), AfterValidator(_expandable)]
Variable = Annotated[str, AfterValidator(_variable)]
SlurmValue = Annotated[str, Field(min_length=1), AfterValidator(_slurm_value)]
SbatchOption = Annotated[str, AfterValidator(_sbatch_option)]
SrunWord = Annotated[SlurmValue, AfterValidator(_srun_word)]
SetupLine = Annotated[str, AfterValidator(_setup_line)]
ContainerPath = Annotated[str, Field(min_length=1), AfterValidator(_container_path)]
Mount = Annotated[str, Field(min_length=1), AfterValidator(_mount)]
GpusPerProcess = Annotated[int, AfterValidator(_at_most_one)]


def counts_gpus(word: str) -> bool:
    """Whether an argument of srun says how many GPUs a task has, or which."""
    name = word.partition("=")[0]
    shares = (*_GPUS, "gpu-bind", "gres")
    return bool(word.startswith("-G") or (name.startswith("--") and _begins_one_of(shares, name[2:])))


def cpus_of(word: str) -> str | None:
    """The CPUs that an argument of srun gives a task; None if it sets something else."""
    match = re.fullmatch(r"-c=?(.+)|--cpus-p[a-z-]*=(.+)", word)
    return (match[1] or match[2]) if match else None


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
