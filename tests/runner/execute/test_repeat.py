"""A run can be repeated when the working tree has moved on, and the comparison hides nothing."""

import json
import shutil
import subprocess
import sys

import pytest

from model.record.errors import UserError
from model.record.files import append, write
from model.record.folder import RunFolder
from model.record.outcome import Outcome
from model.record.records import NAME, Manifest, Result, StepRecord
from runner.commands.reproduce import compare
from runner.execute import repeat
from runner.inputs.expansion import expand
from runner.inputs.study import read_study
from runner.plan.plan import next_attempt
from runner.state import ledger
from runner.state.code import provenance
from tests.analysis.fabricate import START, plan
from tests.conftest import PACED, PATIENCE_SECONDS, REPOSITORY, environment, until


@pytest.fixture
def copy(tmp_path):
    """A copy of the repository's code, to edit."""
    folder = tmp_path / "copy"
    for name in ("runner", "model", "analysis", "cluster_profiles"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def launcher(copy, root, tmp_path):
    """The command line of the copy; its runs train, unless a stand-in is asked for."""

    def call(*arguments, rc=None, wait=True, stand_in=False, **env):
        path = f"{copy}:{REPOSITORY / 'tests' / 'faults' / 'site'}" if stand_in else str(copy)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "runner", "--root", str(root), *map(str, arguments)],
            cwd=tmp_path, env=environment(PYTHONPATH=path, **env), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        if not wait:
            return process
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
        assert rc is None or process.returncode == rc, f"exit code {process.returncode}\n{out}\n{err}"
        return subprocess.CompletedProcess([], process.returncode, out, err)

    return call


def losses(folder):
    (file,) = folder.glob("attempt-1/steps.jsonl")
    return [json.loads(line)["loss"] for line in file.read_text().splitlines()]


def test_a_run_is_repeated_bit_for_bit_after_the_code_has_changed(copy, launcher, study, root):
    path = study("matrix: {seed: [3]}\n")
    launcher("launch", path, rc=0)
    (first,) = (root / "tiny").glob("[!.]*")
    (copy / "model" / "loss.py").write_text('raise SystemExit("another model")\n')
    path.unlink()
    process = launcher("reproduce", first.name[:6], rc=0)
    verdict = "the outcome is the same, completed; the losses of 4 steps are bit-identical"
    assert verdict in process.stderr
    assert "changed:" not in process.stderr
    (second,) = (root / "tiny.reproduced").glob("[!.]*")
    assert losses(second) == losses(first)
    record = json.loads((second / "run.json").read_text())
    assert record["provenance"]["reproduces"] == f"tiny/{first.name}"
    assert "reproduce" in record["provenance"]["command"]
    assert record["run_id"] == second.name != first.name
    rows = json.loads(launcher("status", "--json", rc=0).stdout)
    outcomes = sorted((row["study"], row["outcome"]) for row in rows)
    assert outcomes == [("tiny", "completed"), ("tiny.reproduced", "completed")]


@pytest.mark.fault
def test_code_that_is_edited_while_runs_wait_changes_none_of_them(copy, launcher, study, root):
    path = study("order: as written\nmatrix: {train.steps: [100, 5]}\n")
    launch = launcher("launch", path, wait=False, stand_in=True, **PACED)
    until(lambda: list(root.glob("*/*/attempt-1/steps.jsonl")) or launch.poll() is not None)
    assert launch.poll() is None, launch.communicate()
    for name in ("model/record/records.py", "runner/job/__main__.py"):
        (copy / name).write_text('raise SystemExit("edited")\n')
    out, err = launch.communicate(timeout=PATIENCE_SECONDS)
    assert launch.returncode == 0, out + err
    assert len(list(root.glob("*/*/attempt-1/result.json"))) == 2


def test_a_repeat_under_another_workspace_leaves_the_first_alone(copy, launcher, study, root, tmp_path):
    rule = "rules: [{where: {attention: custom}, expect: unsupported}]\n"
    launcher("launch", study(f"{rule}matrix: {{attention: [custom]}}\n"), rc=0, stand_in=True)
    (first,) = (root / "tiny").glob("[!.]*")
    paths = sorted(root.rglob("*"))
    command = ("reproduce", first.name, "--out", tmp_path / "other")
    process = launcher(*command, rc=0, stand_in=True)
    assert "the outcome is the same, unsupported; no steps to compare" in process.stderr
    assert sorted(root.rglob("*")) == paths
    launcher(*command, rc=0, stand_in=True)
    repeats = tmp_path / "other" / "tiny.reproduced"
    assert len(list(repeats.glob("[!.]*/attempt-1/result.json"))) == 2, "each repeat is a run of its own"
    assert len(list((repeats / ".code").iterdir())) == 1


