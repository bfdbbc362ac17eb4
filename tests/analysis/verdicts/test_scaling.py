"""Strong and weak scaling are told apart by configuration, and compared as the rates of any two groups are."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.charts.scaling import efficiency_sentence, marks_caption
from analysis.report.answer.headline import in_times
from analysis.report.answer.verdicts import scaling_row
from analysis.verdicts.scaling import HELD_UP, Curve, curves, families, longer
from tests.analysis.verdicts.rows import Row, run

RATE = 1000.0  # tokens per second and process


def trained(
    batch: int,
    efficiency: float = 1.0,
    repeats: int = 1,
    length: int = 128,
    accumulate: int | None = None,
    gathered_once: bool = False,
    **parallel: Any,
) -> list[Row]:
    """The runs of a group that scales so well; `parallel` also takes fields of the runs' rows."""
    axes = ("replicate", "shard", "context", "tensor")
    shares = {axis: parallel.pop(axis, 1) for axis in axes}
    count = shares["replicate"] * shares["shard"] * shares["context"] * shares["tensor"]
    tokens = float(batch * length)
    train = {"batch_size": batch, "sequence_length": length, "accumulate": accumulate or 1}
    config: dict[str, Any] = {"model": {"dim": 64}, "train": train}
    if count > 1:
        config["parallel"] = shares | ({"reshard": False} if gathered_once else {})
    label = f"{config.get('parallel', shares)} {batch} {length}" + (f" {accumulate}" if accumulate else "")
    fields: Row = {
        "config": config, "processes": count, "gpus": count, "batch_size": batch, "sequence_length": length,
        "tokens_per_step": tokens, "factors": {"label": label}, "repeat": 1,
    }  # fmt: skip
    seconds = tokens / (RATE * count * efficiency)
    noise = (1.0, 1.01, 0.99, 1.005)
    rows = []
    for repeat in range(1, repeats + 1):
        changes = fields | {"repeat": repeat, "run_id": f"{label} {repeat}"}
        rows.append(run(label, seconds * noise[repeat - 1], **changes | parallel))
    return rows


def curves_of(*groups: list[Row]) -> list[Curve]:
    return list(curves([row for group in groups for row in group]))


def test_a_constant_batch_is_strong_scaling_and_a_constant_batch_a_process_is_weak() -> None:
    strong, weak = curves_of(
        trained(8), trained(8, 0.9, shard=2), trained(8, 0.8, shard=4),
        trained(2), trained(4, 0.95, shard=2),  # the 8 on 4 above are of both
    )  # fmt: skip
    assert (strong.kind, strong.way, strong.constant) == ("strong", "sharded (FSDP2)", "8 samples a step")
    assert [(point.processes, point.scale) for point in strong.points] == [(2, 2), (4, 4)]
    assert [point.ratio.ratio for point in strong.points] == pytest.approx([1.8, 3.2])
    assert [point.efficiency[0] for point in strong.points] == pytest.approx([0.9, 0.8])
    assert (weak.kind, weak.constant) == ("weak", "2 samples a step and process")
    assert [point.efficiency[0] for point in weak.points] == pytest.approx([0.95, 0.8])


@pytest.mark.fault
def test_more_than_ideal_is_said_to_come_of_a_slow_start() -> None:
    """On a busy laptop, 4 processes were 1,703 % of ideal: the single one had been held up."""
    (curve,) = curves_of(trained(8), trained(8, 1.05, shard=2), trained(8, 17.0, shard=4))
    assert [point.beyond_ideal for point in curve.points] == [False, True]
    near, far = (scaling_row(curve, point, "processes").reason for point in curve.points)
    assert HELD_UP in far and HELD_UP not in near
    assert HELD_UP in marks_caption({curve.way: curve})


