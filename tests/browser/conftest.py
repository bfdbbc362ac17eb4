"""One browser, and one site that is walked through once, for all tests here."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from analysis import charts
from analysis.report.build import build_report, certificates_page
from analysis.several.index import build_index
from analysis.several.pair import build_pair
from analysis.store.collect import collect
from analysis.verdicts.comparison import CompareOptions
from analysis.verdicts.source import StudySource
from tests.browser.chromium import BROWSER, DRIVER, chromium
from tests.browser.studies import AFTER, STUDY, SWEEP, write_after, write_extremes, write_hostile, write_swept
from tests.browser.visit import Visit, walk


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
def browser() -> Iterator[Any]:
    """Chromium, with axe-core on every page."""
    axe = files("selenium_axe_python").joinpath("axe-core/axe.min.js").read_text(encoding="utf-8")
    with chromium(axe) as driver:
        yield driver


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workspace with all studies."""
    folder = tmp_path_factory.mktemp("runs")
    write_hostile(folder)
    write_after(folder)
    write_swept(folder)
    write_extremes(folder)
    collect(folder)
    return folder


@pytest.fixture(scope="session")
def site(workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index over a report with everything in it, a comparison and the certificates of the machine."""
    folder = tmp_path_factory.mktemp("site")
    build_report(workspace, STUDY, folder / "report")
    sides = (StudySource(study, workspace, study) for study in (STUDY, AFTER))
    build_pair(*sides, CompareOptions(margins={"tokens_per_second": 0.02, "loss": 0.005}), folder / "pair")
    certificates_page(workspace, folder / "machine")
    return build_index(folder).parent


@pytest.fixture(scope="session")
def report(site: Path) -> Path:
    """The folder of that report."""
    return site / "report"


@pytest.fixture(scope="session")
def visits(browser: Any, site: Path) -> list[Visit]:
    """Each page of the site."""
    return walk(browser, site)


@pytest.fixture
def few_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures over numeric axes of one quantity: those of the others are drawn alike."""
    names = [name for name in charts.names() if not name.startswith("sweep_") or "tokens" in name]
    monkeypatch.setattr(charts, "names", lambda: tuple(names))


@pytest.fixture(scope="session")
def sweep(workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a study over one numeric axis."""
    out = tmp_path_factory.mktemp("sweep") / "report"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(charts, "names", lambda: ("sweep_tokens", "sweep_mfu", "certificates", "ratios"))
        return build_report(workspace, SWEEP, out, records=False).parent / "sweeps.html"
