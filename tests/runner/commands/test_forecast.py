"""A queue's time left is estimated from steps that were timed, and from nothing before that."""

import pytest

from model.record.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from model.record.folder import RunFolder
from model.record.outcome import Outcome
from model.record.records import StepRecord
from runner.commands._progress import Forecast, ProgressBars, ProgressLines
from runner.execute import local
from runner.inputs.profile import read_cluster
from runner.plan.plan import next_attempt
from tests.analysis.fabricate import START, Folder, plan

MODEL = ModelConfig(dim=32, layers=1, heads=2, kv_heads=1, ffn_dim=64, vocab_size=300)


def run(run_id, steps=10, batch_size=1, shard=1, **changes):
    train = TrainConfig(steps=steps, batch_size=batch_size, sequence_length=32)
    config = RunConfig(model=MODEL, data=DataConfig(path="x.parquet"), train=train, parallel={"shard": shard})
    return plan(run_id, config=config, **changes)


def record(step, seconds, steps=1, loss=4.0):
    return StepRecord(
        step=step, steps=steps, time=START, loss=loss, learning_rate=1, grad_norm=1, step_seconds=seconds,
        tokens=32 * steps, training_tokens=32, memory_bytes=1,
    )  # fmt: skip


def test_the_first_step_of_a_run_tells_nothing():
    forecast = Forecast([run("a"), run("b")], parallel=1)
    forecast.started("a", 0)
    forecast.stepped("a", record(1, 30.0), 35)
    assert forecast.seconds is None
    forecast.stepped("a", record(2, 0.5), 36)
    assert forecast.training_seconds == pytest.approx(0.5 * (8 + 10))
    assert forecast.seconds == pytest.approx(0.5 * (8 + 10) + 5), "and 5 s to start the other"


def test_runs_count_by_their_work_and_those_that_end_at_once_by_none():
    runs = [run("a"), run("twice", batch_size=2), run("none", expected_outcome=Outcome.UNSUPPORTED)]
    forecast = Forecast(runs, parallel=2)
    forecast.started("a", 0)
    forecast.stepped("a", record(10, 0.5, steps=10), 5)
    assert forecast.training_seconds == pytest.approx(10 * 2 * 0.5 / 2)


def test_processes_share_a_runs_work():
    forecast = Forecast([run("a", batch_size=4), run("shared", batch_size=4, shard=4)], parallel=1)
    forecast.started("a", 0)
    forecast.stepped("a", record(10, 0.5, steps=10), 5)
    assert forecast.training_seconds == pytest.approx(10 * 0.5 / 4)


def test_starting_a_run_counts_as_it_usually_takes_not_as_the_first_that_certified():
    forecast = Forecast([run(name) for name in "abcd"], parallel=1)
    for name, start, duration in (("a", 0, 60), ("b", 100, 2)):
        forecast.started(name, start)
        forecast.stepped(name, record(1, 1.0), start + duration + 1)
        forecast.stepped(name, record(10, 1.0, steps=9), start + duration + 10)
        forecast.ended(name, start + duration + 10)
    assert forecast.seconds == pytest.approx(2 * (10 + 2))


def test_a_run_that_resumed_counts_the_steps_that_are_left():
    forecast = Forecast([run("a", steps=100)], parallel=1)
    forecast.started("a", 0)
    forecast.stepped("a", record(91, 1.0), 5)
    assert forecast.seconds == pytest.approx(9)


@pytest.fixture
def tasks(tmp_path):
    runs = [run("a"), run("b")]
    folders = [RunFolder(Folder(tmp_path, entry).path) for entry in runs]
    return runs, [next_attempt(folder, entry, None) for folder, entry in zip(folders, runs, strict=True)]


def test_lines_say_an_estimate_once_and_what_is_left_at_each_end(tasks, capsys):
    runs, (first, second) = tasks
    lines = ProgressLines(Forecast([*runs, run("done before")], parallel=1))
    lines.queued([first, second])
    lines.started(first)
    for step in (1, 2, 3):
        lines.stepped(first, record(step, 60.0))
    lines.ended(first, Outcome.COMPLETED, None)
    lines.started(second)
    lines.ended(second, Outcome.FAILED, "a reason")
    messages = capsys.readouterr().err.splitlines()
    assert [line for line in messages if "at this run's pace" in line] == [
        "[1/2] auto seed=0: at this run's pace, the steps of all 2 runs will take about 0:18:00"
    ]
    assert any(line.startswith("[1/2] auto seed=0: completed; about 0:10:0") for line in messages)
    assert messages[-1].endswith("failed (expected completed): a reason"), "nothing is left"


@pytest.mark.parametrize(("fail_fast", "stops"), [(True, True), (False, False)])
def test_only_an_unexpected_end_stops_the_queue_and_only_if_asked(tasks, fail_fast, stops):
    runs, (first, second) = tasks
    lines = ProgressLines(Forecast(runs, parallel=1), fail_fast)
    lines.queued([first, second])
    lines.started(first)
    lines.ended(first, Outcome.COMPLETED, None)
    assert not lines.stop_early
    lines.started(second)
    lines.ended(second, Outcome.FAILED, None)
    assert lines.stop_early is stops


@pytest.mark.fault
def test_a_queue_that_is_interrupted_leaves_the_terminal_its_cursor_and_foretells_nothing(tasks, monkeypatch):
    bar = ProgressBars(Forecast(tasks[0], parallel=1))

    def interrupted(*_):
        assert bar.bars.live.is_started
        raise KeyboardInterrupt("the launcher received SIGINT")

    monkeypatch.setattr(local, "_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        local.run_queue(tasks[1], read_cluster("local"), bar)
    assert not bar.bars.live.is_started
    assert bar.stop_early
