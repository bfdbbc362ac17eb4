"""Code snapshots: the sources that a study's jobs run, stored next to its runs and named by their hash.

    ROOT/STUDY/.code/SHA256/{analysis,model,runner}/...

Jobs run what they read here when they start, if it has that hash (runner.start), so editing the code between
a launch and a job's start or requeue has no effect. Other packages are not copied; their versions are in the
lock file (runner.state.code.provenance).
"""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from inspect import getsource
from pathlib import Path

from model.record.errors import UserError
from runner.start import PACKAGES, digest, read
from runner.state import guard

FOLDER = ".code"


@cache
def sources() -> dict[str, bytes]:
    """Our packages' files, read once per process so that the hash matches what is stored."""
    files: dict[str, bytes] = {}
    for name in PACKAGES:
        file = import_module(name).__file__
        assert file
        files |= {f"{name}/{path}": content for path, content in read(Path(file).parent).items()}
    return files


@cache
def current() -> str:
    """SHA-256 of our packages' files; the name of their snapshot."""
    return digest(sources())


def source_text(name: str) -> str:
    """The text of one of our packages' files."""
    return sources()[name].decode()


def place(files: Mapping[str, bytes], root_study: Path) -> Path:
    """Write a snapshot of these files under a study unless it exists. Safe to call concurrently.

    Raises:
        UserError: it cannot be written, or it exists and was edited.
    """
    folder = root_study / FOLDER / digest(files)
    try:
        os.utime(folder)  # `runner gc` spares what was used recently
    except PermissionError:
        pass  # it exists and belongs to another user, which `read_trusted` refuses
    except OSError:
        _write(files, folder)
    read_trusted(root_study, folder.name)
    return folder


def read_trusted(root_study: Path, code: str) -> dict[str, bytes]:
    """Read the files of a snapshot that is about to run, and check that they can be trusted.

    Raises:
        UserError: as `verify`, or another user could have written one. Code that this process runs itself
            may be anybody's copy.
    """
    folder = path_of(root_study, code)
    files = verify(folder)
    if code != current():
        for name, content in files.items():
            guard.require_written(folder / name, content, root_study)
    return files


def verify(snapshot: Path) -> dict[str, bytes]:
    """Read a snapshot's files and check them against its hash.

    Raises:
        UserError: the snapshot is missing, or was edited after it was taken.
    """
    try:
        files = read(snapshot)
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}") from error
    if not files:
        raise UserError(f"the code snapshot {snapshot} is missing")
    if digest(files) != snapshot.name:
        raise UserError(f"the code snapshot {snapshot} was edited after it was taken: remove that folder")
    return files


def options(root_study: Path, code: str | None) -> list[str]:
    """Arguments between `python` and `-m MODULE` that start a module from a study's snapshot.

    `-P` keeps the working directory off sys.path: a stray model.py there must not shadow ours.

    Args:
        code: the snapshot's hash; None starts the installed code.
    """
    if code is None:
        return ["-P"]
    return _start_options(path_of(root_study, code), source_text("runner/start.py"))


def own_options() -> list[str]:
    """Those arguments for a process that runs the code of this one, whatever a run.json names."""
    home = Path(import_module("runner").__file__ or "").parents[1]
    if home.parent.name != FOLDER:
        return ["-P"]
    return _start_options(home, getsource(import_module("runner.start")))


def _start_options(home: Path, start: str) -> list[str]:
    """Python is given the text of start.py, because by its start another file may be in that one's place."""
    return ["-P", "-c", start, str(home)]


def path_of(root_study: Path, code: str) -> Path:
    """Folder of a snapshot, whether or not it exists.

    Raises:
        UserError: that is not a hash. In a run.json that somebody else wrote, it may be a path to other code.
    """
    if not re.fullmatch(r"[0-9a-f]{64}", code):
        raise UserError(f"{root_study}: `provenance.code` of a run is {code!r}, not the hash of a snapshot")
    return root_study / FOLDER / code


def _write(files: Mapping[str, bytes], folder: Path) -> None:
    aside = folder.with_name(f".{folder.name}.{socket.gethostname()}.{os.getpid()}.part")
    try:
        shutil.rmtree(aside, ignore_errors=True)  # left by an earlier process with this PID
        for name, content in files.items():
            path = aside / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        try:
            aside.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another launch wrote it first, and verify() checks it
                raise
    except OSError as error:
        raise UserError(
            f"{folder.parent}: {error.strerror}; free some space, or choose another place with --root"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
