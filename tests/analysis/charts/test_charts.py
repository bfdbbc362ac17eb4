"""Every chart: what each must be, whatever the study, and what particular ones must say."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest

from analysis import charts
from analysis.charts import Chart, Figure, styles
from analysis.charts._curves import POINTS, limit
from analysis.charts._rows import DotAxis
from analysis.charts._rows import dot_figure as dots
from analysis.charts._values import Ends, fitting
from analysis.query.ask import answer, ask
from analysis.report import facts
from analysis.stats import over_runs
from analysis.store import database as store
from analysis.store.collect import collect
from model.record.errors import UserError
from tests.analysis import fabricate
from tests.analysis.charts.drawn import draw
from tests.analysis.demo import write_demo
from tests.analysis.fabricate import CASE, Folder, certificate, completed, plan

# For the others see test_sweeps.py, test_kernels.py, test_inference.py, test_scaling.py, test_frontier.py, test_savings.py and
# test_step_profile.py.
ELSEWHERE = (
    "sweep",
    "step_profile",
    "scaling_",
    "kernel_",
    "decode_",
    "prefill_",
    "frontier_",
    "energy",
    "time_saved_",
    "memory_saved_",
)
OF_EVERY_STUDY = [name for name in charts.names() if not name.startswith(ELSEWHERE)]


Figures = dict[str, Figure | None]


def draw_all(root: Path) -> Figures:
    """Every chart, from one reading of the facts."""
    with store.open_for_reading(root) as connection:
        facts.snapshot(connection, "backends")
        group_styles = styles(facts.gather(connection, "backends").labels)
        figures = {}
        for name in OF_EVERY_STUDY:
            chart = charts.load(name)
            figures[name] = chart.build(
                answer(connection, facts.literal(chart.sql, "backends")).parsed(), group_styles
            )
    return figures


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_demo(root)
    collect(root)
    return root


def test_charts_leave_the_rows_as_they_are_since_others_show_them_too(demo: Path) -> None:
    with store.open_for_reading(demo) as connection:
        facts.snapshot(connection, "backends")
        group_styles = styles(facts.gather(connection, "backends").labels)
        for name in charts.names():
            chart = charts.load(name)
            rows = answer(connection, facts.literal(chart.sql, "backends")).parsed()
            copied_rows = deepcopy(rows)
            if chart.applies(rows):
                chart.build(rows, group_styles)
            assert rows == copied_rows, name


@pytest.fixture(scope="module")
def demo_figures(demo: Path) -> Figures:
    return draw_all(demo)


@pytest.fixture(scope="module")
def unstarted(tmp_path_factory: pytest.TempPathFactory) -> Figures:
    """The figures of a workspace with one run that waits."""
    root = tmp_path_factory.mktemp("unstarted")
    Folder(root, plan("r1"))
    collect(root)
    return draw_all(root)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Figures:
    """The figures of a workspace with one completed run."""
    root = tmp_path_factory.mktemp("single")
    completed(root, "r1", steps=20)
    collect(root)
    return draw_all(root)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Figures:
    """The figures of a workspace with a run that recorded 4000 steps."""
    root = tmp_path_factory.mktemp("long")
    folder = Folder(root, plan("r1", steps=4000))
    folder.start()
    for step in range(1, 4001):
        folder.step(step, steps=1)
    folder.end()
    collect(root)
    return draw_all(root)


def test_the_registry_is_the_folder() -> None:
    names = []
    for path in Path(charts.__file__).parent.glob("[!_]*.py"):
        module = import_module(f"analysis.charts.{path.stem}")
        names += [path.stem] if hasattr(module, "chart") else list(module.charts)
    assert sorted(names) == list(charts.names())
    assert {"loss", "tokens_per_second", "mfu", "time", "memory"} <= set(charts.names())


def test_an_unknown_chart_names_the_valid_ones() -> None:
    with pytest.raises(UserError, match=r"did you mean 'mfu'\?.*valid: certificates, decode_"):
        charts.load("mfus")


@pytest.mark.parametrize("name", charts.names())
def test_every_chart_says_what_it_is(name: str) -> None:
    chart = charts.load(name)
    assert isinstance(chart, Chart)
    assert chart.title
    assert chart.question.endswith("?")
    assert chart.empty.endswith(".")
    assert "$study" in chart.sql


@pytest.mark.parametrize("name", OF_EVERY_STUDY)
def test_every_chart_draws_a_mixed_study(demo_figures: Figures, name: str) -> None:
    figure = demo_figures[name]
    assert figure
    assert figure.caption
    assert figure.description
    assert figure.interval
    assert figure.used
    assert figure.finding
    assert figure.table
    assert {len(row) for row in figure.table.rows} == {len(figure.table.columns)}
    import altair as alt  # here, as it takes a second of every process that collects this file
    import vl_convert

    # Raises where it is not Vega-Lite, whose schema does not know that `background` may be null.
    alt.LayerChart.validate({name: value for name, value in figure.spec.items() if name != "config"})
    assert "<svg" in vl_convert.vegalite_to_svg(json.dumps(figure.spec | {"width": 600}))


@pytest.mark.parametrize("name", OF_EVERY_STUDY)
def test_every_chart_is_left_out_of_a_study_that_has_not_started(unstarted: Figures, name: str) -> None:
    assert unstarted[name] is None


@pytest.mark.parametrize("name", OF_EVERY_STUDY)
def test_every_chart_draws_a_single_run(single: Figures, name: str) -> None:
    """All but comparisons with other backends, and the certificates, which this run is older than."""
    comparisons = ("ratios", "loss_difference", "tokens_against_baseline", "time_saved", "memory_saved")
    absent = ("certificates", *comparisons)
    assert (single[name] is None) == (name in absent)


@pytest.mark.parametrize("name", OF_EVERY_STUDY)
def test_no_chart_inlines_more_points_than_a_page_can_hold(long: Figures, name: str) -> None:
    figure = long[name]
    assert figure is None or len(json.dumps(figure.spec)) < 100_000


def test_more_runs_than_a_page_can_hold_are_thinned_and_the_page_says_so(root: Path) -> None:
    """Every group has some of the 100 traces; the lines, the crosses and the list of runs are of all runs."""
    for number in range(130):
        backend = ("auto", "flash", "cudnn")[max(0, number - 127)]
        folder = Folder(root, plan(f"r{number:03}", attention=backend, seed=number, steps=10))
        folder.start()
        folder.step(5, loss=9.0)
        folder.step(10, loss=None if number == 126 else 8.0 + number / 1000)
        folder.end("diverged" if number == 126 else "completed")
    collect(root)
    figure = draw(root, "loss")
    assert figure
    assert len(figure.used) == 130
    assert (
        "100 of the 130 runs, as many of each group as fit (the solid lines are of all 130)" in figure.caption
    )
    data = list(figure.spec["datasets"].values())
    (traces,) = [rows for rows in data if "run_id" in rows[0] and "outcome" not in rows[0]]
    (endings,) = [rows for rows in data if "outcome" in rows[0]]
    assert {row["run_id"] for row in traces} >= {f"r{number:03}" for number in (*range(98), 128, 129)}
    assert len({row["run_id"] for row in traces}) == 100
    assert [(row["run_id"], row["step"], row["value"]) for row in endings] == [("r126", 5, 9.0)]


@pytest.mark.parametrize(
    ("groups", "runs", "points"),
    [(1, 10, 200), (100, 1250, 200), (200, 1250, 100), (5000, 1250, 20), (1, 1251, 32), (5000, 5000, 20)],
)
def test_a_line_has_fewer_points_only_of_more_lines_than_a_page_can_hold_or_of_very_many_runs(
    groups: int, runs: int, points: int
) -> None:
    assert limit(200, [{"label": str(number)} for number in range(groups)], runs) == points
    assert "20000 // count(DISTINCT label)" in POINTS
    assert "count(*) > 1250" in POINTS


@pytest.mark.parametrize("name", OF_EVERY_STUDY)
def test_a_reports_tables_answer_as_the_views_do(demo: Path, name: str) -> None:
    """A report computes the views once; its SQL, run by hand, computes them again."""
    sql = facts.literal(charts.load(name).sql, "backends")
    with store.open_for_reading(demo) as connection:
        before = answer(connection, sql).rows
        facts.snapshot(connection, "backends")
        assert answer(connection, sql).rows == before


def test_a_group_with_one_known_peak_has_an_interval_within_that_run(root: Path) -> None:
    completed(root, "r1", seed=1)
    other = completed(root, "r2", seed=2)
    manifest = other.path / "attempt-1" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("989400000000000.0", "null"))
    completed(root, "r3", attention="flash", seed=1)
    collect(root)
    figure = draw(root, "mfu")
    assert figure
    assert figure.used == {"r1", "r3"}
    assert "no interval: one run, 18 records, at least 24 are needed" in figure.interval


@pytest.mark.refused
def test_a_record_whose_clock_went_back_is_left_out_of_the_interval(root: Path) -> None:
    folder = completed(root, "r1", steps=200)
    folder.step(205, seconds=0.0)
    collect(root)
    figure = draw(root, "tokens_per_second")
    assert figure
    assert "95 % interval over 38 records of one run" in figure.interval


def test_only_completed_runs_have_a_rate(demo: Path, demo_figures: Figures) -> None:
    figure = demo_figures["tokens_per_second"]
    assert figure
    rows = ask(demo, "SELECT run_id FROM runs WHERE outcome = 'completed'").rows
    assert figure.used == {row[0] for row in rows}


def test_mfu_says_why_it_is_missing_and_shows_tflops(root: Path) -> None:
    write_demo(root, cpu=True)
    collect(root)
    figure = draw(root, "mfu")
    assert figure
    assert figure.note
    assert "AMD EPYC 9454" in figure.note
    assert "never guessed" in " ".join(figure.note.split())
    assert figure.title == "Model TFLOP/s (peak unknown)"
    assert "model TFLOP/s" in json.dumps(figure.spec)


def test_mfu_names_its_peak_and_formula(demo_figures: Figures) -> None:
    figure = demo_figures["mfu"]
    assert figure
    assert figure.title is None
    assert "6 N + 12 L H Q T" in figure.caption
    assert "NVIDIA H200: 989.4 TFLOP/s (a datasheet)" in figure.caption


def test_mfu_of_different_peaks_says_that_it_does_not_rank(root: Path) -> None:
    completed(root, "r1")
    other = completed(root, "r2", attention="flash")
    collect(root)
    figure = draw(root, "mfu")
    assert figure and "different peaks" not in figure.caption
    manifest = other.path / "attempt-1" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("989400000000000.0", "1979e12"))
    collect(root)
    figure = draw(root, "mfu")
    assert figure and "Shares of different peaks do not show which group is faster" in figure.caption


def test_the_whole_time_says_where_audits_and_ceilings_are_in_it(demo_figures: Figures) -> None:
    figure = demo_figures["time"]
    assert figure
    startup, rest = (figure.caption.partition(part)[2] for part in ("Start-up: ", "Rest: "))
    assert "the backend's certificate" in startup.partition("First step's extra")[0]
    assert rest.startswith("records, audits, checkpoints, the end.")


def test_rows_are_in_the_studys_order_and_not_in_that_of_their_values(root: Path) -> None:
    seconds = {"tiled": 0.3, "auto": 0.5, "flash": 0.4, "custom": 0.2}
    for index, (backend, step_seconds) in enumerate(seconds.items()):
        completed(
            root, backend, step_seconds, attention=backend, why=[f"s.yaml:9:{10 * index}", "s.yaml:10:9"]
        )
    collect(root)
    for name in ("tokens_per_second", "mfu", "step_time", "time", "memory"):
        figure = draw(root, name)
        assert figure
        rows = {
            tuple(layer["encoding"]["y"]["scale"]["domain"])
            for layer in figure.spec["layer"]
            if "scale" in layer["encoding"]["y"]
        }
        assert rows == {tuple(seconds)}, name


@pytest.mark.parametrize("name", ["memory", "tokens_per_second", "step_time"])
def test_the_caption_calls_the_line_what_it_is(demo_figures: Figures, name: str) -> None:
    """It is an interval, and wider than the runs' range if they are few."""
    figure = demo_figures[name]
    assert figure
    assert "Marks: runs. Bars: their medians. Lines: intervals" in figure.caption
    assert "interval" in figure.interval


