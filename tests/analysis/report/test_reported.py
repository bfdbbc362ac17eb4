"""Numbers of others stand beside ours on a report's first page, and in no comparison."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.audit.audit import audit
from analysis.report.build import build_report
from analysis.report.reported import ReportedLine, lines, marks, no_ratios
from analysis.stats import over_runs
from analysis.store.collect import collect
from analysis.wording import UNKNOWN, number
from model.record.case import Case
from model.record.config import CallConfig, RunConfig
from model.record.kernels import Counted, Traffic
from model.record.reported import QUANTITIES, Reported
from tests.analysis.fabricate import Folder, completed, plan
from tests.analysis.report.study import facts, planned
from tests.analysis.timed import kernels

ROW = {
    **dict.fromkeys(QUANTITIES),
    "hardware": "NVIDIA GH200 120GB",
    "gpus": 1,
    "backend": None,
    "source": "a paper",
    "read_from": "table",
    "note": None,
    "flags": [],
    "unchecked": [],
}
TRAFFIC = Traffic(
    counted=Counted(
        kernels=1,
        dram_read_bytes=3_000_000_000,
        dram_write_bytes=1_030_000_000,
        l2_read_bytes=0,
        l2_write_bytes=0,
    )
)
NUMBERS = {"tokens_per_second": 8192.0, "final_loss": 6.7}
PRINTED = {"tokens_per_second": "8192.0", "final_loss": "6.70"}


def line(runs: list[dict[str, Any]], **changes: Any) -> ReportedLine:
    row = ROW | NUMBERS | {"label": runs[0]["label"], "printed": PRINTED} | changes
    (reported_line,) = lines(facts(runs, reported=[row]))
    return reported_line


def test_theirs_is_as_it_was_printed_and_ours_is_the_median_of_completed_runs() -> None:
    reported_line = line(
        [planned("flash3", 0.4, final_loss=6.75), planned("flash3", 0.4, final_loss=6.75, seed=1)]
    )
    assert [tuple(value) for value in reported_line.values] == [
        ("Tokens/s", "8192.0", "10,240", "1.25"),
        ("Final loss", "6.70", "6.7500", "+0.0500"),
    ]
    assert no_ratios([reported_line]) == []


PERCENTAGES = [
    ("mfu", 42.36, {"mfu": over_runs([53.7])}, "+11.34 points"),
    ("time_saved_percentage", 2.0, {"time_saved": over_runs([-1.5])}, "-3.50 points"),
    ("memory_saved_percentage", 0.0, {"memory_saved": over_runs([31.25])}, "+31.25 points"),
    ("training_tokens_percentage", 22.59, {}, "+27.41 points"),
]


@pytest.mark.parametrize(("name", "theirs", "ours", "difference"), PERCENTAGES)
def test_percentages_are_compared_by_their_difference_in_points(
    name: str, theirs: float, ours: dict[str, Any], difference: str
) -> None:
    """29 % saved is not 14.5 times 2 % saved, and nothing can be divided by a saving of 0."""
    row = ROW | {"label": "flash3", "printed": {name: str(theirs)}, name: theirs}
    study_facts = facts([planned("flash3", training_tokens_percentage=50.0)], reported=[row])
    study = replace(study_facts, groups=[replace(study_facts.groups[0], **ours)])
    assert [value.ratio for reported_line in lines(study) for value in reported_line.values] == [difference]


def test_no_percentage_that_others_report_is_left_out_of_these() -> None:
    assert {name for name, *_ in PERCENTAGES} == {
        name for name in QUANTITIES if name == "mfu" or name.endswith("_percentage")
    }


def test_without_a_run_that_completed_there_is_theirs_alone() -> None:
    reported_line = line([planned("flash3", outcome="unsupported", step_seconds=None, final_loss=None)])
    assert [tuple(value)[1:] for value in reported_line.values] == [
        ("8192.0", UNKNOWN, UNKNOWN),
        ("6.70", UNKNOWN, UNKNOWN),
    ]
    assert no_ratios([reported_line]) == []


def test_runs_that_a_scale_made_other_work_have_no_ratio_and_the_settings_are_named() -> None:
    names = (
        "model.dim",
        "model.layers",
        "device",
        "train.dtype",
        "train.sequence_length",
        "train.batch_size",
    )
    small = {"overridden": {name: {"own": 1, "by": "scale laptop"} for name in names}}
    reported_line = line([planned("auto", **small), planned("auto", seed=1, **small)])
    assert {value.ratio for value in reported_line.values} == {UNKNOWN}
    assert no_ratios([reported_line, reported_line]) == [
        "Without a ratio for auto: the runs here are other work than the numbers are about, by `model.dim`, "
        "`model.layers`, `train.dtype`, `train.sequence_length` and 1 more setting."
    ]


def test_what_is_counted_beside_the_timing_changes_no_work() -> None:
    counted = {"overridden": {"call.traffic": {"own": False, "by": "scale full"}}}
    assert line([planned("auto", 0.4, **counted)]).values[0].ratio == "1.25"


def test_a_shorter_run_has_a_rate_to_compare_and_no_loss() -> None:
    short = {"overridden": {"train.steps": {"own": 1, "by": "`--set`"}}, "final_loss": 7.0}
    reported_line = line([planned("auto", 0.4, **short)])
    assert [value.ratio for value in reported_line.values] == ["1.25", UNKNOWN]
    assert no_ratios([reported_line]) == [
        "Without a ratio for auto: final loss: the runs here differ from the study by `train.steps`."
    ]
    other_data = {"overridden": {"data.path": {"own": "a", "by": "`--set`"}}, "final_loss": 7.0}
    assert [value.ratio for value in line([planned("auto", 0.4, **other_data)]).values] == ["1.25", "+0.3000"]


@pytest.mark.parametrize(
    ("device", "difference"),
    [
        ("cuda", "on a CPU, the numbers are about a GPU"),
        (None, "on a CPU, the numbers are about a GPU"),
        ("cpu", "on a GPU, the numbers are about a CPU"),
    ],
)
def test_a_cpus_rate_is_not_held_against_a_gpus_and_its_loss_is(device: str | None, difference: str) -> None:
    override = {"overridden": {"device": {"own": device, "by": "scale laptop"}}, "final_loss": 7.0}
    reported_line = line([planned("auto", 0.4, **override)])
    assert [value[2:] for value in reported_line.values] == [("10,240", UNKNOWN), ("7.0000", "+0.3000")]
    assert {*reported_line.marks} == {"final_loss"}
    reason = f"what depends on the device: the runs here are {difference}"
    assert no_ratios([reported_line]) == [f"Without a ratio for auto: {reason}."]


def test_a_run_that_is_shorter_and_on_another_device_has_no_ratio_for_both_reasons() -> None:
    names = ("device", "train.steps")
    overrides = {
        "overridden": {name: {"own": None, "by": "scale laptop"} for name in names},
        "final_loss": 7.0,
    }
    reported_line = line([planned("auto", 0.4, **overrides)])
    assert {value.ratio for value in reported_line.values} == {UNKNOWN}
    assert reported_line.no_ratio == (
        "final loss: the runs here differ from the study by `train.steps`; "
        "what depends on the device: the runs here are on a CPU, the numbers are about a GPU"
    )


def test_a_note_by_hand_and_the_rules_that_numbers_break_are_shown_with_them() -> None:
    reported_line = line([planned("auto")], flags=["it is above the peak"], note="an L4 has 24 GB", gpus=4)
    assert reported_line.flags == ("Flagged: it is above the peak", "Note of the study: an L4 has 24 GB")
    assert reported_line.hardware == "4 x NVIDIA GH200 120GB"


def test_what_they_could_not_be_held_against_stands_below() -> None:
    reported_line = line(
        [planned("auto")], unchecked=["not held to a peak: none is known of 'H100' in bfloat16"]
    )
    assert reported_line.flags == ("Not held to a peak: none is known of 'H100' in bfloat16",)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two groups, one of which others have measured too."""
    root = tmp_path_factory.mktemp("runs")
    entry = Reported(
        numbers={
            "tokens_per_second": "8127.71",
            "mfu": "142.36",
            "training_seconds": "512.5",
            "final_loss": "6.70",
        },
        hardware="one <GPU>",
        source="a paper & its table",
        read_from="table",
        note="no such card",
    )
    for seed in range(3):
        completed(root, f"a{seed}", attention="auto", seed=seed, reported=[entry])
        completed(root, f"b{seed}", attention="flash", seed=seed)
    collect(root)
    return build_report(root, "backends", tmp_path_factory.mktemp("out") / "report").parent


