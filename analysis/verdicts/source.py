"""The runs that a person names for a comparison, read from a root's database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from analysis.query.ask import answer
from analysis.query.statements import HAS_LOSS
from analysis.store.database import open_for_reading, quoted
from analysis.store.tables import leave_out, removed_runs
from analysis.verdicts.values import Row
from model.record.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_RUNS = "SELECT * FROM runs WHERE study = {study} ORDER BY place, seed, repeat, run_id"
# What verdicts need: losses near the end, and the seconds of runs that have no repeats.
_STEPS = """\
SELECT s.run_id, s.step,
  CASE WHEN s.step > {since} AND {has_loss} THEN coalesce(s.loss, 'nan') END,
  CASE WHEN s.counted AND s.step_seconds > 0 AND s.run_id IN ({single}) THEN s.step_seconds END
FROM steps s JOIN run_records r ON r.study = s.study AND r.run_id = s.run_id
WHERE s.study = {study} AND (s.step > {since} OR s.run_id IN ({single})) ORDER BY s.run_id, s.step"""
_TAIL = 0.5  # of the shorter runs; the fifth of their common steps that losses are compared over lies within
_SHOWN = 12  # characters of a commit in a message


@dataclass(frozen=True)
class StudySource:
    """A study of a root, or those of its runs that were planned at one commit.

    Attributes:
        text: as the person wrote it, which sentences call it.
        commit: the first characters of the commit; None for all runs.
        removed: whether runs count that the study no longer has; those of a commit do.
    """

    text: str
    root: Path
    study: str
    commit: str | None = None
    removed: bool = False

    def open(self) -> DuckDBPyConnection:
        """The database of its root, with the runs that count. Raises UserError if there is none."""
        connection = open_for_reading(self.root)
        leave_out(connection, self.study, self._left_out(connection))
        return connection

    def left_out(self) -> list[str]:
        """Ids of the runs that do not count, because the study no longer has them."""
        with open_for_reading(self.root) as connection:
            return self._left_out(connection)

    def _left_out(self, connection: DuckDBPyConnection) -> list[str]:
        return [] if self.removed or self.commit else removed_runs(connection, self.study)


@dataclass(frozen=True)
class Records:
    """One run's step records, by step.

    Attributes:
        losses: in nats per token; NaN where it was not finite.
        seconds: seconds per step of the records that count.
    """

    losses: dict[int, float] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)


class Measured(NamedTuple):
    """Runs of one source, which sentences call by its name; records by run id."""

    name: str
    runs: Sequence[Row]
    records: Mapping[str, Records]

    def completed(self, runs: Iterable[Row]) -> Measured:
        """The same with the completed ones of these runs."""
        return self._replace(runs=[run for run in runs if run["outcome"] == "completed"])


def read(a: StudySource, b: StudySource) -> tuple[Measured, Measured]:
    """Read two sources from what was collected.

    Raises:
        UserError: no database, no such study in it, or no run of that commit.
    """
    with a.open() as first, b.open() as second:
        return read_open((a, first), (b, second))


def read_open(*both: tuple[StudySource, DuckDBPyConnection]) -> tuple[Measured, Measured]:
    """Read two sources from open databases, whatever their roots. Raises UserError as `read` does."""
    sides = []
    for source, connection in both:
        runs = answer(connection, _RUNS.format(study=quoted(source.study))).parsed()
        if not runs:
            raise UserError(f"no collected runs of study '{source.study}' under {source.root}")
        sides.append((source, connection, runs if source.commit is None else at_commit(runs, source)))
    lengths = [row["steps"] for *_, rows in sides for row in rows if row["outcome"] == "completed"]
    since = int(_TAIL * min((steps for steps in lengths if steps is not None), default=0))
    measured = []
    for source, connection, rows in sides:
        # Losses after a step, and seconds per step of single runs.
        done = [row for row in rows if row["outcome"] == "completed"]
        alone = Counter(row["label"] for row in done)
        single = ", ".join(quoted(row["run_id"]) for row in done if alone[row["label"]] == 1)
        query = _STEPS.format(
            study=quoted(source.study), since=since, single=single or "NULL", has_loss=HAS_LOSS
        )
        answered = answer(connection, query)
        by_run = {row["run_id"]: Records() for row in done}
        for run_id, step, loss, seconds in chain.from_iterable(answered.pieces()):
            if (records := by_run.get(run_id)) is None:  # not completed, or of another commit
                continue
            if loss is not None:
                records.losses[step] = loss
            if seconds is not None:
                records.seconds[step] = seconds
        measured.append(Measured(source.text, rows, by_run))
    one, other = measured
    return one, other


def at_commit(rows: Sequence[Row], source: StudySource) -> Sequence[Row]:
    """The runs that were planned at the source's commit. Raises UserError if none was."""
    assert source.commit
    planned = [row for row in rows if (row["git_sha"] or "").startswith(source.commit)]
    if not planned:
        commits = sorted({row["git_sha"][:_SHOWN] for row in rows if row["git_sha"]})
        valid = did_you_mean(source.commit, commits) if commits else "(no run of it has a recorded commit)"
        raise UserError(f"no run of study '{source.study}' was planned at commit '{source.commit}' {valid}")
    return planned
