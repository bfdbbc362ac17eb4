"""One browser, and one report that is walked through once, for all tests here."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from analysis.report.build import build_report, certificates_page
from analysis.store.collect import collect
from tests.browser.studies import STUDY, write_extremes, write_hostile
from tests.browser.visit import Visit, walk

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder need a browser, and are skipped with a message where there is none."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.browser)
            missing = pytest.mark.skipif(
                not (BROWSER and DRIVER), reason="needs Chromium and chromedriver on PATH"
            )
            item.add_marker(missing)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium, with axe-core on every page."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    driver.set_script_timeout(120)
    axe = files("selenium_axe_python").joinpath("axe-core/axe.min.js").read_text(encoding="utf-8")
    driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": axe})
    yield driver
    driver.quit()


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workspace with all studies."""
    made = tmp_path_factory.mktemp("runs")
    write_hostile(made)
    write_extremes(made)
    collect(made)
    return made


@pytest.fixture(scope="session")
def report(workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the report with everything in it."""
    return build_report(workspace, STUDY, tmp_path_factory.mktemp("out") / "report").parent


@pytest.fixture(scope="session")
def visits(browser: Any, report: Path, workspace: Path) -> list[Visit]:
    """Each page of that report, and the page of certificates of the machine."""
    return walk(browser, report) + walk(
        browser, certificates_page(workspace, report.parent / "machine").parent
    )