def test_intervals_say_which_are_within_one_run(demo_figures: Figures) -> None:
    figure = demo_figures["tokens_per_second"]
    assert figure
    assert (
        "n = 3 (auto, cudnn, flash, flash3): 95 % t interval of the geometric mean over 3 runs"
        in figure.interval
    )
    assert "n = 1 (custom, flash2): 95 % interval over 198 records of one run" in figure.interval


def test_labels_of_lines_that_end_together_do_not_overlap(demo_figures: Figures) -> None:
    figure = demo_figures["loss"]
    assert figure
    (names,) = [values for values in figure.spec["datasets"].values() if "at" in values[0]]
    heights = sorted(row["at"] for row in names)
    lines = [layer for layer in figure.spec["layer"] if layer["mark"]["type"] == "line"]
    low, high = lines[0]["encoding"]["y"]["scale"]["domain"]
    distance = (high - low) * 15 / 360
    assert len({label for row in names for label in row["label"].split(", ")}) == 8, "each in one list"
    assert all(upper - lower > 0.99 * distance for lower, upper in pairwise(heights))


def test_errors_beyond_the_axis_stand_at_its_end_with_their_number(root: Path) -> None:
    for number, (backend, verdict) in enumerate({"math": "right", "flash3": "wrong"}.items()):
        folder = Folder(root, plan(f"r{number}", attention=backend))
        folder.start(certificate=certificate(root, backend, verdict).key)  # type: ignore[arg-type]
    nan = Folder(root, plan("r3", attention="flash"))
    nan.start(certificate=certificate(root, "flash", "wrong", checks=[fabricate.number("o", None)]).key)
    collect(root)
    figure = draw(root, "certificates")
    assert figure
    assert "flash not finite; flash3 1,588; math 0.75" in figure.description
    (marks,) = [values for values in figure.spec["datasets"].values() if "at" in values[0]]
    assert {mark["backend"]: mark["at"] for mark in marks if mark["label"] == "output"} == {
        "flash": 2.0,
        "flash3": 2.0,
        "math": 0.625,
    }
    assert figure.used == {"r0", "r1", "r3"}