def test_the_range_of_all_records_is_called_so() -> None:
    """Where a run's steps only get slower, no interval can be made of them."""
    steps = list(range(120))
    base = trained(8, counted_step_seconds=[0.1] * 120)
    growing = [0.05 * (1 + 0.003 * step) for step in steps]
    (curve,) = curves_of(base, trained(8, shard=2, counted_step_seconds=growing))
    row = scaling_row(curve, curve.points[0], "processes")
    assert row.interval == "range 73.7 to 100.0 %" and in_times(row)[1] == "range 1.47 to 2.00"
    assert efficiency_sentence({curve.way: curve}, "processes").count("(range 73.7 to 100.0)") == 1


def test_each_way_of_sharing_has_a_curve_from_the_same_single_process() -> None:
    lines = curves_of(
        trained(8), trained(8, 0.9, shard=2), trained(8, 0.8, replicate=2), trained(8, context=2)
    )
    assert [curve.way for curve in lines] == ["sharded (FSDP2)", "replicated (DDP)", "context parallel"]
    assert {curve.base_processes for curve in lines} == {1} and len({curve.base for curve in lines}) == 1


def test_what_is_gathered_once_a_step_has_a_curve_of_its_own() -> None:
    sharded, gathered = curves_of(
        trained(8), trained(8, 0.9, shard=2), trained(8, 0.95, shard=2, gathered_once=True)
    )
    assert (sharded.way, gathered.way) == ("sharded (FSDP2)", "sharded (FSDP2), gathered once")
    assert [curve.points[0].efficiency[0] for curve in (sharded, gathered)] == pytest.approx([0.9, 0.95])
    assert sharded.base == gathered.base


def test_a_curve_has_one_first_group_where_the_parts_of_a_batch_vary_at_one_number_of_processes() -> None:
    crossed = [
        trained(8, efficiency, accumulate=parts, shard=count)
        for parts, slower in ((1, 1.0), (2, 0.5))
        for count, efficiency in ((1, slower), (2, 0.9 * slower), (4, 0.8 * slower))
    ]
    lines = curves_of(*crossed)
    assert [curve.constant for curve in lines] == [
        "8 samples a step, in 1 part a process",
        "8 samples a step, in 2 parts a process",
    ]
    for curve in lines:
        assert [point.processes for point in curve.points] == [2, 4]
        assert [point.efficiency[0] for point in curve.points] == pytest.approx([0.9, 0.8])


def test_a_weak_line_joins_only_groups_whose_processes_take_as_many_parts() -> None:
    """One and four GPUs took 4 samples each at once, two in 2 parts: the line of all three mixed them."""
    single, four = trained(4), trained(16, 0.95, shard=4)
    two = trained(8, 0.9, accumulate=2, shard=2)
    (line,) = curves_of(single, two, four)
    assert (line.kind, line.constant) == ("weak", "4 samples a step and process, in 1 part")
    assert [(point.processes, point.parts) for point in line.points] == [(4, "")]
    assert line.points[0].ratio.ratio == pytest.approx(3.8)  # 4 x 1,000 x 0.95 over 1,000 tokens per second
    assert line.points[0].efficiency[0] == pytest.approx(0.95)

    parted, line = curves_of(trained(4, 0.8, accumulate=2), single, two, four)
    assert [line.constant for line in (parted, line)] == [
        "4 samples a step and process, in 2 parts",
        "4 samples a step and process, in 1 part",
    ]
    assert (parted.points[0].processes, line.points[0].processes) == (2, 4)
    assert parted.points[0].ratio.ratio == pytest.approx(2.25)  # 2 x 1,000 x 0.9 over 1,000 x 0.8
    assert parted.points[0].efficiency[0] == pytest.approx(1.125)
    assert curves_of(trained(4), trained(8, accumulate=2, shard=2)) == []


