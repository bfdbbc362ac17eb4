"""Whether other users could change code or batch scripts that run as this user."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from model.errors import UserError

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def close_umask() -> None:
    """From now on, nobody else can write to what this process and its children create, whatever the umask."""
    os.umask(os.umask(_OTHERS) | _OTHERS)


def require_own(study: Path, *inside: Path) -> None:
    """Check that no other user could change or replace these paths, which may be files or folders.

    Owners of folders above the study are trusted, as root is: a user cannot choose them.

    Args:
        study: a study's folder.
        inside: paths under it.

    Raises:
        UserError: another user could; the message names the path and the command that closes it.
    """
    for path in (study, *inside):
        facts = path.stat()
        if facts.st_uid != os.geteuid():
            raise UserError(
                f"{path} belongs to {_name(facts.st_uid)}, who could run code as you: {_ELSEWHERE}"
            )
        if facts.st_mode & _OTHERS:
            raise UserError(f"{path} is writable by others, who could run code as you: chmod -R go-w {study}")
    for above in _above(Path(os.path.abspath(study))):  # noqa: PTH100  `resolve` would follow links
        if _can_be_renamed(above):
            raise UserError(
                f"{above} is writable by others, who could replace {study} and run code as you: "
                f"chmod go-w {above}, or chmod +t {above} to share it, or {_ELSEWHERE}"
            )


_ELSEWHERE = "choose another place with --root"


def _above(path: Path) -> Iterator[Path]:
    """Every folder whose writers could change what the path leads to, also through symbolic links."""
    for place in (path, *path.parents):
        if place.is_symlink():
            yield from _above(place.parent / place.readlink())
        if place != path:
            yield place


def _can_be_renamed(folder: Path) -> bool:
    """Whether other users can rename what this user has in a folder."""
    facts = folder.stat()
    if facts.st_mode & stat.S_ISVTX:
        return False
    group = facts.st_mode & stat.S_IWGRP and not _is_private(facts.st_gid)
    return bool(facts.st_mode & stat.S_IWOTH or group)


def _is_private(group_id: int) -> bool:
    """Whether a group is the user's own: many systems give each user one, of the same name."""
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