def test_two_certificates_of_one_backend_are_told_apart_by_what_differs(root: Path) -> None:
    for index, changes in enumerate(
        ({}, {"case": replace(CASE, sequence_length=8192)}, {"device_name": "NVIDIA H100"}, {"code": "x"})
    ):
        folder = Folder(root, plan(f"r{index}"))
        folder.start(certificate=certificate(root, "auto", **changes).key)
    collect(root)
    figure = draw(root, "certificates")
    assert figure
    labels = figure.description.partition("Largest: ")[2].split("; ")
    assert len({label.rpartition(" ")[0] for label in labels}) == 4
    assert any(label.startswith("auto, T8192 ") for label in labels)
    assert any(label.startswith("auto, T4096, NVIDIA H100 ") for label in labels)


@pytest.mark.parametrize(
    ("form", "values", "fits"),
    [
        (",.0f", [0.4, None, 0.0], ",.3f"), (",.0f", [9.96, 8000], ",.2f"), (",.0f", [12.3], ",.0f"),
        (",.0f", [], ",.0f"), (".1f", [0.0123], ".4f"), (",.2f", [0.05], ",.4f"), (",.0f", [4e-12], ",.3g"),
        (".3~g", [0.4], ".3~g"), ("+.4f", [1e-9], "+.4f"),
    ],
)  # fmt: skip
def test_a_figure_has_the_decimals_that_its_smallest_value_needs(
    form: str, values: list[float | None], fits: str
) -> None:
    assert fitting(form, values) == fits


