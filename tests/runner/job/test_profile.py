"""A profile comes after a run's result, and whatever becomes of it is no matter of the run."""

import json
from types import SimpleNamespace

import pytest
import torch

from model.record.files import read
from model.record.speed import StepProfile
from model.training.profile import Work
from runner.job.manifest import first_manifest
from runner.job.tasks._around import profile_steps
from tests.model.conftest import run_config


@pytest.fixture
def trained():
    def step():
        raise RuntimeError("no such tile")

    model = SimpleNamespace(norm=torch.nn.Identity(), blocks=[])
    return SimpleNamespace(config=run_config(), model=model, phases={"step": Work(step, step)})


@pytest.mark.fault
def test_a_step_that_fails_leaves_the_reason_in_place_of_a_profile(trained, tmp_path, capsys):
    profile_steps(trained, first_manifest("r1", 2), tmp_path)
    profile = read(tmp_path / "profile.json", StepProfile)
    assert (profile.run_id, profile.attempt, profile.steps, profile.parts) == ("r1", 2, 0, [])
    assert (
        "could not be profiled" in capsys.readouterr().err and profile.reason == "RuntimeError: no such tile"
    )


@pytest.mark.fault
def test_a_profile_that_cannot_be_written_ends_nothing(trained, tmp_path, capsys):
    profile_steps(trained, first_manifest("r1", 2), tmp_path / "gone")
    assert "could not be written" in capsys.readouterr().err


@pytest.mark.trains
def test_a_completed_run_has_a_profile_and_a_result_that_is_older(runner, study, root):
    runner("launch", study("matrix: {seed: [0]}\n"), rc=0)
    (attempt,) = root.glob("tiny/*/attempt-1")
    assert read(attempt / "profile.json", StepProfile).reason is None
    assert (attempt / "result.json").stat().st_mtime_ns < (attempt / "profile.json").stat().st_mtime_ns
    assert json.loads((attempt / "steps.jsonl").read_text().splitlines()[-1])["step"] == 6
    runner("collect", rc=0)
    query = "SELECT part, seconds, share FROM step_profile"
    rows = {row["part"]: row for row in json.loads(runner("sql", query, "--format", "json", rc=0).stdout)}
    assert rows["products"]["seconds"] > 0 and sum(row["share"] for row in rows.values()) == pytest.approx(1)
