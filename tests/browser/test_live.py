"""Pages of a watched report load themselves again, from file://, when the report changed, and only then."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis.report import live
from analysis.report.carried import MANIFEST, ReportManifest, complete, files
from model.disk.files import sha256, write_text

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs Chromium and chromedriver on PATH"),
]
PAUSE = 0.05  # seconds between two looks of a page


@pytest.fixture
def browser() -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    yield driver
    driver.quit()


def build(out: Path, text: str, watched: bool) -> None:
    """A report of one page, in place of one that takes seconds to build."""
    with complete(out) as folder:
        for path in ("assets/style.css", "index.html"):
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(f"<body><p>{text}</p></body>" if path.endswith("html") else "")
        (folder / MANIFEST).parent.mkdir()
        found = {path: sha256(folder / path) for path in files(folder)}
        made = ReportManifest(study="s", code="", packages={}, renderer="", records=True, files=found)
        write_text(folder / MANIFEST, made.model_dump_json(), sync=False)
        if watched:
            live.mark(folder, PAUSE)


def becomes(browser: Any, script: str, value: object = True) -> bool:
    """Wait until a script's answer is this one; a page that is just being loaded has no answer yet."""
    from selenium.webdriver.support.wait import WebDriverWait

    wait = WebDriverWait(browser, 20, poll_frequency=PAUSE)
    return bool(wait.until(lambda browser: browser.execute_script(script) == value))


def shows(browser: Any, text: str) -> bool:
    return becomes(browser, "return document.querySelector('p')?.textContent", text)


def test_an_open_page_follows_the_report_and_stops_looking_when_the_watch_is_over(
    browser: Any, tmp_path: Path
) -> None:
    build(tmp_path / "out", "one", watched=True)
    browser.get((tmp_path / "out" / "index.html").as_uri())
    assert shows(browser, "one")
    browser.execute_script("window.untouched = true; window.reportVersion = null;")
    assert becomes(browser, "return Boolean(window.reportVersion)"), "it looks again"
    assert browser.execute_script("return window.untouched"), (
        "a report that did not change is not loaded again"
    )
    build(tmp_path / "out", "two", watched=True)
    assert shows(browser, "two")
    assert browser.execute_script("return window.untouched") is None
    build(tmp_path / "out", "three", watched=False)
    assert shows(browser, "three")
    assert browser.execute_script("return document.scripts.length") == 0
