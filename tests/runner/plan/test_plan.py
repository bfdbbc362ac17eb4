"""A plan remembers which study and which profile it came from, wherever the next command is typed."""

import json
from pathlib import Path

import pytest

from model.record.config import ParallelConfig
from model.record.errors import UserError
from model.record.files import write
from model.record.outcome import Outcome
from runner.commands import retry
from runner.inputs.document import InvalidFile
from runner.inputs.expansion import expand
from runner.inputs.profile import read_cluster
from runner.inputs.study import read_study
from runner.plan.cost import estimate_plan
from runner.plan.plan import common_cluster, plan, planned_again, refreshed, rehearsal, write_runs
from runner.state import ledger
from runner.state.endings import Ending
from runner.state.runs import states


@pytest.fixture
def planned(study, root, tmp_path, monkeypatch):
    """A study and a profile, named by relative paths, whose runs are on disk."""
    study()
    (tmp_path / "mine.yaml").write_text("executor: local\nbudget: {gpu_hours: 1}\n")
    monkeypatch.chdir(tmp_path)
    return written("tiny.yaml", "mine.yaml", root)


def written(study, profile, root):
    parsed = read_study(Path(study))
    draft = plan(parsed, expand(parsed), "full", read_cluster(profile), root)
    for run, _ in draft.runs:
        draft.folder(run).path.mkdir(parents=True)
        write(draft.folder(run).path / "run.json", run)
    return draft


def test_a_rehearsal_has_ids_of_its_own(planned):
    short = rehearsal(planned)
    assert {run.run_id for run, _ in short.runs}.isdisjoint(run.run_id for run, _ in planned.runs)
    assert {run.group for run, _ in short.runs}.isdisjoint(run.group for run, _ in planned.runs)
    rehearsed = rehearsal(planned)
    assert [run.run_id for run, _ in rehearsed.runs] == [run.run_id for run, _ in short.runs]


def test_retry_takes_the_profile_and_the_study_of_the_launch_from_any_folder(
    planned, root, tmp_path, monkeypatch
):
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "cluster_profiles").mkdir(parents=True)
    (elsewhere / "cluster_profiles" / "mine.yaml").write_text("executor: slurm\nslurm: {}\n")
    monkeypatch.chdir(elsewhere)
    runs = states(root)
    cluster = common_cluster(runs, None)
    assert cluster.file == tmp_path / "mine.yaml"
    replanned = planned_again(root, runs, cluster)
    assert replanned.study.path == tmp_path / "tiny.yaml"
    assert [run for run, _ in replanned.runs] == [run for run, _ in planned.runs]


def test_a_retry_under_another_profile_records_that_profile(planned, root, tmp_path):
    (tmp_path / "other.yaml").write_text("executor: local\n")
    replanned = planned_again(root, states(root), read_cluster("other.yaml"))
    write_runs(replanned)
    (run,) = [state.run for state in states(root)]
    assert (run.profile, run.profile_file) == ("other", str(tmp_path / "other.yaml"))


@pytest.mark.fault
def test_a_retry_leaves_alone_what_another_retry_has_done_while_it_waited(planned, root):
    (folder,) = [state.folder for state in states(root)]
    assert ledger.claim(folder, 1, "local")
    ledger.record_end(folder, 1, Ending(Outcome.FAILED))
    restart = planned_again(root, states(root), read_cluster("mine.yaml"))
    assert refreshed(restart).left
    assert ledger.claim(folder, 2, "local")
    ledger.record_end(folder, 2, Ending(Outcome.COMPLETED))
    assert not write_runs(refreshed(restart))
    assert write_runs(refreshed(planned_again(root, states(root), restart.cluster))), (
        "asked for after it ended"
    )


def test_a_retry_can_put_other_processes_in_place_of_a_runs_own_for_one_attempt(planned, root):
    """The run stays as it was planned; its claim says what the attempt has, and the next retry goes back."""
    records = {path: path.read_text() for path in root.glob("tiny/*/run.json")}
    cluster = read_cluster("mine.yaml")
    (task,) = write_runs(planned_again(root, states(root), cluster, {"shard": 2}))
    assert (task.shape.processes, task.parallel) == (2, ParallelConfig(shard=2))
    assert {path: path.read_text() for path in root.glob("tiny/*/run.json")} == records
    assert ledger.claim(task.folder, 1, "local", task.parallel)
    attempt = task.folder.attempt(1)
    assert attempt.planned.config.processes == 2
    assert attempt.planned.run_id == task.folder.run.run_id
    assert task.folder.run.config.processes == 1
    ledger.record_end(task.folder, 1, Ending(Outcome.FAILED))
    (task,) = write_runs(planned_again(root, states(root), cluster))
    assert (task.shape.processes, task.parallel) == (1, None)
    assert ledger.claim(task.folder, 2, "local", task.parallel)
    assert task.folder.attempt(2).parallel is None


@pytest.mark.refused
@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", [3, 10**9])
def test_a_retry_on_processes_that_do_not_fit_names_only_what_it_can_change(planned, root, number):
    """However far from any that fit: it does not try all in between."""
    with pytest.raises(UserError) as refused:
        planned_again(root, states(root), read_cluster("mine.yaml"), {"shard": number})
    assert str(refused.value).endswith(f"parallel.shard {number}: 2 would do for parallel.shard")


@pytest.mark.refused
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shard": 3}, "train.batch_size"),
        ({"replicate": 2, "context": 8}, "processes_per_node"),
        ({"tensor": 64}, "heads"),
    ],
)
def test_processes_that_cannot_share_a_run_are_refused_before_anything_starts(
    planned, root, changes, message
):
    with pytest.raises(UserError, match=message):
        planned_again(root, states(root), read_cluster("mine.yaml"), changes)


