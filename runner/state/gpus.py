"""Which GPUs of this machine a process sees, by name, without loading CUDA, which looks only once."""

from __future__ import annotations

import re
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


def counted(devices: Sequence[str], environment: Mapping[str, str]) -> str:
    """How many GPUs a process with these variables sees, in words, and why."""
    number = f"the {units.counted(len(devices), 'GPU')} of this machine"
    if VARIABLE in environment:
        return f"{number} that {VARIABLE} '{environment[VARIABLE]}' shows"
    if not devices:
        return f"{number}: where GPUs have no {DEVICES}/nvidia0, as in WSL, name them with {VARIABLE}"
    return number
