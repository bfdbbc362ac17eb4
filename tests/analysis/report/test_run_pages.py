"""A page per run: what it was, what became of it, what it printed; and no more pages than stated."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis import charts
from analysis.audit.audit import audit
from analysis.report import output, runs
from analysis.report.build import build_report
from analysis.store.collect import collect
from analysis.wording import UNKNOWN
from model.record.config import ParallelConfig, TrainConfig
from model.record.records import RankRecord
from tests.analysis.fabricate import Folder, completed, plan
from tests.analysis.report.test_build import EVIL, Page, words

BIDI = "\u202edetrever\u200f \N{GRINNING FACE}"


@pytest.fixture
def build(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Collect and report with one figure, whose drawing would take most of the time."""
    monkeypatch.setattr(charts, "names", lambda: ("memory", "certificates", "ratios"))

    def report_folder(**options: bool) -> Path:
        collect(root)
        return build_report(root, "backends", tmp_path / "out", **options).parent

    return report_folder


def test_every_run_has_a_page_with_its_provenance(demo_report: Path) -> None:
    with (demo_report / "data" / "runs.csv").open(encoding="utf-8") as file:
        run_ids = {row["run_id"] for row in csv.DictReader(file)}
    pages = {path.stem.removeprefix("run-") for path in demo_report.glob("run-*.html")}
    assert pages == run_ids
    links = Page(demo_report / "runs.html").all("href")
    assert {f"run-{run}.html" for run in run_ids} <= set(links)
    text = words(demo_report / "run-00abcdef0123.html")
    for expected in (
        "a1b2c3d4e5f60718293a4b5c6d7e8f9012345678",
        "experiments/backends.yaml:4:3",
        "peak 989.4 TFLOP/s (a datasheet)",
        "1,000 of 1,000;",
        "backends/00abcdef0123/attempt-1/manifest.json",
    ):
        assert expected in text, expected


def test_a_page_sets_apart_what_differs_from_most_groups(build: Callable[..., Path], root: Path) -> None:
    for run_id, backend in (("r1", "auto"), ("r2", "flash"), ("r3", "cudnn")):
        completed(root, run_id, attention=backend, steps=60 if backend == "cudnn" else 100)
    out = build()
    assert "train.steps 60 100" in words(out / "run-r3.html")
    assert "train.steps" not in words(out / "run-r2.html").partition("All settings")[0]


def test_a_page_tells_of_every_attempt_and_of_clocks(build: Callable[..., Path], root: Path) -> None:
    folder = Folder(root, plan("r1"))
    folder.event("claimed", executor="slurm", job_id="77_1")
    clocks = {"power_limit_watts": 700, "sm_mhz": 1980, "memory_mhz": 2619}
    folder.start(clocks=clocks | {"power_capped_seconds": 1.0, "slowed_seconds": 0.0})
    folder.end("timeout", reason="the time limit was reached", steps=40)
    folder.start(attempt=2, resumed_attempt=1, resumed_step=40, gpu_uuid="7e634da3-f1a1")
    folder.end(attempt=2)
    text = words(build() / "run-r1.html")
    for expected in (
        "the time limit was reached",
        "attempt 2 resumed from the one of step 40",
        "Its outcome is that of attempt 2",
        f"Power limit, W 700 {UNKNOWN}",
        "NVIDIA H200 7e634da3 on",
    ):
        assert expected in text, expected


def test_a_page_says_why_no_floor_is_stated(build: Callable[..., Path], root: Path) -> None:
    folder = Folder(root, plan("r1"))
    folder.start(ceilings="0" * 64, no_ceilings="the repeats of the memory bandwidth spread widely")
    folder.step(100, steps=50)
    folder.end()
    completed(root, "r2", attention="flash")
    out = build()
    text = "Floor not stated: the repeats of the memory bandwidth spread widely"
    assert text in words(out / "run-r1.html")
    assert "Floor" not in words(out / "run-r2.html")


def test_a_page_tells_what_a_run_drew_and_the_overview_what_its_times_are_worth(
    build: Callable[..., Path], root: Path
) -> None:
    folder = Folder(root, plan("r1"))
    folder.start()
    for step, mhz in ((10, 1980.0), (15, 1980.0), (20, 1650.0)):
        measurements = {
            "energy_joules": 1200.0,
            "sm_mhz": mhz,
            "throttle_reasons": "sw_power_cap",
            "data_wait_seconds": 0.5,
        }
        folder.step(step, steps=10 if step == 10 else 5, **measurements)
    folder.end(steps=20, final_loss=9.8)
    completed(root, "r2", attention="flash")
    out = build()
    text = words(out / "run-r1.html")
    for expected in (
        "Power at least 585 W on average after the warm-up",
        "Clock at work 1,650 to 1,980 MHz; throttled by sw_power_cap",
        "Waiting for data 25.00 % of the time after the warm-up",
    ):
        assert expected in text, expected
    assert "Clock at work" not in words(out / "run-r2.html")
    overview = words(out / "index.html")
    assert (
        "clock while steps of 1 of 2 completed runs were counted; in 1, its lowest is over 15 % below its highest "
        "(1,650 to 1,980 MHz; throttled by sw" in overview
    )
    assert audit(out).findings == []


