"""Queries that have a name: each can be asked, and the pages that are made of them are current."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
from duckdb import DuckDBPyConnection
from typer.testing import CliRunner

from analysis.query.ask import answer
from analysis.query.questions import questions
from analysis.report.named import find, queries, queries_of
from analysis.store.collect import collect
from analysis.store.database import open_for_reading
from analysis.store.dictionary import dictionary
from model.record.config import RunConfig
from model.record.errors import UserError
from runner.cli.app import app
from tests.analysis.fabricate import completed
from tests.conftest import REPOSITORY

DOCS = REPOSITORY / "docs"


@pytest.fixture(scope="module")
def opened(demo: Path) -> Iterator[DuckDBPyConnection]:
    with open_for_reading(demo) as connection:
        yield connection


@pytest.mark.parametrize("name", sorted(queries()))
def test_each_named_query_is_answered(demo: Path, opened: DuckDBPyConnection, name: str) -> None:
    rows = answer(opened, find(demo, name, "backends")[0]).rows
    # These need a counter of energy, runs whose data has the same fingerprint, profiled steps, a study over numbers, several processes, others' numbers.
    assert (
        rows
        or name in ("energy", "loss_difference", "step_profile", "prefill_profile", "reported")
        or name.startswith(("sweep", "kernel_", "decode_", "scaling_", "frontier", "probes"))
    )


def test_ten_questions_have_names_of_their_own_and_an_answer(demo: Path, opened: DuckDBPyConnection) -> None:
    assert len(questions()) == 10
    for name, question in questions().items():
        assert queries()[name] is question, "no query of the report has the same name"
        assert question.text.endswith("?")


def test_the_speed_by_sql_is_the_median_of_each_groups_runs(demo: Path, opened: DuckDBPyConnection) -> None:
    rates = sorted(
        row[0]
        for row in answer(opened, "SELECT tokens_per_second FROM runs WHERE attention = 'cudnn'").rows
        if row[0]
    )
    (speed,) = (
        row for row in answer(opened, find(demo, "speed", "backends")[0]).records() if row["label"] == "cudnn"
    )
    assert speed["tokens_per_second"] == pytest.approx(rates[1], abs=0.06)
    assert speed["runs"] == 3


def test_ratios_are_to_the_declared_baseline_and_of_the_same_seed(root: Path) -> None:
    design = {"order": "interleaved", "order_seed": 0, "baseline": {"attention": "flash"}, "margins": {}}
    for backend, seconds in (("auto", 0.2), ("flash", 0.4)):
        for seed in (1, 2):
            completed(root, f"{backend}{seed}", seconds * seed, attention=backend, seed=seed, design=design)
    collect(root)
    with open_for_reading(root) as connection:
        rows = answer(connection, find(root, "ratio", None)[0]).records()
    assert [(row["label"], row["baseline"], row["seed"], row["seconds_ratio"]) for row in rows] == [
        ("auto", "flash", 1, 0.5), ("auto", "flash", 2, 0.5)
    ]  # fmt: skip


@pytest.mark.refused
def test_an_unknown_name_is_answered_with_those_that_there_are(demo: Path) -> None:
    with pytest.raises(
        UserError, match=r"no query is named '@sped' \(did you mean 'speed'\? valid: attempts, "
    ):
        find(demo, "sped", None)


@pytest.mark.refused
def test_the_study_must_be_said_where_there_are_several(root: Path) -> None:
    for study in ("one", "two"):
        completed(root, "r1", study=study)
    collect(root)
    with pytest.raises(UserError, match=r"say which study with --study; in the database: one, two"):
        find(root, "speed", None)
    with pytest.raises(UserError, match=r"did you mean 'one'"):
        find(root, "speed", "onee")
    sql, study = find(root, "speed", "one")
    assert "study = 'one'" in sql and study == "one"


@pytest.mark.parametrize(("arguments", "pattern"), [
    (["sql", "--list"], r"@speed +How fast is each group\?"),
    (["sql", "@"], r"@loss +Training loss: "),
    (["sql"], r"give a SELECT, or the @NAME of a query"),
    (["sql", "select 1", "--study", "one"], r"--study goes with @NAME"),
])  # fmt: skip
def test_the_command_line_lists_them(root: Path, arguments: list[str], pattern: str) -> None:
    invocation = CliRunner().invoke(app, ["--root", str(root), *arguments])
    assert re.search(pattern, invocation.output + str(invocation.exception or ""))


def test_a_study_may_be_named_by_its_file_and_of_a_folder_its_files_are_listed(
    root: Path, tmp_path: Path
) -> None:
    def sql_output(*arguments: str) -> str:
        invocation = CliRunner().invoke(app, ["--root", str(root), "sql", *arguments])
        return invocation.output + str(invocation.exception or "")

    folder = tmp_path / "studies"
    folder.mkdir()
    for name in ("one", "two"):
        completed(root, "a1", study=name)
        (folder / f"{name}.yaml").write_text(f"title: {name}\nbase: {{data.path: a.parquet}}\n")
    collect(root)
    assert "@speed " in sql_output("--list", "--study", str(folder / "one.yaml"))
    for arguments in (["--list"], ["@runs"]):
        text = sql_output(*arguments, "--study", str(folder))
        files = ", ".join(str(folder / f"{name}.yaml") for name in ("one", "two"))
        assert f"a folder of studies, and one is wanted here: name one of {files}" in text
    assert "no runs of study 'three'" in sql_output("@runs", "--study", "three")
    assert "the name is empty" in sql_output("@runs", "--study", "")


def test_the_list_has_the_queries_of_the_tasks_of_the_studies(root: Path) -> None:
    assert queries_of(root, None) == queries()
    completed(root, "r1", study="trained")
    for study, task in (
        ("answered", "inference"),
        ("called", "attention"),
        ("sought", "frontier"),
    ):
        config = RunConfig.model_validate({"task": task, "data": {"path": "text.parquet"}})
        completed(root, "r1", study=study, config=config)
    collect(root)
    by_study = {study: {*queries_of(root, study)} for study in ("trained", "answered", "called", "sought")}
    common = {"progress", "cost", "peak", "runs", "columns", "certificates"}
    assert common < set.intersection(*by_study.values())
    for name, studies in (
        ("losses", {"trained"}),
        ("speed", {"trained", "answered"}),
        ("training_summary", {"trained"}),
        ("inference_summary", {"answered"}),
        ("decode_latency", {"answered"}),
        ("kernel_map", {"called"}),
        ("frontiers", {"sought"}),
    ):
        assert {study for study, names in by_study.items() if name in names} == studies
    assert {*queries_of(root, None)} == set.union(*by_study.values()) == {*queries()}


@pytest.mark.refused
def test_there_is_no_list_of_a_study_that_is_not_collected(root: Path) -> None:
    completed(root, "r1", study="one")
    collect(root)
    with pytest.raises(UserError, match=r"no collected runs of study 'onee' \(did you mean 'one'"):
        queries_of(root, "onee")


def test_the_page_of_the_schema_is_current() -> None:
    """`make docs` writes it."""
    assert (DOCS / "schema.md").read_text() == dictionary()


def test_every_column_is_explained() -> None:
    empty = [line for line in dictionary().splitlines() if re.fullmatch(r"\| `\w+` \| .* \|  \|", line)]
    assert empty == []


def test_the_page_of_questions_is_current() -> None:
    """`make docs` writes it."""
    page = runpy.run_path(str(DOCS / "questions.py"))["text"]()
    assert (DOCS / "questions.md").read_text() == page
    assert len(re.findall(r"^(?:\| --- |No rows\.)", page, re.MULTILINE)) == 10, "each question has an answer"