def test_the_first_page_has_the_table_and_no_comparison_speaks_of_it(report: Path) -> None:
    page = (report / "index.html").read_text()
    section = page.partition('<section aria-labelledby="reported"')[2].partition("</section>")[0]
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", section))
    for part in ("Reported by others", "auto Tokens/s 8127.71", "MFU, % 142.36", "one &lt;GPU&gt;"):
        assert part in text.replace("\N{NO-BREAK SPACE}", " ")
    assert "a paper &amp; its table read from a table" in text
    assert "rule mfu &lt;= 100" in text
    assert "Not held to a peak: none is known of" in text
    assert "Note of the study: no such card" in text
    assert "flash" not in text
    other_pages = [report / f"{name}.html" for name in ("comparison", "runs", "methods")]
    assert not any("8127.71" in path.read_text() for path in other_pages)


def hollow(page: Path) -> dict[str, list[tuple[str, float, str]]]:
    """Label, value and text of the hollow marks of each figure of a page, by the figure's description."""
    marks = {}
    for text in re.findall(r'<script type="application/json">(.*?)</script>', page.read_text(), re.DOTALL):
        spec = json.loads(text)
        for layer in spec["layer"]:
            if layer["mark"].get("shape") == "diamond" and layer["mark"].get("filled") is False:
                rows = spec["datasets"][layer["data"]["name"]]
                marks[spec["description"]] = [(row["label"], row["value"], row["text"]) for row in rows]
    return marks


