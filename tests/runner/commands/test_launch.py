"""What `launch` shows before and after its runs, and its options, without starting any run."""

import errno
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from analysis.audit.restore import restore
from analysis.report.build import build_report
from analysis.store.collect import collect
from model.record.errors import UserError
from runner.cli.app import app
from runner.commands import _start
from runner.commands._options import Settings
from runner.execute import child, wait
from runner.execute.slurm import site
from runner.inputs.expansion import expand
from runner.inputs.profile import read_cluster
from runner.inputs.study import read_study
from runner.plan.plan import plan as planned
from runner.state.runs import states
from runner.state.slurm import SchedulerError
from tests.analysis.fabricate import Folder, completed, plan

SLURM = "executor: slurm\ncpus: 1\nmax_parallel: 3\nslurm: {}\n"


def launch(root, *arguments):
    answer = CliRunner().invoke(app, ["--root", str(root), "launch", *map(str, arguments)])
    if isinstance(answer.exception, UserError):
        raise answer.exception
    return answer


@pytest.fixture
def slurm(tmp_path):
    (path := tmp_path / "cluster.yaml").write_text(SLURM)
    return path


def test_parallel_takes_the_place_of_the_profiles_number(study, root, slurm):
    path = study("matrix: {seed: [0, 1, 2, 3, 4]}\n")
    assert "--array=0-4%3" in launch(root, path, "-p", slurm, "--dry-run").stdout
    assert "--array=0-4%2" in launch(root, path, "-p", slurm, "--dry-run", "--parallel", 2).stdout
    local = launch(root, path, "--dry-run", "--parallel", 2)
    assert "2 runs at once share this machine" in local.stderr


