"""What is derived: outcomes, rates, and the warm-up rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import stats
from analysis.query.statements import COMPLETED_RUNS
from analysis.report.facts import RUNS_SQL, literal
from analysis.store.collect import collect
from model.measure.flops import flop_per_token
from model.record.config import ParallelConfig, RunConfig, TrainConfig
from model.record.outcome import Outcome
from model.record.speed import FloorPart
from tests.analysis.conftest import Ask
from tests.analysis.fabricate import LLAMA, Folder, completed, plan


def test_rates_follow_their_formulas(root: Path, sql: Ask) -> None:
    """8B llama: 51.541204992 GFLOP a token; 9,454 tokens/s on an H200's 989.4 TFLOP/s are 49.25 % of it."""
    assert flop_per_token(LLAMA, 4096) == 51_541_204_992
    completed(root, "r1", seconds=4096 / 9454)
    collect(root)
    (run,) = sql("SELECT * FROM runs")
    assert run["tokens_per_second"] == pytest.approx(9454)
    assert run["tflops"] == pytest.approx(487.2705519943680)
    assert run["mfu"] == pytest.approx(49.2490956129339)
    assert run["training_tokens_percentage"] == pytest.approx(50)
    steps = sql("SELECT * FROM steps WHERE counted")
    assert {round(step["mfu"], 9) for step in steps} == {round(run["mfu"], 9)}
    assert {round(step["tflops"], 9) for step in steps} == {round(run["tflops"], 9)}


def test_tflops_and_mfu_are_a_gpus_share(root: Path, sql: Ask) -> None:
    folder = Folder(root, plan("r1"))
    folder.start(gpus=4)
    folder.step(20, seconds=0.1)
    collect(root)
    (run,) = sql("SELECT tokens_per_second, tflops, mfu FROM runs")
    assert run["tokens_per_second"] == pytest.approx(40960)
    assert run["tflops"] == pytest.approx(40960 * 51_541_204_992 / 4 / 1e12)
    assert run["mfu"] == pytest.approx(100 * 40960 * 51_541_204_992 / (4 * 989.4e12))


def in_parallel(**parallel: int) -> RunConfig:
    changes = {"parallel": ParallelConfig(**parallel), "train": TrainConfig(steps=100, batch_size=8)}
    return plan("r0").config.model_copy(update=changes)


def test_the_processes_of_a_run_are_its_gpus_and_on_a_cpu_those_that_it_asks_for(
    root: Path, sql: Ask
) -> None:
    for run_id, gpus in (("gpus", 4), ("on a cpu", 0)):
        folder = Folder(root, plan(run_id.replace(" ", "-"), config=in_parallel(replicate=2, shard=2)))
        folder.start(gpus=gpus, nodes=2)
        folder.step(20, seconds=0.1)
    folder = Folder(root, plan("alone"))
    folder.start(gpus=0)
    collect(root)
    columns = "run_id, gpus, nodes, processes, tokens_per_second_per_process AS each"
    assert sql(f"SELECT {columns} FROM runs ORDER BY run_id") == [
        {"run_id": "alone", "gpus": 0, "nodes": 1, "processes": 1, "each": None},
        {"run_id": "gpus", "gpus": 4, "nodes": 2, "processes": 4, "each": pytest.approx(81920)},
        {"run_id": "on-a-cpu", "gpus": 0, "nodes": 2, "processes": 4, "each": pytest.approx(81920)},
    ]
    rates = "SELECT round(tflops, 9) AS tflops, round(mfu, 9) AS mfu FROM"
    assert sql(f"{rates} runs WHERE nodes = 2 GROUP BY ALL") == sql(f"{rates} steps GROUP BY ALL")


def test_gpu_hours_are_those_of_all_gpus(root: Path, sql: Ask) -> None:
    folder = Folder(root, plan("r1", config=in_parallel(shard=8)))
    folder.start(gpus=8, nodes=2)
    folder.end(seconds=1800)
    collect(root)
    assert sql("SELECT gpu_hours FROM runs") == [{"gpu_hours": pytest.approx(4)}]


def test_an_unknown_peak_gives_no_mfu(root: Path, sql: Ask) -> None:
    folder = Folder(root, plan("r1"))
    folder.start(device="a CPU", peak=None, gpus=0)
    folder.step(20)
    collect(root)
    (run,) = sql("SELECT mfu, tflops, gpu, device FROM runs")
    assert run["mfu"] is None
    assert run["tflops"] == pytest.approx(10240 * 51_541_204_992 / 1e12)
    assert (run["gpu"], run["device"]) == (None, "a CPU")
    assert sql("SELECT DISTINCT mfu FROM steps") == [{"mfu": None}]


