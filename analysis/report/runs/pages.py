"""What a report says about single runs: a page for each, or for each that ended otherwise than expected."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from analysis.report.facts import Row, literal, rows
from analysis.report.runs import output
from analysis.stats import grouped
from analysis.store.database import quoted
from analysis.verdicts.match import Settings, settings_of
from analysis.verdicts.slowest import slowest

if TYPE_CHECKING:
    from pathlib import Path

    from duckdb import DuckDBPyConnection

MOST = 200  # pages of runs in one report
_RUN_ID, _ATTEMPT = itemgetter("run_id"), itemgetter("attempt")
_FILES = """\
SELECT run_id, path, size_bytes, sha256, missing_since FROM files
WHERE study = $study AND run_id IN ($runs) ORDER BY path"""


@dataclass(frozen=True)
class RunPage:
    """What the page of one run says besides its row.

    Attributes:
        apart: (setting, its value, the value of most groups) where these differ.
        printed: the ends of its output, by attempt; None if the report leaves output out.
        files: the records that it was read from.
        fellows: the other runs of its group.
        slowest: which of its processes was slowest; None: it had one, or it is not known.
    """

    run: Row
    apart: list[tuple[str, Any, Any]]
    printed: dict[int, list[Row]] | None
    files: list[Row]
    fellows: list[Row]
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


def _choose(runs: Sequence[Row]) -> None:
    """Give each run its `page`: the name of a file, or None for a run that has none."""
    chosen = runs if len(runs) <= MOST else [run for run in runs if _unexpected(run)][:MOST]
    names = {run["run_id"] for run in chosen}
    for run in runs:
        run["page"] = f"run-{run['run_id']}.html" if run["run_id"] in names else None


def _unexpected(run: Row) -> bool:
    return run["outcome"] is not None and run["outcome"] != run["expected_outcome"]


def gather(
    connection: DuckDBPyConnection, study: str, runs: Sequence[Row], root: Path | None = None
) -> RunPages:
    """What the pages of a study's runs say. Each run's row is given its `page`, for links.

    Args:
        root: the workspace whose runs' output to quote; None for what is attached to the connection, if any.
    """
    _choose(runs)
    shown = [run for run in runs if run["page"]]
    ids = ", ".join(quoted(run["run_id"]) for run in shown) or "NULL"
    queries = {"run_files": _FILES.replace("$runs", ids)}
    if root:
        output.attach(connection, output.read(root, study, shown))
    if output.attached(connection):
        queries["output"] = output.SQL
    files = grouped(rows(connection, queries["run_files"], study), _RUN_ID)
    printed = grouped(rows(connection, output.SQL, study), _RUN_ID) if "output" in queries else None
    usual, groups = _usual(runs), grouped(runs, itemgetter("group_id"))
    pages = [
        RunPage(
            run,
            _apart(settings_of(run), usual),
            None if printed is None else grouped(printed.get(run["run_id"], []), _ATTEMPT),
            files.get(run["run_id"], []),
            [other for other in groups[run["group_id"]] if other is not run],
            slowest(run),
        )
        for run in shown
    ]
    return RunPages(pages, len(shown) == len(runs), {k: literal(sql, study) for k, sql in queries.items()})


def _usual(runs: Sequence[Row]) -> Settings:
    """By setting, the value that most groups of the study have; of equally many, the first one's."""
    firsts = {run["group_id"]: run for run in reversed(runs)}
    values: dict[str, Counter[str]] = {}
    for run in reversed(firsts.values()):
        for name, value in settings_of(run).items():
            values.setdefault(name, Counter())[json.dumps(value)] += 1
    return {name: json.loads(counts.most_common(1)[0][0]) for name, counts in values.items()}


def _apart(settings: Settings, usual: Settings) -> list[tuple[str, Any, Any]]:
    return [(name, value, usual.get(name)) for name, value in settings.items() if value != usual.get(name)]
