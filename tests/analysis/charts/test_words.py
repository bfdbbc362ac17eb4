"""How titles and captions read: no powers of ten, no number twice, nothing that the figure does not show."""

from __future__ import annotations

from typing import Any

import pytest

from analysis import charts
from analysis.charts import Figure, loss, styles
from analysis.charts._kernels import SEQUENCE
from analysis.charts._lines import StepLines, crowd_caption, line_plot
from analysis.charts._quantities import CellQuantity
from analysis.charts._rows import marks_caption
from analysis.charts._sweep_map import maps_figure as heat_maps
from analysis.charts._values import in_a_headline, shortened
from analysis.charts.kernels import FORWARD, lines_over_shapes
from analysis.charts.scaling import scaling_figure
from analysis.stats import Estimate, over_runs
from tests.analysis.charts.test_kernel_points import LENGTHS, called
from tests.analysis.charts.test_sweeps import BATCH, LENGTH, grid
from tests.analysis.verdicts.rows import DESIGN, repeated
from tests.analysis.verdicts.test_scaling import trained

LONG = ["compile=true", "compile=true, loss=linear_cross_entropy", "optimizer=adamw_one_pass"]


def build(name: str, rows: list[dict[str, Any]], labels: list[str]) -> Figure:
    figure = charts.load(name).build(rows, styles(labels))
    assert figure
    return figure


def over_steps(*values: float) -> list[dict[str, Any]]:
    return [
        {"label": "auto", "step": 20 + step, "value": value, "n": 1, "run_ids": ["r1"], "warmup_steps": 10}
        | {"half": 0.0713 if step == 0 else None}
        for step, value in enumerate(values)
    ]


def test_how_steady_rates_are_is_said_of_the_steps_that_count_and_no_slow_one_decides() -> None:
    """Such as the first step of a resumed attempt, which is drawn and counts nowhere else."""
    figure = build("tokens_over_steps", over_steps(1000.0, 540.0, 1000.0), ["auto"])
    assert figure.finding == "The middle half of each run's counted steps is within 7.1 % of its median rate"


def test_lines_that_overlap_are_said_with_plain_numbers_and_no_figure_that_may_not_be_there() -> None:
    rows = [
        {"label": label, "step": step, "value": 10000.0 + offset}
        for label, offset in (("a", 0.0), ("b", 120.0))
        for step in (1, 2)
    ]
    lines = StepLines("tokens per second", ",.0f", rows, [], [], zero=True)
    assert lines.joined == {"a": "a", "b": "b"} and not crowd_caption(lines), "1.2 % of the axis: told apart"
    for row in rows:
        row["value"] = min(row["value"], 10020.0)
    lines = StepLines("tokens per second", ",.0f", rows, [], [], zero=True)
    assert crowd_caption(lines) == " Several names on a line: groups within 20 of each other."
    spec = line_plot(lines, styles(["a", "b"]))
    names = {row["said"] for data in spec["datasets"].values() for row in data if "said" in row}
    assert names == {"a, b"}


def test_a_value_far_beyond_the_others_leaves_the_axis_with_an_arrow_that_the_caption_speaks_of() -> None:
    values = [2.0 + step / 1000 for step in range(60)] + [1e6]
    rows = [{"label": "a", "step": step, "value": value} for step, value in enumerate(values, 1)]
    lines = StepLines("loss", ".4f", rows, [], [])
    low, high = lines.domain
    assert 1.9 < low < 2.0 and 2.05 < high < 2.2
    assert crowd_caption(lines) == " Arrows: lines beyond the axis, up to 1,000,000 (a, step 61)."
    spec = line_plot(lines, styles(["a"]))
    arrows = [row for data in spec["datasets"].values() for row in data if row.get("arrow")]
    assert [(row["step"], row["arrow"], row["at"]) for row in arrows] == [(61, "triangle-up", high)]
    calm = StepLines("loss", ".4f", rows[:-1], [], [])
    assert not calm.beyond and calm.domain[0] < 2.0 and calm.domain[1] > 2.059


