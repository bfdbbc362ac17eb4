"""Checks a Slurm profile where its runs are launched: what Slurm says to its jobs, and what they find."""

from __future__ import annotations

import os
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from model.record.errors import UserError
from model.record.units import counted
from runner.inputs.container import Apptainer, Edf, NoContainer, Pyxis, Uenv
from runner.inputs.profile import Cluster, Profile
from runner.plan.layout import layout
from runner.state.attempts import JobShape, jobs_folder
from runner.state.filesystem import existing
from runner.state.slurm import SchedulerError


@dataclass(frozen=True)
class DoctorCheck:
    """The result of checking one thing.

    Attributes:
        needed: whether the profile cannot work without it.
    """

    what: str
    works: bool
    found: str
    needed: bool = False

    @property
    def mark(self) -> str:
        """`ok`, `no`, or `FAILS` if it does not work and the profile needs it."""
        return "ok" if self.works else "FAILS" if self.needed else "no"


def check_places(cluster: Cluster, root: Path) -> Iterator[DoctorCheck]:
    """Check what the profile still has to be told, and the places that its jobs use. Asks nobody."""
    for problem in cluster.placeholders:
        yield DoctorCheck("to fill in", False, str(problem), needed=True)
    profile, place = cluster.profile, existing(root)
    # Whether a file can be written, which a quota can forbid, and how many more there is room for.
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(2**16))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        why = f"no file can be written in {place}: {error.strerror}; choose another place with --root"
        yield DoctorCheck("room", False, why, needed=True)
    else:
        free = os.statvfs(place).f_favail
        files = f"{free:,} more files" if free else "files"  # some filesystems do not count them
        taken = f"the filesystem takes {files}, your quota perhaps fewer"
        yield DoctorCheck("room", True, f"a file was written in {place}; {taken}")
    # The container's files, and whether it shows the root to its processes.
    match profile.container:
        case Edf(name=name):
            yield from _environment(name, root)
        case Uenv(name=name):
            yield from (_image(image) for image in name.split(","))
        case Apptainer(image=image):  # centres bind file systems by default
            yield _image(image)
        case Pyxis(image=image, mounts=mounts):
            yield _image(image)
            yield _mounted(mounts, root, "`mounts` of the profile")
    yield _python(profile)
    assert profile.slurm
    if lines := profile.slurm.setup:
        yield DoctorCheck(
            "setup", True, f"{counted(len(lines), 'line')} of the profile run in jobs alone: not tried"
        )


def check_jobs(cluster: Cluster, root: Path) -> Iterator[DoctorCheck]:
    """Ask Slurm what it says to the profile's jobs. Submits none."""
    profile = cluster.profile
    yield _job("job", cluster, profile, 1, root, needed=True)
    room = (profile.gpus_per_node if profile.gpus else profile.processes_per_node) or 0
    for processes in (room, 2 * room) if room > 1 else ():
        yield _job(f"job of {processes} processes", cluster, profile, processes, root, needed=False)
    if profile.debug:
        yield _job("rehearsal", cluster, profile.rehearsal, 1, root, needed=True)


def _job(
    what: str, cluster: Cluster, profile: Profile, processes: int, root: Path, needed: bool
) -> DoctorCheck:
    """Ask Slurm when it would start such a job, which tries partition, account, QoS and their limits."""
    from runner.execute.slurm.refusals import explained, too_long
    from runner.execute.slurm.script import script
    from runner.execute.slurm.site import expected_start

    shape = JobShape(profile.memory_bytes, profile.time_limit_seconds, profile.cpus, processes)
    assert profile.slurm
    queue = {name: getattr(profile.slurm, name) for name in ("partition", "account", "qos")}
    where = ", ".join(f"{name} {value}" for name, value in queue.items() if value) or "the default partition"
    tried = replace(cluster, profile=profile)
    try:
        nodes = layout(profile, processes).nodes
        if problem := too_long(tried, shape.time_limit_seconds):  # which `sbatch --test-only` may not say
            return DoctorCheck(what, False, problem, needed)
        start = expected_start(script(profile, jobs_folder(root / "doctor"), "doctor", shape, 1))
    except (SchedulerError, UserError) as error:
        refused = explained(str(error), tried) if isinstance(error, SchedulerError) else str(error)
        return DoctorCheck(what, False, f"{refused} ({where}; {cluster.file})", needed)
    time = f"{profile.time_limit} " if profile.time_limit else ""
    when = f"could start at {start}" if start else "accepted"
    return DoctorCheck(what, True, f"{when}: {time}on {counted(nodes, 'node')}, {where}")


def _python(profile: Profile) -> DoctorCheck:
    """The Python that jobs start, as far as it can be seen from here."""
    python, container = profile.python, profile.container
    if not isinstance(container, NoContainer | Uenv):
        return DoctorCheck("job's python", True, f"{python}, in the container: not tried")
    if python and ("$" in python or "/" not in python):
        return DoctorCheck("job's python", True, f"{python}, as a job finds it: not tried")
    path = Path(python or sys.executable)
    if os.access(path, os.X_OK):
        return DoctorCheck("job's python", True, f"{path}, which jobs must see at the same place")
    if isinstance(container, Uenv):
        return DoctorCheck("job's python", True, f"{path} is not here, perhaps in the uenv: not tried")
    return DoctorCheck("job's python", False, f"{path} is no program here: correct `python`", needed=True)


def _environment(name: str, root: Path) -> Iterator[DoctorCheck]:
    """The environment definition file of this name or path, and what it names."""
    folders = os.environ.get("EDF_PATH", str(Path.home() / ".edf")).split(":")
    candidates = (
        [Path(name)]
        if "/" in name or name.endswith(".toml")
        else [Path(folder, f"{name}.toml") for folder in folders]
    )
    file = next((path for path in candidates if path.is_file()), None)
    if file is None:
        missing = (
            f"no file {' or '.join(map(str, candidates))}: containers/ of this project has files to copy"
        )
        yield DoctorCheck("container", False, missing, needed=True)
        return
    try:
        environment = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        yield DoctorCheck("container", False, f"{file}: {error}", needed=True)
        return
    yield DoctorCheck("container", True, f"{file}")
    if image := environment.get("image"):
        yield _image(os.path.expandvars(image))
    if "base_environment" not in environment:  # which may mount more
        mounts = [os.path.expandvars(mount) for mount in environment.get("mounts", [])]
        yield _mounted(mounts, root, f"`mounts` of {file}")


def _image(image: str) -> DoctorCheck:
    if not image.startswith(("/", "./", "../")) and not image.endswith((".sif", ".sqsh", ".squashfs")):
        return DoctorCheck("image", True, f"{image}, fetched or found when a job starts: not tried")
    path = Path(image.partition(":")[0])  # a uenv may name where to mount it
    return DoctorCheck(
        "image", path.exists(), f"{path}{'' if path.exists() else ' is not here'}", needed=True
    )


def _mounted(mounts: Sequence[str], root: Path, where: str) -> DoctorCheck:
    """Whether one of these mounts shows the root at its own path."""
    for mount in mounts:
        source, _, rest = mount.partition(":")
        if root.is_relative_to(source) and (rest.partition(":")[0] or source).rstrip("/") == source.rstrip(
            "/"
        ):
            return DoctorCheck("mounts", True, f"{source} holds {root}")
    return DoctorCheck(
        "mounts", False, f"{where} do not show {root} at its own path: add {root}:{root}", needed=True
    )
