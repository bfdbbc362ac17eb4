"""What a report shows of each task is in one file of code and one template."""

from __future__ import annotations

from pathlib import Path

from analysis.report import render, tasks
from model import modules
from model.record.config import TASKS


def test_every_task_that_a_run_can_have_has_its_file_and_its_template() -> None:
    assert set(modules(Path(tasks.__file__).parent)) == set(TASKS)
    for name in TASKS:
        assert tasks.load(name).name == name
        assert (render.templates() / tasks.load(name).template).name == f"task_{name}.html"


def test_runs_of_several_tasks_are_shown_as_training() -> None:
    runs = [{"task": name} for name in ("attention", "inference")]
    assert tasks.of_study(runs[:1]).name == "attention"
    assert tasks.of_study(runs).name == "training"
