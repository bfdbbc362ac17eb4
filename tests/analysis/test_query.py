"""SQL on the command line: the formats, and what a query cannot do."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from analysis import store
from analysis.collect import collect
from analysis.query import FORMATS, ask, query
from model.errors import UserError
from tests.analysis.fabricate import completed

ODD = "SELECT 'a_b & 50% {x} \\ <y>' AS \"odd_name\", 1.5 AS number, NULL AS nothing"


@pytest.fixture
def filled(root: Path) -> Path:
    completed(root, "r1", attention="flash")
    collect(root)
    return root


def out(root: Path, sql: str, form: str, capfdbinary: pytest.CaptureFixture[bytes]) -> bytes:
    query(root, sql, form)
    return capfdbinary.readouterr().out


def test_json_is_one_document_with_nested_json(
    filled: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    sql = "SELECT run_id, factors, mfu / 0 AS infinite, 'nan'::DOUBLE AS nan, created_at, [1.5, NULL] AS l FROM runs"
    assert json.loads(out(filled, sql, "json", capfdbinary)) == [
        {
            "run_id": "r1",
            "factors": {"attention": "flash", "seed": 0},
            "infinite": None,
            "nan": None,
            "created_at": "2026-03-01T12:00:00",
            "l": [1.5, None],
        }
    ]


def test_json_of_no_rows_is_an_empty_array(filled: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert json.loads(out(filled, "SELECT * FROM kernels", "json", capfdbinary)) == []


def test_json_refuses_two_columns_of_one_name(filled: Path) -> None:
    with pytest.raises(UserError, match="two columns are named 'a'"):
        query(filled, "SELECT 1 AS a, 2 AS a", "json")


def test_csv_has_a_header_and_quotes_what_needs_it(
    filled: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    got = out(filled, "SELECT 'a,b' AS x, 'say \"hi\"' AS y, NULL AS z", "csv", capfdbinary)
    assert got == b'x,y,z\n"a,b","say ""hi""",\n'


def test_parquet_keeps_types(filled: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    got = out(filled, "SELECT run_id, step, loss, time FROM steps ORDER BY step", "parquet", capfdbinary)
    table = pq.read_table(io.BytesIO(got))
    assert [str(field.type) for field in table.schema] == ["string", "int64", "double", "timestamp[us]"]
    assert table.num_rows == 21


def test_latex_escapes_and_uses_booktabs(filled: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert out(filled, ODD, "latex", capfdbinary).decode() == (
        "\\begin{tabular}{lrl}\n\\toprule\nodd\\_name & number & nothing \\\\\n\\midrule\n"
        "a\\_b \\& 50\\% \\{x\\} \\textbackslash{} \\textless{}y\\textgreater{} & 1.5 & -- \\\\\n"
        "\\bottomrule\n\\end{tabular}\n"
    )


def test_a_table_off_a_terminal_is_plain_and_complete(
    filled: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    got = out(filled, "SELECT repeat('x', 300) AS wide, NULL AS n", "table", capfdbinary).decode()
    assert got == f"wide{' ' * 296}  n\n{'x' * 300}  NULL\n"


def test_a_table_on_a_terminal_does_not_read_markup(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "[red]x" in FORMATS["table"](ask(filled, "SELECT '[red]x' AS a, 1 AS b")).decode()


def test_an_unknown_format_names_the_valid_ones(filled: Path) -> None:
    with pytest.raises(UserError, match="valid: table, csv, json, parquet, latex"):
        query(filled, "SELECT 1", "xml")


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT * FROM rums", 'Did you mean "runs"'),
        ("SELEC 1", "syntax error"),
        ("", "gives no rows"),
        ("SELECT nope FROM runs", "nope"),
    ],
)
def test_bad_sql_is_a_users_error_in_duckdbs_words(filled: Path, sql: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        ask(filled, sql)


def test_without_a_database_it_says_what_to_run(root: Path) -> None:
    with pytest.raises(UserError, match="run `runner collect` first"):
        ask(root, "SELECT 1")


def test_a_file_that_is_no_database_is_a_users_error(root: Path) -> None:
    store.database(root).write_bytes(b"x" * 10_000)
    with pytest.raises(UserError, match="cannot be opened"):
        ask(root, "SELECT 1")


def test_a_database_of_another_schema_says_to_collect_again(root: Path) -> None:
    duckdb.connect(store.database(root)).close()
    with pytest.raises(UserError, match="run `runner collect` again"):
        ask(root, "SELECT 1")


@pytest.mark.parametrize(
    "sql",
    [
        "COPY runs TO '{outside}'",
        "COPY (SELECT 1) TO '{outside}' (FORMAT parquet)",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM read_csv('/etc/passwd')",
        "FROM '/etc/passwd'",
        "ATTACH '{outside}'",
        "ATTACH '{outside}' AS other (READ_ONLY)",
        "INSTALL httpfs",
        "LOAD httpfs",
        "EXPORT DATABASE '{outside}'",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "RESET enable_external_access",
        "CREATE TABLE x (a INT)",
        "DELETE FROM files",
        "DROP VIEW runs",
        "UPDATE files SET path = 'x'",
        "SELECT 1; COPY runs TO '{outside}'",
    ],
)
def test_a_query_can_neither_write_nor_reach_out(filled: Path, tmp_path: Path, sql: str) -> None:
    outside = tmp_path / "outside"
    before = store.database(filled).read_bytes()
    with pytest.raises(UserError):
        ask(filled, sql.format(outside=outside))
    assert not outside.exists()
    assert store.database(filled).read_bytes() == before


def test_the_analysis_package_starts_without_heavy_imports() -> None:
    code = (
        "import sys, analysis.collect, analysis.query, analysis.report, analysis.charts\n"
        "assert len(analysis.charts.names()) >= 5\n"
        "print({'torch', 'duckdb', 'altair', 'vl_convert', 'pyarrow', 'jinja2'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
