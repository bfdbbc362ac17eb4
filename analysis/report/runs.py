"""The runs of a report: a page for each, or for each unexpected one, and the pages of their table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

from analysis.report import output
from analysis.report.facts import literal, rows
from analysis.report.rows import Printed, Run, RunFile
from analysis.stats import grouped
from analysis.store.database import quoted
from analysis.verdicts.match import settings_of
from analysis.verdicts.slowest import slowest

if TYPE_CHECKING:
    from pathlib import Path

    from duckdb import DuckDBPyConnection

MOST = 200  # pages of runs in one report
MOST_NAMED = 50  # runs or files that a list under a figure or a table names
_ROWS = 500  # of one page of the table: browsers lay out a table as a whole
FILES_SQL = """\
SELECT run_id, path, size_bytes, sha256, missing_since FROM files
WHERE study = $study AND run_id IN ($runs) ORDER BY path"""


@dataclass(frozen=True)
class RunPage:
    """What the page of one run says besides its row.

    Attributes:
        unusual: (setting, its value, the value of most groups) where these differ.
        printed: the ends of its output, by attempt; None if the report leaves output out.
        files: the records that it was read from.
        fellows: the other runs of its group.
        slowest: which of its processes was slowest; None: it had one, or it is not known.
    """

    run: Run
    unusual: list[tuple[str, Any, Any]]
    printed: dict[int, list[Printed]] | None
    files: list[RunFile]
    fellows: list[Run]
    slowest: str | None


@dataclass(frozen=True)
class RunPages:
    """The pages of runs, and what the page that lists them says.

    Attributes:
        every: whether every run has one, and not only those that ended otherwise than expected.
        queries: SQL by name.
    """

    pages: list[RunPage]
    every: bool
    queries: dict[str, str]
    most = MOST
    most_lines = output.MOST_LINES
    most_characters = output.MOST_CHARACTERS


@dataclass(frozen=True)
class TablePage:
    """One page of the table of runs, where the overview has no room for it.

    Attributes:
        name: of the page, without `.html`.
        first, last: places of its runs in the study's order, counted from 1.
    """

    name: str
    first: int
    last: int
    runs: Sequence[Run]


def table_pages(runs: Sequence[Run]) -> list[TablePage]:
    """The pages of the table; none if the runs are so few that the overview has it."""
    if len(runs) <= MOST:
        return []
    return [
        TablePage(f"all-runs-{number}", start + 1, min(start + _ROWS, len(runs)), runs[start : start + _ROWS])
        for number, start in enumerate(range(0, len(runs), _ROWS), start=1)
    ]


def gather(
    connection: DuckDBPyConnection, study: str, runs: Sequence[Run], root: Path | None = None
) -> RunPages:
    """What the pages of a study's runs say. Each run's row is given its `page`, for links.

    Args:
        root: the workspace whose runs' output to quote; None for what is attached to the connection, if any.
    """
    shown = runs
    if len(runs) > MOST:
        shown = [run for run in runs if run["outcome"] not in (None, run["expected_outcome"])][:MOST]
    with_page = {run["run_id"] for run in shown}
    for run in runs:
        run["page"] = f"run-{run['run_id']}.html" if run["run_id"] in with_page else None
    ids = ", ".join(quoted(run["run_id"]) for run in shown) or "NULL"
    queries = {"run_files": FILES_SQL.replace("$runs", ids)}
    if root:
        attempts = [(run["run_id"], attempt["attempt"]) for run in shown for attempt in run["history"]]
        output.attach(connection, output.read(root, study, attempts))
    printed: dict[str, list[Printed]] | None = None
    if output.attached(connection):
        queries["output"] = output.SQL
        ends = cast("list[Printed]", rows(connection, output.SQL, study))
        printed = grouped(ends, itemgetter("run_id"))
    records = cast("list[RunFile]", rows(connection, queries["run_files"], study))
    files = grouped(records, itemgetter("run_id"))
    groups = grouped(runs, itemgetter("group_id"))
    usual = _usual_settings(groups.values())
    pages = [
        RunPage(
            run,
            [
                (name, value, usual.get(name))
                for name, value in settings_of(run).items()
                if value != usual.get(name)
            ],
            None if printed is None else grouped(printed.get(run["run_id"], []), itemgetter("attempt")),
            files.get(run["run_id"], []),
            [other for other in groups[run["group_id"]] if other is not run],
            slowest(run),
        )
        for run in shown
    ]
    return RunPages(
        pages, len(shown) == len(runs), {name: literal(sql, study) for name, sql in queries.items()}
    )


def _usual_settings(groups: Iterable[Sequence[Run]]) -> dict[str, Any]:
    """By setting, the value that most groups have; of equally many, the first one's."""
    counts: dict[str, Counter[str]] = {}
    for run, *_ in groups:
        for name, value in settings_of(run).items():
            counts.setdefault(name, Counter())[json.dumps(value)] += 1
    return {name: json.loads(counter.most_common(1)[0][0]) for name, counter in counts.items()}
