"""Studies over numbers get line plots and heat maps by themselves, which show what did not complete, too."""

from __future__ import annotations

import json
from copy import deepcopy
from itertools import product
from math import log2
from pathlib import Path
from typing import Any

import pytest
import vl_convert

from analysis import charts
from analysis.charts import Figure, Row
from analysis.charts._quantities import FINAL_LOSS, PEAK_MEMORY, TOKENS
from analysis.charts._sweep import SweepAxis, range_of_numbers, sort_into_cells, sweep_axes
from analysis.charts._sweep_lines import lines_figure as draw_lines
from analysis.charts._sweep_lines import round_values
from analysis.charts._sweep_map import ink_on, shades
from analysis.charts._sweep_map import maps_figure as draw_maps
from analysis.query.ask import answer, ask
from analysis.query.statements import SWEEP_RUNS
from analysis.report import facts
from analysis.store import database as store
from analysis.store.collect import collect
from tests.analysis.charts.drawn import luminance
from tests.analysis.fabricate import completed
from tests.analysis.swept import write_sweep

LENGTH, BATCH, RATE = "train.sequence_length", "train.batch_size", "train.learning_rate"
LENGTHS, BATCHES, RATES = (256, 512, 1024, 2048), (1, 2, 4), (1e-4, 3e-4, 1e-3)
SWEEPS = sorted(name for name in charts.names() if name.startswith("sweep"))


def run(factors: dict[str, Any], seed: int = 0, **changes: Any) -> Row:
    """A run as SWEEP_RUNS has it, that completed unless `changes` say otherwise."""
    label = ", ".join(map(str, factors.values()))
    tokens = factors.get(LENGTH, 1024) * factors.get(BATCH, 1)
    return {
        "label": label, "run_id": f"{label} {seed}", "attention": factors.get("attention", "auto"),
        "scale": "full", "factors": {**factors, "seed": seed}, "seed": seed, "repeat": 1, "outcome": "completed",
        "step_seconds": 0.1, "tokens_per_second": 10.0 * tokens + seed, "mfu": None, "tflops": 1.5,
        "peak_memory_bytes": 2**30 * tokens, "final_loss": 3.0 + seed / 10, "device": "a CPU",
        "counted_step_seconds": [0.1] * 30,
    } | changes  # fmt: skip


def grid(seeds: int = 1, **factors: Any) -> list[Row]:
    """Completed runs over all values of factors, whose names' dots are written as underscores twice."""
    names = [name.replace("__", ".") for name in factors]
    cells = (dict(zip(names, values, strict=True)) for values in product(*factors.values()))
    return [run(cell, seed) for cell in cells for seed in range(seeds)]


def ended(rows: list[Row], outcome: str | None, **where: Any) -> list[Row]:
    """The same runs, of which those with these factors ended otherwise."""
    factors = {name.replace("__", "."): value for name, value in where.items()}
    changes = {"outcome": outcome, "step_seconds": None, "final_loss": None}
    return [row | changes if row["factors"].items() >= factors.items() else row for row in rows]


def lines(rows: list[Row], quantity: Any = TOKENS) -> Figure:
    figure = draw_lines(rows, quantity)
    assert figure
    return figure


def maps(rows: list[Row], quantity: Any = TOKENS) -> Figure:
    figure = draw_maps(rows, quantity)
    assert figure
    return figure


def data(figure: Figure, *fields: str) -> list[Row]:
    """The data of the layer whose rows have these fields and fewest others."""
    fitting = [rows for rows in figure.spec["datasets"].values() if set(fields) <= set(rows[0])]
    return min(fitting, key=lambda rows: len(rows[0]))


def encoded(figure: Figure, channel: str, field: str) -> dict[str, Any]:
    """How the first layer that shows a field on a channel does so."""
    layers = (layer["encoding"].get(channel, {}) for layer in figure.spec["layer"])
    return next(encoding for encoding in layers if encoding.get("field") == field)


