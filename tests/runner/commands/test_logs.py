"""`logs` tells how a run went also when it printed nothing."""

from typer.testing import CliRunner

from runner.cli.app import app
from tests.analysis.fabricate import Folder, completed, plan


def logs(root, run):
    answer = CliRunner().invoke(app, ["--root", str(root), "logs", run])
    assert answer.exit_code == 0
    return answer


def test_a_completed_run_shows_its_loss_about_every_tenth(tmp_path):
    completed(tmp_path, "quiet")
    answer = logs(tmp_path, "quiet")
    steps = [line.split(",")[0] for line in answer.stdout.splitlines()]
    assert steps == [f"step {step}/100" for step in (1, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100)]
    assert answer.stdout.splitlines()[-1] == "step 100/100, loss 9.000, 10,240 tokens/s"
    assert answer.stderr == "backends/quiet attempt 1: completed\n"


def test_a_run_that_stopped_early_shows_what_it_printed_and_its_last_step(tmp_path):
    folder = Folder(tmp_path, plan("short"))
    (folder.start() / "stderr.log").write_text("a warning\n")
    for step in (1, 2, 3, 4):
        folder.step(step, steps=1, loss=None if step == 4 else 5.0)
    folder.end("diverged", reason="the loss is not finite")
    assert [line.partition(", ")[0] for line in logs(tmp_path, "short").stdout.splitlines()] == [
        "a warning", "step 1/100", "step 4/100",
    ]  # fmt: skip


def test_a_run_that_never_started_has_no_steps(tmp_path):
    Folder(tmp_path, plan("new"))
    assert logs(tmp_path, "new").stderr == "backends/new attempt 0: planned\n"
