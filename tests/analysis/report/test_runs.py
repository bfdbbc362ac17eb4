"""The table of runs and the lists of them stay small enough to open, however many runs there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.report import facts, render, runs, tasks
from analysis.report.facts import Facts
from analysis.report.runs import MOST, MOST_NAMED, table_pages
from analysis.store.database import open_for_reading
from tests.analysis.report.test_build import words


def _runs(count: int) -> list[dict[str, Any]]:
    return [{"run_id": f"r{place}"} for place in range(count)]


def test_the_table_of_a_few_runs_needs_no_page_of_its_own() -> None:
    assert table_pages(_runs(MOST)) == []


def test_each_of_many_runs_is_on_one_page_of_the_table() -> None:
    all_runs = _runs(1001)
    pages = table_pages(all_runs)
    assert [run for page in pages for run in page.runs] == all_runs
    assert [(page.first, page.last) for page in pages] == [(1, 500), (501, 1000), (1001, 1001)]


@pytest.fixture(scope="module")
def study(demo: Path) -> Facts:
    with open_for_reading(demo) as connection:
        study_facts = facts.gather(connection, "backends")
        runs.gather(connection, "backends", study_facts.runs)
    return study_facts


def test_a_page_of_the_table_says_which_runs_it_has_and_leads_to_the_others(
    study: Facts, tmp_path: Path
) -> None:
    pages = table_pages(study.runs * 25)
    template = render.environment().get_template("all_runs.html")
    path = tmp_path / "all-runs-2.html"
    path.write_text(
        template.render(
            facts=study,
            task=tasks.load("training"),
            parts=pages,
            part=pages[1],
            pages=[],
            runs_sql="",
            here="runs",
        )
    )
    assert f"Runs 501 to {len(study.runs) * 25:,} of 22" in words(path)
    assert "all-runs-1.html" in path.read_text()
    assert study.runs[-1]["run_id"] in words(path)


def test_a_long_list_of_runs_names_the_first_and_counts_the_others(study: Facts, tmp_path: Path) -> None:
    macros = render.environment().get_template("macros.html").module
    path = tmp_path / "left-out.html"
    path.write_text(macros.left_out(study.runs * 3, "", "many"))  # type: ignore[attr-defined]
    assert f"and {len(study.runs) * 3 - MOST_NAMED} more" in words(path)
