"""Writes a study's run folders to one file, which `runner collect` reads elsewhere.

In it are each run's record, its ledger and its attempts' records, without checkpoints; the certificates that
attempts name; the ceilings of nodes; and the lists of installed packages. What runs printed and uncommitted
changes may hold what others must not read, so they come only if asked for.
"""

from __future__ import annotations

import gzip
import tarfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from analysis.store.scan import CERTIFICATES, IN_ATTEMPT, IN_RUN, NODES
from model.record.files import Unreadable, is_plain, replacing
from model.record.folder import STUDY, run_folders, study_record
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
    names = OF_RUN | OF_ATTEMPT | (LOGS if logs else set())
    paths: list[Path] = []
    keys: set[str | None] = set()  # of the certificates that attempts name, as far as these can be read
    in_flight: list[str] = []
    unreadable: list[str] = []
    for folder in run_folders(root, study):
        attempts = [folder.attempt(number) for number in folder.numbers()]
        for attempt in attempts:
            with suppress(Unreadable):
                if attempt.manifest:
                    keys.add(attempt.manifest.certificate)
            with suppress(Unreadable):
                if attempt.kernels:
                    keys |= {timed.certificate for timed in attempt.kernels.times}
        try:  # with a torn plan in it, no other workspace would accept the archive
            folder.imported if folder.is_imported else folder.run  # noqa: B018
        except Unreadable:
            unreadable.append(folder.path.name)
        with suppress(Unreadable):  # a collect will say why
            if any(attempt.settled is None and not attempt.released for attempt in folder.attempts()):
                in_flight.append(folder.path.name)
        if folder.path.name not in (*in_flight, *unreadable):
            for place in (folder.path, *(attempt.path for attempt in attempts)):
                paths += (path for path in place.iterdir() if path.name in names and is_plain(path))

    certificates = [root / CERTIFICATES / f"{key}.json" for key in keys if key and NAME.fullmatch(key)]
    paths += filter(is_plain, certificates)
    with suppress(Unreadable):
        if (record := study_record(root, study)) and record.removed:
            paths.append(root / study / STUDY)
    paths += filter(is_plain, (root / study / NODES).glob("[!.]*.json"))
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
    return LeftOut(tuple(in_flight), tuple(unreadable))
