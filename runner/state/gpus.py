"""Which GPUs of this machine a process sees, and their memory. Neither CUDA nor HIP is loaded."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

from model.record import units

CUDA, HIP, ROCR = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
DEVICES = Path("/dev")
NODES = Path("/sys/class/kfd/kfd/topology/nodes")  # of AMD's driver: a folder for each GPU and each CPU
_NAME = re.compile(r"[0-9]+|(GPU|MIG)-\S+")
_GPU_HEAPS = ("1", "2")  # of a memory bank: the GPU's own, public or private


def variable(environment: Mapping[str, str]) -> str:
    """The variable by which a process chooses among the GPUs that it sees: CUDA's, or on AMD GPUs HIP's.

    Slurm may set both, whatever the GPUs are. Where no file tells, HIP's count if CUDA's is not set.
    """
    if [*DEVICES.glob("nvidia[0-9]*")]:
        return CUDA
    unknown = CUDA not in environment and (HIP in environment or ROCR in environment)
    return HIP if unknown or [*_of_amd()] else CUDA


def visible(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs that a process with these variables sees, as `variable` names them.

    CUDA's rules (CUDA C++ Programming Guide, "CUDA Environment Variables"): an empty list hides all GPUs, a
    word that names none hides those after it, and naming a GPU twice hides all. CUDA counts its GPUs from 0,
    also in a container that has only /dev/nvidia5.

    On AMD GPUs (ROCm's documentation, "GPU isolation techniques") ROCR_VISIBLE_DEVICES comes first. Among
    what it leaves, counted from 0 again, HIP_VISIBLE_DEVICES chooses, or CUDA's if that is not set.
    """
    if variable(environment) == CUDA:
        return _chosen(environment.get(CUDA), len([*DEVICES.glob("nvidia[0-9]*")]))
    count = len([*_of_amd()])
    if ROCR in environment:
        count = len(_chosen(environment[ROCR], count))
        if not count:
            return ()
    return _chosen(environment.get(HIP, environment.get(CUDA)), count)


def _chosen(listed: str | None, count: int) -> tuple[str, ...]:
    """The GPUs that a list names, among so many (0: unknown), as it names them; all if there is no list."""
    if listed is None:
        return tuple(map(str, range(count)))

    def is_one(name: str) -> bool:
        number = not name.isdecimal() or not count or int(name) < count
        return number and bool(_NAME.fullmatch(name))

    names = tuple(takewhile(is_one, map(str.strip, listed.split(","))))
    return names if len({*names}) == len(names) else ()


def _of_amd() -> Iterator[Path]:
    """The folders of the AMD GPUs that this process may use; the driver lets it read no other's number."""
    for node in NODES.glob("*"):
        with suppress(OSError, ValueError):
            if int((node / "gpu_id").read_text()):  # 0: a CPU
                yield node


def memory(environment: Mapping[str, str]) -> int | None:
    """Bytes of the smallest GPU that a process with these variables may see; None if that is unknown.

    nvidia-smi counts GPUs by their place on the bus. CUDA begins with the fastest, unless CUDA_DEVICE_ORDER
    says otherwise: a number may then be that of any GPU. So may a number of AMD's.
    """
    names = visible(environment)
    if variable(environment) == HIP:
        if not names:
            return None
        sizes = list[int]()  # of the GPUs' own memory; 0 where the driver does not say
        for node in _of_amd():
            own = 0
            for bank in node.glob("mem_banks/*/properties"):
                with suppress(OSError, ValueError):
                    fields = dict(line.split() for line in bank.read_text().splitlines())
                    own += int(fields.get("size_in_bytes", 0)) if fields.get("heap_type") in _GPU_HEAPS else 0
            sizes.append(own)
        return min(sizes, default=0) or None
    if (listed := nvidia_smi("--query-gpu=index,uuid,memory.total")) is None:
        return None
    by_bus = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"

    def may_be_seen(number: str, uuid: str) -> bool:
        if CUDA not in environment:
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


def nvidia_smi(*query: str) -> str | None:
    """nvidia-smi's answer, a line for each GPU; None if it is missing, fails, or takes too long."""
    command = ["nvidia-smi", *query, "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def described(devices: Sequence[str], environment: Mapping[str, str]) -> str:
    """How many GPUs a process with these variables sees, in words, and why."""
    number = f"the {units.counted(len(devices), 'GPU')} of this machine"
    asked = (ROCR, HIP, CUDA) if variable(environment) == HIP else (CUDA,)
    shown = [f"{name} '{environment[name]}'" for name in asked if name in environment]
    if shown:
        return f"{number} that {' and '.join(shown)} {'show' if shown[1:] else 'shows'}"
    if not devices:
        return f"{number}: where GPUs have no {DEVICES}/nvidia0, as in WSL, name them with {CUDA}"
    return number
