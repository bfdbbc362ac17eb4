"""Milliseconds until the pages of a report are ready in Chromium: loaded, and every figure drawn.

python benchmarks/interactive.py REPORT [--rounds 3] [--pages 8]

From the start of the navigation, by the page's own clock: to the last figure, or to the end of the load event
on pages without one. The largest pages of the report are opened, and index.html.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parents[1]
_LIMIT = 2e6  # bytes of a page
_WATCH = """
new MutationObserver(() => {
  const all = [...document.querySelectorAll("figure[data-chart]")];
  const drawn = document.readyState !== "loading" && all.length && all.every((it) => it.dataset.state);
  if (drawn) window.drawnAt ??= performance.now();
}).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-state"] });
"""
_READY = """
const loaded = performance.getEntriesByType("navigation")[0].loadEventEnd;
const figures = document.querySelectorAll("figure[data-chart]").length;
return loaded && (!figures || window.drawnAt) ? Math.max(window.drawnAt ?? 0, loaded) : null;
"""


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("report", type=Path)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--pages", type=int, default=8)
    chosen = options.parse_args()
    found = sorted(chosen.report.glob("*.html"), key=lambda page: -page.stat().st_size)
    pages = [*found[: chosen.pages], chosen.report / "index.html"]
    sys.path.insert(0, str(HERE))
    from tests.browser.chromium import chromium

    with chromium(_WATCH) as browser:
        for page in dict.fromkeys(pages):
            took = [ready(browser, page) for _ in range(chosen.rounds)]
            size = page.stat().st_size
            print(
                f"{page.name:28} {size / 1e6:6.2f} MB  median {median(took):6.0f} ms  "
                f"({min(took):.0f} to {max(took):.0f}){'  too large' * (size > _LIMIT)}"
            )


def ready(browser: Any, page: Path) -> float:
    """Milliseconds from the start of the navigation until a page is ready."""
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(page.resolve().as_uri())
    waiting = WebDriverWait(browser, 120, poll_frequency=0.05)
    return float(waiting.until(lambda it: it.execute_script(_READY)))


if __name__ == "__main__":
    main()
