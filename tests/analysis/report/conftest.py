"""The report of the demo, built once for all that look at it."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.report.build import build_report
from analysis.store.collect import collect
from tests.analysis.demo import write_demo


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The collected workspace."""
    root = tmp_path_factory.mktemp("runs")
    write_demo(root)
    collect(root)
    return root


@pytest.fixture(scope="session")
def demo_report(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report's folder."""
    return build_report(demo, "backends", tmp_path_factory.mktemp("out") / "deep" / "report").parent
