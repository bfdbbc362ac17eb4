"""What a run does before its first step: in its log, in a file, and in what `launch` shows."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from model.record.folder import RunFolder
from runner.commands._progress import ProgressLines
from runner.execute.child import Child
from runner.job import phase
from runner.job.phase import Stage

STAGES = [Stage(backend="flash", begun=number, total=11, what="needle, B1 T64") for number in range(1, 12)]


@pytest.fixture
def task(tmp_path):
    (tmp_path / "run" / "attempt-1").mkdir(parents=True)
    folder = RunFolder(tmp_path / "run")
    return SimpleNamespace(folder=folder, number=1, record=folder.attempt(1), label="flash", steps=10)


def test_a_run_shows_its_trial_in_its_log_and_to_its_launcher(task, capsys) -> None:
    attempt: Path = task.folder.attempt(1).path
    child = Child(task, None, 0, 0.0, 0)
    assert child.new_stage() is None
    with phase.shown(attempt) as tell:
        tell(STAGES[1])
        assert child.new_stage() == STAGES[1]
        assert child.new_stage() is None  # nothing new
        tell(STAGES[2])
        assert child.new_stage() == STAGES[2]
    assert child.new_stage() is None and not list(attempt.iterdir())
    assert capsys.readouterr().out.splitlines() == [
        "certifying flash (2 of 11): needle, B1 T64", "certifying flash (3 of 11): needle, B1 T64",
    ]  # fmt: skip


@pytest.mark.fault
def test_a_full_disk_does_not_end_a_trial(task, capsys, tmp_path) -> None:
    with phase.shown(tmp_path / "gone") as tell:
        tell(STAGES[0])
    assert "certifying flash (1 of 11)" in capsys.readouterr().out


def test_launch_prints_a_line_now_and_then(task, capsys) -> None:
    lines = ProgressLines()
    lines.queued([task])
    lines.count_start(task)
    for stage in [Stage(backend="flash", begun=0, total=0, what="starting its process"), *STAGES]:
        lines.certifying(task, stage)
    messages = capsys.readouterr().err.splitlines()
    assert messages[0] == "[1/1] flash: certifying flash: starting its process"
    assert [line.partition("(")[2].partition(")")[0] for line in messages[1:]] == [
        "1 of 11",
        "5 of 11",
        "10 of 11",
    ]
