"""What an attempt runs on and with: the facts that stand beside every number."""

from __future__ import annotations

import os
import platform
import re
import resource
import socket
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from model.config import RunConfig
from model.errors import UserError
from model.flops import Peak, flop_per_token, parameter_count, peak
from model.record import Manifest, now

_PACKAGES = (
    "torch",
    "triton",
    "flash-attn",
    "flash-attn-4",
    "flash_attn_3",
    "numpy",
    "pyarrow",
    "tokenizers",
    "assay-studies",
)


def started(pid: int) -> float | None:
    """When a process of this machine started, in seconds since boot, None where there is no such process.

    No change of the clock moves it: seconds since 1970 do move, as the kernel reckons them from boot.
    """
    found = _stat(pid)
    return int(found[19]) / os.sysconf("SC_CLK_TCK") if found and found[0] != "Z" else None


def runs(pid: int, pid_started: float | None) -> bool:
    """Whether the process that a record tells of still runs; another one may have its number."""
    found = started(pid)
    if found is None or pid_started is None:
        return False
    if pid_started > 1e9:  # of an earlier version: seconds since 1970
        return abs(found + psutil.boot_time() - pid_started) < 1
    return abs(found - pid_started) < 0.005


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def first_manifest(run_id: str, attempt: int) -> Manifest:
    """What is known before torch is imported: host, process, job and package versions."""
    return Manifest(
        run_id=run_id,
        attempt=attempt,
        started_at=now(),
        host=socket.gethostname(),
        pid=os.getpid(),
        pid_started=started(os.getpid()) or 0.0,
        slurm={name: value for name, value in sorted(os.environ.items()) if _tells(name)},
        software={"python": platform.python_version(), **_versions()},
        nodes=int(os.environ.get("SLURM_JOB_NUM_NODES", "1")),
    )


def with_device(manifest: Manifest, config: RunConfig, peak_override: float | None) -> Manifest:
    """Add what torch knows of the device, and what MFU is held against."""
    name, uuid, software = _device(config.device)
    known = (
        Peak(peak_override, "the profile's peak_tflops") if peak_override else peak(name, config.train.dtype)
    )
    facts: dict[str, Any] = {
        "software": manifest.software | software,
        "device_name": name,
        "gpu_uuid": uuid,
        "gpus": int(config.device == "cuda"),
        "parameter_count": parameter_count(config.model),
        "flop_per_token": flop_per_token(config.model, config.train.sequence_length),
        "peak_flops": known.flops if known else None,
        "peak_source": known.source if known else None,
    }
    return manifest.model_copy(update=facts)


def hold_gpu(uuid: str | None) -> socket.socket | None:
    """Take a GPU for this process alone, as long as the returned socket is open; without one, nothing.

    Two runs that share a GPU, because nothing has bound each to its own, would spoil each other's timings.
    The name is in Linux's abstract namespace: it leaves no file, and is free when the process is gone.

    Raises:
        UserError: another run on this machine has it.
    """
    if uuid is None:
        return None
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind(f"\0assay-gpu-{uuid}")
    except OSError as error:
        held.close()
        bind = "give each its own, such as `srun_args: [--gpus-per-task=1]`, or lower max_parallel"
        raise UserError(f"GPU {uuid} is in use by another run on this machine: {bind}") from error
    return held


def peak_memory_bytes(device: str) -> int:
    """Peak so far: allocated device memory on a GPU, resident memory of the process on a CPU."""
    if device == "cuda" and "torch" in sys.modules:
        import torch

        return torch.cuda.max_memory_allocated()  # 0 where CUDA was never used
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _device(device: str) -> tuple[str, str | None, dict[str, str]]:
    import torch

    if device == "cpu":
        return f"CPU: {_cpu_name()}, {torch.get_num_threads()} threads", None, {}
    properties = torch.cuda.get_device_properties(0)
    software = {
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]  # torch leaves it so
    }
    return properties.name, str(properties.uuid), software | _driver()


def _driver() -> dict[str, str]:
    """The kernel module's version: the first word of its line that looks like one."""
    path = Path("/proc/driver/nvidia/version")
    found = re.search(r"\b\d+\.\d+(\.\d+)?\b", path.read_text()) if path.exists() else None
    return {"driver": found[0]} if found else {}


def _cpu_name() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _tells(name: str) -> bool:
    if name == "CUDA_VISIBLE_DEVICES":
        return True
    return name.startswith("SLURM") and not name.startswith(("SLURM_CONF", "SLURM_JWT", "SLURM_TOPOLOGY"))


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
