"""What may have disturbed runs that time attention alone, and which GPUs they were on."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from analysis.report import backends, comparison, facts
from analysis.report.answer import limits
from analysis.report.build import build_report
from analysis.store.collect import collect
from analysis.store.database import open_for_reading
from analysis.verdicts.guard import among
from analysis.verdicts.values import devices
from model.record.case import Case
from model.record.config import CallConfig, RunConfig
from tests.analysis.fabricate import START, Folder, plan
from tests.analysis.timed import certified, kernels

CASE = Case("cuda", "bfloat16", 1, 512, heads=16, kv_heads=16, head_dim=128)
CALL = CallConfig(shape="B1 T512 H16 D128", steps=7)


ONE_PROCESS = "Each shape was measured in one process: "


def timed(root: Path, run_id: str = "r1", **conditions: Any) -> None:
    """A run that timed attention alone under these conditions."""
    folder = Folder(root, plan(run_id, "kernels", config=RunConfig(task="attention", call=CALL)))
    folder.start(flop_per_token=None, parameter_count=None, **conditions)
    kernels(folder, CASE, flash=1.0)
    folder.end(steps=7, final_loss=None)


def collected(root: Path) -> tuple[facts.Facts, comparison.StudyComparison]:
    collect(root)
    with open_for_reading(root) as connection:
        study_facts = facts.gather(connection, "kernels")
        return study_facts, comparison.of_study(connection, "kernels", study_facts.runs)


def test_what_differs_among_runs_is_said_though_no_verdict_compares_them(root: Path) -> None:
    timed(root, "r1", software={"torch": "2.13.0"})
    timed(root, "r2", software={"torch": "2.12.0", "flash-attn": "2.8.3"})
    study_facts, study_comparison = collected(root)
    runs = [run | {"data_fingerprint": None} for run in study_facts.runs]  # they read nothing
    texts = [sentence.text for sentence in limits.of_calls(study_facts, study_comparison, among(runs))]
    assert texts[:2] == [
        "Completed runs ran with different software: torch 2.12.0 / 2.13.0.",
        "Only some of the completed runs had these packages: flash-attn (1 of 2).",
    ]


@pytest.mark.parametrize("conditions", [{"load_before": 14.0, "device_users": 0}, {"device_users": 1}])
def test_other_work_on_the_machine_is_warned_of(root: Path, conditions: dict[str, Any]) -> None:
    timed(root, cores=8, **conditions)
    _, study_comparison = collected(root)
    assert "the machine was busy with something else" in next(
        sentence.text for sentence in limits.disturbed(study_comparison)
    )


@pytest.mark.parametrize(
    ("at_first", "load_after", "load_before", "warning"),
    [(0.1, 8.0, 7.8, False), (0.1, 8.0, 14.0, True), (0.1, None, 7.8, False), (32.0, 34.0, 33.0, True), (0.1, 24.0, 23.0, True)],
    ids=["own", "others too", "killed", "busy throughout", "busy since the first run"],
)  # fmt: skip
def test_what_the_studys_earlier_run_left_of_its_load_is_not_other_work(
    root: Path, at_first: float, load_after: float | None, load_before: float, warning: bool
) -> None:
    folder = Folder(root, plan("r0", "kernels", config=RunConfig(task="attention", call=CALL)))
    folder.start(cores=8, load_before=at_first)
    folder.end("failed", load_after=load_after)
    timed(root, cores=8, load_before=load_before, started_at=START + timedelta(seconds=62))
    assert bool(list(limits.disturbed(collected(root)[1]))) is warning


def test_the_load_of_a_calm_machine_is_said(root: Path) -> None:
    timed(root, "r1", cores=8, load_before=0.8, device_users=0)
    timed(root, "r2", cores=8, load_before=1.6, device_users=0)
    _, study_comparison = collected(root)
    assert not list(limits.disturbed(study_comparison))
    assert (
        study_comparison.load
        == "load before the runs 0.1 to 0.2 per core; no other process was on the devices"
    )


@pytest.mark.parametrize(("gpu_uuid", "warning"), [("GPU-1", False), ("GPU-2", True)])
def test_shapes_on_several_gpus_are_a_limit(root: Path, gpu_uuid: str, warning: bool) -> None:
    timed(root, "r1", gpu_uuid="GPU-1")
    timed(root, "r2", gpu_uuid=gpu_uuid)
    texts = [sentence.text for sentence in limits.of_calls(*collected(root), [])]
    assert any("The runs were on 2 GPUs" in text for text in texts) is warning
    assert "Every completed run was on a machine named `nid001234`: others of its kind may differ." in texts


def test_runs_on_several_machines_are_said_machine_by_machine(root: Path) -> None:
    for run_id, host in (("r1", "a1"), ("r2", "b1"), ("r3", "b1")):
        timed(root, run_id, host=host)
    texts = [sentence.text for sentence in limits.of_calls(*collected(root), [])]
    expected = (
        "The completed runs were on 2 machines: 1 run on `a1` (NVIDIA H200) and 2 runs on `b1` (NVIDIA H200)."
    )
    assert expected in texts
    assert not any("Every completed run" in text for text in texts)


@pytest.mark.fault
def test_a_cpu_whose_threads_runs_share_is_one_machine(root: Path) -> None:
    for run_id, threads in (("r1", 1), ("r2", 2)):
        timed(root, run_id, host="vm", device_name=f"CPU: Xeon, {threads} threads")
    texts = [sentence.text for sentence in limits.of_calls(*collected(root), [])]
    assert "Every completed run was on a machine named `vm`: others of its kind may differ." in texts
    assert not any("2 machines" in text for text in texts)
    assert devices(collected(root)[0].runs) == ["CPU: Xeon, 1 thread", "CPU: Xeon, 2 threads"]


def test_a_study_without_a_completed_run_has_no_table_of_backends_and_says_nothing_of_its_times(
    root: Path, tmp_path: Path
) -> None:
    folder = Folder(root, plan("r1", "kernels", config=RunConfig(task="attention", call=CALL)))
    folder.start(flop_per_token=None, parameter_count=None)
    folder.end("oom_host", steps=0, final_loss=None, reason="killed")
    study_facts, study_comparison = collected(root)
    assert not [
        sentence
        for sentence in limits.of_calls(study_facts, study_comparison, [])
        if sentence.text.startswith(ONE_PROCESS)
    ]
    out = build_report(root, "kernels", tmp_path / "out").parent
    for page in ("index", "print"):
        assert 'id="backends"' not in (out / f"{page}.html").read_text()
    timed(root, "r2")
    assert [
        sentence
        for sentence in limits.of_calls(*collected(root), [])
        if sentence.text.startswith(ONE_PROCESS)
    ]


@pytest.mark.parametrize("valid", [True, False])
def test_a_time_without_a_valid_certificate_is_named(root: Path, valid: bool) -> None:
    certified(root, "flash")
    if not valid:
        for path in (root / ".certificates").iterdir():
            path.unlink()
    collect(root)
    with open_for_reading(root) as connection:
        missing = backends.of_study(connection, "kernels").without
    assert [(backend.attention, backend.runs) for backend in missing] == (
        [] if valid else [("flash", ("r1",))]
    )
