"""Whether other users could change code or batch scripts that run as this user.

The owners of folders are trusted with what is below them, as root is: a user cannot choose them. Members of a
group that can write to a folder are not trusted, but no reason to refuse it: centres give such folders to
projects, and users cannot close them. At any time, a member can put something else in the place of what lies
there. So jobs run only code that they have read and checked (runner.start), in folders of their user.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from model.record.errors import UserError
from model.record.files import open_regular

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_ACL, _DEFAULT_ACL = "system.posix_acl_access", "system.posix_acl_default"
_ENTRY = struct.Struct("<HHI")  # of a list: whom it is for, permissions, id (linux/posix_acl_xattr.h)
_OWNER, _WRITE = 1, 2


def close_umask() -> None:
    """From now on, nobody else can write to what this process and its children create, whatever the umask."""
    os.umask(os.umask(_OTHERS) | _OTHERS)


def make_folder(folder: Path) -> None:
    """Create a folder and those above it that are missing, all closed to writing by others.

    Where the folder above has a default access control list, no umask holds: what is created there can be
    written to by all that the list names. The new folder inherits the list, so they lose that right in it.
    """
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode=0o755, exist_ok=True)
    with suppress(OSError):  # there is no list, or the filesystem has none
        allowed = os.getxattr(folder, _DEFAULT_ACL)
        entries = [(whom, may, name) for whom, may, name in _ENTRY.iter_unpack(allowed[4:])]
        closed = [(whom, may if whom == _OWNER else may & ~_WRITE, name) for whom, may, name in entries]
        os.setxattr(folder, _DEFAULT_ACL, allowed[:4] + b"".join(_ENTRY.pack(*entry) for entry in closed))


def require_own(study: Path, *inside: Path) -> None:
    """Check that no other user could change these paths, which may be files or folders, if they exist.

    Args:
        study: a study's folder.
        inside: paths under it.

    Raises:
        UserError: another user could; the message names the path and the command that closes it.
    """
    for path in (study, *inside):
        with suppress(FileNotFoundError):
            _require_own(path, path.stat(), study)


def _require_own(path: Path, facts: os.stat_result, study: Path) -> None:
    if facts.st_uid != os.geteuid():
        raise UserError(f"{path} belongs to {_name(facts.st_uid)}, who could run code as you: {_ELSEWHERE}")
    if facts.st_mode & _OTHERS:
        raise UserError(f"{path} is writable by others, who could run code as you: chmod -R go-w {study}")


def require_written(path: Path, content: bytes, study: Path) -> None:
    """Check that this user, or the superuser, wrote a file of a study with this content. Raises UserError.

    The file is opened once: others could put one of this user's in its place between two looks.
    """
    try:
        with open(path, "rb", opener=open_regular) as file:
            if os.fstat(file.fileno()).st_uid:
                _require_own(path, os.fstat(file.fileno()), study)
            same = file.read() == content
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    if not same:
        raise UserError(f"{path} was changed by somebody else just now: {_ELSEWHERE}")


def require_closed_to_strangers(study: Path) -> None:
    """Check that not everybody can put something else in a study's place.

    Raises:
        UserError: everybody can; the message names the folder and the command that closes it.
    """
    for above in filter(Path.exists, _above(_absolute(study))):
        facts = above.stat()
        if facts.st_mode & stat.S_IWOTH and not facts.st_mode & stat.S_ISVTX:
            raise UserError(
                f"{above} is writable by everybody, who could replace {study} and run code as you: "
                f"chmod o-w {above}, or chmod +t {above} to share it, or {_ELSEWHERE}"
            )


_ELSEWHERE = "choose another place with --root"


def replaceable(paths: Iterable[Path]) -> Iterator[tuple[Path, Path, str]]:
    """Yield the paths that members of a group could change or replace; each with where, and which group.

    A folder with the sticky bit lets nobody. A group that only this user is in does not count.
    """
    for path in paths:
        whole = _absolute(path)
        for place in filter(Path.exists, (whole, *_above(whole))):
            facts = place.stat()
            kept = place != whole and facts.st_mode & stat.S_ISVTX
            if facts.st_mode & stat.S_IWGRP and not kept and not _is_private(place, facts.st_gid):
                group = str(facts.st_gid)
                with suppress(KeyError):  # it has no name
                    group = grp.getgrgid(facts.st_gid).gr_name
                yield path, place, f"group {group}"
                break


def belongs_to_others(path: Path) -> str | None:
    """Who owns a file or folder, unless that is this user or the superuser."""
    owner = path.stat().st_uid
    return None if owner in (os.geteuid(), 0) else _name(owner)


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100  `resolve` would follow links


def _above(path: Path) -> Iterator[Path]:
    """Every folder whose writers could change what the path leads to, also through symbolic links."""
    for place in (path, *path.parents):
        if place.is_symlink():
            yield from _above(place.parent / place.readlink())
        if place != path:
            yield place


def _is_private(folder: Path, group_id: int) -> bool:
    """Whether a folder's group is the user's own: many systems give each user one, of the same name.

    If the folder has an access control list, the bits of the group stand for all that the list names.
    """
    with suppress(OSError):
        return not os.getxattr(folder, _ACL)
    try:
        group, me = grp.getgrgid(group_id), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return group.gr_name == me and set(group.gr_mem) <= {me}


def _name(user_id: int) -> str:
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return f"user {user_id}"
