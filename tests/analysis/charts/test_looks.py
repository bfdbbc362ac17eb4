"""How figures look: colours, axes, names of lines, and nothing drawn that is not there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import altair as alt
import pytest
import vl_convert

from analysis import charts
from analysis.charts import Figure, Row, styles
from analysis.charts._lines import (
    MOST_NAMED,
    NAME_HEIGHT,
    StepLines,
    crowd_caption,
    line_plot,
    line_table,
    name_places,
)
from analysis.charts._style import COLOURS, axis_ends, vega_lite
from analysis.charts._style import inline as chart_of
from analysis.query.ask import answer
from analysis.report import facts
from analysis.report.render import templates
from analysis.store import database as store
from analysis.store.collect import collect
from model.record.records import DesignRecord
from tests.analysis.charts.drawn import luminance
from tests.analysis.fabricate import Folder, completed, plan
from tests.analysis.verdicts.rows import DESIGN, repeated, run

BASELINE = DesignRecord(order="as written", baseline={"attention": "auto"}, margins={"loss": 0.01})


def test_a_name_of_several_lines_is_around_the_middle_of_its_row() -> None:
    labels = ["one", "two, lines", "a, name, of, four lines"]
    rows = [row for label in ("cudnn", *labels) for row in repeated(label, [0.4, 0.41, 0.42])]
    figure = charts.load("ratios").build(rows, styles(["cudnn", *labels]))
    assert figure
    svg = vl_convert.vegalite_to_svg(json.dumps(figure.spec | {"width": 600}))
    names = re.findall(r"<text[^>]*translate\(-8,([\d.]+)\)[^>]*>(?:<tspan>)?(one|two|a)<", svg)
    tops = {name: float(top) for top, name in names}
    row = tops["two"] + 7 - tops["one"]
    assert row > 56 and tops["a"] + 21 == pytest.approx(tops["one"] + 2 * row, abs=2)


def timed(label: str, steps: int) -> Row:
    """A run with so many counted steps."""
    return run(label, counted_step_seconds=[0.4] * steps)


def ratios_of(rows: list[Row]) -> Figure:
    figure = charts.load("ratios").build(rows, styles(["cudnn", "flash"]))
    assert figure
    return figure


def draw(root: Path, *names: str) -> dict[str, Figure | None]:
    """Charts as the report builds them."""
    figures = {}
    with store.open_for_reading(root) as connection:
        facts.snapshot(connection, "backends")
        study = facts.gather(connection, "backends")
        group_styles = styles(study.labels, study.without_steps)
        for name in names or charts.names():
            rows = answer(connection, facts.literal(charts.load(name).sql, "backends")).parsed()
            figures[name] = charts.load(name).build(rows, group_styles)
    return figures


def test_every_colour_stands_out_from_light_and_dark_paper() -> None:
    papers = re.findall(r"--paper: (#[0-9a-f]{6})", (templates() / "style.css").read_text(encoding="utf-8"))
    assert len(papers) >= 2
    for paper in papers:
        for colour in COLOURS:
            darker, lighter = sorted((luminance(paper), luminance(colour)))
            assert (lighter + 0.05) / (darker + 0.05) >= 3, (colour, paper)


def test_no_two_labels_look_alike() -> None:
    group_styles = styles([f"label{number}" for number in range(48)])
    assert len({style.colour for style in group_styles.values()}) == len(set(COLOURS)) >= 12
    assert len({style.colour for style in list(group_styles.values())[:12]}) == 12, "no colour twice"
    assert len({(style.colour, style.dash) for style in group_styles.values()}) == 48
    assert len({(style.colour, style.shape) for style in group_styles.values()}) == 48


def test_a_group_that_is_on_no_figure_takes_no_colour_from_another() -> None:
    labels = ["math", "flash4", *"abcdefg"]
    group_styles = styles(labels, {"math", "flash4"})
    assert list(group_styles) == labels, "the order is the study's"
    assert [group_styles[label].colour for label in "abcdefg"] == list(COLOURS[:7])


@pytest.mark.parametrize(
    ("values", "zero", "expected"),
    [
        ((9900, 10500), False, (9800, 10600)),
        ((2100, 5300), False, (0, 6000)),  # one is far off: from zero
        ((0.39, 0.39001), False, (0.386, 0.394)),  # 2 % at least
        ((71.6, 72.7), True, (0, 80)),
        ((0.0, 0.0), False, (0, 1)),
    ],
)
def test_axes_end_at_round_numbers_and_start_at_zero_unless_all_values_are_close(
    values: tuple[float, ...], zero: bool, expected: tuple[float, float]
) -> None:
    low, high = axis_ends(values, zero)
    assert low <= min(values)
    assert high >= max(values)
    assert (low, high) == pytest.approx(expected)


def test_an_axis_that_does_not_start_at_zero_says_so_twice(root: Path) -> None:
    for number, backend in enumerate(("auto", "flash")):
        completed(root, f"r{number}", 0.4 + number / 100, attention=backend)
    collect(root)
    figure = draw(root, "tokens_per_second")["tokens_per_second"]
    assert figure
    assert "(from 9,900)" in json.dumps(figure.spec)
    assert "(from 9,900)" in json.dumps(figure.spec)


def layers(figure: Figure) -> list[list[dict[str, Any]]]:
    """The rows of each layer of a figure."""
    return [figure.spec["datasets"][layer["data"]["name"]] for layer in figure.spec["layer"]]


def test_single_runs_without_intervals_have_no_layer_no_tooltip_and_no_word_of_them(root: Path) -> None:
    for number, backend in enumerate(("auto", "flash", "cudnn")):
        completed(root, f"r{number}", 0.4 + number / 100, attention=backend, design=BASELINE)
    collect(root)
    for name, figure in draw(root).items():
        if figure is None:
            assert name in ("certificates", "energy", "step_profile", "prefill_profile") or name.startswith(
                ("sweep_", "scaling_", "kernel_", "decode_", "frontier_", "time_saved_", "memory_saved_")
            )
            continue
        assert all(layers(figure)), f"{name} has a layer without a mark"
        assert "Lines: intervals" not in figure.caption
        for layer, rows in zip(figure.spec["layer"], layers(figure), strict=True):
            tips = [tip["field"] for tip in layer["encoding"].get("tooltip", ())]
            assert not any(row[field] is None for row in rows for field in tips), name
    figure = draw(root, "tokens_per_second")["tokens_per_second"]
    assert figure
    assert figure.finding
    assert figure.finding == "Tokens per second: highest 10,240 (auto), lowest 9,752 (cudnn), one run each"
    assert figure.table
    assert figure.table.rows[0][3] == "\N{EN DASH}"
    assert "at least 24 are needed" in figure.table.rows[0][4]


def test_names_of_lines_stand_around_their_ends_and_inside_the_plot() -> None:
    places = name_places({"a": 0.5, "b": 0.5, "c": 0.5, "d": 1.0, "e": 1.0}, 0.0, 1.0, 360)
    heights = [row["at"] for row in places]
    assert sum(heights[:3]) / 3 == pytest.approx(0.5), "as many above as below"
    assert all(upper - lower >= NAME_HEIGHT / 360 - 1e-9 for lower, upper in pairwise(heights))
    assert heights[-1] <= 1


def test_sixty_groups_with_long_names_are_drawn_in_every_figure(root: Path) -> None:
    name = "sequence_length={}, batch_size=16, learning_rate=0.0003"
    for number in range(60):
        factors = {"attention": "auto" if number == 0 else name.format(number), "seed": 0}
        completed(
            root,
            f"r{number}",
            0.4 + number / 1000,
            factors=factors,
            group=f"g{number}",
            design=BASELINE,
            steps=40,
        )
    collect(root)
    for chart, figure in draw(root).items():
        if figure is None:
            assert chart in (
                "certificates",
                "energy",
                "loss_difference",
                "step_profile",
                "prefill_profile",
            ) or chart.startswith(
                ("sweep_", "scaling_", "kernel_", "decode_", "frontier_", "time_saved_", "memory_saved_")
            )
            continue
        assert len(json.dumps(figure.spec)) < 400_000, chart
        assert "<svg" in vl_convert.vegalite_to_svg(json.dumps(figure.spec | {"width": 600}))
        assert figure.table
        assert len(figure.table.rows) >= 59
    loss = draw(root, "loss")["loss"]
    assert loss
    assert "Of the 60 lines, the 5 that end highest and the 5 that end lowest" in loss.caption
    coloured = {row["label"] for rows in layers(loss) for row in rows if "said" in row}
    assert len(coloured) == 10
    quiet = next(rows for rows in layers(loss) if "label" in rows[0] and rows[0]["label"] not in coloured)
    assert {row["label"] for row in quiet} | coloured == {row[0] for row in loss.table.rows}
    assert loss.table.thinned == "at 5 of the 9 steps of the lines; the CSV has all"


def test_lines_that_can_be_told_apart_all_have_a_colour_and_a_name() -> None:
    rows = [{"label": f"g{n}", "step": step, "value": n + step} for n in range(MOST_NAMED) for step in (1, 2)]
    lines = StepLines("loss", ".4f", rows, [], [])
    assert (lines.crowded, len(lines.named), crowd_caption(lines)) == (False, MOST_NAMED, "")
    spec = line_plot(lines, styles([f"g{n}" for n in range(MOST_NAMED)]))
    assert len(spec["layer"]) == 4, "lines, leaders, samples of the lines, and names"


def test_layers_are_put_together_as_altair_does_it() -> None:
    rows = [{"label": "auto", "step": step, "value": 1.0} for step in (1, 2)]
    line_chart, rule_chart = chart_of(rows), chart_of([{"value": 2.0}])
    layers = [
        line_chart.mark_line().encode(x="step:Q", y="value:Q"),
        line_chart.mark_point().encode(x="step:Q", y="value:Q"),
        rule_chart.mark_rule().encode(y="value:Q"),
    ]
    altair_spec = alt.layer(*layers).properties(width="container", height=99).to_dict()
    spec = vega_lite(layers, 99, 6)
    assert altair_spec.pop("datasets").keys() == spec["datasets"].keys()
    assert altair_spec.pop("config"), "Altair's own, in place of which every figure has ours"
    assert altair_spec == {name: spec[name] for name in ("layer", "height", "width", "$schema")}
    assert list(spec["datasets"].values()) == [rows, [{"value": 2.0}]]


class Counted(list[dict[str, Any]]):
    """Rows that count how often they are gone through."""

    times = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.times += 1
        return super().__iter__()


def test_every_point_may_ask_whether_there_are_many_lines_and_all_points_are_read_once() -> None:
    rows = Counted({"label": f"g{n}", "step": 1, "value": n} for n in range(2 * MOST_NAMED))
    lines = StepLines("loss", ".4f", rows, [], [])
    assert [(lines.crowded, len(lines.named)) for _ in rows] == [(True, len(lines.named))] * len(rows)
    assert rows.times == 2, "once here, once there"


def test_a_table_says_how_far_it_is_thinned() -> None:
    rows = [{"label": "auto", "step": step, "value": 1.0} for step in range(1, 41)]
    table = line_table(StepLines("loss", ".4f", rows, [], []), styles(["auto"]))
    assert len(table.columns) == 6
    assert table.thinned == "at 5 of the 40 steps of the lines; the CSV has all"


def test_a_long_name_stands_on_two_lines_that_no_other_name_touches() -> None:
    labels = [f"backend{n}, sequence_length=4096, batch_size=16" for n in range(4)]
    places = name_places(dict.fromkeys(labels, 1.0), 0.0, 2.0, 360)
    assert {row["said"].count("\n") for row in places} == {1}
    assert min(b["at"] - a["at"] for a, b in pairwise(places)) >= 2 * NAME_HEIGHT * 2.0 / 360 - 1e-9


def test_a_study_without_a_finite_loss_has_no_loss_figure_and_the_gap_is_stated(root: Path) -> None:
    folder = Folder(root, plan("r1"))
    folder.start()
    for step in range(5, 101, 5):
        folder.step(step, loss=None)
    folder.end("diverged", final_loss=None)
    collect(root)
    assert draw(root, "loss")["loss"] is None
    assert charts.load("loss").empty == "No run logged a finite loss."


def test_time_is_split_into_parts_that_add_up_to_the_whole(root: Path) -> None:
    folder = completed(root, "r1")
    result = folder.path / "attempt-1" / "result.json"
    result.write_text(result.read_text().replace('"wall_seconds":60', '"wall_seconds":100'))
    collect(root)
    figure = draw(root, "time")["time"]
    assert figure
    assert figure.table
    (row,) = figure.table.rows
    startup, first, steps, rest, total = map(float, row[2:])
    assert first == pytest.approx(9.0 - 0.4)
    assert steps == pytest.approx(100 * 0.4)
    assert startup + first + steps + rest == pytest.approx(total)
    assert figure.finding
    assert figure.finding.startswith("Training time, steps alone: 48.6 seconds, one run; all else adds ")


def test_rates_over_the_baselines_start_after_the_warm_up(root: Path) -> None:
    for backend, seconds in (("auto", 0.4), ("flash", 0.5)):
        completed(root, backend, seconds, attention=backend, design=BASELINE)
    collect(root)
    figure = draw(root, "tokens_against_baseline")["tokens_against_baseline"]
    assert figure
    assert figure.used == {"auto", "flash"}
    lines = next(rows for rows in layers(figure) if "value" in rows[0])
    assert {row["label"] for row in lines} == {"flash"}
    assert {round(row["value"], 6) for row in lines} == {0.8}
    assert min(row["step"] for row in lines) > 10
    assert figure.finding == "Against auto, slower throughout: flash"


def test_the_finding_on_losses_names_the_line_that_goes_farthest_wherever_it_does() -> None:
    values = {"flash": (0.001, -0.03, 0.002), "custom": (0.0, 0.01, 0.02)}
    runs = {
        "run_ids": ["r1"],
        "baseline_run_ids": ["r0"],
        "baseline": "auto",
        "n": 1,
        "points": 1,
        "repeats": 1,
        "records": 1,
    }
    rows = [
        runs | {"label": label, "step": step, "value": 0.0, "farthest": abs(value), "noise": None}
        for label, differences in values.items()
        for step, value in enumerate(differences)
    ]
    build = charts.load("loss_difference").build
    for margin in (None, 0.025):
        figure = build([row | {"margin": margin} for row in rows], styles(list(values)))
        assert (
            figure
            and figure.finding
            == "Losses of single runs differ by up to 0.030 nats from auto's (flash, step 1)"
        )
    # A group that goes no farther than one of the baseline's own repeats does: both are said.
    figure = build([row | {"margin": 0.025, "noise": 0.031} for row in rows], styles(list(values)))
    assert figure and figure.finding
    assert figure.finding.endswith(
        "step 1); one of auto's repeats from the mean of its others by up to 0.031"
    )


def test_the_caption_says_why_a_drawn_interval_may_cross_the_margin_of_an_equivalent_group() -> None:
    margins: Row = {"margins": {"tokens_per_second": 0.01}}
    looks = {"until": {"tokens_per_second": 0.01, "at_most": 6}}
    plain, corrected = (
        ratios_of(
            [row for label in ("cudnn", "flash") for row in repeated(label, [0.4, 0.41, 0.42], design=design)]
        )
        for design in (DESIGN | margins, DESIGN | margins | looks)
    )
    assert "margin of 1 %" in plain.caption and "90 % interval" in plain.caption
    assert "margin of 1 %" in corrected.caption and "90 %" not in corrected.caption


@pytest.mark.parametrize(
    ("rows", "present", "missing"),
    [
        ([run("cudnn"), run("flash")], "without a line", "lines:"),
        (
            [timed("cudnn", 10), timed("flash", 10)],
            "Open marks: the medians of one run each",
            "lines:",
        ),
        ([timed("cudnn", 60), timed("flash", 60)], "lines: how steady", "ithout a line"),
        (
            [timed("cudnn", 60) | {"gpu_uuid": "a"}, timed("flash", 60) | {"gpu_uuid": "b"}],
            "On another GPU than its baseline: flash; such a ratio includes the difference of the GPUs.",
            "ithout a line",
        ),
        (
            [timed("cudnn", 60) | {"gpu_uuid": "a"}, timed("flash", 60) | {"gpu_uuid": "a"}],
            "lines: how steady",
            "GPU",
        ),
        (
            [*repeated("cudnn", [0.4, 0.41]), *repeated("flash", [0.4, 0.41], device="NVIDIA B200")],
            "Crosses: runs that are not comparable",
            "interval",
        ),
    ],
)
def test_the_caption_of_ratios_mentions_only_what_is_drawn(
    rows: list[Row], present: str, missing: str
) -> None:
    caption = ratios_of(rows).caption
    assert present in caption and missing not in caption