def test_the_warm_up_does_not_count(root: Path, sql: Ask) -> None:
    """100 steps: W = 10, so the intervals (0, 1], (1, 5] and (5, 10] do not count and (10, 15] does."""
    completed(root, "r1")
    collect(root)
    assert sql("SELECT step, counted FROM steps WHERE step <= 15 ORDER BY step") == [
        {"step": 1, "counted": False},
        {"step": 5, "counted": False},
        {"step": 10, "counted": False},
        {"step": 15, "counted": True},
    ]
    (run,) = sql("SELECT warmup_steps, counted_records, step_seconds FROM runs")
    assert run == {"warmup_steps": 10, "counted_records": 18, "step_seconds": 0.4}


@pytest.mark.parametrize(("planned", "warmup"), [(1, 1), (9, 1), (20, 2), (99, 9), (100, 10), (5000, 10)])
def test_the_warm_up_is_a_tenth_of_the_run_within_bounds(
    root: Path, sql: Ask, planned: int, warmup: int
) -> None:
    Folder(root, plan("r1", steps=planned))
    collect(root)
    assert sql("SELECT warmup_steps FROM runs") == [{"warmup_steps": warmup}]


def test_a_run_too_short_for_its_warm_up_has_no_rate(root: Path, sql: Ask) -> None:
    folder = Folder(root, plan("r1", steps=5))
    folder.start()
    folder.step(5, steps=5)
    collect(root)
    assert sql("SELECT step_seconds, tokens_per_second, mfu, steps FROM runs") == [
        {"step_seconds": None, "tokens_per_second": None, "mfu": None, "steps": 5}
    ]


def test_a_rate_is_tokens_over_the_median_step_and_no_mean_of_rates(root: Path, sql: Ask) -> None:
    folder = Folder(root, plan("r1"))
    folder.start()
    for step, seconds in ((20, 1.0), (25, 1.0), (30, 4.0)):
        folder.step(step, seconds=seconds)
    collect(root)
    assert sql("SELECT tokens_per_second FROM runs") == [{"tokens_per_second": 4096.0}]


def test_the_median_of_an_even_number_of_steps_gives_the_median_of_their_rates(root: Path, sql: Ask) -> None:
    folder = Folder(root, plan("r1"))
    folder.start()
    for step, seconds in ((20, 1.0), (25, 2.0), (30, 8.0), (35, 16.0)):
        folder.step(step, seconds=seconds)
    collect(root)
    (run,) = sql("SELECT step_seconds, tokens_per_second FROM runs")
    assert run["step_seconds"] == stats.over_runs([1.0, 2.0, 8.0, 16.0]).median == 4.0
    assert run["tokens_per_second"] == stats.over_runs([4096 / s for s in (1.0, 2.0, 8.0, 16.0)]).median


@pytest.mark.parametrize(("resumed", "first_steps"), [(None, []), (10, [5, 10])])
def test_nothing_counts_of_what_an_attempt_did_after_the_step_from_which_a_later_one_went_on(
    root: Path, sql: Ask, resumed: int | None, first_steps: list[int]
) -> None:
    """Also where that one ended before it had come as far: an attempt without a checkpoint starts over."""
    folder = Folder(root, plan("r1"))
    folder.start()
    for step in range(5, 81, 5):
        folder.step(step, seconds=0.4, loss=5.0)
    folder.end("failed", reason="a fault", steps=80)
    folder.start(attempt=2, resumed_attempt=resumed and 1, resumed_step=resumed)
    for step in range((resumed or 0) + 5, 31, 5):
        folder.step(step, seconds=0.8, attempt=2, loss=7.0)
    folder.end("failed", attempt=2, reason="another", steps=30, final_loss=7.0)
    collect(root)
    rows = sql("SELECT step, attempt FROM steps ORDER BY step")
    assert [row["step"] for row in rows] == list(range(5, 31, 5))
    assert [row["step"] for row in rows if row["attempt"] == 1] == first_steps
    (run,) = sql("FROM runs")
    assert (run["steps"], run["final_loss"], run["step_seconds"]) == (30, 7.0, 0.8)
    (last,) = sql("SELECT max(step) AS step, min(loss) FILTER (step > 10) AS loss FROM curves")
    assert last == {"step": 30, "loss": 7.0}


