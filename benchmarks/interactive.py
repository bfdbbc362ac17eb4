"""Milliseconds until the pages of a report are ready in Chromium: loaded, and what is in the window drawn.

python benchmarks/interactive.py REPORT [--rounds 3] [--pages 8]

From the start of the navigation, by the page's own clock: to the last figure in the window, and to the last
of the page, or to the end of the load event where that is later. Opened are the largest pages and index.html.
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
  if (document.readyState === "loading") return;
  const all = [...document.querySelectorAll("figure[data-chart]")];
  const seen = all.filter((it) => it.getBoundingClientRect().top < innerHeight);
  if (seen.every((it) => it.dataset.state)) window.seenAt ??= performance.now();
  if (all.every((it) => it.dataset.state)) window.drawnAt ??= performance.now();
}).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-state"] });
"""
_READY = """
const loaded = performance.getEntriesByType("navigation")[0].loadEventEnd;
const figures = document.querySelectorAll("figure[data-chart]").length;
if (!loaded || (figures && !window.drawnAt)) return null;
return [window.seenAt ?? 0, window.drawnAt ?? 0].map((at) => Math.max(at, loaded));
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
            took, drawn = zip(*(ready(browser, page) for _ in range(chosen.rounds)), strict=True)
            size = page.stat().st_size
            print(
                f"{page.name:28} {size / 1e6:6.2f} MB  median {median(took):6.0f} ms  "
                f"({min(took):.0f} to {max(took):.0f}), all drawn after {median(drawn):6.0f} ms"
                f"{'  too large' * (size > _LIMIT)}"
            )


def ready(browser: Any, page: Path) -> tuple[float, float]:
    """Milliseconds from the start of the navigation until a page is ready, and until all of it is drawn."""
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(page.resolve().as_uri())
    waiting = WebDriverWait(browser, 120, poll_frequency=0.05)
    seen, drawn = waiting.until(lambda it: it.execute_script(_READY))
    return float(seen), float(drawn)


if __name__ == "__main__":
    main()