def test_a_strong_line_joins_any_numbers_of_parts_and_says_where_they_differ() -> None:
    single, two = trained(8, accumulate=4), trained(8, 0.9, accumulate=2, shard=2)
    four = trained(8, 0.8, accumulate=1, shard=4)
    (line,) = curves_of(single, two, four)
    assert (line.kind, line.constant) == ("strong", "8 samples a step")
    assert [point.ratio.ratio for point in line.points] == pytest.approx([1.8, 3.2])
    base, labels = single[0]["label"], [group[0]["label"] for group in (two, four)]
    sentences = [
        f"{label} takes the samples of a process in {parts}, {base} in 4."
        for label, parts in zip(labels, ("2 parts", "1 part"), strict=True)
    ]
    assert [(point.parts, point.besides[0]) for point in line.points] == [(text, text) for text in sentences]
    assert [scaling_row(line, point, "GPUs").reason for point in line.points] == [
        f"sharded (FSDP2), 8 samples a step. {text[:-1]}. not a finding: in one run each"
        for text in sentences
    ]
    (alike,) = curves_of(trained(8), trained(8, shard=2))
    assert not alike.points[0].parts and not alike.points[0].besides


def test_parts_of_as_many_samples_make_a_curve_where_that_keeps_more_groups_on_one() -> None:
    lines = curves_of(
        trained(8, accumulate=8), trained(8, accumulate=4),
        trained(8, 0.9, accumulate=4, shard=2), trained(8, 0.8, accumulate=2, shard=4),
        trained(8, 0.7, accumulate=1, shard=4),
    )  # fmt: skip
    assert [(curve.constant, len(curve.labels)) for curve in lines] == [
        ("8 samples a step, 1 at once", 3),
        ("8 samples a step, 2 at once", 2),
    ]
    assert [curve.points[-1].efficiency[0] for curve in lines] == pytest.approx([0.8, 0.7])


def test_without_a_single_process_a_curve_starts_at_the_fewest() -> None:
    (curve,) = curves_of(trained(8, shard=2), trained(8, 0.5, shard=8))
    assert (curve.base_processes, curve.points[0].scale) == (2, 4)
    assert curve.points[0].ratio.ratio == pytest.approx(2) and curve.points[0].efficiency[0] == pytest.approx(
        0.5
    )


def test_groups_that_differ_in_more_than_processes_and_batch_are_on_no_curve() -> None:
    other = {"model": {"dim": 128}, "train": {"batch_size": 8, "sequence_length": 128}}
    assert curves_of(trained(8, shard=2), trained(8, config=other)) == []
    assert curves_of(trained(8), trained(8, length=256, shard=2)) == []
    assert families(trained(8) + trained(4)) == ()


def test_repeats_make_a_finding_with_an_interval_and_single_runs_are_observed() -> None:
    (finding,) = curves_of(trained(8, repeats=3), trained(8, 0.9, repeats=3, shard=2))
    value, low, high = finding.points[0].efficiency
    assert finding.points[0].observed == "" and finding.points[0].ratio.level == "runs"
    assert low is not None and high is not None and low <= value <= high
    (single,) = curves_of(trained(8), trained(8, 0.9, shard=2))
    assert single.points[0].observed == "in one run each" and single.points[0].ratio.low is None


def test_what_breaks_a_comparison_apart_from_the_number_of_processes_withholds_it() -> None:
    (curve,) = curves_of(trained(8), trained(8, shard=2, device="NVIDIA H100"))
    assert "NVIDIA H100" in (curve.points[0].why_withheld or "")
    threads = [{"gpus": 0, "device": f"CPU: some, {count} threads"} for count in (2, 1)]
    (shared,) = curves_of(trained(8, **threads[0]), trained(8, shard=2, **threads[1]))
    assert shared.points[0].why_withheld is None
    (fine,) = curves_of(trained(8), trained(8, shard=2))
    assert fine.points[0].why_withheld is None


def test_lengths_over_context_are_the_runs_that_are_otherwise_alike() -> None:
    single, two, four = trained(1), trained(1, length=256, context=2), trained(1, length=512, context=4)
    other_runs = trained(8) + trained(8, shard=2)
    assert longer([*single, *two, *four, *other_runs]) == [*single, *two, *four]
    assert longer([*single, *two]) == [] and longer(other_runs) == []
