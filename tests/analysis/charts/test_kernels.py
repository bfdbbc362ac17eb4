"""Figures of attention alone: what each compares, who has no time there, and pages without a word of training."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from analysis import charts
from analysis.audit.audit import audit
from analysis.charts import Figure, _kernels
from analysis.charts._kernels import SEQUENCE, points, series_along
from analysis.query.ask import answer
from analysis.query.statements import KERNEL_TIMES
from analysis.report import facts, tasks
from analysis.report.answer import calls
from analysis.report.build import build_report
from analysis.report.tasks.attention import shapes
from analysis.store import database as store
from analysis.store.collect import collect
from model.record import files
from model.record.case import Case
from model.record.config import CallConfig, RunConfig
from model.record.folder import KERNELS
from tests.analysis.fabricate import Folder, certificate, plan
from tests.analysis.timed import kernels

TILES = ("kernel_tile", "kernel_tile_keys", "kernel_tile_queries")
CHARTS = [
    name for name in charts.names() if name.startswith("kernel_") and name not in (*TILES, "kernel_fp8")
]
# The FlashAttention-3 sweep at head dim 128, the batch, heads, embedding dim, and head dims.
SHAPES = [
    *((16384 // length, length, 16, 128) for length in (512, 1024, 2048, 4096, 8192, 16384)),
    *((batch, length, 16, 128) for batch in (1, 4) for length in (512, 2048, 8192)),
    (8, 2048, 32, 64), (8, 2048, 8, 256), (8, 2048, 16, 64), (8, 2048, 16, 256), (8, 2048, 8, 128), (8, 2048, 32, 128),
]  # fmt: skip


def measured(root: Path, device: str = "cuda", dtype: str = "bfloat16") -> None:
    """flash is four times as fast as math, which has no memory from 8,192 tokens on; flash3 is wrong."""
    number = 0
    for batch, length, heads, head_dim in SHAPES:
        for causal in (True, False):
            number += 1
            case = Case(device, dtype, batch, length, heads, heads, head_dim, causal)
            timed(root, f"r{number:02}", case)
    collect(root)


def planned(root: Path, run_id: str, case: Case) -> Folder:
    shape = f"B{case.batch} T{case.sequence_length} H{case.heads} D{case.head_dim}"
    tile = "{}x{}".format(*case.tile) if case.tile else ""
    call = CallConfig(
        shape=shape, causal=case.causal, dtype=case.dtype, dropout=case.dropout, tile=tile, steps=7
    )
    config = RunConfig(task="attention", device=case.device, call=call)
    fields = {
        "group": f"g-{shape}-{case.causal}{tile}{case.dropout}",
        "factors": {"call.shape": shape, "call.causal": case.causal, "seed": 0} | ({"call.tile": tile} if tile else {}),
        "config": config, "data_file": None, "tokenizer": None, "data_fingerprint": None,
    }  # fmt: skip
    return Folder(root, plan(run_id, study="kernels", **fields))


def timed(root: Path, run_id: str, case: Case, **conditions: str) -> None:
    folder = planned(root, run_id, case)
    folder.start(flop_per_token=None, parameter_count=None, **conditions)
    fast = (
        case.batch * case.heads * case.sequence_length**2 * case.head_dim / (2e11 if case.causal else 1.1e11)
    )
    slow = "oom_gpu" if case.sequence_length >= 8192 else 4 * fast
    kernels(folder, case, flash=fast, math=slow, cudnn="unsupported", flash3="wrong")
    folder.end(steps=7, final_loss=None)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("kernels")
    certificate(root, "flash3", "wrong")
    measured(root)
    return root


def draw(root: Path, name: str) -> Figure | None:
    chart = charts.load(name)
    with store.open_for_reading(root) as connection:
        rows = answer(connection, facts.literal(chart.sql, "kernels")).parsed()
    assert chart.applies(rows)
    return chart.build(rows, {})


def cells(figure: Figure) -> dict[tuple[str, ...], tuple[str, ...]]:
    assert figure.table
    return {row[:-4]: row[-4:] for row in figure.table.rows}


@pytest.mark.parametrize("name", CHARTS)
def test_every_figure_is_drawn_and_says_what_it_shows(root: Path, name: str) -> None:
    figure = draw(root, name)
    assert figure and figure.caption and figure.description and figure.used and figure.table
    assert "bfloat16" in figure.caption and "NaN" not in json.dumps(figure.spec)
    assert "MFU" not in figure.caption or "Not comparable with MFU" in figure.caption


def test_no_figure_of_attention_alone_has_an_axis_of_mfu_and_none_of_training_one_of_kernels(
    root: Path,
) -> None:
    for name in CHARTS:
        figure = draw(root, name)
        assert figure
        titles = re.findall(r'"title": "([^"]*)"', json.dumps(figure.spec))
        assert titles and not any("MFU" in title or "model TFLOP/s" in title for title in titles)


def test_time_is_of_the_sweep_of_the_longest_reach_and_math_ends_in_a_cross(root: Path) -> None:
    figure = draw(root, "kernel_time")
    assert figure and figure.title == "Time over sequence length"
    assert "batch x sequence length 16,384, heads 16, head dim 128, causal, bfloat16" in figure.caption
    assert (
        "Replayed from CUDA graphs" in figure.caption
        and "Crosses below the axis: no time there" in figure.caption
    )
    fixed = "batch x sequence length 16,384, heads 16, head dim 128, causal, bfloat16, NVIDIA H200"
    by_place = cells(figure)
    assert (
        by_place[f"math; {fixed}", "8,192"][-1] == "OOM"
        and by_place[f"math; {fixed}", "4,096"][-1] == "\N{EN DASH}"
    )
    assert by_place[f"flash3; {fixed}", "4,096"][-1] == "wrong"
    assert '"ended": "OOM"' in json.dumps(figure.spec)
    assert figure.note == "No value at all: cudnn (unsupported). No value at all: flash3 (wrong)."


def test_a_forward_and_its_backward_together_are_the_sum_of_both(root: Path) -> None:
    with store.open_for_reading(root) as connection:
        rows = answer(connection, facts.literal(KERNEL_TIMES, "kernels")).parsed()
    for point in points(rows):
        if point.time("both"):
            total, parts = (
                point.time("both"),
                [point.time(direction) for direction in ("forward", "backward")],
            )
            assert total and total.median == pytest.approx(sum(part.median for part in parts if part))
            assert total.low is not None and total.low < total.median < total.high and total.n == 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [("kernel_speedup", 4.0), ("kernel_passes", 2.5), ("kernel_host", 1.02), ("kernel_mask", 0.55)],
)
def test_ratios_are_those_that_were_planted(root: Path, name: str, expected: float) -> None:
    figure = draw(root, name)
    assert figure
    assert figure.table
    rows = [row for row in figure.table.rows if row[0].startswith("flash;") and "causal" in row[0]]
    assert {row[-4] for row in rows if row[-2] != "0"} == {f"{expected:.2f}"}


def test_the_axes_keep_everything_else_the_same(root: Path) -> None:
    axes = {
        "kernel_batch": "sequence length 2,048, heads 16, head dim 128",
        "kernel_heads": "batch 8, sequence length 2,048, heads x head dim 2,048",
        "kernel_width": "batch 8, sequence length 2,048, head dim 128",
        "kernel_width_rate": "batch 8, sequence length 2,048, head dim 128",
        "kernel_head_dim": "batch 8, sequence length 2,048, heads 16",
    }
    for name, fixed in axes.items():
        figure = draw(root, name)
        assert figure and f"{fixed}, causal, bfloat16" in figure.caption, name


def test_the_summary_is_in_percent_of_the_product_that_was_timed_in_between(root: Path) -> None:
    figure = draw(root, "kernel_efficiency")
    assert figure and figure.table
    by_name = {row[0]: row[1:] for row in figure.table.rows}
    assert set(by_name) == {"flash", "math"}
    rate, share, *_ = by_name["flash"]
    assert float(share) == pytest.approx(100 * float(rate) / 700, rel=0.01)
    assert "flash3 (wrong)" in figure.caption


def test_a_share_far_above_the_ceiling_is_not_shown(tmp_path: Path) -> None:
    """The product that gives the ceiling was disturbed."""
    case = Case("cuda", "bfloat16", 1, 2048, 16, 16, 128)
    folder = Folder(tmp_path, plan("r1", study="kernels"))
    folder.start()
    kernels(folder, case, flash=0.01, math=10.0)
    folder.end()
    collect(tmp_path)
    figure = draw(tmp_path, "kernel_efficiency")
    assert figure and figure.table
    assert [row[0] for row in figure.table.rows] == ["math"]
    assert "Not shown: flash forward (" in figure.caption
    assert "flash" not in (figure.finding or "")


def test_the_map_says_what_became_of_shapes_that_were_not_timed(tmp_path: Path) -> None:
    """A run that was cancelled, and one that never ran, have no times at all."""
    for batch in (1, 2):
        for length in (512, 1024, 2048):
            case = Case("cuda", "bfloat16", batch, length, 16, 16, 128)
            if (batch, length) == (2, 2048):
                planned(tmp_path, "r1", case)
            elif (batch, length) == (2, 1024):
                folder = planned(tmp_path, "r2", case)
                folder.start(flop_per_token=None, parameter_count=None)
                folder.end("cancelled", reason="by hand", steps=0, final_loss=None)
            else:
                timed(tmp_path, f"r{batch}{length}", case)
    collect(tmp_path)
    figure = draw(tmp_path, "kernel_map")
    assert figure and figure.table
    endings = [cell for row in figure.table.rows for cell in row if "cancelled" in cell or "not run" in cell]
    assert sorted(endings) == ["cancelled"] * 2 + ["not run"] * 2  # of flash and math
    assert figure.caption.count("A cell with a dashed edge has no value, and says how its runs ended.") == 1


def test_the_table_of_shapes_has_those_whose_runs_ended_without_times(tmp_path: Path) -> None:
    """Among them one that completed and has no record of its times. Each is there once, on its own device."""
    cases = [Case("cuda", "bfloat16", 1, length, 16, 16, 128) for length in (512, 1024, 2048, 4096)]
    timed(tmp_path, "r1", cases[0], device_name="a GPU")
    timed(tmp_path, "r2", cases[1], device_name="another GPU")
    for run_id, case, outcome in (("r3", cases[2], "oom_host"), ("r4", cases[3], "completed")):
        folder = planned(tmp_path, run_id, case)
        folder.start(flop_per_token=None, parameter_count=None, device_name="a GPU")
        folder.end(outcome, steps=0, final_loss=None)
    collect(tmp_path)
    with store.open_for_reading(tmp_path) as connection:
        table, _ = shapes(facts.gather(connection, "kernels").kernels_and_gone)
    endings = [(line.shape, {cell.gone for cell in line.cells}) for line in table.lines[4::2]]
    assert endings == [
        ("B1 T2048 H16 D128, causal, a GPU", {"OOM"}),
        ("B1 T4096 H16 D128, causal, a GPU", {"no times"}),
    ]


def test_tiles_as_an_axis_have_figures_over_their_keys_and_queries_and_rows_of_their_own(
    tmp_path: Path,
) -> None:
    """A tile that has no room on the GPU is a cross, and a run that never was says so of its tile."""
    case = Case("cuda", "bfloat16", 4, 4096, 32, 32, 64)
    for place, tile in enumerate(((64, 16), (64, 32), (64, 64), (32, 64), (16, 64), (64, 256))):
        folder = planned(tmp_path, f"r{place}", replace(case, tile=tile))
        folder.start(flop_per_token=None, parameter_count=None)
        milliseconds = "unsupported" if tile == (64, 256) else 1.0 + place
        kernels(folder, replace(case, tile=tile), flash1=milliseconds, portable=2.0)
        folder.end(steps=7, final_loss=None)
    planned(tmp_path, "r9", replace(case, tile=(64, 512)))
    timed(tmp_path, "r8", case)  # in tiles of the backends' own
    collect(tmp_path)

    keys, queries = draw(tmp_path, "kernel_tile_keys"), draw(tmp_path, "kernel_tile_queries")
    assert (
        keys and keys.title == "Time over keys of a tile" and "queries of a tile 64, causal" in keys.caption
    )
    fixed = "batch 4, sequence length 4,096, heads 32, head dim 64, queries of a tile 64, causal, bfloat16, NVIDIA H200"
    values_by_cell = cells(keys)
    times = [values_by_cell[f"flash1; {fixed}", text][0] for text in ("16", "32", "64")]
    assert times == ["3.50", "7.00", "10.50"]
    assert values_by_cell[f"flash1; {fixed}", "256"][-1] == "unsupported"
    assert queries and "keys of a tile 64, causal" in queries.caption
    assert {place[1] for place in cells(queries)} == {"16", "32", "64"}
    figure = draw(tmp_path, "kernel_tile")
    assert figure and figure.finding
    assert (
        figure.finding
        == "Shortest time over tiles: 3.50 ms (flash1) in 64 x 16, 7.00 ms (portable) in 16 x 64"
    )

    with store.open_for_reading(tmp_path) as connection:
        study_facts = facts.gather(connection, "kernels")
    graph, eager = shapes(study_facts.kernels_and_gone)
    assert [line.shape for line in graph.lines][::2] == [
        "B4 T4096 H32 D64, causal",
        *(f"B4 T4096 H32 D64, causal, tiles of {tile}" for tile in (
            "16 x 64", "32 x 64", "64 x 16", "64 x 32", "64 x 64", "64 x 256", "64 x 512")),
    ]  # fmt: skip
    assert {cell.gone for cell in graph.lines[-1].cells} == {"not run"}
    # The host's time is that of calls from Python: a graph leaves it out.
    assert eager.has_host and not graph.has_host


def test_tiles_of_two_sizes_along_each_axis_have_one_figure_which_names_those_without_a_time(
    tmp_path: Path,
) -> None:
    """Over the keys and the queries of a tile there is no line of two values; the tiles themselves are rows."""
    case = Case("cuda", "bfloat16", 4, 4096, 32, 32, 64)
    slower = {(64, 64): 1.25, (64, 128): 1.0, (128, 64): 1.5, (128, 128): 2.0}
    for index, (tile, factor) in enumerate(slower.items()):
        for length in (4096, 8192):
            tile_case = replace(case, tile=tile, sequence_length=length)
            folder = planned(tmp_path, f"r{index}{length}", tile_case)
            folder.start(flop_per_token=None, parameter_count=None)
            endings = {"flash1": 2 * factor, "portable": factor if tile != (64, 128) else "unsupported"}
            endings |= {"flash1": "oom_gpu", "portable": "unsupported"} if tile == (128, 128) else {}
            kernels(folder, tile_case, math="unsupported", **endings)
            folder.end(steps=7, final_loss=None)
    planned(tmp_path, "r9", replace(case, sequence_length=8192, tile=(32, 256)))
    collect(tmp_path)

    with store.open_for_reading(tmp_path) as connection:
        rows = answer(connection, facts.literal(charts.load("kernel_tile").sql, "kernels")).parsed()
    assert [name for name in TILES if charts.load(name).applies(rows)] == ["kernel_tile"]
    figure = draw(tmp_path, "kernel_tile")
    assert figure
    assert (
        figure.finding
        == "Shortest time over tiles: 4.38 ms (portable) in 64 x 64, 7.00 ms (flash1) in 64 x 128"
    )
    fixed = "batch 4, sequence length 8,192, heads 32, head dim 64, causal, bfloat16, NVIDIA H200"
    caption_end = (
        "Without a time: flash1, math and portable in 32 x 256 (not run); math in 64 x 64 and 128 x 64 (unsupported); "
        "math and portable in 64 x 128 and 128 x 128 (unsupported); flash1 in 128 x 128 (OOM). "
        f"OOM: out of memory. Replayed from CUDA graphs: {fixed}. The table has 1 more series."
    )
    assert figure.caption.endswith(caption_end), figure.caption
    assert figure.table
    times = {row[0]: row[1:] for row in figure.table.rows}
    assert times[f"128 x 64, flash1; {fixed}"] == ("10.50", "10.18 \N{EN DASH} 10.81", "1", "\N{EN DASH}")
    assert times[f"64 x 128, portable; {fixed}"][-1] == "unsupported"
    assert f"64 x 64, flash1; {fixed.replace('8,192', '4,096')}" in times
    assert figure.used == {f"r{index}{length}" for index in range(3) for length in (4096, 8192)}


def test_calls_with_dropout_are_another_case_and_no_repeats_of_those_without(tmp_path: Path) -> None:
    case = Case("cuda", "bfloat16", 4, 4096, 32, 32, 64)
    for place, (length, dropout) in enumerate(product((1024, 2048, 4096), (0.0, 0.125))):
        dropout_case = replace(case, sequence_length=length, dropout=dropout)
        folder = planned(tmp_path, f"r{place}", dropout_case)
        folder.start(flop_per_token=None, parameter_count=None)
        kernels(folder, dropout_case, flash=1.0 + 4 * dropout, math=3.0)
        folder.end(steps=7, final_loss=None)
    planned(tmp_path, "r9", replace(case, sequence_length=8192, dropout=0.125))
    collect(tmp_path)

    figure = draw(tmp_path, "kernel_time")
    assert figure and "dropout" not in figure.caption and "The table has 1 more series." in figure.caption
    fixed = "heads 32, head dim 64, causal, bfloat16, NVIDIA H200"
    times = {place: values[0] for place, values in cells(figure).items()}
    assert times[f"flash; batch 4, {fixed}", "4,096"] == "3.50"
    assert times[f"flash; batch 4, {fixed.replace('causal', 'dropout 0.125, causal')}", "4,096"] == "5.25"

    with store.open_for_reading(tmp_path) as connection:
        study_facts = facts.gather(connection, "kernels")
    lines = shapes(study_facts.kernels_and_gone)[0].lines
    assert [line.shape for line in lines][-6::2] == [
        "B4 T4096 H32 D64, causal",
        "B4 T4096 H32 D64, causal, dropout 0.125",
        "B4 T8192 H32 D64, causal, dropout 0.125",
    ]
    assert {cell.gone for cell in lines[-1].cells} == {"not run"}
    sentence = [sentence.text for sentence in calls.sentences(study_facts)][-1]
    assert sentence.startswith("Over 6 cases, the fastest is `flash` at 6 ")


def test_a_study_called_eagerly_alone_says_so_and_has_no_figure_of_the_hosts_share(tmp_path: Path) -> None:
    measured(tmp_path, "cpu", "float32")
    figure = draw(tmp_path, "kernel_time")
    assert figure and "Called from Python, eagerly" in figure.caption
    with store.open_for_reading(tmp_path) as connection:
        rows = answer(connection, facts.literal(KERNEL_TIMES, "kernels")).parsed()
    assert not charts.load("kernel_host").applies(rows)


def test_repeats_of_a_shape_have_an_interval_over_runs(tmp_path: Path) -> None:
    for repeat, milliseconds in enumerate((1.0, 1.1, 1.2)):
        for length in (512, 1024, 2048):
            case = Case("cuda", "bfloat16", 1, length, 16, 16, 128)
            folder = Folder(tmp_path, plan(f"r{repeat}{length}", study="kernels", repeat=repeat + 1))
            folder.start()
            kernels(folder, case, flash=milliseconds)
            folder.end()
    collect(tmp_path)
    with store.open_for_reading(tmp_path) as connection:
        rows = answer(connection, facts.literal(KERNEL_TIMES, "kernels")).parsed()
    (series, *_) = series_along(points(rows), SEQUENCE)
    for point in series.points:
        time = point.time("forward")
        assert time and (time.n, time.median) == (3, pytest.approx(1.1)) and "3 runs" in time.method


def test_the_report_says_no_word_of_training_and_its_audit_passes(root: Path, tmp_path: Path) -> None:
    build_report(root, "kernels", tmp_path / "report", logs=False)
    pages = {path.name: path.read_text() for path in (tmp_path / "report").glob("*.html")}
    assert {"index.html", "kernels.html", "certificates.html", "methods.html"} <= set(pages)
    assert not {"comparison.html", "memory.html", "time.html", "loss.html"} & set(pages)
    assert not [*(tmp_path / "report").rglob("*training*")]
    for name in ("index.html", "kernels.html", "runs.html", "run-r01.html"):
        text = re.sub(r"<[^>]*>", " ", pages[name])
        for word in (
            "llama",
            "learning rate",
            "optimizer",
            "Final loss",
            "Tokens/s",
            "trained",
            "step records",
        ):
            assert word not in text, (name, word)
        assert "MFU" not in text.replace("Not comparable with MFU", "")
    page = " ".join(re.sub(r"<[^>]*>", " ", pages["run-r01.html"]).split())
    called, passes = "0.02 0.0859", ("0.08762 0.08499 to 0.09025 392.2", "0.219 0.2125 to 0.2256 392.2")
    assert f"flash {passes[0]} {called} {passes[1]} {called}" in page  # also the host's, and kernels alone
    for name in ("index.html", "print.html"):
        assert '<span class="quiet">host 0.0200</span>' in pages[name], name
    assert re.search(r"Replayed from CUDA graphs: .* flash3 wrong \S \S \S wrong \S \S \S math 0.3436", page)
    for name in ("index.html", "print.html"):
        table = " ".join(re.sub(r"<[^>]*>", " ", pages[name]).split()).partition("Every shape, graph")[2]
        assert re.search(
            r"D128, causal forward 0\.00268 400 4\.000 4\.000 . 4\.000 0\.0107 100 0\.250", table
        )
    text = re.sub(r"<[^>]*>", "", pages["index.html"])
    assert "Attention alone was timed on NVIDIA H200 at" in text
    assert "forward and backward, in 7 rounds of all" in text
    assert (
        "math ran out of memory in" in text and "flash3 was not timed in 36 runs: it ended as wrong" in text
    )
    assert "The GPU's clock was 1,740 to 1,755 MHz after calls." in html.unescape(text)
    assert audit(tmp_path / "report", root).findings == []


def test_a_study_of_training_has_no_page_of_attention_alone() -> None:
    for name in CHARTS:
        assert charts.load(name).tasks == ("attention",)
    assert _kernels.points([]) == []


def test_why_a_backend_is_unsupported_is_that_of_its_shape_and_those_of_others_are_told_too(
    tmp_path: Path,
) -> None:
    """Without dropout all are timed, of which the table is; flex has none, and flash4 takes no such head dim."""
    case = Case("cuda", "bfloat16", 4, 4096, 32, 32, 64)
    endings: dict[str, float | str] = {"flex": 2.0, "math": 3.0, "flash4": "unsupported"}
    reasons = {
        0.0: {"flash4": "takes no head dim of 64"},
        0.125: {"flash4": "is not built", "flex": "has no dropout"},
    }
    for index, dropout in enumerate((0.0, 0.125, 0.25)):
        dropout_case = replace(case, dropout=dropout)
        folder = planned(tmp_path, f"r{index}", dropout_case)
        folder.start(flop_per_token=None, parameter_count=None)
        record = kernels(folder, dropout_case, **endings | ({"flex": "unsupported"} if dropout else {}))
        backend_reasons = reasons[min(dropout, 0.125)]
        times = [
            row.model_copy(update={"reason": backend_reasons[row.attention]})
            if row.outcome == "unsupported"
            else row
            for row in record.times
        ]
        files.write(folder.path / "attempt-1" / KERNELS, record.model_copy(update={"times": times}))
        folder.end(steps=7, final_loss=None)
    collect(tmp_path)
    page = " ".join(build_report(tmp_path, "kernels", tmp_path / "report").read_text().split())
    with store.open_for_reading(tmp_path) as connection:
        study_facts = facts.gather(connection, "kernels")
    lines = tasks.load("attention").lines(study_facts, ())
    outcomes = {
        name: (line.outcome.text, line.outcome.small, line.outcome.note) for name, line in lines.items()
    }
    assert outcomes == {
        "flex": ("completed", "unsupported in 2 other runs", "has no dropout"),
        "math": ("completed", "", ""),
        "flash4": ("unsupported", "unsupported in 2 other runs", "takes no head dim of 64; is not built"),
    }
    assert page.count("has no dropout") == 2, "below the overview, and where backends that were not timed are"


def test_a_backend_that_ended_otherwise_at_other_shapes_has_not_just_completed(tmp_path: Path) -> None:
    """`math`, out of memory at another shape, and `flash3`, wrong there, were plainly `completed`."""
    case = Case("cuda", "bfloat16", 4, 4096, 32, 32, 64)
    complete: dict[str, float | str] = {"flex": 2.0, "math": 3.0, "flash3": 1.0}
    for index, endings in enumerate(
        (complete, complete | {"math": "oom_gpu"}, {"math": "oom_gpu", "flash3": "wrong"})
    ):
        smaller = replace(case, batch=4 - index)
        folder = planned(tmp_path, f"r{index}", smaller)
        folder.start(flop_per_token=None, parameter_count=None)
        files.write(folder.path / "attempt-1" / KERNELS, kernels(folder, smaller, **endings))
        folder.end(steps=7, final_loss=None)
    collect(tmp_path)
    with store.open_for_reading(tmp_path) as connection:
        study_facts = facts.gather(connection, "kernels")
    lines = tasks.load("attention").lines(study_facts, ())
    assert {name: tuple(line.outcome[:2]) for name, line in lines.items()} == {
        "flex": ("completed", ""),
        "math": ("completed", "OOM in 2 other runs"),
        "flash3": ("completed", "wrong in 1 other run"),
    }