def test_a_step_that_two_attempts_reached_is_the_later_ones(root: Path, sql: Ask) -> None:
    folder = Folder(root, plan("r1"))
    for attempt, steps in ((1, (5, 10, 15)), (2, (10, 15, 20))):
        folder.event("claimed", attempt=attempt)
        folder.start(attempt=attempt)
        for step in steps:
            folder.step(step, attempt=attempt, loss=float(attempt))
    folder.event("ended", attempt=1, outcome="preempted")
    folder.end(attempt=2, steps=20)
    collect(root)
    rows = sql("SELECT step, attempt, loss FROM steps ORDER BY step")
    assert [(row["step"], row["attempt"]) for row in rows] == [(5, 1), (10, 2), (15, 2), (20, 2)]
    (run,) = sql("SELECT outcome, attempts, final_loss, deciding_attempt FROM runs")
    assert run == {"outcome": "completed", "attempts": 2, "final_loss": 2.0, "deciding_attempt": 2}


def test_a_completed_run_whose_last_record_is_lost_has_no_final_loss(root: Path, sql: Ask) -> None:
    for run_id, logged in (("whole", 20), ("torn", 15)):
        folder = Folder(root, plan(run_id))
        folder.start()
        folder.step(logged, loss=2.0)
        folder.end(steps=20)
    collect(root)
    assert sql("SELECT run_id, steps, final_loss FROM runs ORDER BY run_id") == [
        {"run_id": "torn", "steps": 20, "final_loss": None},
        {"run_id": "whole", "steps": 20, "final_loss": 2.0},
    ]


def test_a_record_inside_the_steps_of_a_later_attempt_does_not_count(root: Path, sql: Ask) -> None:
    """An attempt was killed after the record of step 8 and before its checkpoint; the next began anew."""
    folder = Folder(root, plan("r1"))
    folder.start(attempt=1)
    folder.step(5, attempt=1)
    folder.step(8, steps=3, attempt=1)
    folder.start(attempt=2)
    for step in (5, 10):
        folder.step(step, attempt=2)
    collect(root)
    assert sql("SELECT step, attempt FROM steps ORDER BY step") == [
        {"step": 5, "attempt": 2},
        {"step": 10, "attempt": 2},
    ]


def test_the_first_record_of_a_resumed_attempt_warms_up_again(root: Path, sql: Ask) -> None:
    """Steps 16-20 are the first after the checkpoint of step 15: slow, and no measure of the backend."""
    folder = Folder(root, plan("r1", steps=25))
    folder.start()
    for step in (5, 10, 15):
        folder.step(step, seconds=0.4)
    folder.end("timeout")
    folder.start(attempt=2, resumed_attempt=1, resumed_step=15)
    folder.step(20, seconds=9.0, attempt=2)
    folder.step(25, seconds=0.4, attempt=2)
    folder.end(attempt=2)
    collect(root)
    assert sql("SELECT step, counted FROM steps WHERE step > 5 ORDER BY step") == [
        {"step": 10, "counted": True},
        {"step": 15, "counted": True},
        {"step": 20, "counted": False},
        {"step": 25, "counted": True},
    ]
    assert sql("SELECT step_seconds, counted_records FROM runs") == [
        {"step_seconds": 0.4, "counted_records": 3}
    ]


def test_a_completed_attempt_decides_whatever_came_after(root: Path, sql: Ask) -> None:
    folder = completed(root, "r1")
    folder.event("claimed", attempt=2)
    folder.start(attempt=2)
    folder.end("failed", attempt=2, reason="a second try")
    collect(root)
    assert sql("SELECT outcome, reason FROM runs") == [{"outcome": "completed", "reason": None}]