@pytest.mark.parametrize(
    ("values", "base", "texts"),
    [
        ((256, 512, 1024, 4096), 2, ["256", "512", "1,024", "4,096"]),
        ((1e-4, 3e-4, 1e-3), 10, ["1e-4", "3e-4", "1e-3"]),
        ((100, 200, 400, 800), 10, ["100", "200", "400", "800"]),
        ((8, 16, 24, 32), None, ["8", "16", "24", "32"]),
        ((0, 0.1, 0.2), None, ["0", "0.1", "0.2"]),
        ((-1, 1, 10), None, ["-1", "1", "10"]),
    ],
)
def test_an_axis_is_logarithmic_where_its_values_are_spaced_so(
    values: tuple[float, ...], base: int | None, texts: list[str]
) -> None:
    axis = SweepAxis("x", "x", values)
    assert axis.base == base
    assert [axis.text(value) for value in values] == texts


@pytest.mark.parametrize("form", [",d", ".6~g", ".2~e", ".16~g"])
def test_python_writes_an_axis_values_as_the_drawn_axis_does(form: str) -> None:
    values = [1.5e-4, 3e-4, 0.25, 2.0, 16384.0]
    spec = {"data": {"values": [{"x": value} for value in values]}, "mark": "text", "encoding": {
        "y": {"field": "x", "type": "ordinal", "axis": None}, "text": {"field": "x", "format": form}}}  # fmt: skip
    exact = [value for value in values if form != ",d" or value >= 1]
    axis = type("Fixed", (SweepAxis,), {"number": form})("x", "x", tuple(exact))
    svg = vl_convert.vegalite_to_svg(json.dumps(spec))
    assert all(f">{axis.text(value)}<" in svg for value in exact)


