"""The figure of a step's parts: a bar a group with its floor below, absent where no step was profiled."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from analysis import charts
from analysis.charts import Figure
from analysis.charts._parts import part_looks
from analysis.drawings.draw import laid_out
from analysis.report import facts
from analysis.report.build import build_report
from analysis.store import database as store
from analysis.store.collect import collect
from analysis.wording import UNKNOWN
from tests.analysis.charts.test_charts import draw
from tests.analysis.fabricate import Folder, completed, on_node, plan, profile
from tests.analysis.report.test_build import words

PARTS = {
    "products": 0.25, "attention": 0.04, "loss": 0.01, "optimizer": 0.03, "elementwise": 0.05, "copies": 0.0,
    "communication": 0.0, "idle": 0.02,
}  # fmt: skip


def run(
    root: Path,
    run_id: str,
    attention: str,
    slower: float = 1.0,
    floor: bool = True,
    parts: dict[str, float] | None = None,
) -> None:
    folder = Folder(root, plan(run_id, attention=attention))
    folder.start(**(on_node(root, folder.run) if floor else {}))
    for step in range(5, 101, 5):
        folder.step(step, 0.39)
    folder.end()
    profile(
        folder, **{part: seconds * slower for part, seconds in PARTS.items()} | {"idle": 0.02} | (parts or {})
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    run(tmp_path, "r1", "cudnn")
    run(tmp_path, "r2", "cudnn", 1.1)
    run(tmp_path, "r3", "cudnn", 1.2)
    run(tmp_path, "r4", "flash", 2, floor=False)
    collect(tmp_path)
    return tmp_path


def bars(figure: Figure) -> dict[str, dict[str, float]]:
    """Lengths by label and part."""
    by_bar: dict[str, dict[str, float]] = {}
    for row in figure.spec["datasets"][figure.spec["layer"][0]["data"]["name"]]:
        assert row["end"] - row["start"] == pytest.approx(row["value"])
        by_bar.setdefault(row["label"], {})[row["part"]] = row["value"]
    return by_bar


def test_a_group_has_one_bar_of_its_median_run_and_its_floor_below(root: Path) -> None:
    figure = draw(root, "step_profile")
    assert figure and figure.used == {"r1", "r2", "r3", "r4"}
    parts_by_bar = bars(figure)
    assert list(parts_by_bar) == ["cudnn", "cudnn: floor", "flash"]
    assert parts_by_bar["cudnn"] == pytest.approx({
        "matrix products": 275, "attention": 44, "loss": 11, "optimizer": 33, "norms and elementwise": 55, "idle": 20,
    })  # fmt: skip
    assert set(parts_by_bar["cudnn: floor"]) == set(parts_by_bar["cudnn"]) - {"idle"}
    with store.open_for_reading(root) as connection:
        (floor,) = connection.sql(
            "SELECT DISTINCT floor_seconds FROM runs WHERE attention = 'cudnn'"
        ).fetchall()
    assert sum(parts_by_bar["cudnn: floor"].values()) == pytest.approx(1000 * floor[0])


def test_the_table_has_every_part_the_timed_step_and_the_floor(root: Path) -> None:
    figure = draw(root, "step_profile")
    assert figure and figure.table
    columns = figure.table.columns
    assert {len(row) for row in figure.table.rows} == {len(columns)}
    cudnn, flash = (dict(zip(columns, row, strict=True)) for row in figure.table.rows)
    assert (cudnn["runs"], cudnn["matrix products, ms"], cudnn["whole, ms"]) == ("3", "275.00", "438.00")
    assert cudnn["timed step, ms"] == flash["timed step, ms"] == "390.00"
    assert cudnn["floor, % of the timed step"] == f"{float(cudnn['floor, ms']) / 3.9:.0f}"
    assert flash["floor, ms"] == flash["floor, % of the timed step"] == UNKNOWN
    assert figure.finding == "Largest part of a step: matrix products, 63 to 64 %; flash in one run"


def test_it_says_where_profiled_steps_are_not_like_the_timed_ones(root: Path) -> None:
    """flash: 780 ms by its parts, 390 ms timed; cudnn's median step is 12 % above its timed one."""
    figure = draw(root, "step_profile")
    assert (
        figure
        and "In 2 of 2 groups these took over 10 % longer or shorter than the timed ones" in figure.caption
    )