@pytest.fixture
def ended(study, root):
    """The folder of a completed run of this code, whose steps are made up."""
    from runner.inputs.profile import read_cluster
    from runner.plan.plan import plan as launch_plan

    parsed = read_study(study())
    ((run, _),) = launch_plan(parsed, expand(parsed), "full", read_cluster("local"), root).runs
    folder = root / run.study / run.run_id
    folder.mkdir(parents=True)
    record = provenance.provenance(folder)
    provenance.keep(folder, folder.parent)
    write(folder / "run.json", run.model_copy(update={"provenance": record}))
    finish(folder, [4.0, 3.0])
    return folder


def finish(folder, values, attempt=1, outcome=Outcome.COMPLETED, first=1, **facts):
    place = folder / f"attempt-{attempt}"
    place.mkdir(exist_ok=True)
    common = {"run_id": folder.name, "attempt": attempt, "started_at": START}
    fields = {"host": "h", "software": {"torch": "2.11"}, "device_name": "a GPU", **facts}
    write(place / "manifest.json", Manifest(**common, pid=1, pid_started=0, slurm={}, **fields))
    for step, loss in enumerate(values, start=first):
        append(place / "steps.jsonl", step_record(step, loss))
    result = Result(
        **common, outcome=outcome, reason=None, steps=2, final_loss=None, peak_memory_bytes=None,
        ended_at=START, wall_seconds=0,
    )  # fmt: skip
    write(place / "result.json", result)


def step_record(step, loss):
    return StepRecord(
        step=step, steps=1, time=START, loss=loss, learning_rate=1, grad_norm=1, step_seconds=1, tokens=1,
        training_tokens=1, memory_bytes=1,
    )  # fmt: skip


@pytest.mark.fault
def test_an_interrupted_repeat_is_gone_on_with_and_an_ended_one_is_not(ended, root):
    first = repeat.prepare(root, ended.name)
    assert repeat.prepare(root, ended.name).folder.path == first.folder.path
    finish(first.folder.path, [4.0])
    assert repeat.prepare(root, ended.name).folder.path != first.folder.path


@pytest.mark.fault
def test_a_repeat_whose_launcher_was_killed_before_the_record_is_replaced(ended, root, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(repeat, "write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            repeat.prepare(root, ended.name)
    assert repeat.prepare(root, ended.name).state.phase == "planned"
    assert len(list((root / "tiny.reproduced").glob("[!.]*"))) == 1


def test_the_record_of_a_repeat_has_the_keys_that_its_own_code_knows(ended, root):
    """Today's run.json may have more; code of another day refuses what it does not know."""
    path = ended / "run.json"
    old = json.loads(path.read_text())
    del old["description"]
    path.write_text(json.dumps(old))
    prepared = repeat.prepare(root, ended.name)
    new = json.loads((prepared.folder.path / "run.json").read_text())
    assert new.keys() == old.keys()
    assert new["provenance"].keys() == old["provenance"].keys()
    keys = {key for key in new if new[key] != old[key]}
    assert keys <= {"run_id", "group", "study", "profile", "created_at", "provenance"}


def change(folder, **changes):
    record = json.loads((folder / "run.json").read_text())
    record["provenance"] |= changes.pop("provenance", {})
    (folder / "run.json").write_text(json.dumps(record | changes))


def test_the_limits_are_those_that_the_run_had(ended, root):
    change(ended, memory_bytes=2**30 + 2**19, time_limit_seconds=90061)
    prepared = repeat.prepare(root, ended.name)
    shape = next_attempt(prepared.folder, prepared.state.run, prepared.state).shape
    assert (shape.memory_bytes, shape.time_limit_seconds) == (2**30 + 2**19, 90061)


@pytest.mark.refused
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: (run / "attempt-1" / "result.json").unlink(), "has not ended"),
        (lambda run: change(run, provenance={"code": None}), "no code snapshot"),
        (lambda run: change(run, data_file="/nowhere"), "cannot be reproduced: /nowhere: no such file"),
        (lambda run: change(run, data_fingerprint="0" * 16), "has changed since it was planned"),
        (lambda run: change(run, profile_file="/gone.yaml"), "(?s)/gone.yaml: No such file.*--profile"),
        (
            lambda run: change(run, profile="gone", profile_file=None),
            "(?s)no profile 'gone' .*with --profile",
        ),
        (lambda run: (next(run.parent.glob(".code/*")) / "x.py").touch(), "was edited after it was taken"),
        (lambda run: shutil.rmtree(run.parent / ".code"), "is missing"),
    ],
    ids=[
        "in flight",
        "old record",
        "no data",
        "other data",
        "no profile",
        "no profile of that name",
        "edited code",
        "no code",
    ],
)
def test_what_cannot_be_repeated_is_refused_with_the_reason(ended, root, spoil, message):
    spoil(ended)
    with pytest.raises(UserError, match=message):
        repeat.prepare(root, ended.name)
    assert not (root / "tiny.reproduced").exists()


