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

from analysis.query.answers import page  # noqa: E402
from analysis.store.collect import collect  # noqa: E402
from analysis.store.database import open_for_reading  # noqa: E402
from analysis.store.records import open_records  # noqa: E402

RECORDS = HERE / "reports/published/backends-h200/data/records"
PUBLISHED = "The answers are those of the [published study](../reports/published/backends-h200/index.html)."
MADE_UP = (
    "The published report was made before reports carried their records, so that **the answers\n"
    "here are of a made-up study**: they show the form, and no result."
)
START = """\
# Ten questions, as SQL

Each has a name: `runner sql @speed --study NAME` answers it for any study, and `runner sql --list` lists
these and the queries of the report. Copy one to change it: `$study` stands for the study's name, and
[schema.md](schema.md) explains the columns. `make docs` writes this page. {origin}
"""


def text() -> str:
    """The page."""
    with _opened() as (connection, origin):
        ((study,),) = connection.execute("SELECT DISTINCT study FROM run_records").fetchall()
        return page(connection, study, START.format(origin=origin))


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
