"""What a launch was made of: commit, uncommitted changes, packages, code, command, and where.

run.json holds hashes; what they name is kept once a study:

    ROOT/STUDY/.provenance/SHA256.diff    the uncommitted changes, for `git apply` on the commit
    ROOT/STUDY/.provenance/SHA256.lock    NAME==VERSION a line, for `pip install -r`
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
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from model.disk.files import replacing
from model.disk.folder import RunFolder
from model.disk.record import Provenance
from model.errors import UserError
from runner.state.code import repository, snapshot

FOLDER = ".provenance"
# What changes results or speed and tells no secret. Never the whole environment: it holds tokens.
VARIABLES = (
    "CONDA_DEFAULT_ENV",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_HOME",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "LOADEDMODULES",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTHONPATH",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "RUNNER_PROFILE",
    "RUNNER_ROOT",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "UENV_MOUNT_LIST",
    "VIRTUAL_ENV",
)


@dataclass(frozen=True)
class Evidence:
    """A launch's provenance, and the files that its hashes name."""

    provenance: Provenance
    files: dict[str, bytes]


def provenance(study_folder: Path) -> Provenance:
    """What this launch is made of. Writes nothing; `keep` writes what the hashes name.

    Args:
        study_folder: where the study's YAML file lies; its repository, if any, is the one that is meant.
    """
    return _evidence(study_folder).provenance


def keep(study_folder: Path, root_study: Path) -> None:
    """Keep what `provenance` names, code included, beside a study's runs; what is there stays.

    Raises:
        UserError: it cannot be written, or the code snapshot there was edited.
    """
    snapshot.take(root_study)
    _store(_evidence(study_folder).files, root_study)


def keep_for_repeat(original: RunFolder, root_study: Path) -> None:
    """Keep, for a run that repeats another, the changes of that run's commit and today's packages.

    Raises:
        UserError: it cannot be written.
    """
    kept = original.path.parent / FOLDER / f"{original.run.provenance.diff}.diff"
    here = _evidence(root_study).files.items()
    files = {name: content for name, content in here if name.endswith(".lock")}
    _store(files | ({kept.name: kept.read_bytes()} if kept.is_file() else {}), root_study)


def lock_of(folder: RunFolder) -> dict[str, str] | None:
    """Version by name of the packages that a run was launched with; None where that is not kept.

    Raises:
        Unreadable: the run's run.json.
    """
    path = folder.path.parent / FOLDER / f"{folder.run.provenance.packages}.lock"
    try:
        lines = (line.partition("==") for line in path.read_text(encoding="utf-8").splitlines())
        return {name: version for name, _, version in lines}
    except OSError:
        return None


def _store(files: dict[str, bytes], root_study: Path) -> None:
    """Write files that are named by their content's hash, once. Raises UserError."""
    for name, content in files.items():
        path = root_study / FOLDER / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.utime(path)  # `runner gc` leaves alone what was asked for lately
            except FileNotFoundError:
                with replacing(path) as aside:
                    aside.write_bytes(content)
        except PermissionError:
            if not path.is_file():
                raise UserError(f"{path.parent} cannot be written; choose another --root") from None
        except OSError as error:
            raise UserError(f"{path.parent}: {error.strerror}; choose another place with --root") from error


def packages() -> dict[str, str]:
    """Version by name of every installed package that Python sees from here."""
    found: dict[str, tuple[str, str]] = {}
    for package in metadata.distributions():
        name = package.metadata["Name"]
        if name:  # a folder that a removal left behind has none
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), (name, package.version))
    return dict(found[key] for key in sorted(found))


@cache
def _evidence(study_folder: Path) -> Evidence:
    state = repository.state(study_folder)
    lock = "".join(f"{name}=={version}\n" for name, version in packages().items()).encode()
    files = {_named(lock, "lock"): lock}
    if state.diff:
        files[_named(state.diff, "diff")] = state.diff
    found = Provenance(
        git_sha=state.commit,
        git_dirty=state.dirty,
        command=["runner", *sys.argv[1:]],
        version=_own_version(),
        python=platform.python_version(),
        user=_user(),
        host=socket.gethostname(),
        environment={name: os.environ[name] for name in VARIABLES if name in os.environ},
        diff=_hash(state.diff) if state.diff else None,
        packages=_hash(lock),
        code=snapshot.current(),
    )
    return Evidence(found, files)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _named(content: bytes, suffix: str) -> str:
    return f"{_hash(content)}.{suffix}"


def _own_version() -> str:
    try:
        return metadata.version("assay-studies")
    except metadata.PackageNotFoundError:
        return "not installed"


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return None