@pytest.mark.parametrize(
    ("page", "value", "text"),
    [("tokens", 8127.71, "8127.71"), ("mfu", 142.36, "142.36"), ("loss", 6.7, "6.70")],
)
def test_a_figure_has_theirs_as_a_hollow_mark_in_the_row_of_its_group(
    report: Path, page: str, value: float, text: str
) -> None:
    ((description, hollow_marks),) = hollow(report / f"{page}.html").items()
    assert hollow_marks == [("auto", value, text)]
    assert description.endswith(f"Reported by others: auto {text}.")
    assert "Hollow diamonds: reported by others, in no comparison." in ((report / f"{page}.html").read_text())


def test_the_time_of_their_steps_stands_in_the_unit_of_the_bars(report: Path) -> None:
    ((_, hollow_marks),) = hollow(report / "time.html").items()
    assert hollow_marks == [("auto", pytest.approx(512.5), "512.5")]
    assert "seconds per run" in (report / "time.html").read_text()


def test_runs_that_a_scale_made_other_work_have_no_mark_in_figures() -> None:
    row = ROW | NUMBERS | {"label": "auto", "printed": PRINTED}
    comparable_run = planned("auto", 0.4, final_loss=6.75)
    ((run, marks_by_quantity),) = marks(facts([comparable_run], reported=[row])).items()
    assert run == (comparable_run["run_id"], None)
    assert {
        name: [mark.value for mark in quantity_marks] for name, quantity_marks in marks_by_quantity.items()
    } == {
        "tokens_per_second": [8192.0],
        "final_loss": [6.7],
    }
    scaled_run = planned("auto", 0.4, overridden={"model.dim": {"own": 1, "by": "scale laptop"}})
    assert not any(marks(facts([scaled_run], reported=[row])).values())


