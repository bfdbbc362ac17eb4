"""Writes docs/questions.md, as `make docs` does, with answers from the published report's records."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from duckdb import DuckDBPyConnection

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))

from analysis.query.questions import questions_page  # noqa: E402
from analysis.store.collect import collect  # noqa: E402
from analysis.store.database import open_for_reading  # noqa: E402
from analysis.store.records import open_records  # noqa: E402

RECORDS = HERE / "reports/published/backends-h200/data/records"
PUBLISHED = "The answers are from the [published study](../reports/published/backends-h200/index.html)."
MADE_UP = (
    "There is no published report with records here, so **the answers are of a made-up study**: they\n"
    "show the form of an answer, not a result."
)
START = """\
# Ten questions, as SQL

Which runs are done? How fast is each backend? What did the study cost? This page has ten common questions
about a study, each with a query and its answer. {origin}

Each query has a name. `runner sql @speed --study NAME` answers it for your study, and `runner sql --list`
lists these queries and those of the report, without those about other tasks. To change a query, copy it, and
put the study's name in quotes in place of `$study`. [schema.md](schema.md) explains the columns. `make docs`
writes this page.
"""


def text() -> str:
    """The page."""
    with _opened() as (connection, origin):
        ((study,),) = connection.execute("SELECT DISTINCT study FROM run_records").fetchall()
        return questions_page(connection, study, START.format(origin=origin))


@contextmanager
def _opened() -> Iterator[tuple[DuckDBPyConnection, str]]:
    if RECORDS.is_dir():
        with open_records(RECORDS) as connection:
            yield connection, PUBLISHED
        return
    from tests.analysis.demo import write_demo

    with TemporaryDirectory() as name:
        write_demo(Path(name))
        collect(Path(name))
        with open_for_reading(Path(name)) as connection:
            yield connection, MADE_UP


if __name__ == "__main__":
    Path(__file__).with_suffix(".md").write_text(text(), encoding="utf-8")
