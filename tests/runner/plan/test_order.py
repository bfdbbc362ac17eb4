"""Runs keep their places in the order of starting, and what later launches add comes after them."""

import json

import pytest

from model.record.outcome import Outcome
from runner.inputs.expansion import expand
from runner.inputs.profile import read_cluster
from runner.inputs.study import read_study
from runner.plan.plan import plan, rehearsal, write_runs
from runner.state import ledger
from runner.state.endings import Ending
from runner.state.runs import states

TWO = "matrix: {attention: [auto, tiled], seed: [0, 1]}\n"


@pytest.fixture
def launched(study, root):
    """Plans and writes a study's runs as a launch does; returns the tasks."""

    def launch(extra, only=()):
        parsed = read_study(study(extra))
        planned = plan(parsed, expand(parsed, only=only), "full", read_cluster("local"), root)
        return write_runs(planned)

    return launch


def complete(tasks):
    for task in tasks:
        assert ledger.claim(task.folder, task.number, "local")
        ledger.record_end(task.folder, task.number, Ending(Outcome.COMPLETED))


def places(root):
    return {state.brief.run_id: (state.brief.position, state.brief.block) for state in states(root)}


def test_tasks_are_in_the_order_of_starting(launched):
    tasks = launched(TWO)
    assert [task.folder.run.position for task in tasks] == [1, 2, 3, 4]
    assert [task.folder.run.block for task in tasks] == [1, 1, 2, 2]


def test_more_repeats_add_runs_after_the_others_and_restart_none(launched, root):
    complete(launched(TWO))
    before = places(root)
    tasks = launched(TWO + "repeats: 2\n")
    assert [task.folder.run.repeat for task in tasks] == [2] * 4
    assert [task.folder.run.position for task in tasks] == [5, 6, 7, 8]
    assert [task.folder.run.block for task in tasks] == [3, 3, 4, 4]
    assert [task.label.split()[-1] for task in tasks] == ["repeat=2"] * 4
    assert before.items() <= places(root).items()


def test_what_a_first_launch_left_goes_on_in_the_same_order(launched):
    first, *others = launched(TWO)
    complete([first])
    tasks = launched(TWO)
    assert [task.folder.path for task in tasks] == [task.folder.path for task in others]
    assert [task.folder.run.position for task in tasks] == [2, 3, 4]


def test_a_block_is_made_of_runs_that_were_planned_together(launched):
    """A group that is launched on a later day shares no block with those of the first: the days may differ."""
    complete(launched(TWO, only=["attention=tiled"]))
    tasks = launched(TWO)
    assert [(task.folder.run.position, task.folder.run.block) for task in tasks] == [(3, 3), (4, 4)]


def test_a_margin_that_is_stated_after_the_runs_is_not_recorded_in_them_and_a_baseline_is(launched, root):
    complete(launched(TWO + "margins: {loss: 0.1}\n"))
    launched(TWO + "margins: {loss: 9.0}\nbaseline: {attention: auto}\n")
    for state in states(root):
        assert state.run.design.margins == {"loss": 0.1}
        assert state.run.design.baseline == {"attention": "auto"}


def test_a_label_can_be_given_after_the_runs_and_taken_back(launched, root):
    complete(launched(TWO))
    for rule, label in (("rules: [{where: {attention: auto}, label: PyTorch}]\n", "PyTorch"), ("", None)):
        assert launched(TWO + rule) == []
        assert {state.run.label for state in states(root) if state.run.config.attention == "auto"} == {label}


@pytest.mark.fault
def test_until_that_is_taken_out_of_the_study_stays_in_the_runs_that_it_looked_at(launched, root):
    complete(launched(TWO + "baseline: {attention: auto}\nuntil: {tokens_per_second: 1%, at_most: 3}\n"))
    launched(TWO + "baseline: {attention: auto}\n")
    assert {state.run.design.until["at_most"] for state in states(root)} == {3}


def test_a_run_of_an_earlier_version_is_read_and_stays_as_it_is(launched, root):
    complete(launched(TWO))
    for path in root.glob("tiny/*/run.json"):
        record = json.loads(path.read_text())
        for key in ("repeat", "position", "block", "design"):
            del record[key]
        path.write_text(json.dumps(record))
    records = {path: path.read_bytes() for path in root.glob("tiny/*/run.json")}
    assert [state.run.repeat for state in states(root)] == [1] * 4
    tasks = launched(TWO + "repeats: 2\n")
    assert [task.folder.run.position for task in tasks] == [5, 6, 7, 8]
    assert all(path.read_bytes() == text for path, text in records.items())


def test_a_rehearsal_tries_each_configuration_once(study, root):
    parsed = read_study(study(TWO + "repeats: 3\n"))
    short = rehearsal(plan(parsed, expand(parsed), "full", read_cluster("local"), root))
    assert [run.repeat for run, _ in short.runs] == [1] * 4
