"""Reads a repository's commit and uncommitted changes without running any code from the repository.

Uses plumbing commands only, without hooks, filters, external diffs, a filesystem monitor or fetches: looking
at someone's repository must not start their programs.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.machinery import all_suffixes
from pathlib import Path

from runner.state.code import snapshot

TIMEOUT_SECONDS = 5.0
MAX_DIFF_BYTES = 2**20
MAX_FILE_BYTES = 2**18  # of an untracked file
_NAMED_LEFT_OUT = 50
# Untracked files that may hold secrets are named but not stored.
_SECRET = (".env*", ".netrc", "*.pem", "*.key", "id_*", "*secret*", "*credential*", "*password*")
_SETTINGS = {
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.hooksPath": os.devnull,
    "core.bigFileThreshold": "1m",  # larger files count as binary
}
_DIFF = (
    *("diff-index", "-p", "--full-index", "--no-ext-diff", "--no-textconv", "--no-renames", "--no-color"),
    *("--ignore-submodules=dirty", "--src-prefix=a/", "--dst-prefix=b/", "HEAD", "--"),
)


@dataclass(frozen=True)
class RepositoryState:
    """A repository's state. None means unknown: no git, no repository, no commit, or a timeout.

    Attributes:
        dirty: whether a tracked file differs from the commit, or a run can import a file that is neither
            tracked nor ignored. Others, such as tables that were exported, make no run another.
        diff: the changes, for `git apply`, including untracked text files of any kind; comment lines at the
            end list what was left out. None also if nothing differs.
    """

    commit: str | None = None
    dirty: bool | None = None
    diff: bytes | None = None


def state(folder: Path) -> RepositoryState:
    """State of the repository that contains a folder; its fields are None if there is none."""
    commit = None
    try:
        answer = _git(folder, "rev-parse", "--show-toplevel", "HEAD^{commit}", settings=_SETTINGS)
        top, commit = os.fsdecode(answer).rstrip("\n").rsplit("\n", 1)
        settings = _SETTINGS | _without_filters(folder)
        tracked = _git(Path(top), *_DIFF, settings=settings)
        others = _git(Path(top), "ls-files", "-z", "--others", "--exclude-standard", settings=settings)
    except (OSError, ValueError, subprocess.SubprocessError):
        return RepositoryState(commit)
    # A file that was touched but not changed has only a header line.
    parts = [part for part in re.split(rb"(?m)^(?=diff --git )", tracked) if part.count(b"\n") > 1]
    names = [name for name in others.split(b"\0") if name]
    dirty = bool(parts) or any(_importable(Path(top), name) for name in names)
    parts += [_untracked(Path(top), name) for name in names]
    if not parts:
        return RepositoryState(commit, dirty=False)
    # Those that fit, each complete so that the result applies; then a list of those left out.
    kept, left_out, size = list[bytes](), list[bytes](), 0
    for part in parts:
        if part.startswith(b"# left out"):
            left_out.append(part)
        elif size + len(part) <= MAX_DIFF_BYTES:
            kept.append(part)
            size += len(part)
        else:
            left_out.append(
                b"# left out: %b (%d bytes, over the limit)\n"
                % (part.partition(b"\n")[0].removeprefix(b"diff --git "), len(part))
            )
    more = [b"# left out: %d more\n" % (len(left_out) - _NAMED_LEFT_OUT)] * (len(left_out) > _NAMED_LEFT_OUT)
    return RepositoryState(commit, dirty, b"".join([*kept, *left_out[:_NAMED_LEFT_OUT], *more]))


def _git(folder: Path, *arguments: str, settings: dict[str, str]) -> bytes:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    given = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings.items()):
        given |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    never = {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}
    return subprocess.run(
        ["git", "-C", str(folder), "--no-pager", *arguments],
        env={**clean, **given, **never, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT_SECONDS,
        check=True,
    ).stdout


def _without_filters(folder: Path) -> dict[str, str]:
    """Settings that disable every filter in the repository's and the user's configuration."""
    try:
        listed = _git(folder, "config", "--null", "--name-only", "--get-regexp", r"^filter\.", settings={})
    except subprocess.CalledProcessError:
        return {}  # there are none
    names = {os.fsdecode(key).rpartition(".")[0] for key in listed.split(b"\0") if key}
    off = {"clean": "", "smudge": "", "process": "", "required": "false"}
    return {f"{name}.{key}": value for name in sorted(names) for key, value in off.items()}


def _importable(top: Path, name: bytes) -> bool:
    """Whether a run can import an untracked file, or one lies in a package, which may read it.

    Of a repository inside this one, git names the folder alone: it may hold anything. Snapshots of
    code beside a study's runs are copies of what these imported.
    """
    path = Path(os.fsdecode(name))
    if snapshot.FOLDER in path.parts:
        return False
    in_package = any((top / folder / "__init__.py").is_file() for folder in (path, *path.parents))
    return in_package or name.endswith(b"/") or path.name.endswith(tuple(all_suffixes()))


def _untracked(top: Path, name: bytes) -> bytes:
    """A text file as a diff that adds it; for anything else, a comment line that names it."""
    path = top / os.fsdecode(name)
    try:
        facts = path.lstat()
        linked = stat.S_ISLNK(facts.st_mode)
        if any(fnmatch(path.name.lower(), pattern) for pattern in _SECRET):
            return _comment(name, "may hold a secret")
        if not stat.S_ISREG(facts.st_mode) and not linked:
            return _comment(name, "not a regular file")
        if facts.st_size > MAX_FILE_BYTES:
            return _comment(name, f"{facts.st_size:,} bytes")
        content = os.fsencode(path.readlink()) if linked else path.read_bytes()
    except OSError as error:
        return _comment(name, str(error.strerror))
    if b"\0" in content:
        return _comment(name, "not text")

    mode = b"120000" if linked else b"100755" if facts.st_mode & 0o100 else b"100644"
    old, new = _quoted(b"a/" + name), _quoted(b"b/" + name)
    head = b"diff --git %b %b\nnew file mode %b\n" % (old, new, mode)
    if not content:
        return head
    lines = content.split(b"\n")
    ended = lines[-1] == b""
    lines = lines[:-1] if ended else lines
    tab = b"\t" if b" " in name else b""  # git's terminator for a name with spaces
    head += b"--- /dev/null\n+++ %b%b\n@@ -0,0 +1,%d @@\n" % (new, tab, len(lines))
    return (
        head
        + b"".join(b"+%b\n" % line for line in lines)
        + (b"" if ended else b"\\ No newline at end of file\n")
    )


def _quoted(name: bytes) -> bytes:
    """A file name as git writes it: quoted, with octal escapes, unless it is plain ASCII."""
    if re.fullmatch(rb"[ -!#-\[\]-~]+", name):
        return name
    plain = rb"[^ -!#-\[\]-~]"
    return b'"' + re.sub(plain, lambda match: b"\\%03o" % match[0][0], name) + b'"'


def _comment(name: bytes, why: str) -> bytes:
    return b"# left out: %b (%b)\n" % (_quoted(name), why.encode())
