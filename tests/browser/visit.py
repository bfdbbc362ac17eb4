"""One visit of a page gathers all that tests look at: to load a page takes longer than to look at it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.conftest import until

PROBES = Path(__file__).with_name("probes.js").read_text(encoding="utf-8")
COLOURS = ["color-contrast", "link-in-text-block"]
WIDE, NARROW = 1200, 360


@dataclass(frozen=True)
class Visit:
    """What was found on a page.

    Attributes:
        console: what it wrote there.
        requests: URLs that it asked for, but for files and data.
        hacked: what hostile strings did, if they ran; else None.
        structure: as `structure` in probes.js has it.
        links: URL without fragment and whether it is a download, of each link.
        axe: violations, by theme or width.
        narrow: width of the page's content on a narrow screen, cut words, and tables that do not say they are wide.
    """

    name: str
    console: list[str]
    requests: list[str]
    hacked: Any
    structure: dict[str, Any]
    links: list[dict[str, Any]]
    axe: dict[str, list[str]]
    narrow: dict[str, Any]


def emulate(browser: Any, width: int = WIDE, scheme: str = "light", media: str = "screen") -> None:
    """Set the window's width, the colour scheme and the medium."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = {"media": media, "features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", features)


def load(browser: Any, page: Path) -> None:
    """Open a page, and wait until every figure is drawn or failed."""
    browser.get(page.as_uri())
    settle(browser)


def settle(browser: Any) -> None:
    """Wait until every figure is drawn or failed, also anew because its width changed."""
    ask(browser, "frame()")
    wait = "return [...document.querySelectorAll('figure[data-chart]')].every(f => f.dataset.state)"
    until(lambda: browser.execute_script(wait), 0.05)


def ask(browser: Any, probe: str) -> Any:
    """What a probe returns, or its promise resolves to."""
    script = (
        f"const done = arguments[arguments.length - 1]; {PROBES} Promise.resolve(probes.{probe}).then(done)"
    )
    return browser.execute_async_script(script)


def visit(browser: Any, page: Path, name: str, axe: bool = True) -> Visit:
    """Look at a page wide and narrow, light and dark."""
    emulate(browser)
    browser.get_log("browser"), browser.get_log("performance")  # what earlier pages left
    load(browser, page)
    violations: dict[str, list[str]] = {"light": ask(browser, "axe()")} if axe else {}
    structure, links = ask(browser, "structure()"), ask(browser, "links()")
    if axe:
        emulate(browser, scheme="dark")
        violations["dark"] = ask(browser, f"axe({json.dumps(COLOURS)})")
    emulate(browser, NARROW)
    settle(browser)
    ask(browser, "frame()")
    narrow = {"width": browser.execute_script("return document.documentElement.scrollWidth")}
    narrow |= {"unsaid": ask(browser, "unsaid()"), "cut": ask(browser, "cutAnywhere()")}
    return Visit(
        name=name,
        console=[entry["message"] for entry in browser.get_log("browser")],
        requests=list(_asked(browser)),
        hacked=browser.execute_script("return window.hacked"),
        structure=structure,
        links=links,
        axe=violations,
        narrow=narrow,
    )


def _asked(browser: Any) -> Iterator[str]:
    for entry in browser.get_log("performance"):
        event = json.loads(entry["message"])["message"]
        if event["method"] == "Network.requestWillBeSent":
            url = event["params"]["request"]["url"]
            if not url.startswith(("file://", "data:")):
                yield url


def walk(
    browser: Any, folder: Path, start: str = "index.html", axe: Collection[str] | None = None, most: int = 60
) -> list[Visit]:
    """Visit every page of a report that links lead to.

    Args:
        axe: pages to look at with axe, which takes longest; None for all.
        most: pages to visit, so that a study of many runs does not take all day.
    """
    names, visits = [start], []
    for name in names:
        visits.append(visit(browser, folder / name, name, axe is None or name in axe))
        names += [page for page in _pages(visits[-1], folder) if page not in names][: most - len(names)]
    return visits


def _pages(page: Visit, folder: Path) -> list[str]:
    paths = [Path(unquote(urlsplit(link["url"]).path)) for link in page.links if not link["download"]]
    inside = [path for path in paths if path.suffix == ".html" and path.is_relative_to(folder)]
    return list(dict.fromkeys(str(path.relative_to(folder)) for path in inside))
