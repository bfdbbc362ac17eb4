"""A study that grows block by block, on machines that are lent for a while; nothing here starts a process."""

import shutil

import pytest
from typer.testing import CliRunner

from analysis.export.pack import pack
from analysis.export.unpack import unpack
from model.record.errors import UserError
from model.record.outcome import Outcome
from runner.cli.app import app
from runner.commands import _start
from runner.plan.plan import refreshed, write_runs
from runner.state import ledger
from runner.state.endings import Ending
from runner.state.runs import states

STUDY = "matrix: {attention: [auto, tiled, math]}\nrepeats: 3\n"


@pytest.fixture
def launch(study, root, monkeypatch):
    """Launches a study, whose runs end as asked: by backend, None for one that is in flight."""

    def launched(*arguments, extra=STUDY, endings=None):
        def run(plan, _wait, _fail_fast):
            for task in write_runs(refreshed(plan)):
                assert ledger.claim(task.folder, task.number, "local")
                if outcome := (endings or {}).get(task.folder.run.config.attention, "completed"):
                    ledger.record_end(task.folder, task.number, Ending(Outcome(outcome)))
            return True

        monkeypatch.setattr(_start, "run", run)
        answer = CliRunner().invoke(app, ["--root", str(root), "launch", str(study(extra)), *arguments])
        if isinstance(answer.exception, UserError):
            raise answer.exception
        return answer

    return launched


def ran(root):
    """How runs ended, by block and backend."""
    return {
        (state.run.repeat, state.run.config.attention): (str(state.outcome or state.phase), state.highest)
        for state in states(root)
    }


def left(*repeats):
    """As `ran` shows repeats that no launch has started."""
    return {(repeat, name): ("planned", 0) for repeat in repeats for name in ("auto", "tiled", "math")}


def test_all_blocks_are_planned_by_the_first_launch(launch, root):
    """Later ones execute that plan: their runs were not added after the first result."""
    launch("--blocks", "1", "--dry-run")
    assert not root.exists()
    launch("--blocks", "1")
    end = min(state.event("ended").time for state in states(root) if state.latest)
    runs = {state.brief.run_id: state.run for state in states(root)}
    assert len(runs) == 9
    status = CliRunner().invoke(app, ["--root", str(root), "status"])
    assert "6 planned" in status.stderr
    assert "9 runs" in status.stderr
    assert status.stdout.count(" planned ") == 6
    launch("--blocks", "2")
    for state in states(root):
        planned = runs[state.brief.run_id]
        assert state.outcome is Outcome.COMPLETED
        assert state.run.created_at == planned.created_at < end
        assert (state.run.block, state.run.position) == (planned.block, planned.position)


def test_the_plan_of_later_blocks_travels_with_the_archive(launch, root, tmp_path):
    launch("--blocks", "1")
    times = {state.brief.run_id: state.run.created_at for state in states(root)}
    pack(root, "tiny", tmp_path / "tiny.tar.gz")
    shutil.rmtree(root)
    assert unpack(tmp_path / "tiny.tar.gz", root).added == 9
    assert "3 runs of block 2 to start; 3 runs left" in launch("--blocks", "1").stderr
    assert {state.brief.run_id: state.run.created_at for state in states(root)} == times


def test_a_study_that_changed_between_blocks_no_longer_has_the_runs_of_the_rest(launch, root):
    launch("--blocks", "1")
    launch("--blocks", "1", extra=STUDY.replace("repeats: 3", "repeats: 2"))
    status = CliRunner().invoke(app, ["--root", str(root), "status"])
    assert "6 runs: 6 completed; 3 removed: 3 planned" in status.stderr


def test_blocks_come_one_at_a_time_and_each_run_once(launch, root):
    for number in (1, 2, 3):
        answer = launch("--blocks", "1")
        assert (
            f"--blocks: 3 runs of block {number} to start; {9 - 3 * number} runs left for later"
            in answer.stderr
        )
        assert len(states(root)) == 9
        assert {repeat for (repeat, _), (end, _) in ran(root).items() if end != "planned"} == set(
            range(1, number + 1)
        )
    answer = launch("--blocks", "1")
    assert "--blocks: no run to start; 0 runs left for later" in answer.stderr
    assert set(ran(root).values()) == {("completed", 1)}
    assert sorted({state.run.block for state in states(root)}) == [1, 2, 3]


def test_several_blocks_may_be_asked_for(launch, root):
    assert "6 runs of block 1, 2 to start; 3 runs left" in launch("--blocks", "2").stderr
    assert "3 runs of block 3 to start; 0 runs left" in launch("--blocks", "5").stderr


def test_what_a_block_was_cut_off_in_runs_again_before_the_next_block(launch, root):
    launch("--blocks", "1", endings={"math": "lost"})
    assert "1 run of block 1 to start; 6 runs left" in launch("--blocks", "1", "--dry-run").stderr
    launch("--blocks", "1")
    assert ran(root) == {
        (1, "auto"): ("completed", 1),
        (1, "tiled"): ("completed", 1),
        (1, "math"): ("completed", 2),
    } | left(2, 3)


def test_a_run_that_never_came_back_is_in_a_block_of_its_own(launch, root):
    """Its machine was another one, so it must not look like a part of the first block."""
    launch("--blocks", "1")
    absent = next(state for state in states(root) if state.run.config.attention == "math" and state.latest)
    shutil.rmtree(absent.folder.path)
    assert "3 runs of block 2 to start; 4 runs left" in launch("--blocks", "1").stderr
    replanned = next(state for state in states(root) if state.brief.run_id == absent.brief.run_id)
    assert (replanned.phase, replanned.run.block) == ("planned", 4)


def test_a_block_in_flight_is_not_overtaken(launch, root):
    launch("--blocks", "1", endings={"math": None})
    assert "--blocks: no run to start; 6 runs left for later" in launch("--blocks", "1", "--dry-run").stderr
    assert "3 runs of block 2 to start" in launch("--blocks", "2", "--dry-run").stderr


@pytest.mark.parametrize("outcome", ["failed", "diverged", "oom_gpu"])
def test_a_run_that_fails_by_itself_holds_up_no_later_block(launch, root, outcome):
    launch("--blocks", "1", endings={"math": outcome})
    assert "3 runs of block 2 to start; 4 runs left" in launch("--blocks", "1").stderr
    assert ran(root)[1, "math"] == (outcome, 1)


def test_only_the_next_blocks_cost_is_shown(launch, root, study, tmp_path):
    stdout = launch("--dry-run").stdout
    block = launch("--dry-run", "--blocks", "1").stdout
    assert (stdout.count("start"), block.count("start")) == (9, 3)


@pytest.mark.refused
@pytest.mark.parametrize("order", ["random", "as written"])
def test_without_blocks_there_is_no_next_one(launch, root, order):
    with pytest.raises(UserError, match="--blocks needs `order: interleaved` in study tiny"):
        launch("--blocks", "1", extra=f"{STUDY}order: {order}\n")
    assert not root.exists()


def test_until_adds_no_repeats_to_a_block(launch, root):
    until = "until: {tokens_per_second: 1%, at_most: 4}\nbaseline: {attention: auto}\n"
    answer = launch("--blocks", "1", extra=STUDY + until)
    assert "--blocks: `until` adds no repeats; launch without --blocks to add them" in answer.stderr
    assert ran(root) == {(1, name): ("completed", 1) for name in ("auto", "tiled", "math")} | left(2, 3)
    assert "`until` may add" not in answer.stderr