def test_in_place_of_an_interval_wider_than_its_value_is_the_range_of_the_runs() -> None:
    wide, narrow = over_runs([10.0, 4000.0]), over_runs([10.0, 10.1])
    assert wide.high and wide.high > 1e6, "what Student's interval of two runs comes to"
    telling = wide.telling
    assert (telling.low, telling.median, telling.high) == (10.0, 200.0, 4000.0) and telling.telling is telling
    assert (
        telling.method == "no interval, but the range of all 2 runs, as the interval is wider than the value"
    )
    assert narrow.telling is narrow
    slow = wide.map(lambda value: 1 / value).telling
    assert (slow.low, slow.high, slow.method) == (1 / 4000, 1 / 10, telling.method)
    single = Estimate(1.0, 0.1, 5.0, 1, "over records").telling
    assert (single.low, single.method) == (None, "no interval: with n = 1 it is wider than the value")


def test_a_caption_tells_ranges_of_runs_from_ranges_of_records_and_from_intervals() -> None:
    wide, narrow = over_runs([18.3, 32.2, 18.5]).telling, over_runs([10.0, 10.1])
    marks = "Marks: runs. Bars: their medians. Lines:"
    assert marks_caption({"a": wide, "b": narrow}) == f"{marks} intervals; ranges of the runs in a."
    assert marks_caption({"a": wide}) == f"{marks} ranges of the runs."


def test_a_headline_has_the_digits_that_the_interval_supports() -> None:
    assert in_a_headline(Estimate(52.54821, None, None, 1, ""), ",.5f") == "52.55"
    assert in_a_headline(Estimate(462.9805, 430.0, 490.0, 3, ""), ",.5f") == "463"
    assert in_a_headline(Estimate(0.39661, 0.3940, 0.3990, 5, ""), ".4f") == "0.3966"
    assert in_a_headline(Estimate(10452.7, None, None, 1, ""), ",.0f") == "10,453"


def test_long_names_are_shortened_to_what_tells_them_apart() -> None:
    names = [
        "baseline",
        "compile=true, loss=linear",
        "compile=true, float8=rowwise, loss=linear_cross_entropy",
    ]
    assert list(shortened(names).values()) == [*names[:2], "compile=true, float8=rowwise, ..."]


def losses(kind: str, tokens: int | None = None, **values: float) -> list[dict[str, Any]]:
    return [
        {"kind": kind, "label": label, "run_id": label, "seed": 0, "outcome": "completed", "step": 30,
         "value": value, "n": 1, "points": 11, "tokens_per_step": tokens}
        for label, value in values.items()
    ]  # fmt: skip


def test_final_losses_are_those_of_the_last_step_and_not_the_smoothed_lines() -> None:
    smoothed = {"flash": 6.6125, "fa3": 6.7488}
    rows = [
        *losses("run", **smoothed),
        *losses("group", **smoothed),
        *losses("final", 8, flash=6.1568, fa3=6.3075),
    ]
    assert build("loss", rows, list(smoothed)).finding == (
        "Final loss: 6.1568 (flash) to 6.3075 nats (fa3), one run each"
    )
    same = [*rows[:4], *losses("final", 8, flash=2.93981, fa3=2.93982)]
    assert (
        build("loss", same, list(smoothed)).finding == "Final loss: 2.9398 nats in both groups, one run each"
    )


def test_final_losses_after_steps_of_different_numbers_of_tokens_are_said_apart() -> None:
    final_losses = {"FSDP2": 3.3665, "DDP": 3.3674, "one": 3.7412}
    rows = [*losses("run", **final_losses), *losses("group", **final_losses)]
    rows += [*losses("final", 16384, FSDP2=3.3665, DDP=3.3674), *losses("final", 8192, one=3.7412)]
    assert build("loss", rows, list(final_losses)).finding == (
        "Final loss: 3.3665 (FSDP2) to 3.3674 nats (DDP), one run each, at 16,384 tokens a step; "
        "3.7412 nats (one), one run, at 8,192 tokens a step"
    )


def test_the_smallest_and_the_largest_loss_are_means_of_repeats_and_not_of_one_run() -> None:
    estimates = {"a": Estimate(2.1, None, None, 1, ""), "b": Estimate(2.2, None, None, 1, "")}
    assert loss._range(estimates, {"a": 5, "b": 5}) == "2.1000 (a) to 2.2000 nats (b)"


