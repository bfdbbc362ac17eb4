"""sbatch hangs, is killed, or cannot say what it did: no run is lost, none is submitted twice."""

import re
import subprocess
import sys

import pytest

from tests.conftest import PATIENCE_SECONDS, REPOSITORY, until
from tests.faults.test_launcher import STUDY, stand_in
from tests.slurm.test_cluster import SANDBOX

pytestmark = pytest.mark.slurm
SUBMITS = '/usr/bin/sbatch "$@" >/dev/null; '
UNANSWERED = (
    'echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2; '
)
# A process that is called sbatch, as the real one is, and takes its time.
SLOW = f"""exec bash -c 'exec -a sbatch {sys.executable} -c "
import subprocess, sys, time
time.sleep(12)
subprocess.run([\\"/usr/bin/sbatch\\", *sys.argv[1:]])
" "$@"' sbatch "$@" """


@pytest.fixture
def start(background, root, cluster):
    """Launch a study with an sbatch that has so long to answer: on a busy machine the real one can take more than three."""

    def launch(path, seconds=int(PATIENCE_SECONDS), **env):
        limit = f"runner.execute.slurm.submit:SBATCH_SECONDS={seconds}"
        return background(
            "tests.faults.patched", limit, "--", "--root", root, "launch", path, "--profile", SANDBOX,
            cwd=REPOSITORY, **{**cluster, **env},
        )  # fmt: skip

    return launch


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (SUBMITS + "exec sleep 600", "did not answer within 3 s"),
        ("exec sleep 600", "did not answer within 3 s"),
        (SUBMITS + UNANSWERED + "exit 1", "timed out on send"),
        (UNANSWERED + "exit 1", "timed out on send"),
        (SUBMITS + "kill -9 $$", ""),
        (SUBMITS + "echo nonsense", ""),
    ],
    ids=["hangs after", "hangs before", "unanswered after", "unanswered before", "killed after", "nonsense after"],
)  # fmt: skip
def test_an_sbatch_of_which_it_is_not_known_what_it_did_loses_no_run_and_submits_none_twice(
    slurm, start, study, root, rows, tmp_path, script, message
):
    path = study(STUDY)
    seconds = {"seconds": 3} if "sleep" in script else {}
    launch = start(path, **seconds, **stand_in(tmp_path / "bin", "sbatch", script))
    _, stderr = launch.communicate(timeout=PATIENCE_SECONDS)
    assert launch.returncode == 3
    assert message in stderr
    assert "to find out whether the jobs exist" in stderr
    assert "Traceback" not in stderr
    slurm("launch", path, "--profile", SANDBOX, "--wait", rc=0)
    assert [(row["outcome"], row["attempt"]) for row in rows()] == [("completed", 1)] * 2
    assert len(list(root.glob("tiny/*/attempt-*"))) == 2


def test_an_sbatch_that_outlives_its_launcher_is_waited_for(slurm, start, study, root, rows, tmp_path):
    path = study(STUDY)
    launch = start(path, **stand_in(tmp_path / "bin", "sbatch", SLOW))
    ledger = until(lambda: next(root.glob("tiny/*/ledger.jsonl"), None))
    array = until(lambda: re.search(r'"submission":"(.+?)"', ledger.read_text()))[1]
    until(lambda: subprocess.run(["pgrep", "-f", f"^sbatch .*{array}"], check=False).returncode == 0)
    launch.kill()
    launch.communicate(timeout=PATIENCE_SECONDS)
    assert "0 submitted" in slurm("launch", path, "--profile", SANDBOX, rc=0).stderr
    until(lambda: all(row["job_id"] for row in rows()))
    slurm("launch", path, "--profile", SANDBOX, "--wait", rc=0)
    assert [(row["outcome"], row["attempt"]) for row in rows()] == [("completed", 1)] * 2
