"""What the database holds already, so that only the rest has to be looked at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.store.database import open_for_reading
from analysis.store.scan import CERTIFICATES, Key, Seen
from analysis.store.tables import count
from model.record.errors import UserError
from model.record.outcome import Outcome

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# What could not be read may be readable now: chmod leaves a file's size and time alone.
_READABLE = f"""\
SELECT path, size_bytes, mtime_ns FROM files
WHERE (study = '{CERTIFICATES}' OR $1 IS NULL OR study = $1) AND missing_since IS NULL AND sha256 <> ''"""
_LOST = f"""\
SELECT DISTINCT study, run_id FROM files
WHERE (study = '{CERTIFICATES}' OR $1 IS NULL OR study = $1) AND missing_since IS NOT NULL"""
# Whether the job of such an attempt goes on, or why it was stopped, only its ledger says.
_STOPPED = [outcome.value for outcome in Outcome if outcome.may_come_back]
_OVER = f"""\
SELECT study, run_id, coalesce(max(attempt), 0) FROM run_records LEFT JOIN attempts USING (study, run_id)
WHERE $1 IS NULL OR study = $1 GROUP BY ALL HAVING coalesce(arg_max(
    outcome IS NOT NULL AND (job_id IS NULL OR outcome NOT IN {(*_STOPPED,)}), attempt), true)"""


@dataclass(frozen=True)
class Counts:
    """Rows in the database for the studies that were collected; certificates belong to no study."""

    runs: int
    attempts: int
    steps: int
    quarantined: int
    certificates: int


@dataclass(frozen=True)
class Held:
    """What the database holds of one study and all certificates, or of everything.

    Attributes:
        files: path, size in bytes and time of every file that was read and is not known to be gone.
        over: the newest attempt of each run that is neither in flight nor in doubt; 0 before the first.
        lost: runs and certificates of which files are gone.
    """

    files: frozenset[tuple[str, int, int]]
    over: dict[Key, int]
    lost: frozenset[Key]
    counts: Counts

    def differing(self, here: Iterable[Seen]) -> set[Key]:
        """The runs whose files are no longer those that were read.

        Certificates are among them too, by the name of the file.
        """
        differ = self.files.symmetric_difference([file[:3] for found in here for file in found.files])
        return {(study, run) for study, run, *_ in (path.split("/", 2) for path, *_ in differ)}

    def is_over(self, run: Seen) -> bool:
        """Whether no attempt of a run, whose files are as they were read, can still need an outcome.

        A new attempt shows as a folder, which a launcher makes before anything else. Also on NFS, to list the
        run's folder gives what is there now, while the size and time of a file may be some seconds old.
        """
        return self.over.get(run.key) == run.newest and run.key not in self.lost


def read_held(root: Path, study: str | None) -> Held | None:
    """What the database holds; None if there is none, or one that has to be built anew."""
    import duckdb

    try:
        with open_for_reading(root) as connection:
            files = connection.execute(_READABLE, [study]).fetchall()
            over = connection.execute(_OVER, [study]).fetchall()
            lost = connection.execute(_LOST, [study]).fetchall()
            rows = counts(connection, study)
    except (UserError, duckdb.Error):
        return None
    return Held(frozenset(files), {row[:2]: row[2] for row in over}, frozenset(lost), rows)


def counts(connection: DuckDBPyConnection, study: str | None) -> Counts:
    """Count what the database holds of one study and all certificates, or of everything."""
    mine = "study = $1 OR $1 IS NULL"
    return Counts(
        runs=count(connection, "run_records", mine, study),
        attempts=count(connection, "attempts", mine, study),
        steps=count(connection, "step_lines JOIN step_files USING (file)", mine, study),
        quarantined=count(connection, "quarantine", f"{mine} OR study = '{CERTIFICATES}'", study),
        certificates=count(connection, "certificates"),
    )