@pytest.mark.refused
def test_a_number_of_runs_at_once_that_the_machine_cannot_give_is_refused_at_the_option(
    study, root, monkeypatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    arguments = ("--profile", "workstation", "--scale", "full", "--parallel", 2, "--set", "device=cuda")
    with pytest.raises(UserError, match="--parallel 2: max_parallel 2 x gpus 1 is more than the 0 GPUs"):
        launch(root, study(), *arguments)


@pytest.mark.parametrize(
    ("options", "text", "message"),
    [
        (
            ("--parallel", 2),
            "",
            "--parallel 2: max_parallel 2 x gpus 1 is more than the 1 GPU of this machine",
        ),
        (
            (),
            "matrix: {parallel.shard: [1, 2]}\n",
            "a run of 2 processes, each with a GPU, is more than the 1",
        ),
    ],
)
def test_a_dry_run_says_that_this_machine_has_too_few_gpus_as_a_launch_does(
    study, root, monkeypatch, options, text, message
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a")
    arguments = (study(text), "--profile", "workstation", "--scale", "full", "--set", "device=cuda", *options)
    dry_run = launch(root, *arguments, "--dry-run")
    assert dry_run.exit_code == 0
    assert not root.exists()
    with pytest.raises(UserError) as refused:
        launch(root, *arguments)
    assert message in str(refused.value)
    assert f"a launch would be refused: {refused.value}" in dry_run.stderr
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    assert "would be refused" not in launch(root, *arguments, "--dry-run").stderr


@pytest.mark.parametrize(
    "setting", ["python: /no/such/python", "python: bin/python", "wrapper: [numactrl, -N0]"]
)
def test_a_command_that_starts_no_run_here_is_refused_at_its_setting_before_anything_is_claimed(
    study, root, tmp_path, setting
):
    (profile := tmp_path / "p.yaml").write_text(f"executor: local\n{setting}\n")
    path, command = study(), setting.partition(": ")[2].strip("[").partition(",")[0]
    dry_run = launch(root, path, "-p", profile, "--dry-run")
    with pytest.raises(UserError) as refused:
        launch(root, path, "-p", profile)
    assert str(refused.value).startswith(f"{profile}:2:1: no program '{command}' on this machine")
    assert f"a launch would be refused: {refused.value}" in dry_run.stderr
    assert not list(root.glob("tiny/*/attempt-*"))


@pytest.mark.fault
def test_a_run_that_cannot_be_started_has_ended_with_the_reason(study, root, tmp_path):
    (program := tmp_path / "odd").write_text("no program of any kind")
    program.chmod(0o755)
    (profile := tmp_path / "p.yaml").write_text(f"executor: local\npython: {program}\n")
    answer = CliRunner().invoke(app, ["--root", str(root), "launch", str(study()), "-p", str(profile)])
    assert str(answer.exception).startswith(f"{program}: Exec format error; ")
    assert "stopping" not in answer.stderr, "there is no run to stop"
    (state,) = states(root)
    assert (state.outcome, state.reason) == ("failed", f"{program}: Exec format error")


@pytest.mark.fault
def test_a_run_whose_process_the_system_refuses_has_ended_with_the_reason(study, root, monkeypatch):
    """As where a user has too many processes, or memory is short."""

    def refuse(*_command, **_how):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    path = study()
    monkeypatch.setattr(child, "subprocess", SimpleNamespace(Popen=refuse, DEVNULL=subprocess.DEVNULL))
    answer = CliRunner().invoke(app, ["--root", str(root), "launch", str(path)])
    (state,) = states(root)
    reason = f"{sys.executable}: Resource temporarily unavailable"
    assert (state.outcome, state.reason) == ("failed", reason)
    assert str(answer.exception).startswith(f"{reason}; ")


def test_a_dry_run_says_that_others_could_change_the_study(study, root):
    (root / "tiny").mkdir(parents=True)
    (root / "tiny").chmod(0o777)
    stderr = launch(root, study(), "--dry-run").stderr
    assert f"a launch would be refused: {root / 'tiny'} is writable by others" in stderr


def test_runs_that_will_not_fit_the_profiles_gpus_are_named(study, root, slurm):
    slurm.write_text(SLURM + "gpus: 1\ngpu_memory: 1MiB\n")
    path = study("matrix: {attention: [cudnn]}\n")
    stderr = launch(root, path, "-p", slurm, "--dry-run", "--set", "device=cuda").stderr
    assert "cudnn will probably end as oom_gpu: it needs about" in stderr
    assert "the profile's GPUs have 1.0 MiB" in stderr


def test_a_dry_run_names_the_budget_that_all_gpus_of_its_runs_exceed(study, root, slurm, monkeypatch):
    monkeypatch.setattr(site, "expected_start", lambda script: None)
    slurm.write_text(SLURM + "gpus: 1\ngpus_per_node: 4\ntime_limit: 1:00:00\n")
    matrix = "matrix: {parallel.shard: [2, 4]}\n"
    texts = [f"budget: {{gpu_hours: {hours}}}\n{matrix}" for hours in (5.9, 6)]
    sets = ("--set", "device=cuda", "--set", "train.batch_size=4")
    over, within = [launch(root, study(text), "-p", slurm, "--dry-run", *sets).stderr for text in texts]
    assert "a launch would be refused: " in over and "a budget of 5.9 GPU-hours: this launch needs 6" in over
    assert "would be refused" not in within and "at most 6.0 GPU-hours" in within


def test_the_names_of_a_dry_run_are_those_that_other_commands_take(study, root):
    path = study("matrix: {seed: [0, 1]}\n")
    stdout = launch(root, path, "--dry-run").stdout
    for cell in expand(read_study(path)):
        assert f"\ntiny/{cell.run_id}  " in stdout


def test_runs_that_completed_and_have_no_files_here_are_named_before_they_start_anew(study, root):
    path = study("matrix: {seed: [0, 1]}\n")
    first, second = (cell.run_id for cell in expand(read_study(path)))
    completed(root, first, study="tiny")
    Folder(root, plan(second, study="tiny")).start()
    collect(root)
    shutil.rmtree(root / "tiny")
    collect(root)
    message = "completed earlier, and have no files here"
    for options, expected in (((), True), (("--only", "seed=0"), True), (("--only", "seed=1"), False)):
        assert (
            f"1 run of these ({first}) {message}" in launch(root, path, "--dry-run", *options).stderr
        ) == expected


def test_runs_of_a_report_that_a_changed_study_no_longer_gives_are_named_and_left_out(study, root, tmp_path):
    ids = [cell.run_id for cell in expand(read_study(study("matrix: {seed: [0, 1]}\n")))]
    for seed, run_id in enumerate(ids):
        completed(tmp_path / "theirs", run_id, study="tiny", title="tiny", seed=seed, factors={"seed": seed})
    collect(tmp_path / "theirs")
    restore(build_report(tmp_path / "theirs", "tiny", tmp_path / "report").parent, root)
    path = study("matrix: {seed: [0, 2]}\n")
    answer = launch(root, path, "--dry-run")
    assert (
        "1 run on disk no longer belongs to study tiny" in answer.stderr and f"tiny/{ids[1]}" in answer.stderr
    )


def test_a_dry_run_writes_the_batch_scripts_where_it_is_told(study, root, slurm, tmp_path):
    rules = "rules: [{where: {seed: 1}, resources: {cpus: 2}}]\n"
    path = study("matrix: {seed: [0, 1]}\n" + rules)
    dry_run = launch(root, path, "-p", slurm, "--dry-run", "--scripts", tmp_path / "new" / "scripts")
    scripts = sorted((tmp_path / "new" / "scripts").iterdir())
    assert [file.name for file in scripts] == ["tiny-1.sh", "tiny-2.sh"]
    for file in scripts:
        assert file.read_text() in dry_run.stdout
    assert not root.exists()


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ("seed: 1}, resources: {cpus: 2}", "rules give some runs different resources"),
        ("seed: 1}, set: {parallel.shard: 2}", "runs have different numbers of processes"),
        (
            "seed: 1}, set: {parallel.shard: 2}, resources: {cpus: 2}",
            "runs have different numbers of processes and rules give some runs different resources",
        ),
    ],
)
def test_why_there_are_several_arrays_is_said_and_what_is_true_of_all_is_said_once(
    study, root, slurm, monkeypatch, rules, reason
):
    monkeypatch.setattr(site, "expected_start", lambda script: None)  # a cluster of other tests may run
    slurm.write_text(SLURM + "processes_per_node: 2\n")
    path = study("matrix: {seed: [0, 1]}\nrules: [{where: {" + rules + "}]\n")
    dry = (root, path, "-p", slurm, "--dry-run", "--set", "train.batch_size=2", "--parallel")
    answer = launch(*dry, "4")
    order = "the order of the runs is kept within each array, across arrays only with --parallel 1"
    assert f"\n2 arrays, because {reason}: {order}\n" in answer.stderr
    alone = "they start one after another, in the order of the runs"
    assert f"\n2 arrays, because {reason}: {alone}\n" in launch(*dry, "1").stderr
    assert answer.stdout.count("#!/bin/bash") == 2
    assert answer.stderr.count("start estimate") == 1