@pytest.mark.refused
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.steps=3", r"restarts as planned, and only its processes can change \(valid: "),
        ("shard=2", "did you mean 'parallel.shard'"),
        ("parallel.shard=0", "expected a number of processes"),
        ("parallel.shard=two", "expected a number of processes"),
        ("parallel.shards=2", "parallel.shard"),
    ],
)
def test_a_retry_changes_nothing_but_a_number_of_processes(setting, message):
    with pytest.raises(UserError, match=message):
        retry.command("tiny", sets=[setting])


def test_a_retry_on_fewer_processes_needs_a_profile_for_these_alone(planned, root, tmp_path, study):
    study("matrix: {parallel.shard: [2]}\n", name="shared")
    written("shared.yaml", "mine.yaml", root)
    runs = [state for state in states(root) if state.run.study == "shared"]
    (tmp_path / "few.yaml").write_text("executor: local\nprocesses_per_node: 1\n")
    few = read_cluster("few.yaml")
    (run,) = estimate_plan(planned_again(root, runs, few, {"shard": 1})).runs
    assert run.layout.processes == 1
    with pytest.raises(UserError, match="2 processes are too many for this machine"):
        estimate_plan(planned_again(root, runs, few))


def test_a_record_of_an_earlier_version_gets_no_key_that_its_code_refuses(planned, root):
    (path,) = root.glob("tiny/*/run.json")
    record = json.loads(path.read_text())
    del record["profile_file"], record["launched_in"]
    path.write_text(json.dumps(record | {"profile": "local"}))
    runs = states(root)
    assert common_cluster(runs, None).name == "local"
    write_runs(planned_again(root, runs, read_cluster("mine.yaml")))
    assert json.loads(path.read_text()).keys() == record.keys()


@pytest.mark.refused
def test_runs_of_several_profiles_are_retried_under_one_that_is_named(planned, root, tmp_path, study):
    study(name="second")
    (tmp_path / "other.yaml").write_text("executor: local\n")
    written("second.yaml", "other.yaml", root)
    with pytest.raises(UserError, match=r"2 profiles: .*mine.yaml, .*other.yaml; choose"):
        common_cluster(states(root), None)
    assert common_cluster(states(root), "other.yaml").name == "other"


@pytest.mark.refused
def test_a_profile_that_is_gone_is_named_with_the_run(planned, root, tmp_path):
    (tmp_path / "mine.yaml").unlink()
    with pytest.raises(UserError, match=r"(?s)mine.yaml: No such file.*\ntiny/\w+ was launched with it"):
        common_cluster(states(root), None)


def test_a_run_records_what_is_said_of_its_scale_and_what_the_study_says_itself(study, root):
    path = study("scales:\n  small: {description: It is small., set: {train.steps: 2}}\n")
    read = read_study(path)
    draft = plan(read, expand(read, "small"), "small", read_cluster("local"), root)
    (run, _), *_ = draft.runs
    assert run.scale_description == "It is small."
    assert run.overridden["train.steps"].model_dump() == {"own": 6, "by": "scale small"}


def test_a_run_records_which_numbers_of_others_no_cell_of_its_scale_is_about(study, root):
    about = "mfu: 41, hardware: a card, source: a paper, read_from: table"
    path = study(
        "matrix: {attention: [auto, tiled]}\n"
        f"reported:\n  - {{where: {{attention: auto}}, {about}}}\n  - {{where: {{attention: tiled}}, {about}}}\n"
        "scales:\n  small: {matrix: {attention: [auto]}}\n"
    )
    read = read_study(path)
    draft = plan(read, expand(read, "small"), "small", read_cluster("local"), root)
    assert [run.reported_elsewhere for run, _ in draft.runs] == [[2]]
    draft = plan(read, expand(read, "full", only=["attention=auto"]), "full", read_cluster("local"), root)
    assert [run.reported_elsewhere for run, _ in draft.runs] == [[]], "another launch may run the other"


@pytest.mark.refused
def test_a_study_whose_task_changed_is_refused_while_its_runs_are_there(planned, study, root):
    """One study has one task, and the runs of before would be ranked with the new ones."""
    path = study("", base="title: t\nbase: {device: cpu, task: attention}\n")
    parsed = read_study(path)
    with pytest.raises(
        InvalidFile, match=r"tiny\.yaml:2:21: study 'tiny' under .* has runs of task training"
    ):
        plan(parsed, expand(parsed), "full", read_cluster("mine.yaml"), root)
    assert len(states(root)) == 1


def test_what_others_report_can_be_added_when_the_runs_are_planned_and_changed_later(planned, root, study):
    def reported(extra):
        parsed = read_study(study("matrix: {seed: [0]}\n" + extra))
        write_runs(plan(parsed, expand(parsed), "full", read_cluster("mine.yaml"), root))
        (state,) = states(root)
        return [dict(report.numbers) for report in state.run.reported]

    entry = "reported:\n  - {mfu: 41.10, hardware: NVIDIA L4, source: a blog, read_from: plot}\n"
    assert reported("") == []
    assert reported(entry) == [{"mfu": "41.10"}]
    assert reported(entry.replace("41.10", "41.2")) == [{"mfu": "41.2"}]


@pytest.mark.fault
@pytest.mark.parametrize("name", ["run.json", "attempt-1/result.json"])
def test_a_launch_that_meets_a_damaged_file_says_what_to_remove(planned, root, name):
    folder = planned.folder(planned.runs[0][0]).path
    (folder / "attempt-1").mkdir()
    (folder / name).write_text('{"x')
    parsed = read_study(Path("tiny.yaml"))
    with pytest.raises(UserError, match=rf"{name}: .*; restore that file, or remove {folder} to run it anew"):
        plan(parsed, expand(parsed), "full", read_cluster("mine.yaml"), root)
