"""A run of several processes goes on with other ones, where a retry says so."""

import json
import signal

import pytest

from model.training import checkpoint
from tests.conftest import PACED, PATIENCE_SECONDS, until

STUDY = "matrix: {train.steps: [200], parallel.shard: [2]}\n"


@pytest.fixture
def stopped(background, study, root, tmp_path):
    """A run of two processes that was stopped while it trained."""
    path = study(STUDY)
    launch = background("runner", "--root", root, "launch", path, cwd=tmp_path, **PACED)
    (steps,) = until(lambda: list(root.glob("tiny/*/attempt-1/steps.jsonl")), 0.02)
    launch.send_signal(signal.SIGINT)
    launch.wait(timeout=PATIENCE_SECONDS)
    return steps.parent


@pytest.mark.trains
def test_a_run_that_two_processes_began_goes_on_on_one(stopped, runner, root):
    meta = checkpoint.read_meta(stopped / "checkpoint")
    assert meta.parallel.shard == len(meta.files) == 2
    runner("retry", "tiny", "--outcome", "cancelled", "--set", "parallel.shard=1", rc=0)
    second = stopped.with_name("attempt-2")
    manifest = json.loads((second / "manifest.json").read_text())
    assert (manifest["resumed_attempt"], manifest["resumed_step"]) == (1, meta.step)
    assert manifest["parallel"]["shard"] == 1
    assert json.loads((stopped.parent / "run.json").read_text())["config"]["parallel"]["shard"] == 2
    (explanation,) = [json.loads(runner("explain", stopped.parent.name, "--json", rc=0).stdout)]
    assert [attempt["parallel"] and attempt["parallel"]["shard"] for attempt in explanation["attempts"]] == [
        None,
        1,
    ]
    runner("collect", rc=0)
    (row,) = json.loads(
        runner(
            "sql",
            "SELECT outcome, steps, step_seconds, final_loss < 6 AS learns FROM runs",
            "--format",
            "json",
        ).stdout
    )
    assert row == {"outcome": "completed", "steps": 200, "step_seconds": None, "learns": True}