def test_groups_of_one_verdict_are_said_together_with_how_far_they_go() -> None:
    rows = [row for label in ("cudnn", *LONG) for row in repeated(label, [0.4, 0.41, 0.4 + len(label) / 1e3])]
    finding = build("ratios", rows, LONG).finding or ""
    assert finding.startswith("Against cudnn: ")


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
        "Baseline: train.compile = false, all else equal."
        in build("ratios", rows, ["eager", "compiled"]).caption
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
        "peak of NVIDIA H200: 1,979 TFLOP/s (datasheet) for b, c; of NVIDIA H200: 989 TFLOP/s (datasheet) for a."
        in caption
    )
    unnamed = build("mfu", [rows[0] | {"device": None}], ["a"]).caption
    assert "peak of an unnamed device: 989 TFLOP/s (datasheet). " in unnamed


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
    figure = scaling_figure(rows, "strong", "speedup", lambda _, ratio: ratio, ".2f", "Speedup.")
    assert figure and "Filled marks" in figure.caption


def test_kernels_of_very_different_rates_have_three_digits_each_in_a_title() -> None:
    rows = [
        row | {"tflops": rate}
        for name, rate in (("flash3", 713.626), ("tiled", 8.3512))
        for length in LENGTHS
        for row in called(name, 1.0, length)
    ]
    figure = lines_over_shapes(rows, SEQUENCE, FORWARD)
    assert figure and figure.finding == (
        "Forward TFLOP/s at sequence length 2,048: highest 714 (flash3), lowest 8.35 (tiled)"
    )


def test_the_numbers_of_a_heat_map_have_no_more_digits_than_each_needs() -> None:
    values = iter([694.372, 66.69, 6.2512, 12.65])
    quantity = CellQuantity("rate", "", ",.0f", "It.", lambda rows: {row["label"]: Estimate(next(values), None, None, 1, "") for row in rows})  # fmt: skip
    rows = grid(**{LENGTH.replace(".", "__"): [1, 2, 4], BATCH.replace(".", "__"): [1, 2, 4]})
    keep = {(1, 1), (2, 1), (1, 2), (2, 2)}
    rows = [row if (row["factors"][LENGTH], row["factors"][BATCH]) in keep else row | {"outcome": "oom_gpu"} for row in rows]  # fmt: skip
    figure = heat_maps(rows, quantity)
    assert figure
    texts = {row["text"] for data in figure.spec["datasets"].values() for row in data if "fill" in row}
    assert texts == {"694", "67", "6.25", "13"}


@pytest.mark.parametrize("name", charts.names())
def test_captions_mark_nothing_with_backticks(name: str) -> None:
    """They are plain text, on pages and in LaTeX."""
    rows = [
        row for length in LENGTHS for backend in ("flash", "math") for row in called(backend, 1.0, length)
    ]
    if name.startswith("kernel_") and charts.load(name).applies(rows):
        figure = charts.load(name).build(rows, {})
        assert figure and "`" not in figure.caption


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
        "Against base, faster and slower in turn: across and touching; as fast: same"
    )


@pytest.mark.parametrize("margin", [None, 0.005])
def test_a_title_says_which_losses_end_before_the_others(margin: float | None) -> None:
    """Such as those of runs that diverged: their last differences were small, and say nothing of what came then."""
    rows = [
        {
            "label": label,
            "step": step,
            "value": 0.001,
            "farthest": 0.001,
            "noise": None,
            "baseline": "cudnn",
            "margin": margin,
            "n": 1,
            "points": 3,
            "repeats": 1,
            "records": 1,
        }
        | {"run_ids": [label], "baseline_run_ids": ["b"]}
        for label, last in (("flash", 3), ("math", 1))
        for step in range(1, last + 1)
    ]
    finding = build("loss_difference", rows, ["flash", "math"]).finding
    assert finding and finding.endswith("; stopped earlier: math")
    finding = build("loss_difference", rows[:3], ["flash"]).finding
    assert finding and "earlier" not in finding
