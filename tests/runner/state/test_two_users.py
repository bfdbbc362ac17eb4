"""Two users of one group, with the umask that many clusters set: neither can run code as the other."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from model.record.folder import RunFolder
from runner.state.code import snapshot
from tests.analysis.fabricate import Folder, completed, plan
from tests.conftest import PATIENCE_SECONDS, TINY, environment

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("setpriv"), reason="becoming two users needs root and setpriv"
    ),
]
OWNER, NEIGHBOUR, GROUP = 54321, 54322, 54300
# Tries to change each file and to put one into each folder; prints what worked.
ATTACK = """
import json, os, sys
done = []
def attempt(what, how, *arguments):
    try:
        how(*arguments)
        done.append(what)
    except OSError:
        pass
for folder, _, names in os.walk(sys.argv[1]):
    attempt(f"put a file into {folder}", open, f"{folder}/planted", "w")
    attempt(f"rename {folder}", os.rename, folder, f"{folder}.away")
    for name in names:
        attempt(f"write {folder}/{name}", open, f"{folder}/{name}", "a")
        if name.endswith(".diff"):
            attempt(f"read {folder}/{name}", open, f"{folder}/{name}")
print(json.dumps(done))
"""


def as_user(user, *command, cwd="/", **env):
    """Run a command as a user of the group, with umask 002. The owner may read everything: Python may be root's."""
    reads = ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"] if user == OWNER else []
    become = ["setpriv", "--reuid", str(user), "--regid", str(GROUP), "--clear-groups", *reads]
    return subprocess.run(
        [*become, "sh", "-c", 'umask 002; exec "$@"', "sh", *map(str, command)],
        cwd=cwd, env=environment(**env), capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip


def attack(folder):
    """What the neighbour can change, or read of the uncommitted changes, under a folder."""
    process = as_user(NEIGHBOUR, "/usr/bin/python3", "-c", ATTACK, folder)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.fixture
def shared(corpus):
    """The owner's folder in a place that both can reach, with a study in a repository with a change."""
    with tempfile.TemporaryDirectory(prefix="assay-two-users-") as name:
        folder = Path(name)
        shutil.copy(corpus, folder / "text.parquet")
        (folder / "tiny.yaml").write_text(TINY)
        (folder / "p.yaml").write_text("executor: local\npython: /bin/true\n")
        git = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run([*git, "init", "-q"], check=True)
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "m"], check=True)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, OWNER, GROUP)
        folder.chmod(0o2755)
        yield folder


def launch(folder, *options):
    command = ["-P", "-m", "runner", "--root", folder / "runs", "launch", folder / "tiny.yaml", *options]
    return as_user(
        OWNER, sys.executable, *command, "--profile", folder / "p.yaml", cwd=folder, HOME=str(folder)
    )


def test_a_dry_run_says_that_the_root_cannot_be_written_as_a_launch_does(shared):
    (shared / "runs").mkdir(mode=0o755)  # root's
    reason = f"{shared / 'runs'}: Permission denied; choose another place with --root"
    dry_run = launch(shared, "--dry-run")
    assert dry_run.returncode == 0
    assert f"\na launch would be refused: {reason}\n" in dry_run.stderr
    refused = launch(shared)
    assert (refused.returncode, refused.stderr.splitlines()[-1]) == (2, reason)
    assert not list((shared / "runs").iterdir())


def test_who_may_only_read_a_root_learns_how_to_repeat_its_runs_elsewhere(shared):
    completed(shared / "runs", "r1", study="tiny")
    command = [sys.executable, "-P", "-m", "runner", "--root", shared / "runs", "reproduce", "r1"]
    refused = as_user(OWNER, *command, cwd=shared, HOME=str(shared))
    assert refused.stderr == f"{shared / 'runs'}: Permission denied; choose another place with --out\n"


@pytest.mark.parametrize(
    "own", [(), ("tiny/r1",), ("tiny", "tiny/r1")], ids=["nothing", "the run's folder", "all but its ledger"]
)
def test_who_may_only_read_a_root_sees_the_runs_that_somebodys_dead_launcher_left_there(shared, own):
    """They cannot be repaired. Their owner's next command does that."""
    folder = Folder(shared / "runs", plan("r1", study="tiny"))
    for path in own:
        os.chown(shared / "runs" / path, OWNER, GROUP)
    folder.event("claimed", executor="local", host=socket.gethostname(), pid=1, pid_started=1.0)
    folder.start()
    folder.step(1)
    command = [sys.executable, "-P", "-m", "runner", "--root", shared / "runs"]
    status = as_user(OWNER, *command, "status", cwd=shared, HOME=str(shared))
    assert status.returncode == 0
    assert "tiny/r1" in status.stdout and "running" in status.stdout
    study = shared / "runs" / "tiny"
    assert f"{study} is not writable: its runs are shown as last known\n" in status.stderr
    assert not RunFolder(folder.path).attempt(1).settled
    refused = as_user(OWNER, *command, "collect", cwd=shared, HOME=str(shared))
    assert f"\n{shared / 'runs'} cannot be written to, so nothing was collected there; " in refused.stderr


