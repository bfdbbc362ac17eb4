"""The door for Python, and the notebook that goes through it."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import analysis
from analysis.store import database as store
from analysis.store.collect import collect
from model.record.errors import UserError
from tests.analysis.demo import write_demo
from tests.analysis.fabricate import completed
from tests.conftest import REPOSITORY

NOTEBOOK = REPOSITORY / "examples" / "notebook" / "results.ipynb"


@pytest.fixture
def opened(root: Path) -> duckdb.DuckDBPyConnection:
    completed(root, "r1")
    collect(root)
    return analysis.open(str(root))


def test_it_answers_as_tuples_and_arrow(opened: duckdb.DuckDBPyConnection) -> None:
    relation = opened.sql("SELECT run_id, seed, tokens_per_second FROM runs")
    assert relation.fetchall() == [("r1", 0, 10240.0)]
    assert relation.to_arrow_table().schema.types == [pa.string(), pa.int64(), pa.float64()]


def test_a_table_of_ones_own_takes_part_once_it_is_registered(opened: duckdb.DuckDBPyConnection) -> None:
    opened.register("prices", pa.table({"gpu": ["NVIDIA H200"], "euros": [3.5]}))
    assert opened.sql("SELECT run_id, euros FROM runs JOIN prices USING (gpu)").fetchall() == [("r1", 3.5)]


@pytest.mark.refused
@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM run_records",
        "DROP VIEW runs",
        "COPY runs TO '{out}'",
        "FROM '/etc/passwd'",
        "SET threads = 1",
    ],
)
def test_it_can_change_nothing_and_reach_nothing(
    root: Path, opened: duckdb.DuckDBPyConnection, tmp_path: Path, sql: str
) -> None:
    before = store.database(root).read_bytes()
    with pytest.raises(duckdb.Error):
        opened.sql(sql.format(out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    assert store.database(root).read_bytes() == before


def test_without_a_database_it_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="run `runner collect` first"):
        analysis.open(tmp_path)


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code, cell by cell, as Jupyter runs it; what the last line of a cell gives is shown."""
    (tmp_path / "runs").mkdir()
    write_demo(tmp_path / "runs")
    collect(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    book = json.loads(NOTEBOOK.read_text())
    cells = ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {}
    studies, speed, chart, _ = (output_of(cell, names) for cell in cells)
    assert studies == [("backends", 22, 18)]
    assert [row[0] for row in speed][:3] == ["auto", "cudnn", "custom"]
    assert chart["encoding"]["color"]["field"] == "label"
    (points,) = chart["datasets"].values()
    assert len({point["label"] for point in points}) == 8
    assert len(points) > 300
    assert all(cell["outputs"] == [] for cell in book["cells"] if cell["cell_type"] == "code")


def output_of(cell: str, names: dict[str, Any]) -> Any:
    *body, last = ast.parse(cell).body
    assert isinstance(last, ast.Expr)
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    if isinstance(value, duckdb.DuckDBPyRelation):
        return value.fetchall()
    return value.to_dict() if hasattr(value, "to_dict") else value