def test_axes_are_numbers_with_three_values_that_no_other_axis_determines() -> None:
    rows = grid(attention=["auto", "math"], train__sequence_length=LENGTHS, train__batch_size=[1, 2])
    assert [axis.title for axis in sweep_axes(rows)] == ["sequence length"]
    linked_rows = [
        row | {"factors": {**row["factors"], "layers": row["factors"][LENGTH] // 128}} for row in rows
    ]
    sweep = sort_into_cells(linked_rows, TOKENS.estimates)
    assert [axis.title for axis in sweep.axes] == ["layers"]
    assert sweep.together == {"layers": ("sequence length",)}
    assert sweep_axes(grid(attention=["a", "b", "c"])) == ()
    assert sweep_axes([row | {"factors": {"compile": True, "seed": row["seed"]}} for row in rows]) == ()
    assert sweep_axes(grid(seeds=5, attention=["auto"])) == (), "a seed is no axis"


def test_two_axes_of_one_last_name_are_told_apart() -> None:
    rows = grid(model__size=[1, 2, 3], data__size=[1, 2, 3])
    assert [axis.title for axis in sweep_axes(rows)] == ["data.size", "model.size"]


@pytest.mark.parametrize("draw", [lines, maps])
def test_a_run_that_did_not_complete_is_not_shown_by_the_value_of_those_that_did(draw: Any) -> None:
    rows = grid(3, train__sequence_length=LENGTHS, train__batch_size=BATCHES)
    rows[0] |= {"outcome": "oom_gpu", "step_seconds": None}
    figure = draw(rows)
    assert figure.used == {row["run_id"] for row in rows[1:]}


def test_a_caption_says_which_marks_have_no_interval() -> None:
    single, several = grid(train__sequence_length=LENGTHS), grid(3, train__sequence_length=LENGTHS)
    few_records = [row | {"counted_step_seconds": [0.1] * 5} for row in single]
    start = "Marks: the median of a cell's runs."
    assert f"{start} Bars: intervals." in lines(several).caption
    assert "where there is one" not in lines(several).caption
    assert start in lines(few_records).caption
    assert f"{start} Bars: intervals where there is one." in lines(several[:3] + few_records[1:]).caption
    assert maps(grid(3, a=[1, 2, 3], b=[1, 2, 3])).interval.startswith("in the table: n = 3")


def test_every_other_factor_makes_a_line_and_each_has_a_mark_and_an_interval() -> None:
    figure = lines(grid(3, attention=["auto", "math"], compile=[False, True], train__sequence_length=LENGTHS))
    names = ["auto, compile: no", "auto, compile: yes", "math, compile: no", "math, compile: yes"]
    points = data(figure, "value", "n")
    assert list(dict.fromkeys(point["label"] for point in points)) == names
    assert len(points) == 16
    assert {point["n"] for point in points} == {3}
    assert (
        figure.interval
        == "n = 3: 95 % t interval of the geometric mean over 3 runs, which assumes that their logs are normal"
    )
    for channel in ("color", "shape", "strokeDash"):
        scale = encoded(figure, channel, "label")["scale"]
        assert scale["domain"] == names
        assert len(set(map(str, scale["range"]))) == 4, channel


def test_ticks_are_the_values_of_the_axis() -> None:
    x = encoded(lines(grid(train__sequence_length=LENGTHS)), "x", "x")
    assert x["axis"]["values"] == list(LENGTHS)
    assert (x["scale"]["type"], x["scale"]["base"]) == ("log", 2)
    assert x["scale"]["domain"] == [256, 2048]


def test_a_line_ends_where_a_value_is_missing_and_a_cross_says_why() -> None:
    rows = grid(attention=["auto", "math"], train__sequence_length=LENGTHS)
    figure = lines(ended(rows, "oom_gpu", attention="math", train__sequence_length=512))
    joined = [point for point in data(figure, "part", "value") if point["label"] == "math"]
    beside = [(min(LENGTHS, key=lambda at: abs(log2(point["x"] / at))), point["part"]) for point in joined]
    assert beside == [(1024, 1), (2048, 1)], "neither across the gap, nor a line of one point"
    (cross,) = data(figure, "ended")
    assert (cross["label"], cross["x"], cross["ended"]) == ("math", 512, "OOM")
    assert cross["at"] < encoded(figure, "y", "value")["scale"]["domain"][0], "below the axis"
    assert "OOM: out of memory." in figure.caption
    assert "math 512 0" not in {run for run in figure.used if run.startswith("math, 512")}


def test_a_cell_of_which_some_runs_completed_has_a_value_and_says_how_many_did_not() -> None:
    rows = grid(3, train__sequence_length=LENGTHS)
    rows[0] |= {"outcome": "timeout", "step_seconds": None}
    figure = lines(rows)
    assert data(figure, "value", "n")[0]["n"] == 2
    assert [mark["ended"] for mark in data(figure, "ended")] == ["timeout 1/3"]
    assert figure.table
    assert figure.table.rows[0][-2:] == ("2", "timeout 1/3")


def test_a_group_that_never_completes_is_said_and_takes_no_room() -> None:
    rows = grid(attention=["auto", "flash4"], train__sequence_length=LENGTHS)
    figure = lines(ended(rows, "unsupported", attention="flash4"))
    assert figure.note == "No value at all: flash4 (unsupported)."
    assert all("ended" not in row for rows in figure.spec["datasets"].values() for row in rows)


def test_the_finding_compares_the_ends_of_the_axis_and_says_where_memory_runs_out() -> None:
    rows = grid(3, attention=["auto", "math"], train__sequence_length=LENGTHS)
    figure = lines(ended(rows, "oom_gpu", attention="math", train__sequence_length=2048))
    assert figure.finding == (
        "Tokens per second at sequence length 2,048: 8 times that at 256; math: OOM from 2,048"
    )
    assert lines(rows, FINAL_LOSS).finding is None, "the intervals overlap"
    single = lines(grid(train__sequence_length=LENGTHS), PEAK_MEMORY)
    assert single.finding == "Peak memory at sequence length 2,048: 8 times that at 256 (one run each)"
    mixed = [
        row
        for row in grid(3, train__sequence_length=LENGTHS)
        if row["seed"] == 0 or row["factors"][LENGTH] == 256
    ]
    assert lines(mixed, PEAK_MEMORY).finding == (
        "Peak memory at sequence length 2,048: 8 times that at 256 (some of one run)"
    )


def test_runs_of_other_settings_in_one_cell_are_not_mixed() -> None:
    rows = grid(train__sequence_length=LENGTHS)
    twin = rows[0] | {"label": "256 #abc", "run_id": "twin"}
    figure = lines([*rows, twin])
    assert figure.note == "Not shown: 256, 256 #abc, whose runs have the same factors but other settings."
    assert len(data(figure, "value", "n")) == 3
    assert not {"twin", "256 0"} & figure.used


def test_more_lines_than_fit_are_said_and_their_values_are_in_the_table() -> None:
    figure = lines(grid(attention=[f"b{number:02}" for number in range(20)], train__sequence_length=LENGTHS))
    assert "Of 20 lines, those that are the highest or the lowest at sequence length" in figure.caption
    assert figure.table
    assert len(figure.table.rows) == 80
    line_counts = {
        len({row["label"] for row in rows}) for rows in figure.spec["datasets"].values() if "n" in rows[0]
    }
    assert sum(line_counts) == 20, "the grey ones too"


def test_two_axes_make_a_heat_map_for_each_group_with_the_value_in_each_cell() -> None:
    rows = grid(attention=["auto", "math"], train__sequence_length=LENGTHS, train__batch_size=BATCHES)
    figure = maps(ended(rows, "oom_gpu", attention="math", train__batch_size=4))
    cells = {(mark["group"], mark["band"], mark["across"]): mark for mark in data(figure, "fill", "value")}
    assert len(cells) == 20
    assert cells["auto", "0|4", "2,048"]["text"] == "81,920"
    empty = [mark for mark in data(figure, "band", "text") if mark["group"] == "math" and "fill" not in mark]
    assert {(mark["band"], mark["text"]) for mark in empty} == {("1|4", "OOM")}
    bands = encoded(figure, "y", "band")["scale"]["domain"]
    assert bands == ["0|", "0|4", "0|2", "0|1", "1|", "1|4", "1|2", "1|1"]


@pytest.mark.parametrize("draw", [draw_lines, draw_maps])
def test_rates_below_ten_show_three_digits(draw: Any) -> None:
    rows = [
        row | {"tokens_per_second": 0.4}
        for row in grid(train__sequence_length=LENGTHS, train__batch_size=BATCHES)
    ]
    figure = draw(rows, TOKENS)
    assert {row[3] for row in figure.table.rows} == {"0.400"}
    assert "from 0.400" in figure.description
    spec = json.dumps(figure.spec)
    assert '"format": ",.3f"' in spec
    assert ",.0f" not in spec


def test_sweeps_leave_the_rows_as_they_are_since_other_figures_show_them_too() -> None:
    rows = grid(attention=["auto", "math"], train__sequence_length=LENGTHS, train__batch_size=BATCHES)
    before = deepcopy(rows)
    for quantity in (FINAL_LOSS, PEAK_MEMORY, TOKENS):
        lines(rows, quantity)
        maps(rows, quantity)
    assert rows == before


def test_three_axes_make_a_heat_map_for_each_value_of_the_third() -> None:
    rows = grid(train__sequence_length=LENGTHS, train__batch_size=BATCHES, train__learning_rate=RATES)
    figure = maps(rows)
    assert [name["label"] for name in data(figure, "band", "label")] == [
        f"auto, learning rate {rate}" for rate in ("1e-4", "3e-4", "1e-3")
    ]
    assert figure.title == "Tokens per second by sequence length and batch size"
    batch_axes = {f"{name}": BATCHES for name in ("a", "b", "c")}
    nine_maps = maps(grid(train__sequence_length=LENGTHS, **batch_axes))
    assert nine_maps.note is None, "nine heat maps fit"
    many_maps = maps(grid(attention=["auto", "math"], train__sequence_length=LENGTHS, **batch_axes))
    assert many_maps.note == "The figure shows the first 12 of 18 heat maps; the table has all values."


def test_a_cell_of_a_heat_map_says_where_it_is_on_both_axes() -> None:
    figure = maps(grid(train__sequence_length=LENGTHS, train__batch_size=BATCHES))
    titles = {tip.get("title") for tip in figure.spec["layer"][0]["encoding"]["tooltip"]}
    assert {"sequence length", "batch size"} < titles
    cell = data(figure, "across", "down", "value")[0]
    assert (cell["across"], cell["down"], cell["ended"]) == (f"{LENGTHS[0]:,}", str(BATCHES[0]), "none")


def test_marks_that_stand_aside_of_the_ends_of_the_axis_lie_within_it() -> None:
    rows = grid(attention=[f"backend{n}" for n in range(12)], train__sequence_length=LENGTHS)
    figure = lines(rows)
    low, high = encoded(figure, "x", "x")["scale"]["domain"]
    places = [point["x"] for point in data(figure, "x", "interval")]
    assert (min(places), max(places)) == (low, high)
    assert low < LENGTHS[0] < LENGTHS[-1] < high


def test_an_axis_of_many_values_goes_down_where_there_is_room() -> None:
    rows = grid(train__sequence_length=[2**power for power in range(4, 14)], train__batch_size=BATCHES)
    assert encoded(maps(rows), "x", "across")["scale"]["domain"] == ["1", "2", "4"]


@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0], [1.0, 10.0, 1000.0], [5.0], [-1.0, 0.0, 1.0]])
def test_the_number_in_a_cell_stands_out_from_its_shade_and_more_is_darker(values: list[float]) -> None:
    shade = shades(values)
    lights = [luminance(shade(value)) for value in values]
    assert lights == sorted(lights, reverse=True)
    low, high = min(values), max(values)
    for part in range(101):
        fill = shade(low + (high - low) * part / 100)
        light, ink = sorted((luminance(fill), luminance(ink_on(fill))), reverse=True)
        assert (light + 0.05) / (ink + 0.05) >= 4.5