def test_a_rate_below_one_is_not_drawn_as_zero() -> None:
    rows = [{"label": "a", "run_id": f"r{n}", "seed": n, "repeat": 1} for n in range(3)]
    points = [("a", row["run_id"], 0.4 + n / 100) for n, row in enumerate(rows)]
    estimates = {"a": over_runs([value for _, _, value in points])}
    figure = dots(
        points, estimates, styles(["a"]), DotAxis("rate", ",.0f", Ends("tokens per second")), "It.", rows
    )
    assert figure.table
    assert figure.table.rows[0][2] == "0.410"
    assert figure.finding == "Median tokens per second: 0.410"
    spec = json.dumps(figure.spec)
    assert '"format": ",.3f"' in spec
    assert ",.0f" not in spec


def test_an_axis_that_does_not_start_at_zero_tells_its_ticks_apart() -> None:
    points = [(label, label, value) for label, value in (("a", 45.1), ("b", 45.3))]
    estimates = {label: over_runs([value]) for label, _, value in points}
    figure = dots(
        points, estimates, styles(["a", "b"]), DotAxis("rate", ",.0f", Ends("tokens per second")), "It.", []
    )
    assert "(from 44.6)" in json.dumps(figure.spec)
    axes = [
        layer["encoding"]["x"]["axis"]
        for layer in figure.spec["layer"]
        if "axis" in layer["encoding"].get("x", {})
    ]
    assert axes
    assert not any("format" in axis for axis in axes), "Vega takes as many digits as the ticks need"