def test_a_page_and_the_overview_name_the_process_that_held_up_the_others(
    build: Callable[..., Path], root: Path
) -> None:
    planned = plan("r1")
    parts = {"train": TrainConfig(steps=100, batch_size=4), "parallel": ParallelConfig(shard=4)}
    folder = Folder(root, planned.model_copy(update={"config": planned.config.model_copy(update=parts)}))
    folder.start(gpus=4, ranks=[RankRecord(node=f"n{rank // 2}") for rank in range(4)])
    for step in range(10, 40, 5):
        measurements = {"slowest_rank": 3, "slowest_rank_seconds": 0.336, "other_ranks_seconds": 0.3}
        folder.step(step, steps=10 if step == 10 else 5, **measurements)
    folder.end(steps=35, final_loss=9.65)
    completed(root, "r2", attention="flash")
    out = build()
    text = "rank 3 on n1 was slowest in 5 of 5 intervals, by 12 % of the median of the others"
    assert f"Slowest process after the warm-up, {text}" in words(out / "run-r1.html")
    assert "Slowest process" not in words(out / "run-r2.html")
    overview = words(out / "index.html")
    assert "One process held up the others in 1 of 1 completed runs of several processes: in auto" in overview
    assert text in overview
    assert audit(out).findings == []


def test_the_overview_says_that_a_run_ended_on_other_processes_than_planned(
    build: Callable[..., Path], root: Path
) -> None:
    """After `runner retry --set parallel.shard=2`."""
    planned = plan("r1")
    parts = {"train": TrainConfig(steps=100, batch_size=4), "parallel": ParallelConfig(shard=4)}
    folder = Folder(root, planned.model_copy(update={"config": planned.config.model_copy(update=parts)}))
    folder.start(gpus=4)
    folder.step(10, steps=10)
    folder.end("failed", steps=10, final_loss=9.9)
    folder.start(attempt=2, gpus=2, parallel=ParallelConfig(shard=2), resumed_attempt=1, resumed_step=10)
    folder.step(20, attempt=2, steps=10)
    folder.end(attempt=2, steps=20, final_loss=9.8)
    text = "1 of 1 completed run ended on other numbers of processes than the study gives, in auto"
    out = build()
    assert text in words(out / "index.html")
    assert audit(out).findings == []


def test_what_a_run_printed_is_quoted_as_text_and_audited(build: Callable[..., Path], root: Path) -> None:
    folder = completed(root, "r1")
    folder.path.joinpath("attempt-1", "stderr.log").write_text(f"first\n{EVIL}\n{BIDI}\n", encoding="utf-8")
    out = build()
    page = (out / "run-r1.html").read_text(encoding="utf-8")
    assert "first" in page
    assert "[U+202E]detrever[U+200F] \N{GRINNING FACE}" in page, "in the order in which it was printed"
    assert "<script>alert" not in page
    assert "<img" not in page
    assert audit(out).findings == []
    altered = re.sub("first", "other", page)
    (out / "run-r1.html").write_text(altered, encoding="utf-8")
    assert any("other" in str(finding) for finding in audit(out).findings)


def test_without_logs_nothing_that_was_printed_is_in_the_report(
    build: Callable[..., Path], root: Path
) -> None:
    folder = completed(root, "r1")
    folder.path.joinpath("attempt-1", "stdout.log").write_text("token=hunter2\n")
    out = build(logs=False)
    assert "made with --no-logs" in words(out / "run-r1.html")
    assert not any(b"hunter2" in path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert not list(out.rglob("output.*"))
    assert audit(out).findings == []


def test_of_more_runs_than_get_a_page_only_the_unexpected_do(
    build: Callable[..., Path], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "MOST", 2)
    for place in range(3):
        completed(root, f"r{place}", seed=place)
    failed = Folder(root, plan("r9", seed=9))
    failed.start()
    failed.end("failed", reason="no space left")
    out = build()
    assert [path.name for path in out.glob("run-*.html")] == ["run-r9.html"]
    assert "The study has 4 runs. Up to 200 runs have a page each" in words(out / "runs.html")
    assert "no space left" in words(out / "runs.html")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"1 %\r50 %\r100 %\ndone\n", "100 %\ndone"),
        (b"\x1b[31mred\x1b[0m \x1b]0;title\x07end", "red end"),
        (b"windows\r\nlines\r\n", "windows\nlines"),
        (b"\x00\x07 \xff", "\ufffd\ufffd \ufffd"),
        (b"", ""),
    ],
    ids=["overwritten", "colours", "carriage returns", "no text", "nothing"],
)
def test_output_is_shown_as_a_terminal_does_in_the_end(content: bytes, text: str) -> None:
    assert output.tail(content) == text


def test_output_is_cut_to_the_stated_lines_and_characters() -> None:
    assert output.tail(b"line\n" * 1000).count("\n") == output.MOST_LINES - 1
    assert len(output.tail(b"x" * 100_000)) == output.MOST_CHARACTERS


def test_a_log_that_is_a_link_or_a_pipe_is_not_read(root: Path, tmp_path: Path) -> None:
    import os

    folder = completed(root, "r1").path / "attempt-1"
    (tmp_path / "secret").write_text("secret")
    (folder / "stdout.log").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "stderr.log")
    assert list(output.read(root, "backends", [("r1", 1)])) == []


def test_a_log_in_a_folder_that_a_link_leads_to_is_not_read(root: Path, tmp_path: Path) -> None:
    """In a shared root somebody else could link to a folder that only the report's maker can read."""
    first, second = (completed(root, run).path for run in ("r1", "r2"))
    for folder in (first, second):
        (folder / "attempt-1" / "stdout.log").write_text("secret")
    (first / "attempt-1").rename(tmp_path / "attempt")
    (first / "attempt-1").symlink_to(tmp_path / "attempt")
    second.rename(tmp_path / "run")
    second.symlink_to(tmp_path / "run")
    assert list(output.read(root, "backends", [("r1", 1), ("r2", 1)])) == []