def test_a_neighbour_can_change_nothing_that_runs_as_the_owner(shared):
    (shared / "open").mkdir()
    (shared / "open").chmod(0o777)
    assert attack(shared / "open") == [f"put a file into {shared}/open"], "the attack works where it may"
    process = launch(shared)
    assert process.returncode == 1, process.stderr
    (study,) = shared.glob("runs/tiny")
    assert list(study.glob(".code/*/runner/start.py"))
    assert list(study.glob(".provenance/*.diff"))
    assert attack(shared / "runs") == []


def test_a_root_where_everybody_could_replace_the_study_is_refused(shared):
    shared.chmod(0o2777)
    refused = launch(shared)
    assert refused.returncode == 2
    assert f"{shared} is writable by everybody" in refused.stderr
    assert f"chmod +t {shared}" in refused.stderr
    shared.chmod(0o3775)
    assert launch(shared).returncode == 1, "/bin/true is no run, but it was started"
    assert not [process for process in attack(shared / "runs") if "runs/" in process]


def test_a_root_where_the_group_could_replace_the_study_is_used_and_the_risk_is_said_once(shared):
    shared.chmod(0o2775)
    risks = [
        f"group {GROUP} can write to {shared} and replace {shared}/runs/tiny: "
        "jobs run only the code of their launch",
        f"group {GROUP} can write to {shared} and replace {shared}/p.yaml, "
        "which would run as you: your home is safer",
    ]
    for process, code in ((launch(shared, "--dry-run"), 0), (launch(shared), 1)):
        assert process.returncode == code, "/bin/true is no run, but it was started"
        lines = process.stderr.splitlines()
        assert [lines.count(risk) for risk in risks] == [1, 1], process.stderr
    command = [sys.executable, "-P", "-m", "runner", "--root", shared / "runs", "doctor", "--json"]
    checked = as_user(OWNER, *command, "--profile", shared / "p.yaml", cwd=shared, HOME=str(shared))
    (check,) = [check for check in json.loads(checked.stdout) if check["what"] == "neighbours"]
    assert (check["works"], check["needed"]) == (False, False)
    assert [risk.replace("tiny", "STUDY") in check["found"] for risk in risks] == [True, True]


def test_a_retry_takes_no_profile_that_a_neighbour_has_written(shared):
    assert launch(shared).returncode == 1
    os.chown(shared / "p.yaml", NEIGHBOUR, GROUP)
    command = [sys.executable, "-P", "-m", "runner", "--root", shared / "runs", "retry", "tiny"]
    refused = as_user(OWNER, *command, cwd=shared, HOME=str(shared))
    assert refused.returncode == 2
    assert f"{shared}/p.yaml belongs to user {NEIGHBOUR}, and its settings would run as you" in refused.stderr
    retried = as_user(OWNER, *command, "--profile", shared / "p.yaml", cwd=shared, HOME=str(shared))
    assert retried.returncode == 1, "who names it trusts it"


def test_a_repeat_runs_no_other_code_that_a_neighbour_has_written(shared):
    """The run may be the user's own, with a neighbour's in its place."""
    (study := shared / "runs" / "tiny").mkdir(parents=True)
    planted = snapshot.place({"runner/start.py": b"print('planted')"}, study)
    run = plan("r1", study="tiny")
    origin = run.provenance.model_copy(update={"code": planted.name})
    folder = Folder(shared / "runs", run.model_copy(update={"provenance": origin}))
    folder.event("claimed", executor="local", host=socket.gethostname(), pid=1, pid_started=1.0)
    folder.start()
    folder.end("completed")
    for path in (shared / "runs", *(shared / "runs").rglob("*")):
        os.chown(path, NEIGHBOUR, GROUP)
    command = [sys.executable, "-P", "-m", "runner", "--root", shared / "runs", "reproduce", "r1"]
    refused = as_user(OWNER, *command, "--out", shared / "mine", cwd=shared, HOME=str(shared))
    assert refused.returncode == 2
    assert f"tiny/r1 has other code than this, from user {NEIGHBOUR}" in refused.stderr
    assert not (shared / "mine").exists()


def test_a_study_that_a_neighbour_can_write_to_is_refused_with_the_command_that_closes_it(shared):
    (study := shared / "runs" / "tiny").mkdir(parents=True)
    for path in (study.parent, study):
        os.chown(path, OWNER, GROUP)
    study.chmod(0o2775)
    refused = launch(shared)
    assert refused.returncode == 2
    assert f"chmod -R go-w {study}" in refused.stderr
    assert not list(study.glob("*/attempt-*")), "nothing was started"