@pytest.mark.refused
def test_a_workspace_that_cannot_be_written_is_a_users_error(ended, root, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="choose another place"):
        repeat.prepare(root, ended.name, tmp_path / "file")


@pytest.mark.parametrize("name", ["a", "a" * 100, f"{'a' * 100}.rehearsal", "a.reproduced"])
def test_a_repeats_study_has_a_valid_name(name):
    assert NAME.fullmatch(repeat.study_of_repeats(name))
    assert repeat.study_of_repeats(name).startswith(name)
    assert repeat.study_of_repeats(name).count(".reproduced") == 1


def fabricate(folder, values, packages=None, **facts):
    """An ended run; `packages` is its lock file."""
    folder.mkdir(parents=True)
    origin = {"packages": "0" * 64 if packages else None}
    record = plan(folder.name, study=folder.parent.name)
    changed = record.provenance.model_copy(update=origin)
    write(folder / "run.json", record.model_copy(update={"provenance": changed}))
    if packages:
        (folder.parent / ".provenance").mkdir()
        (folder.parent / ".provenance" / f"{'0' * 64}.lock").write_text(packages)
    finish(folder, values, **facts)
    return ledger.state(RunFolder(folder))


def test_equal_losses_are_said_to_be_equal_to_the_last_bit(root):
    sides = [fabricate(root / name / name, [4.0, 3.0, None]) for name in "ab"]
    comparison = compare(*sides)
    verdict = "the outcome is the same, completed; the losses of 3 steps are bit-identical"
    assert comparison.verdict == f"{verdict}; unknown: packages"
    assert ("packages", "unknown", "unknown", "unknown") in comparison.rows


def test_the_largest_loss_difference_and_its_step_are_named(root):
    then = fabricate(root / "a" / "a", [4.0, 3.0, 2.0])
    comparison = compare(then, fabricate(root / "b" / "b", [4.0, 3.5, 2.25, 1.0]))
    assert "2 of 3 losses differ, by at most 0.5" in comparison.verdict
    assert ("largest loss difference, step 2", "3.0", "3.5", "0.5") in comparison.rows
    assert ("step records", "3", "4", "differs") in comparison.rows


def test_a_loss_that_is_finite_on_one_side_only_differs_most(root):
    then = fabricate(root / "a" / "a", [4.0, 3.0, 2.0])
    assert "by at most inf" in compare(then, fabricate(root / "b" / "b", [4.5, None, 2.0])).verdict


def test_other_hardware_and_versions_are_named(root):
    then = fabricate(root / "a" / "a", [4.0], "numpy==1.0\ntorch==2.11\n")
    other = {"device_name": "another GPU", "software": {"torch": "2.12"}}
    now = fabricate(root / "b" / "b", [4.0], "extra==1\nnumpy==2.0\ntorch==2.11\n", **other)
    comparison = compare(then, now)
    for row in (
        ("device", "a GPU", "another GPU", "differs"),
        ("torch (job)", "2.11", "2.12", "differs"),
        ("numpy", "1.0", "2.0", "differs"),
        ("extra", "absent", "1", "differs"),
    ):
        assert row in comparison.rows
    assert comparison.verdict.endswith("; changed: device, torch (job), extra, numpy")


def test_another_outcome_is_said(root):
    then = fabricate(root / "a" / "a", [4.0])
    comparison = compare(then, fabricate(root / "b" / "b", [], outcome=Outcome.OOM_GPU))
    assert not comparison.same_outcome
    assert comparison.verdict.startswith("oom_gpu instead of completed; no steps to compare")


def test_steps_of_a_run_that_went_on_in_a_second_attempt_are_compared_too(root):
    folder = root / "c" / "c"
    fabricate(folder, [4.0, 3.0], outcome=Outcome.TIMEOUT)
    finish(folder, [2.0], attempt=2, first=3)
    state = ledger.state(RunFolder(folder))
    assert "the losses of 3 steps are bit-identical" in compare(state, state).verdict
