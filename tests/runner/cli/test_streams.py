"""Output that cannot be written and Ctrl-C at any moment: the right exit code, and never a traceback."""

import json
import signal
import subprocess
import sys

import pytest

from tests.analysis.fabricate import completed
from tests.conftest import REPOSITORY, environment

pytestmark = pytest.mark.fault


def shell(line, folder, **env):
    return subprocess.run(
        ["bash", "-c", line.replace("runner", f"{sys.executable} -P -m runner")],
        cwd=folder, env=environment(**env), capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-"])
def test_a_closed_stderr_changes_no_exit_code(tmp_path, closed):
    assert shell(f"runner status nope {closed}", tmp_path).returncode == 2


def test_messages_for_a_closed_stderr_do_not_land_among_the_results(study):
    """`print(file=None)` writes to stdout. The warning about the warm-up would spoil the JSON."""
    path = study(base="title: t\nbase: {data: {path: text.parquet}, train.steps: 2}\n")
    process = shell(f"runner expand {path} --json 2>&-", path.parent)
    assert process.returncode == 0
    assert len(json.loads(process.stdout)) == 1


def test_a_verb_that_asks_the_database_ends_without_a_word_of_duckdb_s(tmp_path):
    """DuckDB complains on stderr of objects that Python did not free at its end."""
    completed(tmp_path, "r1")
    for verb in ("collect", "sql 'select 1 as one' --format json"):
        process = shell(f"runner --root . {verb}", tmp_path)
        assert (process.returncode, "leaked" in process.stderr) == (0, False)
    assert json.loads(process.stdout) == [{"one": 1}]


@pytest.mark.parametrize("verb", ["expand tiny.yaml", "--help"])
def test_a_closed_stdout_is_refused_before_anything_is_done(study, verb):
    process = shell(f"runner {verb} >&-", study().parent)
    assert process.returncode == 2
    assert process.stderr == "standard output is closed: redirect it to a file or to /dev/null\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("verb", ["expand tiny.yaml --json", "--help"])
def test_a_full_disk_under_the_output_is_exit_code_2_in_one_sentence(study, verb, unbuffered):
    process = shell(f"runner {verb} >/dev/full", study().parent, PYTHONUNBUFFERED=unbuffered)
    assert (process.returncode, process.stderr) == (2, "standard output: No space left on device\n")


@pytest.mark.parametrize("form", ["table", "csv", "json", "latex", "parquet"])
def test_an_answer_that_does_not_fit_names_the_output_and_not_the_scratch_disk(tmp_path, form):
    """Who had their output on a full disk was told to set TMPDIR."""
    completed(tmp_path, "r1")
    shell("runner --root . collect", tmp_path)
    process = shell(
        f"runner --root . sql 'select range from range(99999)' --format {form} >/dev/full", tmp_path
    )
    assert (process.returncode, process.stderr) == (2, "standard output: No space left on device\n")


def test_a_full_disk_under_the_messages_changes_no_exit_code(tmp_path):
    assert shell("runner status nope 2>/dev/full", tmp_path, PYTHONUNBUFFERED="").returncode == 2


def test_a_reader_that_leaves_early_is_no_unexpected_outcome(study):
    """The table is longer than a pipe holds, and typer would say 1."""
    path = study(f"matrix: {{seed: {[*range(2000)]}}}\n")
    process = shell(f"runner expand {path} | head -1; exit ${{PIPESTATUS[0]}}", path.parent)
    assert (process.returncode, process.stderr) == (141, "")


def test_a_pipe_that_is_closed_before_the_first_run_starts_none(study, runner, tmp_path, root):
    """Whoever reads has gone, and the launch stops before it claims a run."""
    shell(f"runner --root {root} launch {study()} 2>&1 >/dev/null | head -1", tmp_path)
    assert not list(root.glob("tiny/*/attempt-*"))
    runner("launch", study(), rc=0)


def test_a_locale_that_cannot_write_a_name_changes_no_output(study):
    path = study("matrix: {data.path: [é.parquet, 日.parquet]}\n")
    process = shell(f"runner expand {path} --json", path.parent, PYTHONIOENCODING="ascii")
    assert [cell["factors"]["data.path"] for cell in json.loads(process.stdout)] == [
        "é.parquet",
        "日.parquet",
    ]


def test_a_working_directory_that_is_gone_is_named_as_such(tmp_path):
    process = shell("mkdir gone; cd gone; rmdir ../gone; runner status", tmp_path)
    assert (process.returncode, process.stderr) == (
        2,
        "the working directory no longer exists; change to another one\n",
    )


INTERRUPTED = """\
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == os.environ["AT"]:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from runner.cli.main import main
main()
"""


@pytest.mark.parametrize(
    "module", ["runner.cli.run", "typer", "pydantic", "runner.commands.expand", "ruamel.yaml"]
)
def test_ctrl_c_while_modules_are_imported_is_exit_code_130_without_a_traceback(study, module):
    process = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "expand", str(study())],
        cwd=REPOSITORY, env=environment(AT=module), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.returncode == 130
    assert process.stderr in ("", "interrupted\n")


ENDLESS = """\
import os, signal, threading
import analysis.store.collect, duckdb

def endless(*_):
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    # One thread, which looks for signals between two tasks. Others would end their task first.
    duckdb.connect(config={"threads": 1}).execute("SELECT count(*) FROM range(1_000_000_000_000) WHERE hash(range) = 0").fetchall()

analysis.store.collect.collect = endless
from runner.cli.main import main
main()
"""


def test_ctrl_c_while_the_database_answers_is_exit_code_130_without_a_traceback(tmp_path):
    process = subprocess.run(
        [sys.executable, "-c", ENDLESS, "--root", str(tmp_path), "collect"],
        cwd=REPOSITORY, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (process.returncode, process.stdout, process.stderr) == (130, "", "interrupted\n")


def test_ctrl_c_before_and_after_the_command_line_runs_ends_the_process_without_a_traceback():
    """A shell reports the end by this signal as 130, too."""
    code = "import os, signal, runner.cli.main; os.kill(os.getpid(), signal.SIGINT)"
    process = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, check=False)
    assert (process.returncode, process.stderr) == (-signal.SIGINT, b"")


def test_ctrl_c_stays_ignored_where_the_caller_ignores_it(study):
    """A script that starts runner in the background keeps its own Ctrl-C from it."""
    process = subprocess.run(
        ["bash", "-c", 'trap "" INT; exec "$@"', "bash", sys.executable, "-c", INTERRUPTED, "expand", str(study())],
        cwd=REPOSITORY, env=environment(AT="ruamel.yaml"), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (process.returncode, process.stderr) == (0, "")
