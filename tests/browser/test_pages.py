"""Every page that links lead to from a report's first: drawn, silent, offline, accessible, and not cut."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pytest

from analysis.report.build import build_report
from tests.browser.studies import EXTREMES
from tests.browser.visit import NARROW, Visit, visit, walk

SOUND = {
    "titles": 1, "jumps": 0, "unnamed": [], "lost": [], "twice": [], "broken": [], "undrawn": [], "empty": 0,
}  # fmt: skip


# What axe looks at: it takes long, and the other pages of these studies are as those of the site.
LOOKED_AT = {"many": ("index.html", "sweeps.html")}


def test_links_lead_to_every_page(visits: list[Visit], site: Path) -> None:
    names = [page.name for page in visits]
    assert {str(path.relative_to(site)) for path in site.rglob("*.html")} == set(names)
    assert sum(name.startswith("report/run-") for name in names) == 10


def test_no_page_says_anything_on_the_console(visits: list[Visit]) -> None:
    assert {page.name: page.console for page in visits if page.console} == {}


def test_no_page_asks_the_network(visits: list[Visit]) -> None:
    assert {page.name: page.requests for page in visits if page.requests} == {}


def test_strings_that_are_code_do_nothing(visits: list[Visit]) -> None:
    assert [page.name for page in visits if page.hacked is not None] == []


def test_every_page_has_one_title_named_tables_and_drawn_figures(visits: list[Visit]) -> None:
    assert {page.name: page.structure for page in visits if page.structure != SOUND} == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(visits: list[Visit], theme: str) -> None:
    assert {page.name: page.axe[theme] for page in visits if page.axe[theme]} == {}


def test_no_page_is_wider_than_a_narrow_screen(visits: list[Visit]) -> None:
    assert {page.name: page.narrow["width"] for page in visits if page.narrow["width"] > NARROW} == {}


def test_no_word_or_number_is_cut_on_a_narrow_screen(visits: list[Visit]) -> None:
    assert {page.name: page.narrow["cut"] for page in visits if page.narrow["cut"]} == {}


def test_wide_tables_say_so_and_the_keyboard_reaches_them(visits: list[Visit]) -> None:
    assert {page.name: page.narrow["unsaid"] for page in visits if page.narrow["unsaid"]} == {}


def test_every_link_leads_to_a_file_that_can_be_read(visits: list[Visit]) -> None:
    paths = {Path(unquote(urlsplit(link["url"]).path)) for page in visits for link in page.links}
    assert [path for path in paths if not path.is_file()] == []
    for path in paths:
        if path.suffix == ".csv":
            with path.open(newline="", encoding="utf-8") as file:
                assert len({len(row) for row in csv.reader(file)}) == 1, path
        if path.suffix == ".svg":
            ElementTree.parse(path)


def sound(visits: list[Visit]) -> None:
    for page in visits:
        assert (page.name, page.console, page.requests) == (page.name, [], [])
        assert (page.name, page.structure) == (page.name, SOUND)
        assert (page.name, page.narrow) == (page.name, {"width": NARROW, "unsaid": [], "cut": []})
        assert (page.name, [rules for rules in page.axe.values() if rules]) == (page.name, [])


@pytest.mark.parametrize("study", EXTREMES)
@pytest.mark.usefixtures("few_sweeps")
def test_extreme_studies_render_and_state_the_gap(
    browser: Any, workspace: Path, tmp_path: Path, study: str
) -> None:
    folder = build_report(workspace, study, tmp_path / study, records=False).parent
    sound(walk(browser, folder, axe=LOOKED_AT.get(study, ()), most=12))  # all but pages of runs
    if study in {"planned", "memory"}:
        text = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.html"))
        assert "There is no figure" in text


def test_lines_over_a_numeric_axis_are_accessible_and_not_cut(browser: Any, sweep: Path) -> None:
    sound([visit(browser, sweep, sweep.name)])
