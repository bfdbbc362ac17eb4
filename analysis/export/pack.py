"""Writes a study's run folders to one file, which `runner collect` reads elsewhere.

In it are each run's record, its ledger and its attempts' records, without checkpoints; the certificates that
attempts name; the ceilings of nodes; and the lists of installed packages. What runs printed and uncommitted
changes may hold what others must not read, so they come only if asked for.
"""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from analysis.store.scan import CERTIFICATES, IN_ATTEMPT, IN_RUN, NODES
from model.record.files import Unreadable, replacing
from model.record.folder import STUDY, Attempt, RunFolder, run_folders, study_record
from model.record.records import NAME

OF_RUN = {*IN_RUN}
OF_ATTEMPT = {"claim.json", *IN_ATTEMPT}
LOGS = {"stdout.log", "stderr.log"}


@dataclass(frozen=True)
class LeftOut:
    """Runs that an archive leaves out, by their ids.

    Attributes:
        in_flight: only their own workspace can tell how they end.
        unreadable: nobody can tell what they were.
    """

    in_flight: tuple[str, ...]
    unreadable: tuple[str, ...]


def pack(root: Path, study: str, out: Path, logs: bool = False, diffs: bool = False) -> LeftOut:
    """Write a study's run folders to one file; equal folders give equal bytes.

    Args:
        root: the workspace.
        out: the file, which ends in `.tar.gz`.
        logs, diffs: whether to include what runs printed, and uncommitted changes.

    Returns:
        Which runs it leaves out.
    """
    folders = list(run_folders(root, study))
    left = LeftOut(_names(folders, _in_flight), _names(folders, _unreadable))
    names = OF_RUN | OF_ATTEMPT | (LOGS if logs else set())
    paths: list[Path] = []
    for folder in folders:
        if folder.path.name in (*left.in_flight, *left.unreadable):
            continue
        for place in (folder.path, *(folder.attempt(number).path for number in folder.numbers())):
            paths += (path for path in place.iterdir() if path.name in names and _is_plain(path))
    keys = {
        key for folder in folders for number in folder.numbers() for key in _named(folder.attempt(number))
    }
    certificates = [root / CERTIFICATES / f"{key}.json" for key in keys if key and NAME.fullmatch(key)]
    paths += filter(_is_plain, certificates)
    with suppress(Unreadable):
        if (record := study_record(root, study)) and record.removed:
            paths.append(root / study / STUDY)
    paths += filter(_is_plain, (root / study / NODES).glob("[!.]*.json"))
    wanted = ("*.lock", "*.diff") if diffs else ("*.lock",)
    paths += [path for pattern in wanted for path in (root / study / ".provenance").glob(pattern)]
    out.parent.mkdir(parents=True, exist_ok=True)
    with (
        replacing(out) as aside,
        aside.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in sorted(paths):
            # Without its owner, and with the mode that all files of a workspace have.
            with path.open("rb") as file:
                entry = tar.gettarinfo(arcname=path.relative_to(root).as_posix(), fileobj=file)
                entry.uid = entry.gid = 0
                entry.uname = entry.gname = ""
                entry.mode, entry.mtime = 0o644, int(entry.mtime)
                tar.addfile(entry, file)
    return left


def _names(folders: Iterable[RunFolder], kind: Callable[[RunFolder], bool]) -> tuple[str, ...]:
    return tuple(folder.path.name for folder in folders if kind(folder))


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _unreadable(folder: RunFolder) -> bool:
    """Whether its plan is torn: with it, no other workspace would accept the archive."""
    try:
        folder.imported if folder.is_imported else folder.run  # noqa: B018
    except Unreadable:
        return True
    return False


def _in_flight(folder: RunFolder) -> bool:
    try:
        return any(attempt.settled is None and not attempt.released for attempt in folder.attempts())
    except Unreadable:  # a collect will say why
        return False


def _named(attempt: Attempt) -> Iterator[str | None]:
    """Keys of the certificates that an attempt names, as far as its records can be read."""
    with suppress(Unreadable):
        if attempt.manifest:
            yield attempt.manifest.certificate
    with suppress(Unreadable):
        if attempt.kernels:
            yield from (timed.certificate for timed in attempt.kernels.times)
