"""The report in a real browser, from file:// and with nobody to ask."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis.report.build import build_report, certificates_page
from analysis.store.collect import collect
from tests.analysis.demo import certify, write_demo

selenium = pytest.importorskip("selenium.webdriver")

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs Chromium and chromedriver on PATH"),
]
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
]
PAGES = ["index", "comparison", "loss", "tokens", "mfu", "time", "memory", "certificates", "runs", "methods"]
FIGURES = {
    "comparison": 1,
    "loss": 2,
    "tokens": 2,
    "mfu": 1,
    "time": 2,
    "memory": 1,
    "certificates": 1,
    "machine/index": 1,
}
EVIL = '<img src=x onerror="window.hacked=1"></script><script>window.hacked=1</script>\u2028\'"`${1}'


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_demo(root, title=f"Attention backends {EVIL}")
    named = {"kernels": {"forward": [3 * EVIL], "backward": ["k" * 300]}, "not_looked_at": [EVIL]}
    certify(root, "custom", **named)
    certify(root, "flash3", case=None, **named)
    collect(root)
    out = build_report(root, "backends", tmp_path_factory.mktemp("report")).parent
    certificates_page(root, out / "machine")
    return out


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = selenium.ChromeOptions()
    options.binary_location = str(BROWSER)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(str(DRIVER)))
    yield driver
    driver.quit()


def look(browser: Any, page: Path, width: int = 1200, scheme: str = "light") -> None:
    """Open a page at a width and colour scheme, and wait until every figure is drawn or failed."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(page.as_uri())
    wait = "return [...document.querySelectorAll('figure')].every(f => f.dataset.state)"
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 30).until(lambda it: it.execute_script(wait))


def logged(browser: Any) -> list[str]:
    """What the console said since the last question."""
    return [entry["message"] for entry in browser.get_log("browser")]


@pytest.mark.parametrize("page", [*PAGES, "machine/index"])
def test_every_page_draws_without_a_word_on_the_console(browser: Any, report: Path, page: str) -> None:
    logged(browser)
    look(browser, report / f"{page}.html")
    states = browser.execute_script(
        "return [...document.querySelectorAll('figure')].map(f => f.dataset.state)"
    )
    assert states == ["drawn"] * FIGURES.get(page, 0)
    marks = "return [...document.querySelectorAll('.chart svg')].map(s => s.querySelectorAll('path').length)"
    assert all(count > 10 for count in browser.execute_script(marks))
    assert logged(browser) == []


@pytest.mark.parametrize("page", [*PAGES, "machine/index"])
def test_no_page_asks_the_network(browser: Any, report: Path, page: str) -> None:
    browser.get_log("performance")
    look(browser, report / f"{page}.html")
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert any(url.startswith("file://") for url in sent)
    assert [url for url in sent if not url.startswith(("file://", "data:"))] == []


@pytest.mark.parametrize("page", [*PAGES, "machine/index"])
@pytest.mark.parametrize("width", [390, 768])
def test_no_page_is_wider_than_a_narrow_screen(browser: Any, report: Path, page: str, width: int) -> None:
    look(browser, report / f"{page}.html", width=width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    wide = """
        const inside = e => e.closest('.table, pre, .visually-hidden, .skip');
        return [...document.querySelectorAll('main *, header *, footer *')]
            .filter(e => !inside(e) && e.getBoundingClientRect().right > arguments[0] + 1)
            .map(e => e.tagName + '.' + e.getAttribute('class') + ' ' + e.textContent.slice(0, 40));
    """
    assert browser.execute_script(wide, width) == []


@pytest.mark.parametrize("page", ["index", "tokens"])
def test_dark_mode_turns_paper_and_ink_round_figures_included(browser: Any, report: Path, page: str) -> None:
    lightness = """
        const grey = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number); return (r + g + b) / 3; };
        const text = document.querySelector('.chart svg text') || document.querySelector('h1');
        const style = getComputedStyle(text);
        return [grey(getComputedStyle(document.body).backgroundColor),
                grey(text.closest('svg') ? style.fill : style.color)];
    """
    look(browser, report / f"{page}.html", scheme="light")
    paper, ink = browser.execute_script(lightness)
    assert paper > 230 > 80 > ink
    look(browser, report / f"{page}.html", scheme="dark")
    paper, ink = browser.execute_script(lightness)
    assert paper < 50 < 180 < ink


def test_links_lead_to_pages_and_runs(browser: Any, report: Path) -> None:
    from selenium.webdriver.common.by import By

    look(browser, report / "index.html")
    for page in PAGES[1:]:
        browser.find_element(By.CSS_SELECTOR, f'nav a[href="{page}.html"]').click()
        assert browser.current_url.endswith(f"/{page}.html")
        assert (
            browser.find_element(By.CSS_SELECTOR, 'nav [aria-current="page"]')
            .get_attribute("href")
            .endswith(page + ".html")
        )
    look(browser, report / "index.html")
    link = browser.find_element(By.CSS_SELECTOR, "a.run")
    name = link.text
    link.click()
    target = browser.execute_script("return document.querySelector(':target').textContent")
    assert name in target


def test_a_title_that_is_code_is_shown_and_does_nothing(browser: Any, report: Path) -> None:
    for page in (*PAGES, "machine/index"):
        look(browser, report / f"{page}.html")
        assert browser.execute_script("return window.hacked") is None
    look(browser, report / "index.html")
    assert EVIL.replace("\u2028", "") in browser.title.replace("\u2028", "").replace(" ", " ")


def test_the_page_still_shows_its_figures_without_scripts(browser: Any, report: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get((report / "tokens.html").as_uri())
        from selenium.webdriver.common.by import By

        images = browser.find_elements(By.CSS_SELECTOR, "figure noscript img")
        assert len(images) == 2
        assert all(image.size["width"] > 200 and image.get_attribute("alt") for image in images)
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_headings_tables_and_figures_are_marked_up(browser: Any, report: Path) -> None:
    for page in (*PAGES, "machine/index"):
        look(browser, report / f"{page}.html")
        found = browser.execute_script(
            """
            const levels = [...document.querySelectorAll('h1, h2, h3')].map(h => Number(h.tagName[1]));
            return {
                first: levels.filter(level => level === 1).length,
                jumps: levels.filter((level, i) => i && level > levels[i - 1] + 1).length,
                captions: [...document.querySelectorAll('figure')].every(f => f.querySelector('figcaption')),
                tables: [...document.querySelectorAll('table')].every(t => t.caption && t.querySelector('th[scope]')),
                labelled: [...document.querySelectorAll('[aria-labelledby]')]
                    .every(e => document.getElementById(e.getAttribute('aria-labelledby'))),
                svgs: [...document.querySelectorAll('.chart svg')].every(s => s.getAttribute('aria-label')
                    || s.querySelector('[aria-label]')),
                language: document.documentElement.lang,
            };
            """
        )
        assert found == {
            "first": 1, "jumps": 0, "captions": True, "tables": True, "labelled": True, "svgs": True, "language": "en",
        }  # fmt: skip
