"""The pages by keyboard alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.browser.visit import NARROW, ask, emulate, load
from tests.conftest import until

STOP = """
    const e = document.activeElement, style = getComputedStyle(e), box = e.getBoundingClientRect();
    return {
        tag: e.tagName, says: (e.ariaLabel || e.textContent).trim().slice(0, 80), href: e.getAttribute('href'),
        seen: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2 && box.width > 0
            && box.right > 0 && box.left < innerWidth && box.bottom > 0 && box.top < innerHeight,
    };
"""
# Gathered by the page itself: to ask after every key takes longer than the keys.
GATHER = f"""
    window.stops = [];
    document.addEventListener('focusin', () => window.stops.push((() => {{ {STOP} }})()));
"""
REACHABLE = """
    return [...document.querySelectorAll('a[href], summary, [tabindex="0"]')]
        .filter((e) => e.checkVisibility({ contentVisibilityAuto: true })).length;
"""
KINDS = (
    "index", "pair/index", "report/index", "report/comparison", "report/tokens", "report/certificates",
    "report/print", "report/run-90abcdef0123",
)  # fmt: skip


def press(browser: Any, *keys: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser, duration=0).send_keys(*keys).perform()


@pytest.mark.parametrize("page", KINDS)
def test_tab_reaches_everything_once_and_shows_where_it_is(browser: Any, site: Path, page: str) -> None:
    from selenium.webdriver.common.keys import Keys

    emulate(browser)
    load(browser, site / f"{page}.html")
    ask(browser, "frame()")  # by then the page has taken tables that are not wide from the keyboard's way
    count = browser.execute_script(REACHABLE)
    browser.execute_script(GATHER)
    press(browser, *[Keys.TAB] * count)
    stops = browser.execute_script("return window.stops")
    assert len(stops) == count
    assert [stop for stop in stops if not stop["seen"] or not stop["says"]] == []
    counts = Counter((stop["says"], stop["href"]) for stop in stops if len(stop["says"]) < 3)
    assert not counts, "footnote marks are no stops"
    press(browser, Keys.TAB)
    assert browser.execute_script("return window.stops.length") <= count + 1
    assert browser.execute_script(STOP)["says"] != stops[-1]["says"], "a trap"


def test_the_first_stop_skips_to_the_content(browser: Any, report: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    emulate(browser)
    load(browser, report / "index.html")
    press(browser, Keys.TAB)
    assert browser.execute_script(STOP)["says"] == "Skip to the content"
    press(browser, Keys.ENTER)
    press(browser, Keys.TAB)
    inside = "return document.querySelector('main').contains(document.activeElement)"
    assert browser.execute_script(inside)


def test_the_arrow_keys_scroll_a_wide_table_and_columns_show_whole(browser: Any, report: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    emulate(browser, NARROW)
    load(browser, report / "index.html")
    ask(browser, "frame()")
    region = "document.querySelector('.table[tabindex=\"0\"]')"
    script = f"return {region}.dataset.more"
    assert "more column" in browser.execute_script(script)
    browser.execute_script(f"{region}.focus()")
    for _ in range(8):
        press(browser, Keys.ARROW_RIGHT)
    condition = f"return {region}.scrollLeft > 50"
    until(lambda: browser.execute_script(condition) and ask(browser, "cut()") == [], 0.1)


def test_nothing_moves_for_those_who_asked_for_that(browser: Any, report: Path) -> None:
    emulate(browser)
    emulation = {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", emulation)
    load(browser, report / "tokens.html")
    moves = """
        return [...document.querySelectorAll('*')].filter((e) => {
            const style = getComputedStyle(e);
            return style.animationName !== 'none' || parseFloat(style.transitionDuration) > 0 || style.scrollBehavior === 'smooth';
        }).length;
    """
    assert browser.execute_script(moves) == 0
