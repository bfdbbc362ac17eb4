"""A fork of the command line behaves as a process that was started anew."""

import os
import subprocess
import sys

import pytest

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


def test_what_python_reads_at_its_start_needs_a_process_started_anew(forks):
    assert forks.serves(environment(PATH=os.environ["PATH"]))
    assert not forks.serves(environment(PYTHONIOENCODING="ascii"))
