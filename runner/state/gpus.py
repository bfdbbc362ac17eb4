"""Which GPUs of this machine a process sees, by name, before CUDA is loaded: it looks once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

VARIABLE = "CUDA_VISIBLE_DEVICES"
DEVICES = Path("/dev")
_NAME = re.compile(r"[0-9]+|(GPU|MIG)-\S+")


def visible(environment: Mapping[str, str]) -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES calls the GPUs that a process with these variables sees.

    As CUDA reads it (CUDA C++ Programming Guide, "CUDA Environment Variables"): an empty list hides all GPUs,
    and a word that names none hides those after it. Of a GPU that is named twice CUDA shows nothing.
    Without the variable CUDA counts its GPUs from 0, also in a container that has only /dev/nvidia5.
    """
    said = environment.get(VARIABLE)
    if said is None:
        return tuple(str(number) for number, _ in enumerate(DEVICES.glob("nvidia[0-9]*")))
    names = tuple(takewhile(_NAME.fullmatch, map(str.strip, said.split(","))))
    return names if len({*names}) == len(names) else ()