def test_it_says_where_attention_takes_less_than_it_can(root: Path) -> None:
    assert "Wrong for" not in draw(root, "step_profile").caption  # type: ignore[union-attr]
    run(root, "r9", "custom", parts={"attention": 1e-6})
    collect(root)
    figure = draw(root, "step_profile")
    assert figure and " Wrong for custom: attention would take less than it can" in figure.caption


def test_a_part_has_one_look_whichever_parts_a_study_has(tmp_path: Path) -> None:
    def looks(root: Path, **parts: float) -> dict[str, tuple[str, float]]:
        run(root, "r1", "cudnn", parts=parts)
        collect(root)
        figure = draw(root, "step_profile")
        assert figure
        colour, opacity = (
            figure.spec["layer"][0]["encoding"][channel]["scale"] for channel in ("color", "opacity")
        )
        return dict(zip(colour["domain"], zip(colour["range"], opacity["range"], strict=True), strict=True))

    few_parts, all_parts = looks(tmp_path / "a"), looks(tmp_path / "b", copies=0.01, communication=0.01)
    assert len(few_parts) == 6 and len(set(all_parts.values())) == 8
    assert few_parts == {name: all_parts[name] for name in few_parts}


def test_a_part_is_drawn_as_opaque_as_it_should_be(root: Path) -> None:
    """Not along a ramp from the first part to the last."""
    figure = draw(root, "step_profile")
    assert figure
    svg = laid_out(figure.spec, 6)
    for colour, opacity in part_looks([PARTS]).values():
        assert re.search(f'fill="{colour}"[^>]* opacity="{opacity:g}"', svg), (colour, opacity)


def test_it_says_how_a_cpu_was_profiled(tmp_path: Path) -> None:
    folder = Folder(tmp_path, plan("r1"))
    folder.start(device="CPU: some", peak=None, gpus=0)
    folder.step(100, 20.0)
    folder.end()
    profile(folder, products=11.0, idle=1.0)
    collect(tmp_path)
    figure = draw(tmp_path, "step_profile")
    assert figure and "On a CPU" in figure.caption and "floor" not in figure.caption
    assert bars(figure) == {"auto": {"matrix products": 11, "idle": 1}}
    assert "longer than the timed" not in figure.caption


def test_the_drawing_is_vega_lite(root: Path) -> None:
    import vl_convert

    figure = draw(root, "step_profile")
    assert figure
    svg = vl_convert.vegalite_to_svg({**figure.spec, "width": 640}, allowed_base_urls=[])
    assert "norms and elementwise" in svg and "cudnn: floor" in svg


def test_a_report_has_it_where_steps_were_profiled_and_no_trace_of_it_elsewhere(
    root: Path, tmp_path: Path
) -> None:
    build_report(root, "backends", tmp_path / "with")
    page = (tmp_path / "with" / "time.html").read_text()
    overview = words(tmp_path / "with" / "index.html")
    assert (
        "Those of cudnn (+12.3 %) and flash (+100.0 %) took over 10 % longer or shorter than the timed ones"
        in overview
    )
    assert (
        "Largest part of a step: matrix products" in page
        and (tmp_path / "with" / "data" / "step_profile.csv").is_file()
    )
    run_page = (tmp_path / "with" / "run-r1.html").read_text()
    assert "its matrix products at 700 TFLOP/s" in run_page and "of the median step" in run_page
    assert "Ceiling" not in (tmp_path / "with" / "run-r4.html").read_text()
    completed(tmp_path / "other", "r1")
    collect(tmp_path / "other")
    build_report(tmp_path / "other", "backends", tmp_path / "without")
    profile_files = {
        path.relative_to(tmp_path / "without") for path in (tmp_path / "without").rglob("*step_profile*")
    }
    assert {path.parent.as_posix() for path in profile_files} == {"data/records", "data/queries"}
    chart = charts.load("step_profile")
    with store.open_for_reading(tmp_path / "other") as connection:
        assert not chart.applies(facts.rows(connection, chart.sql, "backends"))
