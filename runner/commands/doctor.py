"""Show what works on this machine, and why the rest does not."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import typer

from model import attention
from model.measure import hostmemory, machine
from model.measure.nvml import Gpu
from model.record import backends, rocm, versions
from model.record.case import Case
from model.record.errors import UserError, one_line
from model.record.files import user_folder
from model.record.units import counted, size
from runner.commands._console import print_json, table
from runner.commands._options import AsJson, ProfileName, Settings
from runner.commands._slurm_checks import DoctorCheck, check_jobs, check_places
from runner.inputs.profile import Cluster, Profile, read_cluster
from runner.plan.layout import layout
from runner.state.filesystem import existing, promise, require_writable

_NOISE = 2**28  # bytes of memory that come and go between two looks at a machine
_FILES = 256  # open at once by a collect, a report and a launch
_THREADS = 64  # per CPU, of a run's libraries and of what works beside it


def command(profile: ProfileName = None, as_json: AsJson = False) -> None:
    results = checks(read_cluster(profile), Settings.root)
    if as_json:
        print_json([check.__dict__ for check in results])
    else:
        table(["", "what", "found"], [[check.mark, check.what, check.found] for check in results])
    raise typer.Exit(1 if any(check.needed and not check.works for check in results) else 0)


def checks(cluster: Cluster, root: Path) -> list[DoctorCheck]:
    """Check this machine for launches with this profile: root, torch, Slurm, attention backends."""
    from analysis.drawings.draw import require_room
    from runner.execute.launch import risks

    place, on_slurm = existing(root), cluster.profile.executor == "slurm"
    torch = [*_torch(needed=cluster.profile.python is None)]
    scheduler = [*_scheduler(on_slurm)]
    of_machine = [*_machine(root, place)]
    try:
        require_room()
        figures = DoctorCheck("figures", True, "reports can be drawn")
    except UserError as error:
        figures = DoctorCheck("figures", False, str(error))
    risk = "; ".join(risks(root / "STUDY", cluster))
    promised = promise(place)
    suits = bool(promised.locks)
    if on_slurm:
        suits = promised.shared is not False and promised.locks is not False
    all_checks = [
        *of_machine,
        DoctorCheck("neighbours", not risk, risk or "nobody else can replace what runs as you"),
        _memory_limit(cluster),
        figures,
        DoctorCheck("filesystem", suits, f"{place} is on {promised.kind}: {promised.text}"),
        *torch,
        *scheduler,
        _processes(cluster.profile),
    ]
    if on_slurm:
        all_checks += check_places(cluster, root)
        answers = any(check.what == "cluster" and check.works for check in scheduler)
        all_checks += check_jobs(cluster, root) if answers else ()
    return [*all_checks, *(_backends() if torch[0].works else ())]


def _machine(root: Path, parent: Path) -> Iterator[DoctorCheck]:
    """What this machine has and allows: CPUs, memory, limits of the shell, and places to write to."""
    import psutil

    yield DoctorCheck("python", True, f"{platform.python_version()}, {platform.platform()}")
    all_cores, usable_cores = os.cpu_count() or 1, machine.cores()
    fewer = f"{usable_cores} of {all_cores}, by a mask or a control group"
    yield DoctorCheck("cpus", True, fewer if usable_cores < all_cores else str(all_cores))
    memory, left = psutil.virtual_memory(), hostmemory.left()
    by_group = left is not None and left < memory.available - _NOISE
    usable = (
        f", of which {size(left)} can be used{' in this control group' if by_group else ''}" if left else ""
    )
    yield DoctorCheck("memory", True, f"{size(memory.total)}{usable}")
    # Limits of the shell end programs in ways that name no limit.
    low = []
    least = {
        "-n": (resource.RLIMIT_NOFILE, _FILES),
        "-u": (resource.RLIMIT_NPROC, _THREADS * machine.cores()),
    }
    for option, (limit, enough) in least.items():
        soft, _ = resource.getrlimit(limit)
        if resource.RLIM_INFINITY != soft < enough:
            low.append(f"`ulimit {option}` is {soft}; {enough:,} are safe")
    if space := hostmemory.address_space():
        low.append(space)
    yield DoctorCheck("limits", not low, "; ".join(low) or "enough files, processes and address space")
    shared = Path("/dev/shm")  # noqa: S108 - only looked at
    if shared.is_dir() and os.access(shared, os.W_OK):
        yield DoctorCheck("shared memory", True, f"{shared}, {size(shutil.disk_usage(shared).free)} free")
    else:
        yield DoctorCheck(
            "shared memory", False, f"{shared} is missing or read-only: NCCL needs it between GPUs"
        )
    # Places to write to.
    try:
        require_writable(root)
        yield DoctorCheck("root", True, f"{root}, {size(shutil.disk_usage(parent).free)} free", needed=True)
    except UserError as error:
        yield DoctorCheck("root", False, str(error), needed=True)
    try:
        cache = user_folder("cache")
        require_writable(cache)
        yield DoctorCheck("home", True, f"scripts of reports are kept in {cache}")
    except (OSError, UserError) as error:
        yield DoctorCheck("home", False, f"{error}; each report takes seconds longer")


def _memory_limit(cluster: Cluster) -> DoctorCheck:
    """The means that ends a run that needs too much memory."""
    most = cluster.profile.memory_bytes
    if most is None:
        return DoctorCheck("memory limit", True, "none: the profile sets no `memory`")
    per_process = f"{size(most)} per process (`memory` of profile {cluster.name})"
    if cluster.profile.executor == "slurm":
        return DoctorCheck("memory limit", True, f"{per_process}, watched in each run; Slurm has its own")
    taken = False  # a group that others manage can be made, and takes no process
    if group := hostmemory.ControlGroup.make(f"assay-doctor-{os.getpid()}", most, ""):
        with subprocess.Popen(["sleep", "60"]) as process:
            taken = group.add(process.pid)
            process.kill()
        group.remove()
    by = "a control group" if taken else "watching each run"
    return DoctorCheck("memory limit", True, f"{per_process}, by {by}")


def _torch(needed: bool) -> Iterator[DoctorCheck]:
    """Abilities of the torch that is here, and the GPUs. On Slurm it need not be that of the nodes."""
    elsewhere = "" if needed else "; a launch needs none, the nodes do"
    if lacks := versions.lacking("torch"):
        yield DoctorCheck("torch", False, f"{lacks[0]}{elsewhere}", needed)
        return
    try:
        import torch
    except ImportError as error:
        yield DoctorCheck("torch", False, f"{error}{elsewhere or '; pip install torch'}", needed)
        return
    hip, cuda = rocm.version(), torch.version.cuda
    build = f"ROCm, HIP {hip}" if hip else f"CUDA {cuda}" if cuda else "no CUDA or ROCm (a CPU build)"
    yield DoctorCheck("torch", True, f"{torch.__version__}, {build}")
    names = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        if torch.cuda.is_available()
        else []
    )
    gpus = ", ".join(names) or "no GPU that PyTorch can use; studies at scale laptop run on the CPU"
    if names and (architecture := rocm.architecture()):
        gpus += f" ({architecture}): no backend was measured on AMD GPUs yet, see docs/backends.md"
    if names and _precision() == "float32":
        gpus += ", without bfloat16: use --set train.dtype=float32"
    yield DoctorCheck("gpu", bool(names), gpus)
    for feature in (name for name in versions.NEEDS if name.startswith("train.")):
        package, lacks = versions.NEEDS[feature].package, versions.lacking(feature)
        if names and feature == "train.float8" and not lacks:
            from model.training import float8  # imports torch

            lacks = float8.lacking()
        version = versions.installed(package)
        works = bool(version) and not lacks
        yield DoctorCheck(feature, works, lacks[0] if lacks else f"{package} {version or 'is not installed'}")
    if names and rocm.version():
        yield DoctorCheck(
            "sensors", False, "on AMD GPUs runs record no energy, no clocks, nor what throttles them"
        )
    elif names:  # what the GPU draws, and how fast it is clocked
        gpu = Gpu(str(torch.cuda.get_device_properties(0).uuid))
        read = {"energy": gpu.joules(), "clocks": gpu.sm_mhz(), "what throttles them": gpu.throttle_reasons()}
        missing = [name for name, value in read.items() if value is None]
        why = "the driver does not report it" if find_spec("pynvml") else "pip install nvidia-ml-py"
        lacking = f"runs cannot record {', '.join(missing)}: {why}"
        recorded = "runs record energy, clocks, and what throttles them"
        yield DoctorCheck("sensors", not missing, lacking if missing else recorded)


def _precision() -> str:
    """The type that runs train in here: bfloat16, except on a CPU or a GPU that lacks it."""
    import torch

    modern = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
    return "bfloat16" if modern else "float32"


def _scheduler(needed: bool) -> Iterator[DoctorCheck]:
    """Whether Slurm's commands are here, whether its controller answers, and what its cluster offers."""
    from runner.execute.slurm import site
    from runner.state.slurm import NoAnswer

    for command in ("sbatch", "srun", "sacct", "squeue", "scancel", "scontrol"):
        path = shutil.which(command)
        absent = f"not on PATH{'; run this on a login node' if needed else ''}"
        yield DoctorCheck(command, bool(path), path or absent, needed)
    if shutil.which("scontrol"):
        try:
            largest = site.max_array_size()
        except NoAnswer as error:
            yield DoctorCheck("cluster", False, str(error), needed)
            return
        records = "accounting" if site.has_accounting() else "no accounting: keep `launch --wait` running"
        yield DoctorCheck("cluster", True, f"answers; job arrays of up to {largest:,}; {records}", needed)


