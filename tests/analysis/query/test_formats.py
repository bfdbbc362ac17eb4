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
from model.errors import UserError

ODD = "SELECT 'a_b & 50% {x} \\ <y>' AS \"odd_name\", 1.5 AS number, NULL AS nothing"


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
    out = io.BytesIO()
    FORMATS["table"](ask(filled, "SELECT '[red]x' AS a, 1 AS b"), out)
    assert "[red]x" in out.getvalue().decode()


def test_an_unknown_format_names_the_valid_ones(filled: Path) -> None:
    with pytest.raises(UserError, match="valid: table, csv, json, parquet, latex"):
        query(filled, "SELECT 1", "xml")
