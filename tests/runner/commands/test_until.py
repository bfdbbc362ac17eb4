"""`until` adds repeats until the interval is narrow enough, and says so; nothing here starts a process."""

import re

import pytest
from typer.testing import CliRunner

from analysis.store.collect import collect
from model.record.outcome import Outcome
from runner.cli.app import app
from runner.commands import _start
from runner.execute import wait
from runner.inputs.document import InvalidFile, Mark, Problem
from runner.plan.plan import refreshed, write_runs
from runner.state import ledger
from runner.state.endings import Ending
from runner.state.runs import states
from tests.analysis.fabricate import Folder

STUDY = "matrix: {attention: [auto, tiled], seed: [0]}\nbaseline: {attention: auto}\n"
UNTIL = "until: {tokens_per_second: 1%, at_most: 4}\n"
SLURM = "executor: slurm\nslurm: {}\n"
# Seconds per step by repeat. The baseline drifts, and so does the other: their ratio is steadier than either.
DRIFT = [1.0, 1.3, 0.9, 1.1]
STEADY = [1.02, 1.021, 1.019, 1.02]


def train(task, ratio, outcome="completed"):
    """What a run leaves on disk, without running it."""
    assert ledger.claim(task.folder, task.number, "local")
    end(task, ratio, outcome)


def end(task, ratio, outcome="completed"):
    run = task.folder.run
    folder = Folder.__new__(Folder)
    folder.run, folder.path = run, task.folder.path
    seconds = DRIFT[run.repeat - 1] * (ratio[run.repeat - 1] if run.config.attention != "auto" else 1.0)
    for step in range(1, run.config.train.steps + 1):
        folder.step(step, seconds=seconds, steps=1, attempt=task.number)
    ledger.record_end(task.folder, task.number, Ending(Outcome(outcome)))


@pytest.fixture
def launch(study, root, monkeypatch):
    """Launches a study whose runs take the seconds above; returns the result, and counts what each round ran."""
    rounds = []

    def launched(extra, *arguments, ratio=STEADY, outcome=lambda run: "completed", **options):
        def run(plan, _wait, _fail_fast):
            options.get("before", lambda _: None)(plan)
            tasks = write_runs(refreshed(plan))
            for task in tasks:
                train(task, ratio, outcome(task.folder.run))
            rounds.append([(task.folder.run.config.attention, task.folder.run.repeat) for task in tasks])
            return options.get("waited", True)

        monkeypatch.setattr(_start, "run", run)
        monkeypatch.setattr(_start, "reconciled", lambda *_: ())
        answer = CliRunner().invoke(app, ["--root", str(root), "launch", str(study(extra)), *arguments])
        if answer.exception and not isinstance(answer.exception, SystemExit):
            raise answer.exception
        return answer

    launched.rounds = rounds
    return launched


def repeats(root):
    return sorted(state.brief.repeat for state in states(root))


def test_repeats_are_added_until_the_paired_ratio_is_narrow_enough(launch, root):
    """The rates themselves differ by a third from repeat to repeat; their ratio does not."""
    answer = launch(STUDY + UNTIL)
    assert answer.exit_code == 0
    assert [len(cells) for cells in launch.rounds] == [2, 2, 2]
    assert repeats(root) == [1, 1, 2, 2, 3, 3]
    assert "tiled: 1 of at least 3 pairs of runs: no interval yet" in answer.stderr
    assert re.search(
        r"tiled: 3 pairs of runs: ratio 0\.98\S* .* half width 0\.\d+ %, target 1 % reached", answer.stderr
    )
    assert "until: the interval of every group is within 1 % of its ratio" in answer.stderr
    assert answer.stdout.count("\ntiny/") == 6, "the table at the end has all repeats"


