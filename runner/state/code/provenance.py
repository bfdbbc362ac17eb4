"""Provenance of a launch: commit, uncommitted changes, packages, code, command, user and host.

run.json holds hashes; the files that they name are stored once per study:

    ROOT/STUDY/.provenance/SHA256.diff    the uncommitted changes, for `git apply`; only its owner can read it
    ROOT/STUDY/.provenance/SHA256.lock    one NAME==VERSION per line, for `pip install -r`
    ROOT/STUDY/.code/SHA256/              the code (snapshot.py)
"""

from __future__ import annotations

import getpass
import hashlib
import os
import platform
import re
import socket
import sys
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from model.measure import machine
from model.record.errors import UserError
from model.record.files import replacing
from model.record.folder import RunFolder
from model.record.records import Provenance
from runner.state.code import repository, snapshot
from runner.state.filesystem import not_writable

FOLDER = ".provenance"
# Variables that affect results or speed and hold no secrets. Never the whole environment: it contains tokens.
VARIABLES = (
    *machine.SETTINGS,
    *machine.PATIENT,
    "CONDA_DEFAULT_ENV",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_HOME",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "LOADEDMODULES",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTHONPATH",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "ROCR_VISIBLE_DEVICES",
    "RUNNER_PROFILE",
    "RUNNER_ROOT",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "UENV_MOUNT_LIST",
    "VIRTUAL_ENV",
)


def provenance(study_folder: Path) -> Provenance:
    """Provenance of this launch. Writes nothing; `keep` stores the files that the hashes refer to.

    Args:
        study_folder: folder of the study's YAML file; the commit is that of the repository around it, if any.
    """
    return _evidence(study_folder)[0]


def keep(study_folder: Path, root_study: Path) -> None:
    """Store what `provenance` refers to, including the code, next to a study's runs; existing files stay.

    Raises:
        UserError: it cannot be written, or an existing code snapshot was edited.
    """
    snapshot.place(snapshot.sources(), root_study)
    _store(_evidence(study_folder)[1], root_study)


def keep_for_repeat(original: RunFolder, root_study: Path) -> None:
    """Store the provenance of a reproduction: the original run's uncommitted changes and today's packages.

    Raises:
        UserError: the study's folder is not writable.
    """
    kept = original.path.parent / FOLDER / f"{original.run.provenance.diff}.diff"
    here = _evidence(root_study)[1]
    files = {name: content for name, content in here.items() if name.endswith(".lock")}
    try:
        _store(files | ({kept.name: kept.read_bytes()} if kept.is_file() else {}), root_study)
    except PermissionError as error:
        raise UserError(f"{kept} holds uncommitted changes that only its owner can read") from error


def lock_of(folder: RunFolder) -> dict[str, str] | None:
    """Package versions by name at a run's launch; None if they were not recorded.

    Raises:
        Unreadable: run.json is missing or invalid.
    """
    path = folder.path.parent / FOLDER / f"{folder.run.provenance.packages}.lock"
    try:
        lines = (line.partition("==") for line in path.read_text(encoding="utf-8").splitlines())
        return {name: version for name, _, version in lines}
    except OSError:
        return None


def _store(files: dict[str, bytes], root_study: Path) -> None:
    """Write files named by the hash of their content, unless they exist. Raises UserError."""
    for name, content in files.items():
        path = root_study / FOLDER / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.utime(path)  # `runner gc` spares what was used recently
            except FileNotFoundError:
                with replacing(path) as aside:
                    if path.suffix == ".diff":  # which may hold what others must not read
                        aside.chmod(0o600)
                    aside.write_bytes(content)
        except PermissionError:
            if not path.is_file():
                raise UserError(f"{path.parent} is not writable; choose another --root") from None
        except OSError as error:
            raise not_writable(path.parent, error.strerror) from error


def packages() -> dict[str, str]:
    """Versions by name of all installed packages that this Python can import."""
    versions: dict[str, tuple[str, str]] = {}
    for package in metadata.distributions():
        # Its `metadata` and `version` parse the whole file, twice: most of the time of a small launch.
        text = package.read_text("METADATA") or package.read_text("PKG-INFO") or ""
        header = dict(line.split(": ", 1) for line in text.partition("\n\n")[0].splitlines() if ": " in line)
        if "Name" in header:  # it is missing in the remains of an uninstalled package
            key = re.sub(r"[-_.]+", "-", header["Name"]).lower()
            versions.setdefault(key, (header["Name"], header["Version"]))
    return dict(versions[key] for key in sorted(versions))


@cache
def _evidence(study_folder: Path) -> tuple[Provenance, dict[str, bytes]]:
    """A launch's provenance, and the files that its hashes refer to, by name."""
    state = repository.state(study_folder)
    lock = "".join(f"{name}=={version}\n" for name, version in packages().items()).encode()
    packages_hash, diff_hash = _hash(lock), _hash(state.diff) if state.diff else None
    files = {f"{packages_hash}.lock": lock}
    if state.diff:
        files[f"{diff_hash}.diff"] = state.diff
    user = None
    with suppress(KeyError, OSError):  # a container whose user has no passwd entry
        user = getpass.getuser()
    origin = Provenance(
        git_sha=state.commit,
        git_dirty=state.dirty,
        command=["runner", *sys.argv[1:]],
        version=own_version(),
        python=platform.python_version(),
        user=user,
        host=socket.gethostname(),
        environment={name: os.environ[name] for name in VARIABLES if name in os.environ},
        diff=diff_hash,
        packages=packages_hash,
        code=snapshot.current(),
    )
    return origin, files


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def own_version() -> str:
    """Version of the installed distribution."""
    try:
        return metadata.version("assay-studies")
    except metadata.PackageNotFoundError:
        return "not installed"
