"""Code snapshots: the sources that a study's jobs run, kept beside its runs by the hash of their content.

    ROOT/STUDY/.code/SHA256/{analysis,model,runner}/...

Code that is edited between a launch and a job's start, or a requeue, changes nothing: jobs start from here
(runner.start). Code of others is not kept; its versions are in the lock file of runner.state.code.provenance.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

from model.disk.folder import RunFolder
from model.errors import UserError
from runner.start import PACKAGES, digest, read

FOLDER = ".code"


@cache
def sources() -> dict[str, bytes]:
    """Our packages' files as they are now, read once: what is hashed is what is kept."""
    files: dict[str, bytes] = {}
    for name in PACKAGES:
        file = import_module(name).__file__
        assert file
        files |= {f"{name}/{path}": content for path, content in read(Path(file).parent).items()}
    return files


@cache
def current() -> str:
    """The hash of our packages' files; names their snapshot."""
    return digest(sources())


def take(root_study: Path) -> Path:
    """Keep the code of this process for a study; gives the snapshot's folder.

    Raises:
        UserError: it cannot be written, or it is there and was edited.
    """
    return place(sources(), root_study)


def place(files: Mapping[str, bytes], root_study: Path) -> Path:
    """Make the snapshot of these files under a study, if it is not there. Two at once are fine.

    Raises:
        UserError: it cannot be written, or it is there and was edited.
    """
    folder = root_study / FOLDER / digest(files)
    try:
        os.utime(folder)  # `runner gc` leaves alone what was asked for lately
    except PermissionError:
        pass  # of another owner: it need not be written
    except OSError:
        _write(files, folder)
    verify(folder)
    return folder


def verify(snapshot: Path) -> dict[str, bytes]:
    """A snapshot's files, after hashing them again.

    Raises:
        UserError: it is gone, or was edited after it was taken.
    """
    try:
        files = read(snapshot)
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}") from error
    if not files:
        raise UserError(f"the code snapshot {snapshot} is gone")
    if digest(files) != snapshot.name:
        raise UserError(f"the code snapshot {snapshot} was edited after it was taken: remove that folder")
    return files


def options(root_study: Path, code: str | None) -> list[str]:
    """What stands between Python and `-m MODULE` to start a module from a study's snapshot.

    `-P` keeps the working directory off sys.path: a stray model.py there must not shadow ours.

    Args:
        code: the snapshot's hash; None, of a run from before there were any, starts what is installed.
    """
    return ["-P"] if code is None else ["-P", str(path_of(root_study, code) / "runner" / "start.py")]


def options_of(folder: RunFolder) -> list[str]:
    """The same for a run. Raises Unreadable."""
    return options(folder.path.parent, folder.run.provenance.code)


def path_of(root_study: Path, code: str) -> Path:
    """Where a study keeps a snapshot."""
    return root_study / FOLDER / code


def _write(files: Mapping[str, bytes], folder: Path) -> None:
    aside = folder.with_name(f".{folder.name}.{socket.gethostname()}.{os.getpid()}.part")
    try:
        shutil.rmtree(aside, ignore_errors=True)  # of a process that had this number before
        for name, content in files.items():
            path = aside / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        _rename(aside, folder)
    except OSError as error:
        raise UserError(
            f"{folder.parent}: {error.strerror}; make room, or choose another place with --root"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _rename(aside: Path, folder: Path) -> None:
    try:
        aside.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another launch was faster, and verify() will compare
            raise
