"""The queries that README, docs and help show take no number of a run that did not complete for a result."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from analysis.query.ask import answer
from analysis.query.questions import questions
from analysis.store.collect import collect
from analysis.store.database import open_for_reading
from runner.commands import sql
from tests.analysis.fabricate import Folder, plan
from tests.conftest import REPOSITORY

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
MEASURED = re.compile("loss|seconds|tokens|mfu|ratio|least|median|most|slowest|fastest|peak")


def documented() -> list[str]:
    """Every query, with the study's name left open."""
    queries = [question.sql for question in questions().values()]
    for text in (*(page.read_text() for page in PAGES), sql.__doc__ or ""):
        queries += re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
        queries += re.findall(r'runner sql "([^"@]+)"', text)
    return [re.sub(r"study = '[^']*'", "study = $study", query) for query in dict.fromkeys(queries)]


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Three completed runs; and the same with one that goes on and one that failed, both far from the others."""
    folder = tmp_path_factory.mktemp("roots")
    for name, endings in (("whole", ["completed"] * 3), ("part", [*["completed"] * 3, None, "failed"])):
        for seed, ending in enumerate(endings):
            run = Folder(folder / name, plan(f"r{seed}", "s", seed=seed))
            run.start()
            factor = 1 if ending == "completed" else 50
            for step in range(5, 101 if ending == "completed" else 96, 5):
                run.step(step, factor * (0.4 + seed / 1000), loss=factor * (10 - step / 100))
            if ending:
                run.end(ending)
        collect(folder / name)
    return folder / "whole", folder / "part"


def test_queries_are_found_where_they_are_documented() -> None:
    assert len(documented()) >= len(questions()) + 4


@pytest.mark.parametrize("query", documented())
def test_a_documented_query_has_no_number_of_a_run_that_did_not_complete(
    roots: tuple[Path, Path], query: str
) -> None:
    if "from steps" in query:  # all step records, as a table
        return
    numbers = []
    for root in roots:
        with open_for_reading(root) as connection:
            table = answer(connection, query.replace("$study", "'s'"))
            places = [place for place, name in enumerate(table.columns) if MEASURED.search(name)]
            numbers.append({row[place] for row in table.rows for place in places} - {None})
    assert numbers[0] == numbers[1]