def test_rates_use_the_deciding_attempts_device_alone(root: Path, sql: Ask) -> None:
    folder = Folder(root, plan("r1"))
    folder.start(attempt=1, device="NVIDIA A100-SXM4-80GB", peak=312e12)
    folder.step(20, seconds=1.0, attempt=1)
    folder.start(attempt=2)
    folder.step(25, seconds=0.4, attempt=2)
    folder.end(attempt=2)
    collect(root)
    (run,) = sql("SELECT step_seconds, counted_records, gpu FROM runs")
    assert run == {"step_seconds": 0.4, "counted_records": 1, "gpu": "NVIDIA H200"}
    assert sql("SELECT step, mfu > 40 AS high, counted FROM steps ORDER BY step") == [
        {"step": 20, "high": True, "counted": False},
        {"step": 25, "high": True, "counted": True},
    ]
    (chart_row,) = sql(literal(COMPLETED_RUNS, "backends"))
    assert chart_row["counted_step_seconds"] == [0.4]
    (report_row,) = sql(literal(RUNS_SQL, "backends"))
    assert (
        report_row["tokens_per_second_low"]
        == report_row["tokens_per_second"]
        == report_row["tokens_per_second_high"]
    )


def test_what_other_processes_than_the_runs_own_measured_is_not_of_the_run_and_losses_are(
    root: Path, sql: Ask
) -> None:
    """An attempt on half of the GPUs ended it: rates, memory and floor stay those of all."""
    folder = Folder(root, plan("r1", config=in_parallel(shard=4)))
    part = FloorPart(part="attention", flop=1, seconds=0.5)
    folder.start(attempt=1, gpus=4, floor=[part])
    folder.step(20, seconds=1.0, attempt=1, memory_bytes=30)
    longer_floor = [part.model_copy(update={"seconds": 1.0})]
    folder.start(attempt=2, gpus=2, parallel=ParallelConfig(shard=2), floor=longer_floor)
    folder.step(25, seconds=2.0, attempt=2, loss=5.5, memory_bytes=60)
    folder.end(attempt=2, steps=25)
    collect(root)
    columns = "step_seconds, counted_records, final_loss, gpus, processes, peak_memory_bytes AS memory"
    assert sql(f"SELECT outcome, deciding_attempt, measured_attempt, {columns} FROM runs") == [{
        "outcome": "completed", "deciding_attempt": 2, "measured_attempt": 1, "step_seconds": 1.0,
        "counted_records": 1, "final_loss": 5.5, "gpus": 4, "processes": 4, "memory": 30,
    }]  # fmt: skip
    (run,) = sql("SELECT mfu, floor_percentage, tokens_per_second_per_process AS each FROM runs")
    assert run["each"] == pytest.approx(8 * 4096 / 4)
    assert run["mfu"] == pytest.approx(100 * run["each"] * 51_541_204_992 / 989.4e12)
    assert run["floor_percentage"] == pytest.approx(50)
    assert sql("SELECT attempt, parallel ->> '$.shard' AS shard FROM attempts ORDER BY attempt") == [
        {"attempt": 1, "shard": None},
        {"attempt": 2, "shard": "2"},
    ]


def test_nothing_is_measured_of_a_run_that_never_began_on_its_own_processes(root: Path, sql: Ask) -> None:
    folder = Folder(root, plan("r1", config=in_parallel(shard=4)))
    folder.start(gpus=2, parallel=ParallelConfig(shard=2))
    folder.step(20, seconds=2.0, memory_bytes=60)
    folder.end()
    collect(root)
    columns = "outcome, measured_attempt, step_seconds, mfu, gpu, processes, peak_memory_bytes AS memory"
    assert sql(f"SELECT {columns} FROM runs") == [{
        "outcome": "completed", "measured_attempt": None, "step_seconds": None, "mfu": None,
        "gpu": "NVIDIA H200", "processes": 4, "memory": None,
    }]  # fmt: skip


def test_a_steps_rate_is_shared_by_the_processes_of_its_attempt(root: Path, sql: Ask) -> None:
    """Also on a CPU, where no number of GPUs tells it."""
    folder = Folder(root, plan("r1", config=in_parallel(shard=4)))
    folder.start(attempt=1, gpus=0, device="CPU: some", peak=None)
    folder.step(20, seconds=1.0, attempt=1)
    parallel = ParallelConfig(replicate=2, shard=1)
    folder.start(attempt=2, gpus=0, device="CPU: some", peak=None, parallel=parallel)
    folder.step(25, seconds=1.0, attempt=2)
    collect(root)
    total = 8 * 4096 * flop_per_token(LLAMA, 4096) / 1e12
    shares = [row["tflops"] for row in sql("SELECT tflops FROM steps ORDER BY step")]
    assert shares == pytest.approx([total / 4, total / 2])


