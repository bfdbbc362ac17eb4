"""How a report comes to its folder: in one step, so that a reader finds the old report or the new one, whole.

The new one is made beside the folder, and the two change places: `renameat2` with RENAME_EXCHANGE, on Linux
and its local filesystems. Where there is no such call, as on NFS, the old one is moved aside first; a build
that is killed before the new one follows leaves it there, and the next one puts it back. Only where the
folder cannot be moved (a mount, the working directory, a parent that we may not write to) do files come one
by one.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from tempfile import TemporaryDirectory

from analysis.report.carried import (
    COMPILED,
    LIVE,
    MANIFEST,
    files,
    read_manifest,
    write_manifest,
)
from model.record.errors import UserError
from model.record.files import hold_lock, require_own_folder

_SCRATCH = ".report-"  # begins the names of folders that reports are made in or moved aside to
_RANDOM = "?" * 8  # ends those that `tempfile` makes
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE


@contextmanager
def staged(out: Path, roots: Sequence[Path] = (), replace: bool = False) -> Iterator[Path]:
    """Give a folder to write a report to, which takes the place of `out` only if the body succeeds.

    Files of the report that was there before are removed, what LaTeX made of its document if that changed,
    and what builds that were killed left; what others added stays. A second build to the same folder waits
    for the first.

    Args:
        roots: the workspaces that the report is made from.
        replace: whether it may take the place of a report of other workspaces, or of another comparison.

    Raises:
        UserError: the folder holds something else than a report, or links or folders where files are to come,
            or it is the folder of several reports, with their index, or has the report of something else, or
            of another workspace.
    """
    place = out.resolve()
    _put_back(place)
    require_own_folder(out, (MANIFEST, "assets/style.css"), "report")
    if (old := read_manifest(out)) and old.reports is not None:
        raise UserError(f"{out} holds an index of reports: name a folder in it, such as {out / 'NAME'}")
    place.mkdir(parents=True, exist_ok=True)
    # A folder changes places with another, unless a shell that is in it would stay in the old one.
    used = Path.cwd().is_relative_to(place) or place.is_mount()
    beside = not used and os.access(place.parent, os.W_OK | os.X_OK)
    prefix, where = (f"{_SCRATCH}{place.name}@", place.parent) if beside else (_SCRATCH, place)
    with _locked(place), TemporaryDirectory(prefix=prefix, dir=where, ignore_cleanup_errors=True) as scratch:
        staging = Path(scratch)
        old = read_manifest(out)  # other builds are kept out by now
        if old and old.roots and old.roots != _relative(roots, out) and not replace:
            before, now = (
                " and ".join(dict.fromkeys(os.path.normpath(place / root) for root in workspaces))
                for workspaces in (old.roots, [str(root.resolve()) for root in roots])
            )
            raise UserError(
                f"{out} has {old.subject} made from {before}, and this one is made from {now}: "
                "name another folder, or replace it with --replace"
            )
        yield staging
        _require_same_subject(out, staging, replace)
        if new := read_manifest(staging):
            write_manifest(staging, new.model_copy(update={"roots": _relative(roots, out)}))
        require_room(out, files(staging))
        if not (beside and _swap(place, staging)):
            _move_files(place, staging)


def _aside(place: Path) -> Path:
    return place.with_name(f"{_SCRATCH}{place.name}@old")


def _put_back(place: Path) -> None:
    """Undo a build that was killed between moving the old report aside and the new one to its place."""
    with suppress(OSError):
        descriptor = os.open(_aside(place), os.O_RDONLY | os.O_DIRECTORY)
        try:
            hold_lock(descriptor)
            if not place.exists():
                _aside(place).rename(place)
        finally:
            os.close(descriptor)


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Keep other builds out of a folder, and remove what those left that were killed.

    On a filesystem without locks, nothing is kept out or removed.
    """
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            hold_lock(descriptor)
            # Until it is not the folder of the build that had it, which replaced it.
            while not os.path.samestat(os.fstat(descriptor), place.stat()):
                before, descriptor = descriptor, os.open(place, os.O_RDONLY | os.O_DIRECTORY)
                os.close(before)
                hold_lock(descriptor)
            abandoned = place.parent.glob(f"{_SCRATCH}{escape(place.name)}@{_RANDOM}")
            for folder in (*place.glob(f"{_SCRATCH}*"), *abandoned, _aside(place)):
                shutil.rmtree(folder, ignore_errors=True)
        yield
    finally:
        os.close(descriptor)


