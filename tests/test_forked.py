"""A fork of the command line behaves as a process that was started anew."""

import json
import os
import subprocess
import sys

import pytest

from runner.state.code import snapshot
from tests import jobs
from tests.conftest import PATIENCE_SECONDS, environment

ASKS = "import os, signal, sys; print(sys.argv, os.getcwd(), sorted(os.environ.items()), signal.getsignal(signal.SIGINT)); "


@pytest.mark.parametrize(
    "end", ["sys.exit(3)", "os.kill(os.getpid(), signal.SIGKILL)", "raise SystemExit('no')", "1 / 0"]
)
def test_a_fork_has_the_arguments_environment_streams_and_end_of_a_process_started_anew(forks, tmp_path, end):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "asks.py").write_text(ASKS + "print('said', file=sys.stderr); " + end)
    words, env = ["tests.asks", "a b", "-"], environment(OF_THIS_ONE="yes")
    anew = subprocess.run(
        [sys.executable, "-m", *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    forked = forks.run(words, tmp_path, env, PATIENCE_SECONDS)
    assert "tests/asks.py', 'a b', '-'] " in anew.stdout or end.startswith("os.kill")
    assert (forked.returncode, forked.stdout) == (anew.returncode, anew.stdout)
    assert forked.stderr.splitlines()[:1] == anew.stderr.splitlines()[:1] == ["said"]
    assert forked.stderr.splitlines()[-1] == anew.stderr.splitlines()[-1]


def test_a_process_that_ends_right_before_it_is_killed_is_no_error(forks, tmp_path, monkeypatch):
    ended = forks.start(["tests.nothing"], tmp_path, environment())
    ended.wait(PATIENCE_SECONDS)
    ended.returncode = None  # as if it had still run when it was asked
    with monkeypatch.context() as patch:
        patch.setattr(ended, "wait", lambda timeout: None)
        ended.kill()
    ended.close()


def test_what_python_reads_at_its_start_needs_a_process_started_anew(forks):
    assert forks.serves(environment(PATH=os.environ["PATH"]))
    assert not forks.serves(environment(PYTHONIOENCODING="ascii"))


def attempt_files(root):
    """The files of the only attempt, with what does not differ from attempt to attempt."""
    (attempt,) = root.glob("tiny/*/attempt-1")
    texts = {path.name: path.read_text() for path in attempt.iterdir()}
    claim = json.loads((attempt.parent / "ledger.jsonl").read_text().splitlines()[0])
    assert json.loads(texts["result.json"])["outcome"] == "completed"
    assert json.loads(texts["manifest.json"])["pid"] != claim["pid"], "that of the launcher"
    return {
        name: list(json.loads(text)) if name.endswith(".json") else len(text.splitlines())
        for name, text in texts.items()
    }


def test_a_forked_job_leaves_the_files_of_one_that_was_started_anew(runner, study, root, tmp_path):
    path = study()
    runner("launch", path, rc=0)
    forked = attempt_files(root)
    root.rename(tmp_path / "before")
    runner("launch", path, rc=0, PYTHONIOENCODING="utf-8")
    assert attempt_files(root) == forked
    assert "Traceback" not in next(root.glob("tiny/*/attempt-1/stderr.log")).read_text()


def test_a_job_whose_interpreter_or_code_would_be_another_one_is_started_anew(tmp_path):
    def serves(python=sys.executable, code=snapshot.current(), module="runner.job", **env):  # noqa: B008
        home = str(tmp_path / code)
        return jobs.serves(
            [python, "-P", "-c", "", home, "-m", module, "run", "1", "2"], {**os.environ, **env}
        )

    assert serves(PYTHONUNBUFFERED="1")
    assert not serves(PYTHONHOME="/nowhere")
    assert not serves(python="/usr/bin/env")
    assert not serves(code="0" * 64)
    assert not serves(module="runner.job.trial")