@pytest.mark.fault
def test_a_run_that_was_cancelled_while_a_launch_waited_for_its_turn_is_not_started_again(launch, root):
    cancelled = []

    def cancel(plan):
        if not cancelled:
            cancelled.extend(
                task for task in write_runs(refreshed(plan)) if task.folder.run.config.attention == "tiled"
            )
            train(cancelled[0], STEADY, "cancelled")

    answer = launch(STUDY + UNTIL, before=cancel)
    assert launch.rounds[0] == [("auto", 1)]
    assert [state.attempt for state in states(root) if state.outcome is Outcome.CANCELLED] == [1]
    assert answer.exit_code == 1
    assert launch(STUDY + UNTIL).exit_code == 0, "the next launch starts it again"


@pytest.mark.fault
def test_runs_that_another_launch_has_started_are_waited_for(launch, root, monkeypatch):
    """They were taken for missing, and the launch ended without a word of them."""
    elsewhere = []

    def claim(plan):
        if not elsewhere:
            elsewhere.extend(write_runs(refreshed(plan)))
            assert all(ledger.claim(task.folder, task.number, "local") for task in elsewhere)

    def time_passes(_):
        for task in elsewhere:
            end(task, STEADY)

    monkeypatch.setattr(wait.time, "sleep", time_passes)
    answer = launch(STUDY + UNTIL, before=claim)
    assert [len(cells) for cells in launch.rounds] == [0, 2, 2]
    assert answer.stderr.count("until: waiting for 2 runs that another launch has started") == 1
    assert repeats(root) == [1, 1, 2, 2, 3, 3]
    assert "until: the interval of every group is within 1 % of its ratio" in answer.stderr


def test_at_most_ends_it_and_the_groups_that_missed_are_named(launch, root):
    answer = launch(STUDY + UNTIL, ratio=[1.0, 1.3, 0.9, 1.2])
    assert repeats(root) == sorted([1, 2, 3, 4] * 2)
    assert "until: not within 1 %: tiled" in answer.stderr
    assert answer.exit_code == 0, "an answer that is not precise is no failure of the runs"


def test_a_second_launch_goes_on_where_the_first_stopped(launch, root, monkeypatch):
    wide = [1.0, 1.02, 0.98, 1.0]
    launch(STUDY + UNTIL.replace("4", "3"), ratio=wide)
    before = {state.brief.run_id: state.brief.position for state in states(root)}
    assert repeats(root)[-1] == 3
    launch.rounds.clear()
    launch(STUDY + UNTIL, ratio=wide)
    assert launch.rounds[0] == [], "repeats 1 to 3 are there"
    assert [{repeat for _, repeat in cells} for cells in launch.rounds[1:]] == [{4}]
    after = {state.brief.run_id: state.brief.position for state in states(root)}
    assert before.items() <= after.items()
    assert sorted(after.values()) == list(range(1, 9))


def test_runs_that_fail_or_are_expected_to_end_otherwise_hold_nothing_up(launch, root):
    extra = STUDY.replace("[auto, tiled]", "[auto, tiled, flash, math]") + UNTIL
    extra += "rules: [{where: {attention: math}, expect: oom_host}]\n"
    endings = {"flash": "failed", "math": "oom_host"}
    answer = launch(extra, outcome=lambda run: endings.get(run.config.attention, "completed"))
    assert [len(cells) for cells in launch.rounds] == [4, 2, 2]
    assert "flash: no completed pair with the baseline" in answer.stderr
    assert "until: not within 1 %: flash, math" in answer.stderr
    assert answer.exit_code == 1, "flash failed"


def test_groups_without_a_counterpart_are_not_called_precise(launch):
    extra = "zip: [{attention: [auto, tiled], train.learning_rate: [1e-3, 2e-3]}]\n"
    answer = launch(extra + "baseline: {attention: auto}\n" + UNTIL)
    assert "until: no group differs from its baseline in the baseline's factors alone" in answer.stderr
    assert [len(cells) for cells in launch.rounds] == [2]


def test_every_seed_makes_a_pair(launch, root):
    extra = STUDY.replace("seed: [0]", "seed: [0, 1, 2]") + UNTIL
    launch(extra)
    assert [len(cells) for cells in launch.rounds] == [6]


