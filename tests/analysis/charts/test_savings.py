"""Percent of time and of memory that the cells of a grid save: each number against records written by hand."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

from analysis import charts
from analysis.importers import check_reported
from analysis.query.ask import answer
from analysis.report.build import build_report
from analysis.report.facts import literal
from analysis.store import database as store
from analysis.store.collect import collect
from model.record.config import DataConfig, RunConfig, TrainConfig
from model.record.records import DesignRecord
from model.record.reported import Reported
from tests.analysis.charts.drawn import draw
from tests.analysis.fabricate import LLAMA, Folder, plan

DESIGN = DesignRecord(
    order="as written", order_seed=None, baseline={"attention": "math"}, margins={}, until=None
)


def trained(
    root: Path,
    run_id: str,
    attention: str,
    length: int,
    seconds: float,
    gib: int,
    slower: float = 0.0,
    reported: tuple[Reported, ...] = (),
) -> None:
    """A run of records of 5 steps each, which are longer by `slower` from one to the next."""
    steps = 250 if slower else 30
    config = RunConfig(
        attention=attention,
        model=LLAMA,
        data=DataConfig(path="train.parquet"),
        train=TrainConfig(steps=steps, sequence_length=length, warmup_steps=5),
    )
    factors = {"attention": attention, "train.sequence_length": length, "seed": 0}
    group = f"g-{attention}-{length}"
    folder = Folder(
        root,
        plan(
            run_id,
            "grid",
            attention,
            config=config,
            factors=factors,
            group=group,
            design=DESIGN,
            reported=list(reported),
        ),
    )
    folder.start()
    for step in range(5, steps + 5, 5):
        folder.step(step, seconds=seconds + slower * step / 5, memory_bytes=gib * 2**30)
    folder.end(steps=steps, peak_memory_bytes=gib * 2**30)


def test_a_grid_shows_percent_of_time_and_of_memory_saved_against_its_own_baseline(root: Path) -> None:
    trained(root, "a1", "math", 2048, 0.4, 40)
    trained(root, "a2", "flash", 2048, 0.1, 20)
    trained(root, "b1", "math", 4096, 1.0, 60)
    trained(root, "b2", "flash", 4096, 0.31, 66)
    collect(root)
    time, memory = (draw(root, name, "grid") for name in ("time_saved", "memory_saved"))
    assert time and memory and time.table and memory.table
    assert [row[2] for row in time.table.rows] == ["75.0", "69.0"]
    assert [row[2] for row in memory.table.rows] == ["50.0", "-10.0"]
    assert time.used == memory.used == {"a1", "a2", "b1", "b2"}
    assert memory.finding and "-10.0 %" in memory.finding and "50.0 %" in memory.finding


def test_a_range_of_records_is_not_called_an_interval(root: Path) -> None:
    """One run grows slower all the time; nothing can be said of the steps that it did not do."""
    trained(root, "a1", "math", 2048, 1.0, 40, slower=1e-9)
    trained(root, "a2", "flash", 2048, 0.1, 20, slower=0.01)
    collect(root)
    time = draw(root, "time_saved", "grid")
    assert time and time.table
    ((*_, cell, _),) = time.table.rows
    assert cell.startswith("range ") and cell.endswith(" to 87.0"), cell
    assert time.caption.endswith("Lines of flash: ranges of the records.")


LENGTHS = {2048: (0.4, 0.1, 40, 20), 4096: (1.0, 0.5, 60, 15), 8192: (4.0, 1.0, 80, 16)}


def test_savings_are_lines_over_the_axis_of_the_grid_without_the_baselines(root: Path) -> None:
    for length, (slow, fast, more_memory, less_memory) in LENGTHS.items():
        trained(root, f"a{length}", "math", length, slow, more_memory)
        trained(root, f"b{length}", "flash", length, fast, less_memory)
    trained(root, "c1", "flash", 16384, 2.0, 17)  # its baseline ran out of memory
    collect(root)
    time, memory = (draw(root, name, "grid") for name in ("time_saved_lines", "memory_saved_lines"))
    assert time and memory and time.table and memory.table
    cells = [row[1:3] for row in time.table.rows]
    assert cells == [("2,048", "75.0"), ("4,096", "50.0"), ("8,192", "75.0")]
    assert [row[2] for row in memory.table.rows] == ["50.0", "75.0", "80.0"]
    assert time.used == {f"{kind}{length}" for kind in "ab" for length in LENGTHS}
    assert time.interval.startswith("n = 1: ")
    assert time.title == "Time saved over sequence length" and time.finding is None  # shares have no ratios


def test_what_others_report_as_saved_is_a_hollow_mark_and_stands_beside_ours(
    root: Path, tmp_path: Path
) -> None:
    numbers = {"time_saved_percentage": "68.92", "memory_saved_percentage": "49.5"}
    reported = Reported(numbers=numbers, hardware="L4 (32GB)", source="a report", read_from="text")
    for length, (slow, fast, more_memory, less_memory) in list(LENGTHS.items())[:2]:
        trained(root, f"a{length}", "math", length, slow, more_memory)
        trained(root, f"b{length}", "flash", length, fast, less_memory, reported=(reported,))
    collect(root)
    out = build_report(root, "grid", tmp_path / "report").parent
    page = (out / "savings.html").read_text()
    assert page.count("Hollow diamonds: reported by others, in no comparison.") == 2
    overview = (out / "index.html").read_text()
    text = unescape(re.sub(r"<[^>]*>", "", overview)).replace("\N{NO-BREAK SPACE}", " ")
    assert (
        "Time saved against the baseline: 50.0 % (flash, sequence_length=4096) to 75.0 % "
        "(flash, sequence_length=2048), in one run each." in text
    )
    assert "Memory saved against the baseline: 50.0 % (flash, sequence_length=2048) to 75.0 %" in text
    table = overview.partition('id="reported"')[2]
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", table)
    assert cells[cells.index("68.92") :][:3] == ["68.92", "75.00", "+6.08 points"]
    assert cells[cells.index("49.5") :][:3] == ["49.5", "50.00", "+0.50 points"]


def test_more_than_everything_cannot_be_saved() -> None:
    numbers = {"time_saved_percentage": "101"}
    reported = Reported(numbers=numbers, hardware="a card", source="a report", read_from="text")
    config = RunConfig(model=LLAMA, data=DataConfig(path="x"))
    (check,) = check_reported([reported], config, {})
    (flag,) = check.flags
    assert "rule time_saved_percentage <= 100" in flag


def test_a_study_of_one_baseline_has_no_page_of_savings(root: Path) -> None:
    trained(root, "a1", "math", 2048, 0.4, 40)
    trained(root, "a2", "flash", 2048, 0.1, 20)
    trained(root, "b2", "flash", 4096, 0.31, 66)
    collect(root)
    assert not _applies(root)
    trained(root, "b1", "math", 4096, 1.0, 60)
    collect(root)
    assert _applies(root)


def _applies(root: Path) -> bool:
    chart = charts.load("time_saved")
    with store.open_for_reading(root) as connection:
        return chart.applies(answer(connection, literal(chart.sql, "grid")).parsed())
