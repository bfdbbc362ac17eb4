"""The table of every shape: time, rate, and the ratio over the fastest other backend, for each backend."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.report.render import environment
from analysis.report.tasks.attention import TrafficLine, shapes, traffic
from model.attention import load
from model.record.backends import described, names
from model.record.case import FP8
from model.record.config import CallConfig, RunConfig
from model.record.traffic import unknown
from tests.analysis.charts.test_kernel_points import called
from tests.analysis.report.study import planned

SPREAD = (0.97, 0.98, 0.99, 1.0, 1.01, 1.02, 1.03)


def in_rounds(rows: list[dict[str, Any]], slower: float = 1.0) -> list[dict[str, Any]]:
    return [
        row | {"seconds": [row["milliseconds"] / 1e3 * slower * part for part in SPREAD]}
        if row["milliseconds"]
        else row
        for row in rows
    ]


def test_every_shape_has_a_row_for_each_direction_and_every_timed_backend_a_column() -> None:
    rows = [
        row
        for length in (512, 1024)
        for name, time in (("cudnn", 2.0), ("auto", 1.0), ("math", "oom_gpu" if length > 512 else 8.0))
        for row in in_rounds(called(name, time, length))
    ]
    rows += called("flash4", "unsupported", 512)
    graph, eager = shapes(rows)
    assert (graph.mode, eager.mode) == ("graph", "eager")
    assert graph.backends == ("auto", "cudnn", "math"), "none of a backend that was never timed"
    assert [(line.shape, line.direction) for line in graph.lines] == [
        (f"B4 T{length} H8 D64, causal", direction)
        for length in (512, 1024)
        for direction in ("forward", "backward")
    ]
    auto, cudnn, math = graph.lines[1].cells
    assert (auto.milliseconds, cudnn.milliseconds, math.milliseconds) == (2.5, 5.0, 20.0)
    assert auto.tflops == pytest.approx(1 / 2.5)
    assert auto.lead and (auto.lead.next_best.attention, auto.lead.ratio.ratio) == ("cudnn", pytest.approx(2))
    assert cudnn.lead and (cudnn.lead.next_best.attention, cudnn.lead.ratio.ratio) == (
        "auto",
        pytest.approx(0.5),
    )
    assert math.lead and math.lead.ratio.ratio == pytest.approx(1 / 8)
    assert [cell.lead.clear for cell in (auto, cudnn, math) if cell.lead] == [True, False, False]
    auto, cudnn, oom_cell = graph.lines[2].cells
    assert (oom_cell.milliseconds, oom_cell.gone, oom_cell.lead) == (None, "OOM", None)
    assert auto.lead and auto.lead.next_best.attention == "cudnn"


def test_calls_of_8_bits_have_no_row_of_a_backward_that_nobody_can_call() -> None:
    rows = called("cudnn", 1.0, 512)
    rows += [
        row | {"dtype": FP8, "run_id": "narrow"}
        for row in called("cudnn", 0.5, 512)
        if row["direction"] == "forward"
    ]
    table = shapes(rows)[0]
    assert [(line.shape.rpartition(", ")[2], line.direction) for line in table.lines] == [
        ("bfloat16", "forward"),
        ("bfloat16", "backward"),
        (FP8, "forward"),
    ]


def test_a_shape_says_what_sets_it_apart() -> None:
    rows = [
        row | {"dtype": dtype, "kv_heads": keys, "causal": causal}
        for dtype, keys, causal in (("bfloat16", 2, True), ("float16", 8, False))
        for row in called("cudnn", 1.0, 512)
    ]
    (table, _) = shapes(rows)
    assert [line.shape for line in table.lines][::2] == [
        "B4 T512 H8 K2 D64, causal, bfloat16",
        "B4 T512 H8 D64, no mask, float16",
    ]
    assert table.lines[0].cells[0].lead is None, "there is no other backend"


def test_a_device_that_is_not_known_is_said_to_be_unknown() -> None:
    (table, _) = shapes(
        called("cudnn", 1.0, 512) + [row | {"device": None} for row in called("cudnn", 1.0, 1024)]
    )
    assert [line.shape.rpartition(", ")[2] for line in table.lines[::2]] == ["a GPU", "unknown device"]


def test_no_end_of_an_interval_rounds_onto_one() -> None:
    rows = in_rounds(called("cudnn", 1.0, 512)) + in_rounds(called("auto", 1.0, 512), slower=1.0002)
    auto, cudnn = shapes(rows)[0].lines[0].cells
    assert cudnn.lead and cudnn.lead.clear
    assert (cudnn.form, f"{cudnn.lead.ratio.low:{cudnn.form}}") == (".4f", "1.0002")
    assert auto.lead and f"{auto.lead.ratio.high:{auto.form}}" == "0.9998"


def test_paper_has_at_most_eight_backends_side_by_side() -> None:
    (table, _) = shapes([row for place in range(12) for row in called(f"b{place:02}", 1.0 + place, 512)])
    first, second = table.parts(8)
    assert first.backends + second.backends == table.backends
    cells = [line.cells for line in table.lines]
    assert [a.cells + b.cells for a, b in zip(first.lines, second.lines, strict=True)] == cells
    template = environment().get_template("part_shapes.html")
    assert template.render(shapes=[table], here="print").count("<table") == 2
    assert "Every shape, graph (backends 9 to 12 of 12): " in template.render(shapes=[table], here="print")
    assert template.render(shapes=[table], here="index").count("<table") == 1


def test_a_study_that_timed_nothing_has_no_table() -> None:
    assert shapes([]) == shapes(called("math", "oom_gpu", 512)) == []


def test_the_name_of_a_shape_can_be_broken_where_the_page_is_narrow() -> None:
    """The first column is never wider than 40 % of the page: what is not broken lies over the next column."""
    page = environment().get_template("part_shapes.html")
    markup = page.render(shapes=shapes(called("cudnn", 1.0, 512)), here="index")
    assert '<th scope="row">B4 T512 H8 D64, causal</th>' in markup


BYTES = ("l2_read_bytes", "l2_write_bytes", "dram_read_bytes", "dram_write_bytes")


def moving(
    name: str, run: str, counts: tuple[int | None, ...], reason: str | None = None
) -> list[dict[str, Any]]:
    """A backend's rows, with bytes of its calls from Python."""
    rows = called(name, 1.0, 512, run=run)
    for row in rows:
        eager = row["mode"] == "eager"
        row |= {"score_bytes": 10**9, "formula_bytes": 4 * 10**9 if eager and name == "flash" else None}
        row |= dict(zip(BYTES, counts if eager else [None] * 4, strict=True))
        row["traffic_reason"] = reason if eager else None
    return rows