def test_a_killed_run_has_its_launchers_word(root: Path, sql: Ask) -> None:
    """SIGKILL: no result.json, but the launcher saw the process end."""
    folder = Folder(root, plan("r1"))
    folder.event("claimed", executor="local")
    folder.start()
    folder.step(20)
    folder.event("ended", outcome="failed", reason="killed by signal 9", after=90)
    collect(root)
    (run,) = sql("SELECT outcome, reason, wall_seconds, gpu_hours, steps FROM runs")
    assert run == {
        "outcome": "failed",
        "reason": "killed by signal 9",
        "wall_seconds": 90.0,
        "gpu_hours": 90 / 3600,
        "steps": 20,
    }


def test_a_run_in_flight_has_no_outcome(root: Path, sql: Ask) -> None:
    folder = completed(root, "r1")
    (folder.path / "attempt-1" / "result.json").unlink()
    (folder.path / "ledger.jsonl").unlink()
    folder.event("claimed")
    collect(root)
    (run,) = sql("SELECT outcome, ended_at, wall_seconds, gpu_hours, attempts FROM runs")
    assert run == {"outcome": None, "ended_at": None, "wall_seconds": None, "gpu_hours": None, "attempts": 1}


def test_a_run_that_nothing_launched_is_listed(root: Path, sql: Ask) -> None:
    Folder(root, plan("r1"))
    collect(root)
    assert sql("SELECT outcome, attempts, steps FROM runs") == [
        {"outcome": None, "attempts": 0, "steps": None}
    ]


def test_an_attempt_that_never_started_took_no_time(root: Path, sql: Ask) -> None:
    folder = Folder(root, plan("r1"))
    folder.event("submitted", executor="slurm", job_id="77_3")
    folder.event("ended", outcome="cancelled", reason="by the user")
    collect(root)
    assert sql("SELECT outcome, wall_seconds, job_id, executor FROM attempts") == [
        {"outcome": "cancelled", "wall_seconds": 0.0, "job_id": "77_3", "executor": "slurm"}
    ]


def test_time_with_an_offset_is_kept_as_utc(root: Path, sql: Ask) -> None:
    folder = completed(root, "r1")
    path = folder.path / "attempt-1" / "steps.jsonl"
    path.write_text(path.read_text().replace("T12:00:09Z", "T14:00:09+02:00"))
    collect(root)
    assert sql("SELECT time::VARCHAR AS time FROM steps WHERE step = 1") == [{"time": "2026-03-01 12:00:09"}]


def test_a_loss_that_is_not_finite_is_null_at_the_end(root: Path, sql: Ask) -> None:
    folder = Folder(root, plan("r1"))
    folder.start()
    folder.step(5, loss=9.0)
    folder.step(10, loss=None)
    folder.end("diverged", reason="the loss is NaN at step 10")
    collect(root)
    assert sql("SELECT final_loss, outcome FROM runs") == [{"final_loss": None, "outcome": "diverged"}]


def test_a_run_was_on_the_gpu_of_its_deciding_attempt(root: Path, sql: Ask) -> None:
    folder = Folder(root, plan("r1"))
    for attempt, gpu in enumerate(("0090d9", "7e634d"), start=1):
        folder.start(attempt, gpu_uuid=gpu)
        folder.end("timeout" if attempt == 1 else "completed", attempt)
    Folder(root, plan("r2")).start()
    collect(root)
    assert sql("SELECT gpu_uuid FROM runs ORDER BY run_id") == [{"gpu_uuid": "7e634d"}, {"gpu_uuid": None}]
    attempts = sql("SELECT gpu_uuid FROM attempts ORDER BY run_id, attempt")
    assert [row["gpu_uuid"] for row in attempts] == ["0090d9", "7e634d", None]


def test_any_of_the_expected_outcomes_is_as_expected(root: Path, sql: Ask) -> None:
    for run_id, ending in (("r1", "completed"), ("r2", "oom_gpu"), ("r3", "failed")):
        run = plan(run_id, expected_outcome=Outcome.COMPLETED, also_expected=(Outcome.OOM_GPU,))
        folder = Folder(root, run)
        folder.start()
        folder.end(ending)
    collect(root)
    rows = sql("SELECT outcome, expected_outcome FROM runs ORDER BY run_id")
    assert [(row["outcome"], row["expected_outcome"]) for row in rows] == [
        ("completed", "completed"),
        ("oom_gpu", "oom_gpu"),
        ("failed", "completed"),
    ]