def test_where_no_run_completed_there_is_no_figure() -> None:
    rows = ended(grid(train__sequence_length=LENGTHS, train__batch_size=BATCHES), "oom_gpu")
    assert draw_lines(rows, TOKENS) is None
    assert draw_maps(rows, TOKENS) is None


def test_without_a_known_peak_the_rate_is_shown_and_said() -> None:
    rows = grid(train__sequence_length=LENGTHS)
    figure = charts.load("sweep_mfu").build(rows, {})
    assert figure
    assert figure.title == "Model TFLOP/s over sequence length"
    assert figure.note and figure.note.startswith(
        "MFU is not shown: the peak FLOP/s of a CPU at this precision is not known. The profile states it as "
    )
    assert not charts.load("sweep_mfu_map").applies(rows), "one axis has no heat map"


def test_cells_that_differ_in_more_than_an_axis_are_no_sweep_over_it() -> None:
    """A study of scaling zips batch, length and number of processes: no two cells share a line."""
    zipped = [(1, 16384, 1), (2, 4096, 1), (4, 4096, 2), (1, 32768, 4)]
    rows = [run({BATCH: batch, LENGTH: length, "parallel.shard": count}) for batch, length, count in zipped]
    assert len(sweep_axes(rows)) == 3
    assert [name for name in SWEEPS if charts.load(name).applies(rows)] == []
    rows.append(run({BATCH: 1, LENGTH: 16384, "parallel.shard": 2}))
    assert charts.load("sweep_tokens").applies(rows)
    assert not charts.load("sweep_tokens_map").applies(rows), "a row alone is no heat map"


