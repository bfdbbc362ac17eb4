"""The figures of scaling: on a page of their own where processes vary, and nowhere else."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from analysis import charts
from analysis.charts import Figure
from analysis.charts._parts import PART_NAMES as PARTS
from analysis.charts.scaling import efficiency_sentence, scaling_figure
from analysis.query.statements import MEASURED_RUNS
from analysis.report import facts
from analysis.report.build import build_report
from analysis.stats.paired import RUNS, Ratio
from analysis.store import database as store
from analysis.store.collect import collect
from analysis.verdicts.scaling import Curve, Kind, ScalingPoint, curves
from analysis.wording import UNKNOWN
from tests.analysis.charts.test_charts import draw
from tests.analysis.fabricate import completed
from tests.analysis.scaled import write_scaling
from tests.analysis.verdicts.test_scaling import trained

WAY = "sharded (FSDP2) x context parallel"
NAMES = [name for name in charts.names() if name.startswith("scaling_")]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_scaling(folder)
    write_scaling(folder, repeats=3, study="repeated")
    write_scaling(folder, study="on_a_cpu", gpus=0, peak=None, device="CPU: some")
    collect(folder)
    return folder


def figure(root: Path, name: str, study: str = "scaling") -> Figure:
    plot = draw(root, name, study)
    assert plot and plot.table
    return plot


def table(plot: Figure) -> list[dict[str, str]]:
    assert plot.table
    return [dict(zip(plot.table.columns, row, strict=True)) for row in plot.table.rows]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("study", ["scaling", "repeated", "on_a_cpu"])
def test_each_figure_is_vega_lite_and_says_what_it_shows(root: Path, name: str, study: str) -> None:
    import vl_convert

    plot = figure(root, name, study)
    svg = vl_convert.vegalite_to_svg({**plot.spec, "width": 640}, allowed_base_urls=[])
    assert "<svg" in svg and plot.caption and plot.description and plot.used
    assert plot.finding and ("one run" in plot.finding) == (study != "repeated")
    words = f"{plot.caption} {plot.finding} {plot.spec}"
    assert ("GPU" in words) == (study != "on_a_cpu") or name == "scaling_parts"


def test_strong_scaling_is_the_speedup_of_a_batch_against_the_ideal_line(root: Path) -> None:
    plot = figure(root, "scaling_strong")
    ideal, *_ = (plot.spec["datasets"][layer["data"]["name"]] for layer in plot.spec["layer"])
    assert {(row["processes"], row["value"]) for row in ideal} >= {(1, 1.0), (8, 8.0)}
    rows = [row for row in table(plot) if row["scaling"] == "sharded (FSDP2)"]
    assert [row["GPUs"] for row in rows] == ["1", "2", "4", "8"]
    ratios = [float(row["ratio to the first"]) for row in rows]
    assert ratios == sorted(ratios) and 7 < ratios[-1] < 7.5
    assert (plot.finding or "").startswith("Strong scaling, of the ideal rate: 89.4 % ")
    assert "context parallel at 4" in plot.caption  # starts late: two ran out of memory
    assert " context parallel on 8 GPUs over 4" in (plot.finding or "")
    assert " sharded (FSDP2) on 8 GPUs;" in (plot.finding or "")
    assert (plot.finding or "").endswith(" (one run each)")


def test_the_caption_names_the_first_mark_where_several_groups_have_as_few_processes() -> None:
    rows = trained(64, shard=2, context=2) + trained(64, shard=4, context=2) + trained(64, shard=2, context=4)
    plot = scaling_figure(rows, "strong", "speedup", lambda _, ratio: ratio, ".2f", "Speedup.")
    assert plot
    assert "Of the groups of" not in plot.caption
    rows = [row for row in rows if row["processes"] > 4] + trained(64, shard=4, context=4)
    plot = scaling_figure(rows, "strong", "speedup", lambda _, ratio: ratio, ".2f", "Speedup.")
    assert plot
    assert f"Of the groups of 8 GPUs on {WAY}, the first mark is {rows[0]['label']}." in plot.caption


def test_what_differs_besides_stands_in_the_table_and_the_caption_says_so() -> None:
    clocks = {"clocks_changed": True, "sm_mhz_low": 1000.0, "sm_mhz_high": 1900.0, "throttle_reasons": "none"}
    for changed in ({}, clocks):
        rows = trained(8, repeats=2) + trained(8, 0.8, shard=4, repeats=2, **changed)
        plot = scaling_figure(rows, "strong", "speedup", lambda _, ratio: ratio, ".2f", "Speedup.")
        assert plot
        sentence = table(plot)[-1]["what it is"]
        assert sentence.startswith("finding. The GPU's clock") if changed else sentence == "finding"
        assert ("1,000 to 1,900 MHz" in sentence) == bool(changed) == ("what else differs" in plot.caption)


def test_figures_say_in_how_many_parts_processes_take_their_samples_where_these_differ() -> None:
    same_parts = trained(4) + trained(8, shard=2) + trained(16, shard=4)
    two_parts = trained(8, accumulate=2, shard=2)

    def plotted(rows: list[dict[str, object]], kind: Kind) -> Figure:
        plot = scaling_figure(rows, kind, "efficiency", lambda _, ratio: ratio, ".2f", "Tokens.")
        assert plot
        return plot

    assert "parts" not in plotted(same_parts, "weak").caption
    mixed = plotted(same_parts + two_parts, "weak")
    assert mixed.caption.endswith(
        "A line joins processes that take their samples in the same number of parts."
    )
    assert {row["group"] for row in table(mixed)} == {row["label"] for row in same_parts}

    base = trained(8, accumulate=4)
    strong = plotted(base + two_parts, "strong")
    assert (
        "names what else differs. Lines join processes that take their samples in different numbers of parts."
        in strong.caption
    )
    sentence = f"{two_parts[0]['label']} takes the samples of a process in 2 parts, {base[0]['label']} in 4."
    assert table(strong)[1]["what it is"] == f"observed in one run each. {sentence}"


def test_repeats_have_filled_marks_and_intervals_over_runs(root: Path) -> None:
    plot = figure(root, "scaling_weak", "repeated")
    assert "Filled marks" in plot.caption and "Open marks" not in plot.caption
    assert "paired over 3 runs each" in plot.interval and (plot.finding or "").startswith(
        "Weak scaling, of the ideal rate: 91.9 % sharded (FSDP2)"
    )


def test_a_title_names_the_best_and_the_worst_of_many_curves() -> None:
    def curve(share: float) -> Curve:
        ratio = Ratio(4 * share, 3.9 * share, 4.1 * share, 3, RUNS, "t over 3 pairs")
        point = ScalingPoint("group", 4, Fraction(4), 4000 * share, ratio, "", None, frozenset())
        return Curve("weak", "DDP", "2 samples", "one", 1, 1000.0, (point,))

    curves_by_way = {f"way {n}": curve(share) for n, share in enumerate((0.93, 0.96, 0.91, 0.95), start=1)}
    assert efficiency_sentence(curves_by_way, "GPUs") == (
        "Weak scaling on 4 GPUs, of the ideal rate: most 96.0 % way 2; least 91.0 % way 3"
    )
    del curves_by_way["way 1"]
    assert efficiency_sentence(curves_by_way, "GPUs").endswith("96.0 % way 2; 91.0 % way 3; 95.0 % way 4")


def test_single_runs_with_too_few_records_have_no_interval_in_the_caption() -> None:
    plot = scaling_figure(
        trained(8) + trained(8, 0.9, shard=2), "strong", "speedup", lambda _, ratio: ratio, ".2f", "Speedup."
    )
    assert plot and "Open marks: single runs" in plot.caption
    times = {"counted_step_seconds": [0.1] * 5}
    few_records = trained(8, **times) + trained(8, 0.9, shard=2, **times)
    plot = scaling_figure(few_records, "strong", "speedup", lambda _, ratio: ratio, ".2f", "Speedup.")
    assert plot and "lines:" not in plot.caption


def test_the_parts_of_a_token_add_up_and_say_where_the_rest_went(root: Path) -> None:
    plot = figure(root, "scaling_parts")
    cost = "GPU-seconds per million tokens"
    rows = {row["group"]: row for row in table(plot)}
    single, sharded = rows["1 GPU, batch 8, 4,096 tokens"], rows["8 GPUs shard, batch 8, 4,096 tokens"]
    products = [float(row[f"matrix products, {cost}"]) for row in (single, sharded)]
    assert products[0] == pytest.approx(products[1], rel=0.01)  # the noise of the timed steps
    assert float(single[f"communication, {cost}"]) == 0 < float(sharded[f"communication, {cost}"])
    assert float(sharded["communication hidden by other work"]) > 0
    parts = [
        float(value)
        for name, value in sharded.items()
        if cost in name and name[:5] != "whole" and value != UNKNOWN
    ]
    assert sum(parts) == pytest.approx(float(sharded[f"whole, {cost}"]), abs=0.01)
    assert "sharded (FSDP2), on 8 GPUs (communication +12.3)" in (plot.finding or "")


def test_the_cost_of_a_token_is_the_inverse_of_the_efficiency_however_long_profiled_steps_take(
    root: Path,
) -> None:
    chart = charts.load("scaling_parts")
    with store.open_for_reading(root) as connection:
        rows, measured = (facts.rows(connection, sql, "repeated") for sql in (chart.sql, MEASURED_RUNS))
    slower = [
        row
        | (
            {f"{part}_part": 1.2 * (row[f"{part}_part"] or 0.0) for part in PARTS}
            if row["processes"] > 1
            else {}
        )
        for row in rows
    ]
    curve, *_ = curves(measured)
    cost = 100 * (1 / curve.points[-1].efficiency[0] - 1)
    for profiled in (rows, slower):
        plot = chart.build(profiled, {})
        assert plot and f"{cost:+.1f} % sharded (FSDP2), on 8 GPUs" in (plot.finding or "")
        row_of_shards = {row["group"]: row for row in table(plot)}["8 GPUs shard, batch 8, 4,096 tokens"]
        total = float(row_of_shards["whole, GPU-seconds per million tokens"])
        assert total == pytest.approx(1e6 * 8 / curve.points[-1].tokens_per_second, rel=0.01)


def test_bars_of_costs_name_the_parts_of_a_batch_where_there_are_several(root: Path) -> None:
    chart = charts.load("scaling_parts")
    with store.open_for_reading(root) as connection:
        rows = facts.rows(connection, chart.sql, "scaling")
    single = next(row for row in rows if row["processes"] == 1 and row["batch_size"] == 8)
    single["config"]["train"]["accumulate"] = 4
    plot = chart.build(rows, {})
    assert plot
    names = [row["group"] for row in table(plot)]
    assert names[0] == "1 GPU, batch 8 in 4 parts, 4,096 tokens" and not any(
        "part" in name for name in names[1:]
    )


def test_lengths_over_context_have_a_line_for_each_number_of_processes(root: Path) -> None:
    plot = figure(root, "scaling_context")
    assert {row["Group"] for row in table(plot)} == {"1 GPU", "2 GPUs", "4 GPUs", "8 GPUs"}
    assert "out of memory at 16,384 on 2 GPUs" in (plot.finding or "")


def test_without_a_peak_the_note_says_so_and_no_more(root: Path) -> None:
    note = figure(root, "scaling_context", "on_a_cpu").note or ""
    assert note.startswith("MFU is not shown") and "peak_tflops" in note


def test_a_report_has_the_page_its_sentences_and_their_table(root: Path, tmp_path: Path) -> None:
    build_report(root, "repeated", tmp_path / "there")
    page = (tmp_path / "there" / "scaling.html").read_text()
    assert (
        page.index('id="scaling_strong"') < page.index('id="scaling_weak"') < page.index('id="scaling_parts"')
    )
    overview = (tmp_path / "there" / "index.html").read_text()
    assert "89.1\N{NO-BREAK SPACE}% of ideal" in overview[: overview.index("<table")]
    row = overview[overview.index("<table") :]
    assert "89.1\N{NO-BREAK SPACE}%" in row and "87.8 to 90.4\N{NO-BREAK SPACE}%" in row
    assert "7.13" in row
    assert "7.13 (7.03 to 7.23) times as fast" in overview[: overview.index("<table")]
    written = (tmp_path / "there" / "data" / "findings" / "scaling.csv").read_text()
    assert "weak,sharded" in written and "have no valid certificate" in written


def test_other_studies_have_neither_the_page_nor_the_sentences(tmp_path: Path) -> None:
    completed(tmp_path, "r1")
    collect(tmp_path)
    with store.open_for_reading(tmp_path) as connection:
        for name in NAMES:
            chart = charts.load(name)
            assert not chart.applies(facts.rows(connection, chart.sql, "backends")), name