def test_of_attention_alone_a_backend_has_its_line_and_its_marks_at_the_shape(tmp_path: Path) -> None:
    """math takes 8 ms forward at 1,024 tokens in CUDA graphs, and 2.5 times that backward."""
    entry = Reported(
        numbers={"both_milliseconds": "16.0", "call_memory_bytes": "4.5e9", "both_dram_bytes": "40.3e9"},
        hardware="Tesla T4",
        source="a lab",
        read_from="plot",
        backend="math",
    )
    for place, length in enumerate((512, 1024, 2048)):
        case = Case("cuda", "float16", 4, length, 8, 8, 64, True)
        shape = f"B4 T{length} H8 D64"
        config = RunConfig(task="attention", call=CallConfig(shape=shape, dtype="float16", steps=7))
        no_data = dict.fromkeys(("data_file", "tokenizer", "data_fingerprint"))
        fields = {"group": shape, "factors": {"call.shape": shape}, "config": config, **no_data}
        reported = [entry] if length == 1024 else []
        folder = Folder(tmp_path, plan(f"r{place}", "kernels", **fields, reported=reported))
        folder.start(flop_per_token=None, parameter_count=None)
        kernels(folder, case, traffic=TRAFFIC, flash=float(place + 1), math=4.0 * (place + 1))
        folder.end(steps=7, final_loss=None)
    collect(tmp_path)
    out = build_report(tmp_path, "kernels", tmp_path / "report").parent
    section = (out / "index.html").read_text().partition('aria-labelledby="reported"')[2]
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", section)).replace("\N{NO-BREAK SPACE}", " ")
    assert "math, shape=B4 T1024 H8 D64 Both, ms 16.0 28.00 1.75" in text
    assert "Memory of a call, GB 4.5 0.008389 0.00186" in text
    assert "DRAM read and written, GB 40.3 8.060 0.200" in text, "4.03 GB in each of the two passes"
    mebibytes = pytest.approx(4.5e9 / 2**20)
    assert [*hollow(out / "kernels.html").values()] == [
        [("math", 16.0, "16.0")],
        [("math", mebibytes, "4,291.5")],
    ]
    assert audit(out).findings == []


@pytest.mark.parametrize(
    ("printed", "title", "theirs", "ours"),
    [
        ("32.77e9", "GB", "32.77", "34.36"),
        ("0.5e9", "GB", "0.5", "34.36"),
        ("65.30E+9", "GB", "65.30", "34.36"),
        ("512e6", "MB", "512", "34,360"),
        ("1.5e12", "TB", "1.5", "0.03436"),
        ("34359738368", "GB", "34.359738368", "34.36"),
        ("80000000000", "GB", "80", "34.36"),
        ("3.2e10", "GB", "32", "34.36"),
        ("900", "kB", "0.9", "34,359,738"),
    ],
)
def test_bytes_stand_in_the_decimal_unit_that_was_printed_and_ours_in_the_same(
    printed: str, title: str, theirs: str, ours: str
) -> None:
    """32.77 GB are not 30.5 GiB to who compares by eye: ours are 32 GiB, which are 34.36 GB."""
    row = ROW | {
        "label": "auto",
        "peak_memory_bytes": float(printed),
        "printed": {"peak_memory_bytes": printed},
    }
    study_facts = facts([planned("auto", 0.4)], reported=[row])
    (reported_line,) = lines(
        replace(study_facts, groups=[replace(study_facts.groups[0], peak_memory_gib=over_runs([32.0]))])
    )
    (value,) = reported_line.values
    assert (value.title, value.theirs, value.ours) == (f"Memory, {title}", theirs, ours)
    assert value.ratio == number(32 * 2**30 / float(printed), "#,.3g")
    (mark,) = reported_line.marks.values()
    assert mark.value == pytest.approx(float(printed) / 2**30), "in the unit of the figure"


def test_the_table_is_there_as_csv_and_the_report_stands_an_audit(report: Path) -> None:
    with (report / "data" / "reported.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["label"], row["tokens_per_second"], row["hardware"]) == ("auto", "8127.71", "one <GPU>")
    assert audit(report).findings == []


def test_a_changed_number_of_others_is_found_by_an_audit(report: Path) -> None:
    page = report / "index.html"
    before = page.read_text()
    try:
        page.write_text(before.replace("8127.71", "8827.71"))
        assert any("8827.71" in str(finding) for finding in audit(report).findings)
    finally:
        page.write_text(before)