def test_how_the_first_runs_of_a_line_ended_is_said_inside_the_figure() -> None:
    """Beside its cross: before the first value of the axis there is no room."""
    rows = grid(attention=["auto", "flash3", "math"], train__sequence_length=LENGTHS)
    rows = ended(rows, "unsupported", attention="flash3", train__sequence_length=LENGTHS[0])
    rows = ended(rows, "unsupported", attention="flash3", train__sequence_length=LENGTHS[1])
    rows = ended(rows, "oom_gpu", attention="math", train__sequence_length=LENGTHS[-1])
    figure = lines(rows)
    words = {
        layer["mark"]["align"]: figure.spec["datasets"][layer["data"]["name"]]
        for layer in figure.spec["layer"]
        if layer["encoding"].get("text", {}).get("field") == "ended"
    }
    assert {align: [(row["ended"], row["x"]) for row in rows] for align, rows in words.items()} == {
        "left": [("unsupported", LENGTHS[1])],
        "right": [("OOM", LENGTHS[-1])],
    }


def test_labels_cannot_become_expressions() -> None:
    evil = "'); alert(1); ('</script>\u2028"
    rows = grid(attention=[evil, "b"], train__sequence_length=LENGTHS, train__batch_size=BATCHES)
    for figure in (lines(rows), maps(rows)):
        plain = {name: value for name, value in figure.spec.items() if name != "datasets"}
        for key, value in walk(plain):
            assert key not in ("labelExpr", "expr", "calculate", "filter") or evil not in value


