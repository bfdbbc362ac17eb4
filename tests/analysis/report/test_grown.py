"""A study that grew over days and machines: where each block ran, and comparisons that stay within blocks."""

from __future__ import annotations

import csv
import html
import json
import re
from datetime import timedelta
from math import exp, log, sqrt
from pathlib import Path
from random import Random

import pytest

from analysis.report.build import build_report
from analysis.store.collect import collect
from analysis.verdicts.conditions import crossing, gaps_of
from tests.analysis.fabricate import START, Folder, plan
from tests.analysis.verdicts.rows import run

SECONDS = {"auto": 0.40, "cudnn": 0.41, "flash3": 0.402}
MACHINES = (("GPU-aaaaaaaa-0", 1.0, 0), ("GPU-bbbbbbbb-0", 1.2, 2))  # its GPU, how slow it is, and the day
DESIGN = {"order": "interleaved", "baseline": {"attention": "auto"}, "margins": {"tokens_per_second": 0.01}}


def placed(root: Path, run_id: str, attention: str, repeat: int, block: int, position: int) -> Folder:
    """A planned run at its place in the order of the study's blocks."""
    numbers = {"repeat": repeat, "block": block, "position": position, "design": DESIGN}
    group = {"group": attention, "factors": {"attention": attention}}
    return Folder(root, plan(run_id, attention=attention, **numbers, **group))


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two blocks on machines of one name, the second a fifth slower and without flash3; and its report."""
    root, draw = tmp_path_factory.mktemp("grown"), Random(2)
    for block, (gpu, slower, day) in enumerate(MACHINES, start=1):
        for place, (attention, seconds) in enumerate(SECONDS.items()):
            folder = placed(root, f"{attention}-{block}", attention, block, block, 3 * block + place)
            if (attention, block) == ("flash3", 2):
                continue
            start = START + timedelta(days=day, minutes=10 * place)
            folder.start(host="vm", gpu_uuid=gpu, started_at=start)
            for step in range(5, 151, 5):
                folder.step(step, seconds=seconds * slower * exp(draw.gauss(0, 0.003)))
            folder.end(started_at=start, ended_at=start + timedelta(minutes=5))
    collect(root)
    build_report(root, "backends", root / "report")
    return root


def median_log(root: Path, attention: str, block: int) -> float:
    """Of the seconds of a run's steps from the eleventh on, from its file."""
    lines = (root / "backends" / f"{attention}-{block}/attempt-1/steps.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    logs = sorted(log(record["step_seconds"]) for record in records if record["step"] - record["steps"] >= 10)
    return (logs[(len(logs) - 1) // 2] + logs[len(logs) // 2]) / 2


def text_of(root: Path) -> str:
    page = (root / "report/index.html").read_text(encoding="utf-8").partition("<main")[2]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", page)).split())


def test_ratios_and_their_intervals_are_of_pairs_within_a_block(grown: Path) -> None:
    with (grown / "report/data/findings/ratios.csv").open(encoding="utf-8") as file:
        rows = {row["label"]: row for row in csv.DictReader(file)}

    def ratio(attention: str, block: int) -> float:
        return median_log(grown, "auto", block) - median_log(grown, attention, block)

    first, second = ratio("cudnn", 1), ratio("cudnn", 2)
    half = 12.7062 * abs(first - second) / sqrt(2) / sqrt(2)  # Student's t of one degree of freedom
    ends = exp((first + second) / 2 - half), exp((first + second) / 2 + half)
    cudnn, flash3 = rows["cudnn"], rows["flash3"]
    assert float(cudnn["ratio"]) == pytest.approx(exp((first + second) / 2))
    assert (float(cudnn["low"]), float(cudnn["high"])) == pytest.approx(ends, rel=1e-5)
    assert float(flash3["ratio"]) == pytest.approx(exp(ratio("flash3", 1))), "over the run of auto in block 1"
    assert float(flash3["low"]) < float(flash3["ratio"]) < float(flash3["high"])


def test_the_answer_orders_groups_within_blocks_where_one_lacks_the_slower_machine(grown: Path) -> None:
    """The median of flash3 is the highest, as it did not run on the slower machine."""
    text = text_of(grown)
    assert "Within blocks, auto has the highest rate" in text
    assert "as flash3 lacks block 2; ratios of paired runs stay within blocks." in text


def test_blocks_that_share_a_gpu_are_on_one_machine_whichever_of_its_gpus_each_used() -> None:
    placements = [("auto", 1, "a"), ("cudnn", 1, "b"), ("auto", 2, "b")]
    rows = [run(label, block=block, gpu_uuid=gpu, repeat=block) for label, block, gpu in placements]
    assert gaps_of(rows) == {}
    rows[-1]["gpu_uuid"] = "c"
    assert gaps_of(rows) == {"cudnn": [2]}


def test_a_group_that_a_later_launch_put_on_another_machine_is_not_said_to_be_compared_within_blocks(
    tmp_path: Path,
) -> None:
    """As `--only attention=flash3` on a second machine: repeat 1 again, in a block of its own."""
    for block, attention, gpu in ((1, "auto", "a"), (1, "cudnn", "a"), (2, "flash3", "b")):
        folder = placed(tmp_path, attention, attention, 1, block, block)
        folder.start(host="vm", gpu_uuid=f"GPU-{gpu}", started_at=START + timedelta(days=block))
        draw = Random(block)
        for step in range(5, 151, 5):
            folder.step(step, seconds=SECONDS[attention] * exp(draw.gauss(0, 0.003)))
        folder.end(
            started_at=START + timedelta(days=block), ended_at=START + timedelta(days=block, minutes=5)
        )
    collect(tmp_path)
    build_report(tmp_path, "backends", tmp_path / "report")
    text = text_of(tmp_path)
    assert "By ratios to auto, in one run each, auto has the highest rate" in text
    assert "stay within blocks, but not those of flash3: they are over runs in other blocks, on other" in text
    assert "Within blocks" not in text


def test_groups_of_one_block_are_said_to_be_in_it_alone(tmp_path: Path) -> None:
    blocks = ((1, "auto"), (1, "cudnn"), (2, "flash3"), (3, "flex"))
    for position, (block, attention) in enumerate(blocks, start=1):
        folder = placed(tmp_path, attention, attention, 1, block, position)
        folder.start(gpu_uuid=f"GPU-{block}")
        for step in range(5, 151, 5):
            folder.step(step, seconds=0.4)
        folder.end()
    failed = placed(tmp_path, "auto4", "auto", 2, 4, 5)
    failed.start(gpu_uuid="GPU-4")
    for step in range(5, 101, 5):
        failed.step(step, seconds=0.4)
    failed.end("failed")
    collect(tmp_path)
    build_report(tmp_path, "backends", tmp_path / "report")
    text = text_of(tmp_path)
    assert (
        "as auto and cudnn are in block 1 alone, flash3 is in block 2 alone and flex is in block 3 alone;"
        in text
    )
    assert "By ratios to auto, all 4 groups: 10,240 tokens/s." in text


def test_only_pairs_in_blocks_without_a_common_gpu_cross() -> None:
    placements = [("cudnn", 1, "a"), ("auto", 1, "a"), ("flash3", 2, "a"), ("flex", 3, "b")]
    rows = [run(label, block=block, gpu_uuid=gpu) for label, block, gpu in placements]
    assert crossing(rows) == ["flex"]


def test_one_line_says_where_and_when_each_block_ran_and_what_it_lacks(grown: Path) -> None:
    text = text_of(grown)
    assert "1: on vm, GPU aaaaaaaa, 2026-03-01; 2: on vm, GPU bbbbbbbb, 2026-03-03, without flash3" in text, (
        "two machines of one name are two"
    )
    assert "blocks that have ended so far: 1 of 2" in text
    assert "Paired runs were on the same GPU, so its speed cancels in their ratios." in text
