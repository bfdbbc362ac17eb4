"""Whether a folder can be written to, and what its filesystem promises: on which machines file locks hold."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from model.record.errors import UserError

# Filesystems of one machine alone. Others that are not named below, such as FUSE, may be either.
_LOCAL = frozenset(["btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"])
_SHARED = frozenset(["ceph", "gpfs"])
_ONE_NODE = "file locks hold on one node only: start a study's launches and repairs on one node"


@dataclass(frozen=True)
class Promise:
    """What is known of a filesystem.

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
    return next(each for each in (path, *path.parents) if each.exists() or each.is_symlink())


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
        raise UserError(f"{place}: {os.strerror(why)}; choose another place with {option}")


def writable(folder: Path) -> bool:
    """Whether this user can write to a folder."""
    return os.access(folder, os.W_OK | os.X_OK)


def promise(folder: Path) -> Promise:
    """What the filesystem of an existing folder promises, from its type and mount options."""
    import psutil  # slow to import, and seldom needed

    path = folder.resolve()
    mounts = [each for each in psutil.disk_partitions(all=True) if path.is_relative_to(each.mountpoint)]
    # If two mounts are at one place, the later one is seen.
    found = max(enumerate(mounts), key=lambda each: (len(each[1].mountpoint), each[0]), default=None)
    return of_mount(found[1].fstype, found[1].opts) if found else of_mount("unknown", "")


def of_mount(kind: str, options: str) -> Promise:
    """What a mount of this type with these comma-separated options promises."""
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
