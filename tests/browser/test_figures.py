"""What figures draw, and how their values are reached without a mouse, without scripts and as files."""

from __future__ import annotations

import csv
import struct
from pathlib import Path
from typing import Any

import pytest

from model.record.units import in_order
from tests.browser.visit import NARROW, emulate, load, settle
from tests.conftest import until

MARKS = """
    const chart = document.querySelector('figure[data-chart="tokens_per_second"] .chart');
    return [...chart.querySelectorAll('.mark-symbol path')].filter((p) => p.__data__.tooltip).map((p) => {
        const box = p.getBoundingClientRect();
        const value = Object.values(p.__data__.datum).find((v) => typeof v === 'number' && v > 1000);
        return [value, box.x + box.width / 2];
    });
"""


@pytest.fixture
def tokens(browser: Any, report: Path) -> Any:
    """The browser at the page of tokens per second."""
    emulate(browser)
    load(browser, report / "tokens.html")
    return browser


def test_marks_lie_where_the_values_of_the_table_put_them(tokens: Any, report: Path) -> None:
    with (report / "data" / "tokens_per_second.csv").open(newline="", encoding="utf-8") as file:
        values = sorted(float(row["tokens_per_second"]) for row in csv.DictReader(file))
    marks = sorted(tokens.execute_script(MARKS))
    assert [value for value, _ in marks] == pytest.approx(values)
    (low, left), *_, (high, right) = marks
    scale = (right - left) / (high - low)
    assert [place for _, place in marks] == pytest.approx(
        [left + scale * (value - low) for value in values], abs=1
    )


