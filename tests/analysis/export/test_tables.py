"""A study's tables as files: its rows alone, each column described, by the Data Package standard."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from analysis.export.tables import write_tables
from analysis.export.units import unit
from analysis.query.ask import ask
from analysis.store.collect import collect
from analysis.store.database import in_memory, open_for_reading
from analysis.store.dictionary import relations
from model.record.errors import UserError
from tests.analysis.fabricate import certificate, completed
from tests.analysis.timed import certified

# By the Data Package and Table Schema standards, version 2.
FIELD_TYPES = {"string", "number", "integer", "boolean", "datetime"}
NAME = re.compile(r"[a-z0-9._/-]+")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("root")
    for study, attention in (("backends", "auto"), ("other", "flash")):
        folder = completed(root, "r1", study=study, attention=attention)
        folder.start(attempt=2, certificate=certificate(root, attention, case=None).key)
        folder.end(attempt=2)
    collect(root)
    return root


@pytest.fixture(scope="module")
def out(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out")
    with open_for_reading(root) as connection:
        write_tables(connection, "backends", folder, folder.parent)
    return folder


def test_each_table_and_view_has_the_rows_of_its_study_alone(root: Path, out: Path) -> None:
    tables = {path.stem: pq.read_table(path) for path in (out / "tables").iterdir()}
    assert {"runs", "steps", "attempts", "step_records", "certificates", "verifications", "backends"} <= set(
        tables
    )
    for name in ("runs", "steps", "attempts", "step_records"):
        rows = ask(root, f"FROM {name} WHERE study = 'backends' ORDER BY ALL").records()
        assert tables[name].to_pylist() == rows != []
    assert set(tables["verifications"]["attention"].to_pylist()) == {"auto"}
    assert (
        tables["certificates"]["attention"].to_pylist()
        == tables["backends"]["attention"].to_pylist()
        == ["auto"]
    )


def test_a_study_of_attention_alone_has_the_certificates_that_its_times_name(tmp_path: Path) -> None:
    certificate(tmp_path, "unused")
    certified(tmp_path, "flash")
    collect(tmp_path)
    with open_for_reading(tmp_path) as connection:
        write_tables(connection, "kernels", tmp_path / "out", tmp_path)
    for name in ("kernels", "certificates", "verifications"):
        rows = pq.read_table(tmp_path / "out" / "tables" / f"{name}.parquet").to_pylist()
        assert {row["attention"] for row in rows} == {"flash"}


def test_every_column_of_every_table_is_described() -> None:
    with in_memory() as connection:
        tables = relations(connection)
    assert len(tables) > 10
    assert not [table.name for table in tables if not table.meaning]
    assert not [
        (table.name, column.name) for table in tables for column in table.columns if not column.meaning
    ]


def test_the_dictionary_says_type_unit_and_meaning(out: Path) -> None:
    with (out / "dictionary.csv").open(encoding="utf-8") as file:
        rows = {(row["table"], row["column"]): row for row in csv.DictReader(file)}
    assert (rows["runs", "step_seconds"]["type"], rows["runs", "step_seconds"]["unit"]) == ("double", "s")
    assert "warm-up" in rows["runs", "step_seconds"]["meaning"]
    assert rows["steps", ""]["meaning"].startswith("Step records with their rates")


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("peak_memory_bytes", "B"), ("mfu", "%"), ("final_loss", "nats/token"), ("tokens_per_second", "tokens/s"),
        ("flop_per_token", "FLOP/token"), ("peak_flops", "FLOP/s"), ("tflops", "TFLOP/s"), ("gpu_hours", "h"),
        ("steps", None), ("warmup_steps", None), ("attempts", None), ("training_tokens_percentage", "%"),
    ],
)  # fmt: skip
def test_a_columns_name_gives_its_unit(column: str, expected: str | None) -> None:
    assert unit(column) == expected


def test_the_descriptor_is_a_data_package_of_these_files(out: Path) -> None:
    package = json.loads((out / "datapackage.json").read_text())
    assert package["$schema"] == "https://datapackage.org/profiles/2.0/datapackage.json"
    assert NAME.fullmatch(package["name"])
    resources = package["resources"]
    assert (
        len({resource["name"] for resource in resources})
        == len(resources)
        == len(list((out / "tables").iterdir()))
    )
    for resource in resources:
        content = (out / resource["path"]).read_bytes()
        assert NAME.fullmatch(resource["name"])
        assert (resource["bytes"], resource["hash"]) == (
            len(content),
            f"sha256:{hashlib.sha256(content).hexdigest()}",
        )
        fields = resource["schema"]["fields"]
        assert [field["name"] for field in fields] == pq.read_schema(out / resource["path"]).names
        assert {field["type"] for field in fields} <= FIELD_TYPES
        column_types = dict(
            zip(
                pq.read_schema(out / resource["path"]).names,
                pq.read_schema(out / resource["path"]).types,
                strict=True,
            )
        )
        for field in fields:
            assert str(column_types[field["name"]]).startswith({
                "string": "string", "number": "double", "integer": "int", "boolean": "bool", "datetime": "timestamp",
            }[field["type"]]), (resource["name"], field)  # fmt: skip


@pytest.mark.refused
def test_the_export_of_another_study_is_not_mixed_with_this_one(root: Path, out: Path) -> None:
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with open_for_reading(root) as connection:
        with pytest.raises(UserError, match="has the export of study backends: name another folder"):
            write_tables(connection, "other", out, out.parent)
        assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
        write_tables(connection, "backends", out, out.parent)