def test_a_backend_that_lacks_what_a_run_asks_is_warned_of_before_the_launch(study, root):
    path = study("matrix: {attention: [auto, cudnn]}\n")
    answer = launch(root, path, "--dry-run", "--set", "parallel.context=2")
    assert "tiny.yaml:7:28: warning: 'cudnn' cannot take part of a sequence" in answer.stderr
    assert answer.exit_code == 0


@pytest.mark.refused
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scripts", "x"], "--scripts needs --dry-run"),
        (["--dry-run", "--scripts", "x"], "profile local has no batch scripts"),
        (
            ["--dry-run", "-p", "cluster.yaml", "--scripts", "tiny.yaml"],
            "choose another folder with --scripts",
        ),
        (["-p", "cluster.yaml", "--yes", "--fail-fast"], "--fail-fast on a cluster needs --wait"),
        (["-p", "cluster.yaml", "--fail-fast", "--dry-run"], "--fail-fast on a cluster needs --wait"),
        (["--rehearse", "--detach"], "leave out --detach"),
    ],
)
def test_options_that_contradict_are_refused(study, root, slurm, tmp_path, monkeypatch, arguments, message):
    study()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        launch(root, "tiny.yaml", *arguments)
    assert not root.exists()


def test_a_dry_run_of_a_rehearsal_shows_the_rehearsal(study, root):
    dry_run = launch(root, study(), "--rehearse", "--dry-run")
    assert "tiny.rehearsal/" in dry_run.stdout
    assert not root.exists()


@pytest.mark.refused
def test_parallel_takes_a_positive_number(study, root):
    answer = launch(root, study(), "--parallel", 0)
    assert answer.exit_code == 2
    assert "'--parallel'" in answer.stderr


