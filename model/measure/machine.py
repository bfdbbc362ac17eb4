"""The device and software of this process, which are recorded with every number."""

from __future__ import annotations

import os
import platform
import re
import resource
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from model.measure import hostmemory
from model.record import rocm

_PACKAGES = (
    "torch",
    "triton",
    "torchao",
    "flash-attn",
    "flash-attn-4",
    "flash_attn_3",
    "numpy",
    "pyarrow",
    "tokenizers",
    "assay-studies",
)
# The variables by which OpenMP, OpenBLAS and MKL choose their number of threads.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# OpenMP's threads wait without spinning, which beside a busy process makes short calls 20 to 50 times slower.
PATIENT = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
# Environment variables that change the numbers or the kernels of libraries.
SETTINGS = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "HIPBLASLT_ALLOW_TF32",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "PYTORCH_TUNABLEOP_ENABLED",
    "TORCHINDUCTOR_EMULATE_PRECISION_CASTS",
    "TORCHINDUCTOR_MAX_AUTOTUNE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_HIPBLASLT",
    "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL",
    "TORCH_ROCM_FA_PREFER_CK",
    "TRITON_F32_DEFAULT",
    "TRITON_INTERPRET",
)


def wait_patiently(device: str) -> None:
    """On a CPU, set PATIENT for this process and those that it starts; what the user has set stays.

    Call this before torch is imported: OpenMP reads it once.
    """
    if device == "cpu":
        os.environ.update(PATIENT | os.environ)


def settings() -> dict[str, str]:
    """The variables of SETTINGS that are set."""
    return {name: os.environ[name] for name in SETTINGS if name in os.environ}


def peak_memory_bytes(device: str) -> int:
    """Peak so far: allocated device memory on a GPU, resident memory of the process on a CPU."""
    if device == "cuda" and "torch" in sys.modules:
        import torch

        return torch.cuda.max_memory_allocated()  # 0 where CUDA was never used
    # The peak of this program alone: `ru_maxrss` also counts the process that started it, before `exec`.
    path = Path("/proc/self/status")
    match = re.search(r"^VmHWM:\s+(\d+) kB$", path.read_text(), re.MULTILINE) if path.exists() else None
    own = int(match[1]) if match else 0
    return (own or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024


def device(device: str) -> tuple[str, str | None, dict[str, str]]:
    """Name, UUID (None on a CPU), and version by package of what drives it; as torch sees the device."""
    import torch

    if device == "cpu":
        path = Path("/proc/cpuinfo")
        lines = path.read_text().splitlines() if path.exists() else []
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        name = names[0] if names else platform.machine()
        return f"CPU: {name}, {torch.get_num_threads()} threads", None, {}
    properties = torch.cuda.get_device_properties(0)
    if hip := rocm.version():
        miopen = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]  # torch leaves it so
        software = {"hip": hip, "miopen": miopen} | _driver(Path("/sys/module/amdgpu/version"))
        return rocm.name(properties), rocm.uuid(properties), software
    software = {
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]  # torch leaves it so
    }
    return properties.name, str(properties.uuid), software | _driver(Path("/proc/driver/nvidia/version"))


def _driver(path: Path) -> dict[str, str]:
    """The kernel module's version: the first word of its file that looks like one."""
    match = re.search(r"\b\d+\.\d+(\.\d+)?\b", path.read_text()) if path.exists() else None
    return {"driver": match[0]} if match else {}


def cores() -> int:
    """CPU cores that this process may use: of its affinity, and no more than its control group pays for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for kind, folders in hostmemory.groups("cpu"):
        for folder in folders:
            with suppress(OSError, ValueError):  # no limit: no such file, or not a number
                if kind:
                    quota = int((folder / "cpu.cfs_quota_us").read_text())
                    period = int((folder / "cpu.cfs_period_us").read_text())
                else:
                    quota, period = map(int, (folder / "cpu.max").read_text().split())
                if quota > 0:
                    cores = min(cores, max(1, round(quota / period)))
    return max(1, cores)


def thread_limits(cpus: int | None, sharing: int = 1) -> dict[str, str]:
    """Environment variables that bound the threads of libraries, which read them as they are imported.

    More threads than cores are many times slower. What the user has set stays as it is.

    Args:
        cpus: that the process may use; None for its share of the machine's.
        sharing: number of processes that share the machine.
    """
    if cpus is None and sharing == 1:
        return {}
    share = max(1, cores() // sharing)
    threads = str(min(cpus, share) if cpus else share)

    def is_set(name: str) -> bool:
        number = os.environ.get(name, "").partition(",")[0].strip()  # OpenMP takes a list
        return number.isdecimal() and int(number) > 0

    return {name: threads for name in _THREADS if not is_set(name)}


def load() -> float | None:
    """Processes that run or wait to run, averaged over the last minute; None if the system does not say."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def device_users(device: str) -> int | None:
    """Number of other processes on this process's GPU; None on a CPU, and if nvidia-smi does not say.

    It lists a process once that has memory on the GPU. If it does not even list this one, as in containers
    that hide processes, its list says nothing.
    """
    if device == "cpu":
        return None
    import torch

    torch.zeros(1, device=device)
    query = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return count_other_users(listed, os.getpid())


def count_other_users(listed: str, pid: int) -> int | None:
    """Number of other processes that use this process's GPU, by nvidia-smi's lines of `UUID, PID`."""
    users = {tuple(line.split(", ")) for line in listed.splitlines()}
    own_gpus = {uuid for uuid, *rest in users if rest == [str(pid)]}
    return sum(uuid in own_gpus for uuid, *_ in users) - len(own_gpus) if own_gpus else None


def versions(packages: Iterable[str] = _PACKAGES) -> dict[str, str]:
    """Versions of those that are installed; by default, of all that can change a result or its speed."""
    installed = {}
    for package in packages:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
    return installed