def walk(value: Any, key: str = "") -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [pair for name, part in value.items() for pair in walk(part, name)]
    if isinstance(value, list):
        return [pair for part in value for pair in walk(part, key)]
    return [(key, str(value))]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two axes and two backends, of which one runs out of memory."""
    root = tmp_path_factory.mktemp("runs")
    factors = {"attention": ["auto", "math"], LENGTH: LENGTHS[:3], BATCH: BATCHES}
    write_sweep(root, factors, seeds=2, oom={"math": 1024})
    completed(root, "r1", study="plain")
    collect(root)
    return root


@pytest.mark.parametrize("name", SWEEPS)
def test_each_sweep_is_drawn_and_a_study_without_numeric_axes_has_none(swept: Path, name: str) -> None:
    chart = charts.load(name)
    rows = {study: ask(swept, facts.literal(chart.sql, study)).parsed() for study in ("sweep", "plain")}
    assert rows["plain"] == []
    assert not chart.applies(rows["plain"])
    assert chart.applies(rows["sweep"])
    figure = chart.build(rows["sweep"], {})
    assert figure
    assert figure.table
    assert len(figure.table.rows) == 18
    assert "<svg" in vl_convert.vegalite_to_svg(json.dumps(figure.spec | {"width": 600}))


def test_the_query_gives_every_run_and_the_step_times_of_single_runs_alone(swept: Path) -> None:
    sql = facts.literal(SWEEP_RUNS, "sweep")
    with store.open_for_reading(swept) as connection:
        table = answer(connection, sql)
        facts.snapshot(connection, "sweep")
        assert answer(connection, sql).rows == table.rows, "as in a report, which computes the views once"
    rows = table.parsed()
    assert len(rows) == 36
    assert {row["outcome"] for row in rows} == {"completed", "oom_gpu"}
    assert {row["counted_step_seconds"] for row in rows} == {None}, "each cell has two runs"


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        (["3.4", "1.2", "2"], "1.2 to 3.4"),
        (["12", "1,024"], "12 to 1,024"),
        (["8", "8"], "8"),
        (["+1", "-2"], "-2 to +1"),
    ],
)
def test_a_range_of_numbers_names_its_ends(numbers: list[str], sentence: str) -> None:
    assert range_of_numbers(numbers) == sentence


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (12.0, 790.0, [20, 50, 100, 200, 500]),
        (0.042, 9.0, [0.05, 0.1, 0.2, 0.5, 1, 2, 5]),
        (0.9, 300000.0, [1, 10, 100, 1000, 10000, 100000]),
    ],
)
def test_a_logarithmic_axis_has_labels_near_both_ends(low: float, high: float, ticks: list[float]) -> None:
    """Vega's own stopped at 200 of 790, so that the best values could not be read."""
    assert round_values(low, high) == ticks


def test_a_logarithmic_axis_asks_nothing_of_zero() -> None:
    """Vega warns in the browser's console if it does."""
    rows = [
        row | {"tokens_per_second": row["tokens_per_second"] ** 2}
        for row in grid(train__sequence_length=LENGTHS)
    ]
    figure = lines(rows)
    scales = [
        channel["scale"]
        for layer in figure.spec["layer"]
        for channel in layer["encoding"].values()
        if "scale" in channel
    ]
    assert "tokens per second" in figure.caption.partition("Logarithmic: ")[2]
    assert [scale for scale in scales if scale.get("type") == "log"]
    assert not [scale for scale in scales if scale.get("type") == "log" and "zero" in scale]
