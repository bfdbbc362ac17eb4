"""What a report says first of frontiers, and what it says that they do not show."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.report import comparison, facts
from analysis.report.tasks.frontier import TASK
from analysis.store import database as store
from analysis.store.collect import collect
from tests.analysis.sought import frontier

CPU = "CPU: some"
VARIES = "On a CPU a probe is held to the resident memory of its process"


def answer_texts(root: Path) -> tuple[list[str], list[str]]:
    """The headline's sentences and the limits'."""
    collect(root)
    with store.open_for_reading(root) as connection:
        study_facts = facts.gather(connection, "frontier")
        study_comparison = comparison.of_study(connection, "frontier", study_facts.runs)
    headlines, limits = (
        TASK.answer.headlines(study_facts, study_comparison, []),
        TASK.answer.limits(study_facts, study_comparison, []),
    )
    return [sentence.text for sentence in headlines], [sentence.text for sentence in limits]


def write_frontiers(root: Path, **largest: int) -> None:
    for name, length in largest.items():
        frontier(root, name, name, length, {length: "fits", length + 256: "oom_gpu"})


def test_three_frontiers_are_all_named(tmp_path: Path) -> None:
    write_frontiers(tmp_path, flash=8192, tiled=4096, math=1024)
    ((headline,), limits) = answer_texts(tmp_path)
    assert headline.startswith(
        "The most that fits is 8,192 tokens per sample under `flash`, 4,096 tokens per sample under `tiled` "
        "and 1,024 tokens per sample under `math`; the forecast"
    )
    assert "Each frontier was sought once: another search may end elsewhere." in limits
    assert not any(VARIES in text for text in limits)


def test_of_more_the_ends_are_named_and_those_between_are_counted(tmp_path: Path) -> None:
    write_frontiers(tmp_path, flash=8192, tiled=4096, flex=4096, efficient=2048, math=1024)
    ((headline,), _) = answer_texts(tmp_path)
    assert (
        "is 8,192 tokens per sample under `flash` and 1,024 tokens per sample under `math`, "
        "and between these under 3 more groups; the forecast" in headline
    )


@pytest.mark.parametrize("device", [CPU, "NVIDIA H200"])
def test_searches_that_do_not_agree_are_counted_and_resident_memory_is_named_on_a_cpu(
    tmp_path: Path, device: str
) -> None:
    lengths = (2304, 2560, 2560, 2560, 2560, 2816)
    for repeat, length in enumerate(lengths, 1):
        probes = {length: "fits", length + 256: "oom_gpu"}
        frontier(tmp_path, f"r{repeat}", "math", length, probes, device=device, repeat=repeat)
    for repeat in (1, 2):
        probes = {4096: "fits", 4352: "oom_gpu"}
        frontier(tmp_path, f"t{repeat}", "tiled", 4096, probes, device=device, repeat=repeat)
    frontier(tmp_path, "f1", "flash", 512, {512: "fits", 768: "oom_gpu"}, device=device)
    _, limits = answer_texts(tmp_path)
    assert "Of 1 group the frontier was sought once: another search may end elsewhere." in limits
    assert (
        "Of repeated searches, 4 of 6 under `math` ended at 2,560, the others at 2,304 and 2,816; "
        "2 of 2 under `tiled` ended at 4,096." in limits
    )
    assert any(VARIES in text for text in limits) == (device == CPU)