def test_the_arrow_keys_lead_along_a_row_and_say_what_the_mouse_would_show(tokens: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    chart = tokens.find_element(By.CSS_SELECTOR, ".chart[tabindex='0']")
    announcements = []
    for key in (Keys.HOME, Keys.ARROW_DOWN, Keys.END):
        chart.send_keys(key)
        announcements.append(
            tokens.execute_script("return document.querySelector('[role=status]').textContent")
        )
    tooltip = tokens.find_element(By.ID, "vg-tooltip-element").text
    assert len(set(announcements)) == 3
    assert "null" not in " ".join(announcements)
    assert "".join(tooltip.split()) == "".join(announcements[-1].replace("; ", "").split())


def test_the_arrow_keys_lead_along_a_line_and_to_the_next_and_no_further(browser: Any, report: Path) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    emulate(browser)
    load(browser, report / "loss.html")
    chart = browser.find_element(By.CSS_SELECTOR, "figure[data-chart='loss'] .chart")
    announcements = {}
    for key in (Keys.HOME, Keys.ARROW_RIGHT, Keys.END, Keys.ARROW_DOWN, Keys.ESCAPE):
        chart.send_keys(key)
        announcement = browser.execute_script(
            "return arguments[0].parentElement.querySelector('[role=status]').textContent", chart
        )
        announcements[key] = dict(part.split(" ", 1) for part in announcement.split("; "))
    first, second, last, other, _ = announcements.values()
    assert int(first["step"]) < int(second["step"]) < int(last["step"]) == int(other["step"]) == 100
    assert first["group"] == last["group"] != other["group"]
    assert not browser.find_element(By.ID, "vg-tooltip-element").is_displayed()
    assert not browser.find_element(By.CSS_SELECTOR, "figure[data-chart='loss'] .stop").is_displayed()
    chart.send_keys(Keys.TAB)
    assert browser.switch_to.active_element != chart, "a trap"


def test_the_pointer_is_told_the_value_of_a_line_where_it_is(browser: Any, report: Path) -> None:
    from selenium.webdriver.common.by import By

    emulate(browser)
    load(browser, report / "loss.html")
    browser.execute_script("""
        const lines = [...document.querySelectorAll("figure[data-chart='loss'] .mark-line path")];
        const line = lines.find((path) => path.__data__.tooltip);
        const { x, y } = line.getPointAtLength(line.getTotalLength() / 2).matrixTransform(line.getScreenCTM());
        line.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: x, clientY: y }));
    """)
    words = browser.find_element(By.ID, "vg-tooltip-element").text.split()
    assert 40 <= int(words[words.index("step") + 1]) <= 60


NAMING = """
    const figure = document.querySelector('figure[data-chart="sweep_tokens"]');
    const texts = [...figure.querySelectorAll('svg .beside_marks text')].map((each) => [each.getBoundingClientRect().y, each.textContent]);
    const plot = figure.querySelector('svg .background').getBoundingClientRect().width;
    return {
        beside: texts.sort((a, b) => a[0] - b[0]).map((each) => each[1]),
        below: [...figure.querySelectorAll('ol.key li')].map((each) => [each.textContent, each.style.borderColor]),
        share: plot / figure.clientWidth,
    };
"""


def test_names_that_take_the_room_of_a_plot_become_numbers_with_a_list_below(
    browser: Any, sweep: Path
) -> None:
    emulate(browser)
    load(browser, sweep)
    wide = browser.execute_script(NAMING)
    assert sorted(wide["beside"]) == [
        f"{name}, compile: {how}" for name in ("auto", "flash") for how in ("no", "yes")
    ]
    assert wide["below"] == []
    emulate(browser, NARROW)
    settle(browser)
    narrow = browser.execute_script(NAMING)
    assert narrow["beside"] == ["1", "2", "3", "4"]
    assert [name for name, _ in narrow["below"]] == wide["beside"], "from the top, as the lines end"
    assert len({colour for _, colour in narrow["below"]}) == 4
    assert narrow["share"] > 0.6
    emulate(browser)
    settle(browser)
    again = browser.execute_script(NAMING)
    assert (again["beside"], again["below"]) == (wide["beside"], [])


def test_rows_with_long_names_are_numbered_in_their_order(browser: Any, report: Path) -> None:
    emulate(browser, NARROW)
    load(browser, report / "tokens.html")
    rows, names = browser.execute_script("""
        const figure = document.querySelector('figure[data-chart="tokens_per_second"]');
        const rows = [...figure.querySelectorAll('.role-axis-label text')].map((each) => each.textContent);
        return [rows.filter((text) => !text.includes(',')), [...figure.querySelectorAll('ol.key li')].map((li) => li.textContent)];
    """)
    with (report / "data" / "tokens_per_second.csv").open(newline="", encoding="utf-8") as file:
        labels = list(dict.fromkeys(in_order(row["label"]) for row in csv.DictReader(file)))
    assert rows == ["1", "2", "3", "4"]
    assert names == labels


def test_numbers_in_place_of_names_are_of_the_rows_alone(browser: Any, report: Path) -> None:
    """The certificates' axis has a tick at its end, which is nothing that has a name."""
    emulate(browser, 160)
    load(browser, report / "certificates.html")
    numbers, names = browser.execute_script("""
        const figure = document.querySelector('figure[data-chart="certificates"]');
        const rows = [...figure.querySelectorAll('.role-axis-label text')].map((each) => each.textContent);
        return [rows.filter((text) => text && !text.includes('.')), figure.querySelectorAll('ol.key li').length];
    """)
    assert numbers == [str(number) for number in range(1, names + 1)]


def test_the_values_are_in_a_table_that_the_keyboard_opens(tokens: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    details = tokens.find_element(By.CSS_SELECTOR, "details.values")
    table = details.find_element(By.TAG_NAME, "table")
    assert not table.is_displayed()
    details.find_element(By.TAG_NAME, "summary").send_keys(Keys.ENTER)
    assert table.is_displayed()
    assert "auto" in table.text and "cudnn" in table.text


def test_figures_in_the_window_are_drawn_first_and_others_have_their_room_before(
    browser: Any, report: Path
) -> None:
    watch = """
        window.order = [];
        new MutationObserver((all) => all.filter(({ target }) => target.dataset.state).forEach(({ target }) =>
            order.push([target.dataset.chart, ...[...document.querySelectorAll(".chart")].map((it) => it.clientHeight)])))
            .observe(document, { subtree: true, attributeFilter: ["data-state"] });
    """
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": watch})
    emulate(browser)
    browser.get((report / "loss.html").as_uri() + "#loss_difference")
    try:
        browser.refresh()  # a page that is loaded again is where it was before its scripts run
        settle(browser)
        (first, *heights), (second, *_) = browser.execute_script("return order")
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
    assert [first, second] == ["loss_difference", "loss"]
    assert min(heights) >= 360, "a page that jumps when its figures come"


def test_without_scripts_the_image_stands_where_the_figure_would(browser: Any, report: Path) -> None:
    emulate(browser)
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get((report / "tokens.html").as_uri())
        figures = browser.execute_script("""
            return [...document.querySelectorAll('figure')].map((figure) => {
                const image = figure.querySelector('noscript img'), box = image.getBoundingClientRect();
                return [image.naturalWidth > 0, image.alt.length > 20, box.width > 200,
                        box.top - figure.getBoundingClientRect().top < 20];
            });
        """)
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert figures and all(all(checks) for checks in figures), figures


def test_a_download_arrives_as_the_report_holds_it(tokens: Any, report: Path, tmp_path: Path) -> None:
    from selenium.webdriver.common.by import By

    tokens.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    link = tokens.find_element(By.CSS_SELECTOR, "a[download][href$='.csv']")
    name = Path(str(link.get_dom_attribute("href"))).name
    link.click()
    until((tmp_path / name).exists, 0.05)
    assert (tmp_path / name).read_bytes() == (report / "data" / name).read_bytes()


def test_the_picture_of_the_readme_is_of_the_drawn_page(report: Path, tmp_path: Path) -> None:
    from docs.pictures import take

    take(report / "tokens.html", tmp_path / "page.png", (1180, 860))
    picture = (tmp_path / "page.png").read_bytes()
    assert struct.unpack(">II", picture[16:24]) == (1180, 860)
    assert len(picture) > 50_000  # an empty window has less than a tenth of that
