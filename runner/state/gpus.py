"""Which GPUs of this machine a process sees, and their memory. CUDA, which looks only once, is not loaded."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from model import units

VARIABLE = "CUDA_VISIBLE_DEVICES"
DEVICES = Path("/dev")
_NAME = re.compile(r"[0-9]+|(GPU|MIG)-\S+")


def visible(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs that a process with these variables sees, as CUDA_VISIBLE_DEVICES names them.

    CUDA's rules (CUDA C++ Programming Guide, "CUDA Environment Variables"): an empty list hides all GPUs, a
    word that names none hides those after it, and naming a GPU twice hides all. CUDA counts its GPUs from 0,
    also in a container that has only /dev/nvidia5.
    """
    said, here = environment.get(VARIABLE), len([*DEVICES.glob("nvidia[0-9]*")])
    if said is None:
        return tuple(map(str, range(here)))

    def is_one(name: str) -> bool:
        number = not name.isdecimal() or not here or int(name) < here  # unknown where there are no files
        return number and bool(_NAME.fullmatch(name))

    names = tuple(takewhile(is_one, map(str.strip, said.split(","))))
    return names if len({*names}) == len(names) else ()


def memory(environment: Mapping[str, str]) -> int | None:
    """Bytes of the smallest GPU that a process with these variables sees; None if nvidia-smi does not say.

    nvidia-smi counts GPUs by their place on the bus. CUDA begins with the fastest, unless CUDA_DEVICE_ORDER
    says otherwise: a number may then be that of any GPU.
    """
    query = ["nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    by_bus, names = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID", visible(environment)

    def may_be_seen(number: str, uuid: str) -> bool:
        if VARIABLE not in environment:
            return True
        numbers = [name for name in names if name.isdecimal()]
        if numbers:  # not mixed with other names
            return number in numbers or not by_bus
        return any(uuid.startswith(name) for name in names)

    rows = [tuple(map(str.strip, line.split(","))) for line in listed.splitlines()]
    mebibytes = [row[2] for row in rows if len(row) == 3 and may_be_seen(*row[:2])]
    if not mebibytes or not all(map(str.isdecimal, mebibytes)):
        return None
    return min(map(int, mebibytes)) * 2**20


def counted(devices: Sequence[str], environment: Mapping[str, str]) -> str:
    """How many GPUs a process with these variables sees, in words, and why."""
    number = f"the {units.counted(len(devices), 'GPU')} of this machine"
    if VARIABLE in environment:
        return f"{number} that {VARIABLE} '{environment[VARIABLE]}' shows"
    if not devices:
        return f"{number}: where GPUs have no {DEVICES}/nvidia0, as in WSL, name them with {VARIABLE}"
    return number