def _swap(place: Path, staging: Path) -> bool:
    """Put the new folder in the old one's place; False if that cannot be done.

    It keeps what was in the old one and no part of its report, such as a compiled text.
    """
    replaced = {*_report_files(place, staging), MANIFEST}
    for path in place.rglob("*"):
        name = path.relative_to(place).as_posix()
        if os.path.lexists(staging / name) or (name in replaced and not path.is_dir()):
            continue
        if path.is_dir() and not path.is_symlink():
            (staging / name).mkdir(parents=True)
        else:
            (staging / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, staging / name, follow_symlinks=False)
            except OSError:  # a filesystem without hard links, or another user's file
                shutil.copy2(path, staging / name, follow_symlinks=False)

    staging.chmod(stat.S_IMODE(place.stat().st_mode))
    for move in (_exchange, _move_in_two_steps):
        with suppress(OSError):
            move(place, staging)
            return True
    return False


def _exchange(place: Path, staging: Path) -> None:
    """Let two folders change places at once. Raises OSError where that cannot be done."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        raise OSError(errno.ENOSYS, "no renameat2 in this C library")
    if call(_HERE, os.fsencode(staging), _HERE, os.fsencode(place), _EXCHANGE):
        raise OSError(ctypes.get_errno(), "they cannot change places")


def _move_in_two_steps(place: Path, staging: Path) -> None:
    """Move the old folder aside, then the new one to its place. Raises OSError where that cannot be done."""
    place.rename(_aside(place))
    try:
        staging.rename(place)
    except OSError:
        _aside(place).rename(place)
        raise
    shutil.rmtree(_aside(place), ignore_errors=True)


def _move_files(place: Path, staging: Path) -> None:
    """Remove the old report's files, then move the new ones to their places.

    The manifest comes last, and after it what makes open pages load the report again.
    """
    written = files(staging)
    for path in _report_files(place, staging) - set(written):
        with suppress(OSError, ValueError):  # a folder, or no name of a file
            # A path that leads elsewhere is left alone.
            if ".." not in Path(path).parts and (place / path).resolve().is_relative_to(place):
                (place / path).unlink(missing_ok=True)
    for path in sorted(written, key=lambda path: (path == LIVE, path == MANIFEST)):
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (staging / path).replace(place / path)


def require_room(out: Path, paths: Iterable[str]) -> None:
    """Make sure that files can come to these paths of a folder, and to nowhere else.

    Raises:
        UserError: a link leads out of the folder on the way to one, or a folder is in its place.
    """
    for path in paths:
        for folder in Path(path).parents:
            if (out / folder).is_symlink() and folder != Path():
                raise UserError(
                    f"{out / folder} is a link, and a report is not written through links: remove it"
                )
        if (out / path).is_dir():
            raise UserError(f"{out / path} is a folder, but a file of the report goes there: move it away")


def _relative(roots: Sequence[Path], out: Path) -> tuple[str, ...]:
    """Where workspaces are, seen from a report: this says little of the machine, and moves with both."""
    return tuple(os.path.relpath(root.resolve(), out.resolve()) for root in roots)


def _require_same_subject(out: Path, staging: Path, replace: bool) -> None:
    """Refuse to replace the report of a study by that of another one, or of another kind."""
    old, new = read_manifest(out), read_manifest(staging)
    if old and new and (old.subject, old.study) != (new.subject, new.study):
        raise UserError(f"{out} has {old.subject}: name another folder, or remove that one first")
    if old and new and old.pair and new.pair and not replace:
        before, now = (
            [(side.study, side.commit) for side in (pair.a, pair.b)] for pair in (old.pair, new.pair)
        )
        if before != now:
            raise UserError(
                f"{out} has the comparison of {old.pair.a.name} and {old.pair.b.name}: "
                "name another folder, or replace it with --replace"
            )


def _report_files(place: Path, staging: Path) -> set[str]:
    """The files of the report that is there already, and what LaTeX made of its document, if that changes."""
    old, new = read_manifest(place), read_manifest(staging)
    if old is None:
        return set()
    before, now = (
        {path: digest for path, digest in manifest.files.items() if path.startswith("latex/")}
        for manifest in (old, new or old)
    )
    return {*old.files, *(COMPILED if before and before != now else ())}
