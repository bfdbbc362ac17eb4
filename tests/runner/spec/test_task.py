"""A study names the task of its runs, and settings of other tasks are refused, as they would have no effect."""

import pytest

from model.config import SECTIONS, RunConfig
from runner.spec.expansion import expand
from runner.spec.problems import InvalidFile
from runner.spec.study import read_study

pytestmark = pytest.mark.refused
HEAD = "title: t\nbase: {data: {path: text.parquet}}\n"


def test_training_is_the_default_and_a_run_that_says_so_is_the_same_run(study):
    (silent,) = expand(read_study(study("")))
    (said,) = expand(read_study(study("")), sets=["task=training"])
    assert silent.run_id == said.run_id
    assert "task" not in silent.config.model_dump(), "so that older code can read the record"


def test_a_run_of_training_keeps_the_id_that_it_had_before_there_were_tasks(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(HEAD + "repeats: 2\n")
    assert [cell.run_id for cell in expand(read_study(path))] == ["67c02631b8bb", "38498df870b8"]


def test_a_factor_may_be_the_task(study):
    (cell,) = expand(read_study(study("matrix: {task: [training]}\n")))
    assert cell.factors == {"task": "training"}


def test_an_unknown_task_is_refused_with_the_choices(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(HEAD + "matrix: {task: [dreaming]}\n")
    with pytest.raises(InvalidFile, match=r"s.yaml:3:17: 'task' must be .*'training'.*, got 'dreaming'"):
        expand(read_study(path))


def test_a_setting_that_the_task_does_not_read_is_refused_in_its_place(tmp_path, monkeypatch):
    monkeypatch.setitem(SECTIONS, "training", ("train", "data"))
    path = tmp_path / "s.yaml"
    path.write_text(HEAD + "matrix: {model.dim: [64]}\n")
    with pytest.raises(
        InvalidFile,
        match=r"s.yaml:3:22: 'model.dim' has no effect on task training, whose sections are train, data",
    ):
        expand(read_study(path))


def test_a_task_that_reads_text_needs_some(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("title: t\n")
    with pytest.raises(InvalidFile, match="`base` lacks data.path"):
        expand(read_study(path))
    with pytest.raises(ValueError, match=r"lacks data\.path"):
        RunConfig()
