"""SIGTERM, as scancel and `runner cancel` send it, ends runs of every task at once, and says why."""

import json

import pytest

from model.record.config import RunConfig
from model.record.errors import Interrupted
from model.record.folder import RunFolder
from runner.execute.cancel import saving
from runner.job.phase import current
from runner.state import ledger
from tests.analysis.fabricate import Folder, plan
from tests.conftest import PATIENCE_SECONDS, until

pytestmark = pytest.mark.trains

ALONE = """\
title: Alone
base: {task: attention, device: cpu, call: {dtype: float32, steps: 1000000, backends: math flash, shape: B1 T64 H2 D16}}
"""
READS = """\
title: Reads
base:
  task: inference
  device: cpu
  attention: flash
  model: {dim: 32, layers: 2, heads: 4, kv_heads: 2, ffn_dim: 64, vocab_size: 300}
  data: {path: CORPUS, tokenizer: bytes, mode: pack}
  inference: {steps: 10000000, warmup_steps: 1, prompt_length: 32, new_tokens: 8, dtype: float32}
"""


def attempt_of(root):
    folders = list(root.glob("*/*/attempt-1"))
    return folders[0] if folders and (folders[0] / "manifest.json").exists() else None


def certifying(attempt):
    return current(attempt) is not None


def at_work(attempt):
    """Past its certificates: they are there, and no stage is shown any more."""
    certificates = list((attempt.parents[2] / ".certificates").glob("*.json"))
    return (
        certificates
        and not certifying(attempt)
        and not list((attempt.parents[2] / ".certificates").glob("*.lock"))
    )


@pytest.mark.parametrize("stage", [certifying, at_work], ids=["while it is certified", "at work"])
@pytest.mark.parametrize(
    ("study", "suffix"),
    [(ALONE, "eager rounds, so that it starts over"), (READS, "steps, so that it starts over")],
    ids=["attention", "inference"],
)
def test_a_run_that_is_cancelled_ends_cancelled_with_the_reason(
    runner, background, root, tmp_path, corpus, study, suffix, stage
):
    path = tmp_path / "study.yaml"
    path.write_text(study.replace("CORPUS", str(corpus)))
    launch = background(
        "runner", "--root", root, "launch", path, cwd=tmp_path, RUNNER_CERTIFICATES=str(tmp_path / "cache")
    )
    attempt = until(lambda: attempt_of(root))
    until(lambda: stage(attempt))
    assert "cancelling 1 run in flight, of 1" in runner("cancel", "study", rc=0).stderr
    launch.communicate(timeout=PATIENCE_SECONDS)
    result = json.loads((attempt / "result.json").read_text())
    assert result["outcome"] == "cancelled" and result["reason"].startswith("received SIGTERM")
    if stage is at_work and "kept" in result["reason"]:  # else it had not begun to ask
        assert result["reason"].endswith(suffix)
    assert current(attempt) is None and not (attempt / "kernels.json").exists()


@pytest.mark.parametrize(("task", "waits"), [("training", True), ("inference", False)])
def test_slurm_gives_time_for_a_checkpoint_to_runs_that_make_one(root, task, waits):
    config = RunConfig.model_validate({"task": task, "data": {"path": "x"}})
    folder = Folder(root, plan("r1", config=config))
    folder.event("submitted", executor="slurm", job_id="7")
    folder.start()
    folder.step(5)
    assert saving([ledger.state(RunFolder(folder.path))]) == ({"7"} if waits else set())


def test_what_is_counted_is_said():
    assert str(Interrupted(0, saved=False, unit="eager rounds")).endswith(
        "no eager rounds were done, so it starts over"
    )
    assert str(Interrupted(3, saved=False, unit="eager rounds")).endswith(
        "its 3 eager rounds are lost, so it starts over"
    )
