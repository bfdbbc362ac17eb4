"""Which shapes and runs the figures of attention alone compare, and what they say of one without a time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from analysis import charts
from analysis.charts import Figure

Rows = list[dict[str, Any]]
LENGTHS = (512, 1024, 2048)
FACTORS = {"forward": 1.0, "backward": 2.5, "both": 3.5}


def called(
    name: str,
    milliseconds: float | str,
    length: int,
    causal: bool = True,
    run: str = "",
    modes: tuple[str, ...] = ("eager", "graph"),
    mebibytes: int = 1,
    batch: int = 4,
) -> Rows:
    """A backend's rows at a shape: the milliseconds of its forward, or how it ended."""
    timed = not isinstance(milliseconds, str)
    rows = []
    for mode in modes:
        for direction, factor in FACTORS.items():
            time = factor * milliseconds if isinstance(milliseconds, (int, float)) else None
            rows.append(
                {
                    "attention": name, "batch": batch, "sequence_length": length, "heads": 8, "kv_heads": 8,
                    "head_dim": 64, "causal": causal, "dtype": "bfloat16", "device": "a GPU",
                    "dropout": 0.0, "tile_queries": None, "tile_keys": None, "run_id": run or f"{batch}x{length}{causal}", "mode": mode, "direction": direction,
                    "host_milliseconds": 0.02 if timed else None,
                    "outcome": "completed" if timed else milliseconds, "calls": 7 if timed else 0,
                    "seconds": [time / 1e3] * 7 if time else None,
                    "milliseconds": time, "milliseconds_low": time, "milliseconds_high": time,
                    "tflops": 1 / time if time else None, "ceiling_tflops": 700.0,
                    "memory_bytes": mebibytes * 2**20 if timed else None,
                }
            )  # fmt: skip
    return rows


def draw(name: str, rows: Rows) -> Figure:
    chart = charts.load(name)
    assert chart.applies(rows)
    figure = chart.build(rows, {})
    assert figure and figure.table
    return figure


def table_values(figure: Figure) -> dict[tuple[str, str], tuple[str, str]]:
    """By backend and sequence length: its value, and how its runs ended that have none."""
    assert figure.table
    return {(row[0].partition(";")[0], row[1]): (row[2], row[-1]) for row in figure.table.rows}


@pytest.fixture
def both_masks() -> Rows:
    return [
        row
        for length in LENGTHS
        for causal in (True, False)
        for row in called("flash", 1.0 if causal else 2.0, length, causal)
    ]


def test_a_backend_that_fails_at_one_shape_leaves_the_figure_of_masks_its_other_values(
    both_masks: Rows,
) -> None:
    rows = [row for row in both_masks if not (row["causal"] and row["sequence_length"] == 1024)]
    by_place = table_values(draw("kernel_mask", rows + called("flash", "failed", 1024)))
    assert by_place == {
        ("flash", "512"): ("0.50", "\N{EN DASH}"),
        ("flash", "1,024"): ("\N{EN DASH}", "failed"),
        ("flash", "2,048"): ("0.50", "\N{EN DASH}"),
    }


def test_a_shape_without_memory_for_the_whole_scores_says_so_in_the_figure_of_masks(both_masks: Rows) -> None:
    rows = [row for row in both_masks if row["causal"] or row["sequence_length"] != 2048]
    by_place = table_values(draw("kernel_mask", rows + called("flash", "oom_gpu", 2048, causal=False)))
    assert by_place["flash", "2,048"] == ("\N{EN DASH}", "OOM")


def test_shapes_that_were_measured_with_one_mask_alone_are_not_in_the_figure_of_masks(
    both_masks: Rows,
) -> None:
    figure = draw("kernel_mask", both_masks + called("flash", 1.0, 4096) + called("flash", 1.0, 8192))
    assert {length for _, length in table_values(figure)} == {"512", "1,024", "2,048"}


def test_the_figure_of_masks_is_of_the_runs_without_a_mask_too(both_masks: Rows) -> None:
    """A ratio's denominator is shown as much as its numerator is: neither is left out."""
    figure = draw("kernel_mask", both_masks + called("flash", 1.0, 4096))
    assert figure.used == {f"4x{length}{causal}" for length in LENGTHS for causal in (True, False)}
    assert "head dim 64, causal and without a mask, bfloat16" in figure.caption


@pytest.mark.parametrize("name", charts.names())
def test_a_caption_mentions_intervals_only_where_some_are_drawn(name: str, both_masks: Rows) -> None:
    rows = both_masks + [row for flash_row in both_masks for row in [flash_row | {"attention": "math"}]]
    if not name.startswith("kernel_") or not charts.load(name).applies(rows):
        return
    figure = draw(name, rows)
    has_intervals = any(
        row.get("low") is not None for data in figure.spec["datasets"].values() for row in data
    )
    assert ("Bars: intervals" in figure.caption) == has_intervals, figure.caption


