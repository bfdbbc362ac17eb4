"""The formats of an answer, as the command line writes them."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from analysis.query.ask import ask
from analysis.query.formats import FORMATS, query
from model.record.errors import UserError

ODD = "SELECT 'a_b & 50% {x} \\ <y>' AS \"odd_name\", 1.5 AS number, NULL AS nothing"


def output(root: Path, sql: str, form: str, capfdbinary: pytest.CaptureFixture[bytes]) -> bytes:
    query(root, sql, form)
    return capfdbinary.readouterr().out


def test_json_is_one_document_with_nested_json(
    filled: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    sql = "SELECT run_id, factors, mfu / 0 AS infinite, 'nan'::DOUBLE AS nan, created_at, [1.5, NULL] AS l FROM runs"
    assert json.loads(output(filled, sql, "json", capfdbinary)) == [
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
    assert json.loads(output(filled, "SELECT * FROM kernels", "json", capfdbinary)) == []


def test_json_refuses_two_columns_of_one_name(filled: Path) -> None:
    with pytest.raises(UserError, match="two columns are named 'a'"):
        query(filled, "SELECT 1 AS a, 2 AS a", "json")


def test_csv_has_a_header_and_quotes_what_needs_it(
    filled: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    content = output(filled, "SELECT 'a,b' AS x, 'say \"hi\"' AS y, NULL AS z", "csv", capfdbinary)
    assert content == b'x,y,z\n"a,b","say ""hi""",\n'


def test_parquet_keeps_types(filled: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    content = output(
        filled, "SELECT run_id, step, loss, time FROM steps ORDER BY step", "parquet", capfdbinary
    )
    table = pq.read_table(io.BytesIO(content))
    assert [str(field.type) for field in table.schema] == ["string", "int64", "double", "timestamp[us]"]
    assert table.num_rows == 21


def test_latex_escapes_and_uses_booktabs(filled: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert output(filled, ODD, "latex", capfdbinary).decode() == (
        "\\begin{tabular}{lrl}\n\\toprule\nodd\\_name & number & nothing \\\\\n\\midrule\n"
        "a\\_b \\& 50\\% \\{x\\} \\textbackslash{} \\textless{}y\\textgreater{} & 1.5 & -- \\\\\n"
        "\\bottomrule\n\\end{tabular}\n"
    )


def test_a_table_off_a_terminal_is_plain_and_complete(
    filled: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    text = output(filled, "SELECT repeat('x', 300) AS wide, NULL AS n", "table", capfdbinary).decode()
    assert text == f"wide{' ' * 296}  n\n{'x' * 300}  NULL\n"


def test_a_table_on_a_terminal_does_not_read_markup(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    buffer = io.BytesIO()
    FORMATS["table"](ask(filled, "SELECT '[red]x' AS a, 1 AS b"), buffer)
    assert "[red]x" in buffer.getvalue().decode()


def test_an_unknown_format_names_the_valid_ones(filled: Path) -> None:
    with pytest.raises(UserError, match="valid: table, csv, json, parquet, latex"):
        query(filled, "SELECT 1", "xml")


@pytest.mark.fault
@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("SELECT (SELECT max(ended_at - started_at) FROM runs)", "00:01:00"),
        (
            "SELECT 340282366920938463463374607431768211455::UHUGEINT",
            "340282366920938463463374607431768211455",
        ),
        ("SELECT '12:00:00+02'::TIMETZ", "12:00:00+02"),
        ("SELECT '101'::BIT", "101"),
        ("SELECT '2026-01-01 00:00:00.123456789'::TIMESTAMP_NS", "2026-01-01 00:00:00.123456789"),
        ("SELECT MAP {1: INTERVAL 2 HOURS}", "{1='02:00:00'}"),
    ],
)
def test_a_value_that_arrow_would_change_is_as_duckdb_writes_it(
    filled: Path, sql: str, text: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    statement = f'FROM ({sql} AS "a ""b"), ({sql} AS "a ""b")'
    assert ask(filled, statement).rows == ((text, text),)
    buffer = io.BytesIO(output(filled, f"{sql} AS a", "parquet", capfdbinary))
    assert pq.read_table(buffer).to_pylist() == [{"a": text}]


@pytest.mark.refused
def test_a_date_that_python_cannot_hold_is_a_users_error(filled: Path) -> None:
    with pytest.raises(UserError, match="cast it to VARCHAR"):
        _ = ask(filled, "SELECT 'infinity'::TIMESTAMP").rows


def test_a_number_in_nested_json_that_json_cannot_hold_is_null(
    filled: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    content = output(filled, "SELECT '[1e999, 2]'::JSON AS a", "json", capfdbinary)
    assert json.loads(content) == [{"a": [None, 2.0]}]


@pytest.mark.refused
def test_a_table_does_not_steer_the_terminal(filled: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    sql = "SELECT chr(27) || '[2J' || chr(8238) || 'x' || chr(10) || 'y' AS \"a\u202eb\""
    assert output(filled, sql, "table", capfdbinary) == b"a?b\n?[2J?x\\ny\n"