def ended(root):
    """A completed run and one that failed, as `launch` finds them at its end."""
    completed(root, "a")
    folder = Folder(root, plan("b", attention="math"))
    folder.start()
    folder.step(1, steps=1, loss=5.0)
    folder.end("failed", reason="broken")
    return states(root)


def test_the_last_table_has_loss_and_rate_and_the_next_step_is_said(study, root, monkeypatch, capsys):
    endings = ended(root)
    parsed = replace(read_study(study()), name="backends")
    launched = replace(
        planned(parsed, [], "full", read_cluster("local"), root),
        runs=[(state.run, state) for state in endings],
    )
    monkeypatch.setattr(Settings, "root", root)
    assert _start.summary(launched) == 1
    output = capsys.readouterr()
    first, second = (line.split() for line in output.out.splitlines()[1:])
    assert first == ["backends/a", "auto", "completed", "9.000", "10,240"]
    assert second[:2] == ["backends/b", "math"]
    assert second[-3:] == ["5.000", "10,240", "broken"]
    place = f"runner --root {root}"
    assert output.err.splitlines() == [
        f"next: `{place} explain backends/b` shows what happened",
        f"next: `{place} collect`, then `{place} sql QUERY`; or `{place} report backends`",
    ]
    for variable, place in ((root, "runner"), (root / "another", f"runner --root {root}")):
        monkeypatch.setenv("RUNNER_ROOT", str(variable))
        _start.summary(launched)
        assert f"`{place} collect`" in capsys.readouterr().err
    monkeypatch.delenv("RUNNER_ROOT")
    monkeypatch.chdir(root.parent)
    _start.summary(launched)
    assert "`runner collect`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("profile", "function", "command"),
    [
        ("local", "run_here", "`{} status tiny` shows what is left; to go on, launch the study again"),
        (
            "",
            "wait_for",
            "goes on; `{0} status tiny` shows it, `{0} cancel tiny` ends it; for the rest, launch",
        ),
    ],
)
def test_whoever_interrupts_a_launch_is_told_in_a_line_how_to_go_on(
    study, root, slurm, monkeypatch, capsys, profile, function, command
):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(_start, "submit", lambda *_, **__: [])
    monkeypatch.setattr(_start, function, interrupted)
    monkeypatch.setattr(Settings, "root", root)
    launched = planned(read_study(study()), [], "full", read_cluster(profile or str(slurm)), root)
    with pytest.raises(KeyboardInterrupt):
        _start.run(launched, wait=True)
    if profile:
        assert not capsys.readouterr().err, "nothing is written that `status` could show"
    (root / "tiny").mkdir(parents=True, exist_ok=True)
    with pytest.raises(KeyboardInterrupt):
        _start.run(launched, wait=True)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("next: ")
    assert command.format(f"runner --root {root}") in line


def test_fail_fast_on_a_cluster_cancels_what_is_in_flight_and_submits_no_more(
    study, root, slurm, monkeypatch
):
    """The failed run is seen at the first look; the one in flight ends because it is cancelled."""
    endings, cancelled = ended(root), []
    flying = replace(endings[0], phase="running", outcome=None)
    looks = [[flying, endings[1]], [flying, endings[1]], endings]
    monkeypatch.setattr(wait, "RunWatch", lambda *_: SimpleNamespace(look=lambda: looks.pop(0), asked=False))
    monkeypatch.setattr(wait, "_within_plan", lambda _, states: states)

    def cancel(runs):
        cancelled.append(runs)
        if len(cancelled) == 1:
            raise SchedulerError("no answer")

    monkeypatch.setattr(wait, "cancel", cancel)
    monkeypatch.setattr(wait, "POLL_SECONDS", 0)
    monkeypatch.setattr(wait, "submit_attempts", lambda _, tasks, **__: tasks)  # the queue is full
    launched = planned(read_study(study()), [], "full", read_cluster(str(slurm)), root)
    (waiting,) = [_Waiting(root / "backends" / "c")]
    wait.wait_for(launched, [waiting], fail_fast=True)
    assert cancelled == [[flying, endings[1]]] * 2, "it tries until Slurm answers"


class _Waiting:
    """An attempt that did not fit in the queue."""

    number, removed = 1, None

    def __init__(self, path):
        self.folder = self
        self.path = path
