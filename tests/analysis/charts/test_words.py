"""How titles and captions read: no powers of ten, no number twice, nothing that the figure does not show."""

from __future__ import annotations

from typing import Any

import pytest

from analysis import charts
from analysis.charts import Figure, styles
from analysis.charts._kernels import SEQUENCE
from analysis.charts._lines import StepLines, crowd_caption
from analysis.charts._quantities import CellQuantity
from analysis.charts._sweep_map import maps_figure as heat_maps
from analysis.charts._values import groups, shares_of
from analysis.charts.kernels import FORWARD, lines_over_shapes
from analysis.charts.scaling import scaling_figure
from analysis.stats import Estimate
from tests.analysis.charts.test_kernel_points import LENGTHS, called
from tests.analysis.charts.test_sweeps import BATCH, LENGTH, grid
from tests.analysis.verdicts.rows import DESIGN, repeated
from tests.analysis.verdicts.test_scaling import trained

LONG = ["compile=true", "compile=true, loss=linear_cross_entropy", "optimizer=adamw_one_pass"]


def build(name: str, rows: list[dict[str, Any]], labels: list[str]) -> Figure:
    made = charts.load(name).build(rows, styles(labels))
    assert made
    return made


def over_steps(*values: float) -> list[dict[str, Any]]:
    return [
        {"label": "auto", "step": 20 + step, "value": value, "n": 1, "run_ids": ["r1"], "warmup_steps": 10}
        for step, value in enumerate(values)
    ]


def test_a_point_that_is_far_from_its_median_is_not_said_with_a_power_of_ten() -> None:
    figure = build("tokens_over_steps", over_steps(1000.0, 12000.0, 1000.0), ["auto"])
    assert figure.finding == (
        "Observed: after the warm-up every point is within 1,100 % of its group's median (farthest: auto)"
    )


def test_lines_that_overlap_are_said_with_plain_numbers_and_no_figure_that_may_not_be_there() -> None:
    rows = [
        {"label": label, "step": step, "value": 10000.0 + more}
        for label, more in (("a", 0.0), ("b", 120.0))
        for step in (1, 2)
    ]
    caption = crowd_caption(StepLines("tokens per second", ",.0f", rows, [], [], zero=True))
    assert "at most 120 apart" in caption and "A figure against a baseline shows" in caption


def test_two_ends_of_a_range_that_read_alike_are_one_number() -> None:
    shares = {"flash3": 0.4151, "custom": 0.4249}
    runs = {label: [1, 2] for label in shares}
    same = {"flash3": 0.42, "custom": 0.42}
    assert shares_of(same, runs, "the start takes", "all") == "The start takes 42 % of all in both groups"
    assert shares_of(shares, runs, "the start takes", "all") == "The start takes 42 % of all in both groups"
    assert (
        shares_of(shares | {"a": 0.5}, runs | {"a": [1, 2]}, "it takes", "all")
        == "It takes 42 % (flash3) to 50 % (a) of all"
    )
    rows = [
        {"kind": kind, "label": label, "run_id": label, "seed": 0, "outcome": "completed", "step": 30, "value": 2.9398 + more, "n": 1, "points": 1}
        for label, more in (("flash3", 0.0), ("custom", 1e-5))
        for kind in ("run", "group")
    ]  # fmt: skip
    assert (
        build("loss", rows, list(shares)).finding == "At step 30 the mean loss is 2.9398 nats in both groups"
    )


def test_groups_whose_names_have_commas_are_counted_in_a_title() -> None:
    assert groups(LONG) == "3 groups" and groups(LONG[1:2]) == LONG[1]
    assert groups(["auto", "flash"]) == "auto and flash"
    rows = [row for label in ("cudnn", *LONG) for row in repeated(label, [0.4, 0.41, 0.4 + len(label) / 1e3])]
    start, _, clauses = (build("ratios", rows, LONG).finding or "").partition(": ")
    assert start.startswith("Compared with ") and "; 3 groups are " in f"; {clauses}"


def test_a_baseline_is_written_as_a_study_writes_it() -> None:
    design = {"design": DESIGN | {"baseline": {"train.compile": False}}}
    rows = [
        row
        for label, compiled in (("eager", False), ("compiled", True))
        for row in repeated(
            label, [0.4, 0.41, 0.42], factors={"train.compile": compiled, "seed": 0}, **design
        )
    ]
    assert (
        "the baseline, train.compile = false: above 1" in build("ratios", rows, ["eager", "compiled"]).caption
    )


def test_each_of_several_peaks_says_whose_it_is() -> None:
    row = {
        "seed": 0,
        "repeat": 1,
        "step_seconds": 0.4,
        "counted_step_seconds": [0.4] * 30,
        "task": "training",
    }
    row |= {"mfu": 40.0, "device": "NVIDIA H200", "peak_source": "datasheet"}
    rows = [
        row | {"label": label, "run_id": label, "peak_flops": peak}
        for label, peak in (("a", 989e12), ("b, c", 1979e12))
    ]
    caption = build("mfu", rows, ["a", "b, c"]).caption
    assert (
        "Peak of NVIDIA H200: 1,979 TFLOP/s (datasheet) for b, c; of NVIDIA H200: 989 TFLOP/s (datasheet) for a."
        in caption
    )
    alone = build("mfu", [rows[0] | {"device": None}], ["a"]).caption
    assert "Peak of an unnamed device: 989 TFLOP/s (datasheet). " in alone