def config(**changes: Any) -> dict[str, Any]:
    """The configuration of a run of attention alone."""
    call = {"shape": "B4 T512 H8 D64", "dtype": "float16"} | changes
    return RunConfig(task="attention", call=CallConfig(**call)).model_dump(mode="json")


def test_bytes_have_a_line_for_each_backend_and_direction_of_which_they_were_asked() -> None:
    no_counts: tuple[None, ...] = (None,) * 4
    rows = moving("flash", "r1", (10**9, 10**9, 10**8, 0)) + moving(
        "flash", "r2", (3 * 10**9, 10**9, 10**8, 0)
    )
    rows += moving("cudnn", "r1", no_counts, "no ncu") + moving("auto", "r1", no_counts)
    runs = [planned(name, run_id=name, config=config()) for name in ("r1", "r2")]
    forward, backward, cudnn, _ = traffic(rows, runs)
    shape = "B4 T512 H8 D64, causal"
    assert forward == TrafficLine(shape, "flash", "forward", 1.0, 4.0, 3.0, 0.1, "")
    assert (backward.attention, backward.direction) == ("flash", "backward")
    reason = "no formula is known for this backend; no ncu"
    assert cudnn == TrafficLine(shape, "cudnn", "forward", 1.0, None, None, None, reason)


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("math", {"shape": "B4 T512 H8 K2 D64"}, "no formula covers query heads that share keys"),
        (
            "math",
            {"shape": "B4 T512 H8 K2 D64", "dropout": 0.125},
            "no formula covers dropout, query heads that share keys",
        ),
        ("custom", {"dtype": FP8}, "no formula covers numbers of 8 bits"),
        ("math", {}, "its formula does not cover this direction at this shape on this device"),
        ("efficient", {}, "no formula is known for this backend"),
        ("theirs", {}, "no formula is known for this backend"),
    ],
)
def test_a_call_without_a_formula_says_why(name: str, changes: dict[str, Any], reason: str) -> None:
    rows = moving(name, "r1", (10**9, 10**9, 10**8, 0))
    lines = traffic(rows, [planned("r1", run_id="r1", config=config(**changes))])
    assert {line.direction: line.reason for line in lines} == {"forward": reason, "backward": reason}


def test_every_backend_with_a_formula_is_described_as_having_one() -> None:
    assert {name for name in names() if (description := described(name)) and description.moves} == {
        name for name in names() if load(name).moves is not unknown
    }


def test_the_table_of_bytes_is_left_out_where_nobody_asked_for_it() -> None:
    template = environment().get_template("part_traffic.html")
    assert not template.render(traffic=[]).strip()
    line = TrafficLine("a shape", "flash", "forward", 1.0, None, 2.346, 0.0, "")
    assert '<td class="n">2.35</td>' in template.render(traffic=[line])
