"""The figures of frontiers: each number against records written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import charts
from analysis.charts import Figure, Row
from analysis.charts.frontier import card
from analysis.report.build import build_report
from analysis.store.collect import collect
from tests.analysis.charts.drawn import draw
from tests.analysis.sought import frontier


def figure(root: Path, name: str, study: str = "frontier") -> Figure:
    chart = draw(root, name, study)
    assert chart and chart.table
    return chart


@pytest.fixture
def sought(root: Path) -> Path:
    frontier(root, "r1", "flash", 8192, {8192: "fits", 9216: "oom_gpu", 8704: "fits", 8960: "edge"})
    frontier(root, "r2", "math", 2048, {2048: "oom_gpu", 1792: "fits", 2304: "timeout"})
    frontier(root, "r3", "cudnn", 512, {512: "fits", 768: "failed"}, fraction=0.25)
    collect(root)
    return root


def test_the_largest_that_fits_stands_beside_the_forecast_and_what_is_not_known_is_said(sought: Path) -> None:
    chart = figure(sought, "frontier_sequence_length")
    assert chart.table
    rows = {row[0].partition(",")[0]: row for row in chart.table.rows}
    assert rows["flash"][2:6] == ("8,192", "8,704", "8,960 (edge)", "-5.9")
    assert rows["math"][2:6] == ("2,048", "1,792", "2,048 (oom_gpu)", "+14.3")
    assert rows["cudnn"][3:5] == ("at least 512", "768 (failed)")
    assert "20.00 GiB, emulated by 25 % of the memory of NVIDIA H200" in chart.caption
    assert "80.00 GiB, the memory of NVIDIA H200" in chart.caption
    assert chart.finding and "at least 512 (cudnn" in chart.finding and "8,704 (flash" in chart.finding
    assert chart.used == {"r1", "r2", "r3"}


def test_probes_are_drawn_at_their_peaks_with_the_cards_line(sought: Path) -> None:
    chart = figure(sought, "frontier_sequence_length_memory")
    assert chart.finding == "Forecast against the measured peak: -10.0 %"
    values = [row for rows in chart.spec["datasets"].values() for row in rows]
    assert {row["memory"] for row in values if set(row) == {"memory"}} == {20.0, 80.0}
    shapes = {(row["value"], row["shape"]) for row in values if "shape" in row}
    assert {(8192, "circle"), (9216, "cross"), (8960, "diamond"), (2304, "triangle-up")} <= shapes
    (failed_memory,) = {row["memory"] for row in values if row.get("value") == 2304}
    assert failed_memory == pytest.approx(2304 * 0.9 / 1024, abs=1e-3)


def test_a_study_that_seeks_something_else_has_no_such_figure(sought: Path) -> None:
    assert draw(sought, "frontier_layers", "frontier") is None
    assert not charts.load("frontier_layers").applies([{"find": "sequence_length"}])


@pytest.mark.parametrize(
    ("device", "fraction", "words"),
    [
        ("CPU: some", 0.2, "1.00 GiB, emulated by 20 % of the run's limit on CPU: some"),
        ("CPU: some", 1.0, "1.00 GiB, the run's limit on CPU: some"),
        ("NVIDIA H100", 1.0, "1.00 GiB, the memory of NVIDIA H100"),
    ],
)
def test_an_emulation_is_called_one(device: str, fraction: float, words: str) -> None:
    row: Row = {"card_bytes": 2**30, "memory_fraction": fraction, "device": device}
    assert card(row) == words


def test_the_report_has_every_probe_and_calls_an_emulation_so(sought: Path, tmp_path: Path) -> None:
    build_report(sought, "frontier", tmp_path / "pages")
    index = (tmp_path / "pages" / "index.html").read_text(encoding="utf-8")
    assert "8,704" in index and "8,960 (edge)" in index and "at least 512" in index
    assert "2304 tokens ended as timeout" in index
    assert "A smaller card is emulated" in index
    assert "not monotone" in (tmp_path / "pages" / "methods.html").read_text(encoding="utf-8")
    run = (tmp_path / "pages" / "run-r1.html").read_text(encoding="utf-8")
    assert "largest sequence_length that fits: 8,704" in run
