"""The pages on paper."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.browser.visit import NARROW, WIDE, ask, emulate, load

pytestmark = pytest.mark.skipif(not shutil.which("pdftotext"), reason="needs pdftotext (poppler-utils)")
HEADS = """
    const said = (texts) => texts.join(' ').trim().replace(/\\s+/g, ' ');
    return [...[...document.querySelectorAll('h1, h2, h3, .question')].map((e) => said([e.innerText])),
        ...[...document.querySelectorAll('thead tr')].map((row) => said([...row.cells].map((cell) => cell.textContent)))];
"""


def sheets(browser: Any, page: Path, into: Path, width: int = WIDE) -> tuple[list[str], list[str]]:
    """The text of each sheet that a page prints on, and the page's headings, questions and heads of tables."""
    emulate(browser, width, media="")
    load(browser, page)
    ask(browser, "frame()")
    answer = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True, "printBackground": True})
    into.write_bytes(base64.b64decode(answer["data"]))
    text = subprocess.run(["pdftotext", "-layout", into, "-"], capture_output=True, check=True).stdout
    return text.decode().split("\f")[:-1], browser.execute_script(HEADS)


@pytest.mark.parametrize(
    "page", ["report/index", "report/comparison", "report/tokens", "report/methods", "pair/index"]
)
def test_no_sheet_ends_with_a_heading_and_none_is_empty(
    browser: Any, site: Path, tmp_path: Path, page: str
) -> None:
    whole(*sheets(browser, site / f"{page}.html", tmp_path / "page.pdf"))


def test_a_figure_s_question_and_the_head_of_its_values_stay_with_them(
    browser: Any, sweep: Path, tmp_path: Path
) -> None:
    whole(*sheets(browser, sweep, tmp_path / "page.pdf"))


def whole(texts: list[str], heads: list[str]) -> None:
    for sheet in texts:
        lines = [" ".join(line.split()) for line in sheet.splitlines() if line.strip()]
        assert lines, "an empty sheet"
        last = lines[-1]
        matches = [
            head for head in heads if f" {head}".endswith(f" {last}") or f"{head} ".startswith(f"{last} ")
        ]
        assert not matches, last


def test_a_table_repeats_its_head_on_every_sheet(browser: Any, report: Path, tmp_path: Path) -> None:
    texts, _ = sheets(browser, report / "methods.html", tmp_path / "page.pdf")
    with_columns = [sheet for sheet in texts if "runs.run_id" in sheet or "What it is" in sheet]
    assert len(with_columns) > 1


def test_paper_shows_all_columns_and_asks_nobody_to_scroll(
    browser: Any, report: Path, tmp_path: Path
) -> None:
    texts, _ = sheets(browser, report / "comparison.html", tmp_path / "page.pdf", NARROW)
    assert browser.execute_script("return document.querySelectorAll('[data-more*=column]').length") > 0
    assert "Scroll sideways" not in "".join(texts)
    assert "Verdict" in "".join(texts)


def test_what_is_folded_on_the_screen_is_printed_with_the_names_of_files(
    browser: Any, report: Path, tmp_path: Path
) -> None:
    texts, _ = sheets(browser, report / "tokens.html", tmp_path / "page.pdf")
    text = " ".join("".join(texts).split())
    folded = browser.execute_script(
        "return document.querySelector('details.left-out li, details.values tbody td').textContent"
    )
    assert " ".join(folded.split())[:20] in text
    assert "data/tokens_per_second.csv" in text


def test_paper_is_white_also_where_the_screen_is_dark(browser: Any, report: Path) -> None:
    emulate(browser, scheme="dark", media="print")
    load(browser, report / "index.html")
    style = "const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]"
    assert browser.execute_script(style) == ["rgb(255, 255, 255)", "rgb(29, 31, 35)"]