def certified(ratio: float) -> dict[str, Any]:
    return {
        "attention": "flash", "tensor": "o", "relative_error": 1e-3, "relative_error_shape": "", "ratio": ratio,
        "measured": 1.0, "tolerance": 2.0, "name": "plain", "variant": "", "shape": "B1", "checks": 1, "failed": 0,
        "run_shape": None, "device_name": "a GPU", "certificate": "c1", "runs": ["r1"],
    }  # fmt: skip


@pytest.mark.parametrize(("ratio", "beyond"), [(0.6, False), (1.9, False), (7.0, True)])
def test_marks_beyond_the_axis_are_mentioned_where_there_are_some(ratio: float, beyond: bool) -> None:
    assert ("Marks beyond the axis" in build("certificates", [certified(ratio)], []).caption) == beyond


def test_every_mark_of_scaling_is_said_to_be_divided_by_the_first_of_its_line() -> None:
    rows = trained(8, repeats=2) + trained(8, 0.9, repeats=2, shard=2)
    made = scaling_figure(rows, "strong", "speedup", lambda _, ratio: ratio, ".2f", "Speedup.")
    assert made and "Each mark is divided by the first of its line. Filled marks" in made.caption


def test_kernels_of_very_different_rates_have_three_digits_each_in_a_title() -> None:
    rows = [
        row | {"tflops": rate}
        for name, rate in (("flash3", 713.626), ("tiled", 8.3512))
        for length in LENGTHS
        for row in called(name, 1.0, length)
    ]
    made = lines_over_shapes(rows, SEQUENCE, FORWARD)
    assert made and made.finding == (
        "Observed: forward TFLOP/s of 714 (flash3) to 8.35 (tiled) at sequence length 2,048"
    )


def test_the_numbers_of_a_heat_map_have_no_more_digits_than_each_needs() -> None:
    values = iter([694.372, 66.69, 6.2512, 12.65])
    quantity = CellQuantity("rate", "", ",.0f", "It.", lambda rows: {row["label"]: Estimate(next(values), None, None, 1, "") for row in rows})  # fmt: skip
    rows = grid(**{LENGTH.replace(".", "__"): [1, 2, 4], BATCH.replace(".", "__"): [1, 2, 4]})
    keep = {(1, 1), (2, 1), (1, 2), (2, 2)}
    rows = [row if (row["factors"][LENGTH], row["factors"][BATCH]) in keep else row | {"outcome": "oom_gpu"} for row in rows]  # fmt: skip
    made = heat_maps(rows, quantity)
    assert made
    texts = {row["text"] for data in made.spec["datasets"].values() for row in data if "fill" in row}
    assert texts == {"694", "67", "6.25", "13"}


@pytest.mark.parametrize("name", charts.names())
def test_captions_mark_nothing_with_backticks(name: str) -> None:
    """They are plain text, on pages and in LaTeX."""
    rows = [
        row for length in LENGTHS for backend in ("flash", "math") for row in called(backend, 1.0, length)
    ]
    if name.startswith("kernel_") and charts.load(name).applies(rows):
        made = charts.load(name).build(rows, {})
        assert made and "`" not in made.caption


def test_a_group_as_fast_as_the_baseline_at_every_point_is_not_on_both_sides_of_it() -> None:
    lines = {"same": (1.0, 1.0), "across": (0.9, 1.1), "touching": (1.0, 1.1)}
    rows = [
        {
            "label": label,
            "first_step": step,
            "step": step,
            "rate": 1000 * ratio,
            "warmup_steps": 0,
            "scale": 1,
            "created_at": "2026-01-01",
            "run_ids": [label],
            "factors": {"attention": label},
            "design": {"baseline": {"attention": "base"}},
        }
        for label, ratios in ({"base": (1.0, 1.0)} | lines).items()
        for step, ratio in enumerate(ratios, 1)
    ]
    assert build("tokens_against_baseline", rows, ["base", *lines]).finding == (
        "Observed at the points after the warm-up: same level with the baseline; across and touching on both "
        "sides of the baseline"
    )


@pytest.mark.parametrize("margin", [None, 0.005])
def test_a_title_says_which_losses_end_before_the_others(margin: float | None) -> None:
    """Such as those of runs that diverged: their last differences were small, and say nothing of what came then."""
    rows = [
        {
            "label": label,
            "step": step,
            "value": 0.001,
            "baseline": "cudnn",
            "margin": margin,
            "n": 1,
            "points": 3,
        }
        | {"run_ids": [label], "baseline_run_ids": ["b"]}
        for label, last in (("flash", 3), ("math", 1))
        for step in range(1, last + 1)
    ]
    finding = build("loss_difference", rows, ["flash", "math"]).finding
    assert finding and finding.endswith(", as far as there are losses: math stopped earlier")
    finding = build("loss_difference", rows[:3], ["flash"]).finding
    assert finding and "earlier" not in finding
