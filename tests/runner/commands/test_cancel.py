"""What `cancel` says of what it could and could not end."""

import pytest
from typer.testing import CliRunner

from runner.cli.app import app
from runner.state import process
from tests.analysis.fabricate import Folder, plan


@pytest.mark.parametrize(("target", "says"), [("tiny", True), ("tiny/r1", False)])
def test_a_cancelled_study_names_the_local_launch_that_starts_the_next_run(
    tmp_path, monkeypatch, target, says
):
    monkeypatch.setattr(process, "terminate", lambda manifest: True)
    run = Folder(tmp_path, plan("r1", study="tiny"))
    run.start(**process.me())
    run.event("claimed", executor="local", **process.me())
    Folder(tmp_path, plan("r2", study="tiny"))
    done = CliRunner().invoke(app, ["--root", str(tmp_path), "cancel", target])
    assert "in flight, of " in done.stderr
    assert (f"`kill {process.me()['pid']}` ends it" in done.stderr) == says