def test_on_slurm_without_waiting_each_launch_adds_what_is_needed(launch, tmp_path, root):
    (profile := tmp_path / "cluster.yaml").write_text(SLURM)
    for number in (1, 2, 3):
        answer = launch(STUDY + UNTIL, "-p", str(profile), waited=False)
        assert "until: launch again once these runs have ended, to continue from there" in answer.stderr
        assert {repeat for _, repeat in launch.rounds[-1]} == {number}
    answer = launch(STUDY + UNTIL, "-p", str(profile), waited=False)
    assert len(launch.rounds) == 3
    assert "until: the interval of every group is within 1 %" in answer.stderr


def test_on_slurm_a_failed_run_starts_again_with_the_next_repeat(launch, tmp_path, root):
    (profile := tmp_path / "cluster.yaml").write_text(SLURM)
    extra = STUDY.replace("[auto, tiled]", "[auto, tiled, flash]") + UNTIL
    failed = lambda run: "failed" if run.config.attention == "flash" else "completed"  # noqa: E731
    for _ in range(2):
        launch(extra, "-p", str(profile), waited=False, outcome=failed)
    assert sorted(launch.rounds[1]) == [("auto", 2), ("flash", 1), ("tiled", 2)]


def test_a_budget_ends_it_with_the_table_of_what_ran(launch, root, monkeypatch):
    """As the reservation of a round refuses, whose message names the budget's place."""

    def refuse(plan):
        if any(run.repeat == 3 for run, _ in plan.runs):
            raise InvalidFile([Problem(Mark("tiny.yaml", 9, 3), "a budget of 1 GPU-hours: too little")])

    answer = launch(STUDY + UNTIL, before=refuse)
    assert repeats(root) == [1, 1, 2, 2]
    assert "until: repeat 3 was not started: tiny.yaml:9:3: a budget of 1 GPU-hours" in answer.stderr
    assert answer.stdout.count("\ntiny/") == 4


def test_a_part_of_a_study_decides_nothing(study, root, monkeypatch):
    started = []
    monkeypatch.setattr(_start, "start", lambda plan, *_: started.extend(plan.runs) or 0)
    path = study(STUDY + UNTIL)
    answer = CliRunner().invoke(app, ["--root", str(root), "launch", str(path), "--only", "attention=tiled"])
    assert "`until` adds no repeats" in answer.stderr
    assert [run.repeat for run, _ in started] == [1]


def test_a_dry_run_says_the_worst_cost_and_how_many_repeats_past_runs_suggest(launch, root):
    unknown = launch(STUDY + UNTIL, "--dry-run")
    assert "with every repeat that `until` may add (6 runs): no estimate yet" in unknown.stderr
    assert "how many repeats the study needs is unknown" in unknown.stderr
    launch(STUDY + UNTIL, ratio=[1.0, 1.003, 0.997, 1.0])
    collect(root)
    extra = STUDY + "margins: {tokens_per_second: 1%}\nrepeats: 2\n"
    dry_run = launch(extra + UNTIL, "--dry-run")
    assert re.search(r"\d past pairs of runs spread by 0\.\d+ % around their ratios", dry_run.stderr)
    assert re.search(r"two groups 1 % apart .* about \d+ repeats; the study has 2 to 4", dry_run.stderr)
    assert re.search(r"an interval of 1 % either way can be expected after about \d repeats", dry_run.stderr)


def test_a_budget_that_the_worst_case_exceeds_is_named_beforehand(launch, tmp_path):
    (profile := tmp_path / "cluster.yaml").write_text(SLURM + "gpus: 1\ntime_limit: 1:00:00\n")
    dry_run = launch(STUDY + UNTIL + "budget: {gpu_hours: 3}\n", "-p", str(profile), "--dry-run")
    assert re.search(r"`until` may end early: \S+tiny\.yaml:10:10: a budget of 3 GPU-hours", dry_run.stderr)
