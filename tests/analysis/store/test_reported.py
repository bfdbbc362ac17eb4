"""The view `reported`: numbers of others by group, from the records of its runs, with the rules that they break."""

from __future__ import annotations

import json
from pathlib import Path

from analysis.export.tables import write_tables
from analysis.store.collect import collect
from analysis.store.database import open_for_reading
from model.record.reported import Reported
from tests.analysis.conftest import Ask
from tests.analysis.fabricate import Folder, plan

ONE = Reported(
    numbers={"tokens_per_second": "8127.70", "mfu": "42.36"},
    hardware="NVIDIA GH200 120GB",
    source="a paper, table 1",
    read_from="table",
)
OTHER = Reported(
    numbers={"mfu": "120"}, hardware="L4 (32GB)", source="a blog", read_from="plot", note="an L4 has 24 GB"
)


def test_a_group_has_a_row_for_each_entry_however_many_runs_it_has(root: Path, sql: Ask) -> None:
    for seed in range(3):
        factors = {"attention": "flash3", "seed": seed}
        Folder(root, plan(f"a{seed}", attention="flash3", seed=seed, factors=factors, reported=[ONE, OTHER]))
    Folder(root, plan("b0", attention="auto", factors={"attention": "auto", "seed": 0}))
    collect(root)
    rows = sql(
        "SELECT label, entry, tokens_per_second, mfu, tflops, hardware, gpus, note FROM reported ORDER BY entry"
    )
    assert [tuple(row.values()) for row in rows] == [
        ("flash3", 1, 8127.7, 42.36, None, "NVIDIA GH200 120GB", 1, None),
        ("flash3", 2, None, 120.0, None, "L4 (32GB)", 1, "an L4 has 24 GB"),
    ]
    (printed, _), (_, flags) = (
        (json.loads(row["printed"]), json.loads(row["flags"]))
        for row in sql("SELECT printed, flags FROM reported ORDER BY entry")
    )
    assert printed == {"tokens_per_second": "8127.70", "mfu": "42.36"}, "with the digits of the source"
    assert flags == ["mfu is 120 %, and at most 100 % can be: rule mfu <= 100"]


def test_the_newest_run_says_what_is_reported(root: Path, sql: Ask) -> None:
    first = plan("a0", reported=[ONE])
    Folder(root, first)
    later = first.created_at.replace(year=first.created_at.year + 1)
    Folder(root, plan("a1", seed=1, reported=[OTHER], created_at=later))
    collect(root)
    assert sql("SELECT hardware FROM reported") == [{"hardware": "L4 (32GB)"}]


def test_an_export_has_the_table_with_its_units(root: Path, tmp_path: Path) -> None:
    Folder(root, plan("a0", reported=[ONE]))
    collect(root)
    with open_for_reading(root) as connection:
        write_tables(connection, "backends", tmp_path / "export", root)
    assert (tmp_path / "export" / "tables" / "reported.parquet").is_file()
    lines = (tmp_path / "export" / "dictionary.csv").read_text().splitlines()
    assert 'reported,mfu,double,%,"Model FLOP/s utilization in percent, as reported."' in lines