def _processes(profile: Profile) -> DoctorCheck:
    """The layout that runs of several processes would get."""
    layouts, refused = [], ""
    for processes in (2, 4, 8, 16):
        try:
            job = layout(profile, processes)
            if profile.executor == "local" and profile.gpus:
                import torch

                if processes > (present := torch.cuda.device_count()):
                    needed = f"{processes} processes need {processes} GPUs"
                    raise UserError(f"{needed}, but this machine has {present}")
        except UserError as error:
            refused = refused or str(error)
        else:
            nodes = counted(job.nodes, "node")
            shared = f" ({job.runs} such runs share it)" if job.runs > 1 else ""
            layouts.append(f"{processes} on {nodes}{shared}")
    cpus = profile.cpus or 1 if profile.slurm else min(profile.cpus or machine.cores(), machine.cores())
    per_process = f"each with {counted(cpus, 'CPU')}{' and a GPU' if profile.gpus else ''}"
    layout_text = f"per run: {', '.join(layouts)}; {per_process}"
    return DoctorCheck("processes", bool(layouts), layout_text if layouts else refused)


def _backends() -> Iterator[DoctorCheck]:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    case = Case(device, _precision(), 1, 4096, 32, 8, 128)
    for name in backends.names():
        try:
            backend = attention.load(name)
            reasons = attention.reasons_of(backend, case)
            result = "; ".join(reasons) or backend.summary
        except Exception as error:  # of another package, which must not hide what the others can do
            reasons = [result := str(error) if isinstance(error, UserError) else one_line(error)]
        yield DoctorCheck(f"attention {name}", not reasons, result)
