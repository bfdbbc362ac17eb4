"""Records as Parquet: they give the same views again, elsewhere and in a later version."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.query.ask import answer
from analysis.store import records as store_records
from analysis.store.collect import collect
from analysis.store.database import open_for_reading
from analysis.store.records import open_records, write_records
from model.record.errors import UserError
from tests.analysis.fabricate import certificate, completed


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two studies, of which each has a certificate that its run names, and the records of one."""
    root = tmp_path_factory.mktemp("root")
    for study, attention in (("backends", "auto"), ("other", "flash")):
        folder = completed(root, "r1", study=study, attention=attention)
        folder.start(attempt=2, certificate=certificate(root, attention).key)
        folder.end(attempt=2)
    collect(root)
    with open_for_reading(root) as connection:
        write_records(connection, "backends", root / "records")
    return root


@pytest.fixture
def records(root: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(root / "records", tmp_path / "records"))


@pytest.mark.parametrize("view", ["runs", "steps", "labels", "tensor_errors"])
def test_records_give_the_same_rows_of_a_view(root: Path, records: Path, view: str) -> None:
    study_condition = "certificate IN (SELECT certificate FROM attempts WHERE study = 'backends')"
    condition = study_condition if view == "tensor_errors" else "study = 'backends'"
    with open_for_reading(root) as database, open_records(records) as recorded:
        expected = answer(database, f"FROM {view} WHERE {condition} ORDER BY ALL").rows
        assert expected
        assert answer(recorded, f"FROM {view} ORDER BY ALL").rows == expected


def test_equal_records_have_equal_bytes(root: Path, records: Path, tmp_path: Path) -> None:
    with open_records(records) as connection:
        write_records(connection, "backends", tmp_path / "again")
    for path in records.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name


def test_steps_that_are_written_for_some_runs_after_the_other_are_those_of_all_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        completed(tmp_path, f"r{number}", seed=number)
    collect(tmp_path)
    parquet_files = []
    with open_for_reading(tmp_path) as connection:
        for count in (2, 5):
            monkeypatch.setattr(store_records, "_RUNS", count)
            write_records(connection, "backends", tmp_path / f"of{count}")
            parquet_files.append(pq.ParquetFile(tmp_path / f"of{count}" / "step_records.parquet"))
    assert [file.num_row_groups for file in parquet_files] == [3, 1]
    in_parts, at_once = (file.read() for file in parquet_files)
    assert in_parts.num_rows and in_parts.equals(at_once)


def test_a_column_that_the_records_lack_is_null_and_an_unknown_one_is_left_out(records: Path) -> None:
    path = records / "attempts.parquet"
    table = (
        pq.read_table(path)
        .drop_columns(["device", "gpu_uuid"])
        .append_column("fuel", pa.array(["coal", "gas"]))
    )
    pq.write_table(table, path)
    with open_records(records) as connection:
        assert answer(connection, "SELECT DISTINCT device FROM attempts").rows == ((None,),)


def _tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def _double(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table, table]), path)


def _retype(path: Path) -> None:
    column = pa.array(["many"] * 2)
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.schema.get_field_index("gpus"), "gpus", column), path)


@pytest.mark.refused
@pytest.mark.parametrize("harm", [_tear, _link, _double, _retype, Path.unlink])
def test_records_that_cannot_be_read_are_refused_by_name(records: Path, harm: Callable[[Path], None]) -> None:
    harm(records / "attempts.parquet")
    with pytest.raises(UserError, match=r"attempts\.parquet"):
        open_records(records)


@pytest.mark.refused
def test_sql_of_others_reaches_nothing_but_the_records(records: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    for script in (
        f"CREATE VIEW runs AS FROM '{secret}'",
        f"COPY (SELECT 1) TO '{tmp_path}/out'",
        "LOAD httpfs",
    ):
        with pytest.raises(UserError):
            open_records(records, (script,))
    assert not (tmp_path / "out").exists()