def test_where_math_has_no_memory_its_row_says_so_and_no_other_backend_is_blamed() -> None:
    rows = [row for length in LENGTHS for row in called("flash", 1.0, length)]
    rows += [
        row
        for length in LENGTHS
        for row in called("math", 4.0 if length < 2048 else "oom_gpu", length, mebibytes=4)
    ]
    for name, value in (("kernel_speedup", "4.00"), ("kernel_saved", "75.0")):
        figure = draw(name, rows)
        by_place = table_values(figure)
        assert by_place["flash", "1,024"] == (value, "\N{EN DASH}")
        assert by_place["flash", "2,048"] == ("\N{EN DASH}", "\N{EN DASH}")
        assert by_place["math", "2,048"] == ("\N{EN DASH}", "OOM")
        assert "There is no value where math has n" in figure.caption
        assert figure.finding and "(math)" not in figure.finding  # which is no finding against itself
        assert json.dumps(figure.spec).count('"ended": "OOM"') >= 1 and "not measured" not in json.dumps(
            figure.spec
        )


def test_a_speedup_is_within_each_run_and_of_several_the_median_of_theirs() -> None:
    rows: Rows = []
    for run, slow in (("a", 1.0), ("b", 10.0), ("c", 100.0)):  # the machine differs, the ratio does not
        for length in LENGTHS:
            rows += called("flash", slow, length, run=f"{run}{length}")
            rows += called("math", 3 * slow, length, run=f"{run}{length}")
    for length in LENGTHS:
        rows += called("apart", 1.0, length, run=f"d{length}")
    figure = draw("kernel_speedup", rows)
    assert table_values(figure)["flash", "512"] == ("3.00", "\N{EN DASH}")
    assert table_values(figure)["apart", "512"] == ("\N{EN DASH}", "\N{EN DASH}")
    assert figure.table and {row[3:5] for row in figure.table.rows if row[0].startswith("flash")} == {
        ("3.00 \N{EN DASH} 3.00", "3")
    }
    assert "apart" not in json.dumps(figure.spec) and not figure.note


def test_what_no_graph_can_hold_says_so_and_its_memory_is_shown() -> None:
    rows = [row for length in LENGTHS for row in called("flash", 1.0, length)]
    for length in LENGTHS:
        rows += called("flex", 2.0, length, modes=("eager",)) + called(
            "flex", "unsupported", length, modes=("graph",)
        )
    assert table_values(draw("kernel_time", rows))["flex", "512"] == ("\N{EN DASH}", "no graph")
    memory = draw("kernel_memory", rows)
    assert table_values(memory)["flex", "512"] == ("1.0", "\N{EN DASH}")
    assert "Counted in calls from Python: batch 4" in memory.caption and "Replayed" not in memory.caption


def test_the_figure_of_the_hosts_share_does_not_say_that_it_is_left_out() -> None:
    figure = draw("kernel_host", [row for length in LENGTHS for row in called("flash", 1.0, length)])
    assert "leave the host's share out" not in figure.caption


def test_of_several_runs_those_without_memory_are_counted() -> None:
    rows: Rows = []
    for run in "abc":
        for length in LENGTHS:
            ended = "oom_gpu" if run == "c" and length == 2048 else 1.0
            rows += called("math", ended, length, run=f"{run}{length}")
    assert table_values(draw("kernel_time", rows))["math", "2,048"][1] == "OOM 1/3"


def test_marks_stand_around_their_place_whoever_else_has_none() -> None:
    rows = [row for length in LENGTHS for name in ("flash", "math") for row in called(name, 1.0, length)]
    rows += [row for length in LENGTHS for name in "abcdefgh" for row in called(name, "unsupported", length)]
    figure = draw("kernel_time", rows)
    data = [row for layer in figure.spec["datasets"].values() for row in layer if row.get("at") == 1024]
    places = sorted({row["x"] for row in data if "value" in row})
    assert len(places) == 2 and places[0] * places[1] == pytest.approx(1024**2)


def test_shapes_whose_batch_and_length_vary_together_are_no_heat_map() -> None:
    together = [row for batch in (1, 2, 4, 8) for row in called("flash", 1.0, 8192 // batch, batch=batch)]
    assert not charts.load("kernel_map").applies(together)
    assert draw(
        "kernel_map", together + called("flash", 1.0, 1024, batch=1) + called("flash", 1.0, 1024, batch=2)
    )
