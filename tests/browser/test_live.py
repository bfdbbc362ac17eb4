"""Pages of a watched report load themselves again, from file://, when the report changed, and only then."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from analysis.report import live
from analysis.report.carried import MANIFEST, ReportManifest, files
from analysis.report.place import staged
from model.record.files import sha256, write_text
from tests.conftest import until

PAUSE = 0.05  # seconds between two looks of a page


def build(out: Path, text: str, watched: bool) -> None:
    """A report of one page, in place of one that takes seconds to build."""
    with staged(out) as folder:
        for path in ("assets/style.css", "index.html"):
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(f"<body><p>{text}</p></body>" if path.endswith("html") else "")
        (folder / MANIFEST).parent.mkdir()
        hashes = {path: sha256(folder / path) for path in files(folder)}
        manifest = ReportManifest(study="s", code="", packages={}, renderer="", records=True, files=hashes)
        write_text(folder / MANIFEST, manifest.model_dump_json(), sync=False)
        if watched:
            live.mark(folder, PAUSE)


@pytest.fixture(autouse=True)
def hurried(browser: Any) -> Iterator[None]:
    """A script waits for a page that is being loaded: where that page reloads itself, for all of the time allowed."""
    allowed = browser.timeouts.page_load
    browser.set_page_load_timeout(20)
    yield
    browser.set_page_load_timeout(allowed)


def becomes(browser: Any, script: str, value: object = True) -> bool:
    """Wait until a script's answer is this one; a page that is just being loaded has no answer yet."""
    from selenium.common.exceptions import WebDriverException

    def answers() -> bool:
        with suppress(WebDriverException):
            return bool(browser.execute_script(script) == value)
        return False

    return bool(until(answers, PAUSE))


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


def test_pages_of_a_watch_that_was_killed_say_so_and_stop_looking(browser: Any, tmp_path: Path) -> None:
    """Also where the file that they look at is gone, which they took for the end of the watch again and again."""
    out = tmp_path / "out"
    build(out, "one", watched=True)
    sign(out, 0, later=-3600)
    browser.get((out / "index.html").as_uri())
    condition = "return document.querySelector('.unwatched')?.textContent.includes('no sign of life since')"
    assert becomes(browser, condition)
    sign(out, 0, later=5)
    assert becomes(browser, "return document.querySelector('.unwatched')", None), "it is alive after all"
    browser.execute_script("const now = Date.now; Date.now = () => now() + 3_600_000")
    assert becomes(browser, condition)
    (out / "live.js").unlink()
    browser.get((out / "index.html").as_uri())
    assert becomes(browser, "return Boolean(document.querySelector('.unwatched'))")
    browser.execute_script("window.untouched = true;")
    time.sleep(10 * PAUSE)
    assert browser.execute_script("return window.untouched")


def sign(out: Path, every: float, later: float = 0) -> None:
    """A sign of life, a little later than now, so that it differs from the one before."""
    live.sign(out, every)
    text = (out / "live.js").read_text()
    (out / "live.js").write_text(re.sub(r"\[(\d+)", lambda match: f"[{int(match[1]) + later:.0f}", text))
