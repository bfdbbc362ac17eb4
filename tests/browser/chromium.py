"""Starts Chromium, for the tests of pages and for the benchmark of how soon they are ready."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
)


@contextmanager
def chromium(script: str) -> Iterator[Any]:
    """Chromium with a profile of its own, which runs a script at the start of each page."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
        try:
            driver.set_script_timeout(900)
            driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})
            yield driver
        finally:
            driver.quit()
