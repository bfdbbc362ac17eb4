"""Whether a folder can be written to, what its filesystem promises, and the lock of a study's folder.

One launcher or repairing command holds a study's lock. The kernel releases it if its holder dies.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from model.record.errors import UserError
from model.record.files import hold_lock, no_link
from runner.state import guard

WAIT_SECONDS = 60.0  # for a study's lock
log = logging.getLogger(__name__)

# Filesystems of one machine alone. Others that are not named below, such as FUSE, may be either.
_LOCAL = frozenset(["btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"])
_SHARED = frozenset(["ceph", "gpfs"])
_ONE_NODE = "file locks hold on one node only: start a study's launches and repairs on one node"


@dataclass(frozen=True)
class Promise:
    """A filesystem's kind, and what it promises.

    Attributes:
        shared: whether other machines see it; None if unknown.
        locks: whether a lock holds on all machines that see it; None if unknown.
    """

    kind: str
    shared: bool | None
    locks: bool | None
    text: str


def existing(path: Path) -> Path:
    """The path, or its nearest parent that exists, be it a link that leads nowhere."""
    return next(place for place in (path, *path.parents) if place.exists() or place.is_symlink())


def require_writable(folder: Path, option: str = "--root") -> None:
    """Check that this user can write to a folder, or create it if there is none. Writes nothing.

    Args:
        option: chooses the folder.

    Raises:
        UserError: the user cannot.
    """
    why, place = None, existing(folder)
    if not place.is_dir():
        why = errno.ENOTDIR
    elif not writable(place):
        why = errno.EROFS if os.statvfs(place).f_flag & os.ST_RDONLY else errno.EACCES
    if why:
        raise not_writable(place, os.strerror(why), option)


def not_writable(path: Path, why: str | None, option: str = "--root") -> UserError:
    """The error of a path that this user cannot write to.

    Args:
        why: in the system's words.
        option: chooses another path.
    """
    return UserError(f"{path}: {why}; choose another place with {option}")


def writable(folder: Path) -> bool:
    """Whether this user can write to a folder."""
    return os.access(folder, os.W_OK | os.X_OK)


def promise(folder: Path) -> Promise:
    """The promise of an existing folder's filesystem, from its type and mount options."""
    import psutil  # slow to import, and seldom needed

    path = folder.resolve()
    mounts = [mount for mount in psutil.disk_partitions(all=True) if path.is_relative_to(mount.mountpoint)]
    # If two mounts are at one place, the later one is seen.
    _, mount = max(enumerate(mounts), key=lambda pair: (len(pair[1].mountpoint), pair[0]), default=(0, None))
    return of_mount(mount.fstype, mount.opts) if mount else of_mount("unknown", "")


def of_mount(kind: str, options: str) -> Promise:
    """The promise of a mount of this type with these comma-separated options."""
    words = set(options.split(","))
    if kind in _LOCAL:
        return Promise(kind, False, True, "local to this machine: other nodes cannot see it")
    if kind == "lustre" and "flock" not in words:
        text = _ONE_NODE if "localflock" in words else "mounted without flock: no file locks"
        return Promise(kind, True, False, text)
    if kind in ("nfs", "nfs4") and words & {"nolock", "local_lock=flock", "local_lock=all"}:
        return Promise(kind, True, False, _ONE_NODE)
    if kind in ("lustre", "nfs", "nfs4") or kind in _SHARED:
        return Promise(kind, True, True, "file locks hold on all nodes")
    return Promise(
        kind, None, None, "unknown whether other nodes can see it, or whether file locks hold there"
    )


@contextmanager
def locked(study_folder: Path, refusal: str | None = None) -> Iterator[None]:
    """Hold a study's lock.

    Args:
        refusal: what the error says.

    Raises:
        UserError: another process keeps it for WAIT_SECONDS, or the study's folder is not writable.
    """
    with study_lock(study_folder, WAIT_SECONDS) as held:
        if not held:
            keeps = f"another command has held {study_folder.name} for {WAIT_SECONDS:.0f} s; try again later"
            raise UserError(refusal or keeps)
        yield


@contextmanager
def study_lock(study_folder: Path, wait_seconds: float) -> Iterator[bool]:
    """Hold a study's lock; yields False if another process still holds it after `wait_seconds`.

    On a filesystem without locks this warns and continues. Even then nothing is started twice, because a run
    is claimed by a folder that only one launcher can create; only two repairs could collide.

    Raises:
        UserError: the study's folder is not writable.
    """
    require_writable(study_folder)
    try:
        guard.make_folder(study_folder)
        descriptor = no_link(study_folder / ".lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise not_writable(study_folder, error.strerror) from error
    try:
        try:
            held = hold_lock(descriptor, wait_seconds)
        except OSError as error:
            log.warning(
                "%s: the filesystem has no file locks (%s); do not run two launches of this study at once",
                study_folder,
                error.strerror,
            )
            held = True
        yield held
    finally:
        os.close(descriptor)
