"""Readers and collects at once: neither waits for the other, and a reader sees one state of the files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from analysis.store import database as store
from analysis.store.collect import collect
from tests.analysis.conftest import Ask
from tests.analysis.fabricate import completed
from tests.conftest import PATIENCE_SECONDS, REPOSITORY, until

pytestmark = pytest.mark.fault
STATE = "SELECT (SELECT count(*) FROM runs), (SELECT count(DISTINCT run_id) FROM steps), (SELECT count(*) FROM steps)"
RUNS = 8


def test_who_opens_the_results_later_sees_more_also_in_one_process(root: Path) -> None:
    completed(root, "r1")
    collect(root)
    with store.open_for_reading(root) as before:
        completed(root, "r2")
        collect(root)
        with store.open_for_reading(root) as after:
            assert after.execute(STATE).fetchall() == [(2, 2, 42)]
        assert before.execute(STATE).fetchall() == [(1, 1, 21)]


def test_readers_and_collects_do_not_stop_each_other(root: Path) -> None:
    """Each reader keeps what it opened; each sees whole collects; and no collect waits for a reader to close."""
    completed(root, "r0")
    collect(root)
    states: list[tuple[int, int, int]] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            with store.open_for_reading(root) as connection:
                first = connection.execute(STATE).fetchall()
                time.sleep(0.05)
                assert connection.execute(STATE).fetchall() == first
                states.extend(first)

    readers = [threading.Thread(target=read) for _ in range(2)]
    with store.open_for_reading(root) as open_connection:
        for reader in readers:
            reader.start()
        for number in range(1, 5):
            completed(root, f"r{number}")
            assert collect(root).runs == number + 1
            until(lambda count=number + 1: any(runs == count for runs, _, _ in states), pause_seconds=0.02)
        stop.set()
        for reader in readers:
            reader.join(PATIENCE_SECONDS)
        assert open_connection.execute(STATE).fetchall() == [(1, 1, 21)]
    assert {(runs, runs, 21 * runs) for runs, _, _ in states} == set(states)


# A process that has imported everything, so that its children are killed in the middle of the work.
KILLS = """
import os, signal, sys, tempfile, time
from pathlib import Path
import duckdb, pyarrow
from analysis.store.collect import collect
from analysis.store.database import open_for_reading

root, runs = Path(sys.argv[1]), int(sys.argv[2])
tempfile.gettempdir()  # tries the folder with a file, which a kill of the child that asks first would leave

def child(work):
    if pid := os.fork():
        return pid
    try:
        work()
        os._exit(0)
    finally:
        os._exit(1)

def check():
    with open_for_reading(root) as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchall()[0][0] in (1, runs)

after, kills = 0.005, 0
while True:
    pid = child(lambda: collect(root))
    time.sleep(after)
    os.kill(pid, signal.SIGKILL)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert os.waitpid(child(check), 0)[1] == 0, "the database cannot be read"
    if ended != -signal.SIGKILL:
        sys.exit(ended if kills else "never killed")
    kills, after = kills + 1, after * 1.3
"""


def test_a_collect_that_is_killed_at_any_moment_leaves_a_database_that_can_be_read(
    root: Path, sql: Ask, tmp_path: Path
) -> None:
    """kill -9 after a while, longer each time, until one ends; the next starts from what is there."""
    completed(root, "r0")
    collect(root)
    for number in range(1, RUNS):
        completed(root, f"r{number}")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-c", KILLS, str(root), str(RUNS)]
    subprocess.run(
        command,
        cwd=REPOSITORY,
        env=os.environ | {"TMPDIR": str(scratch)},
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    assert collect(root).updated == 0
    assert sql("SELECT count(*) AS n FROM steps") == [{"n": 21 * RUNS}]
    assert {path.name for path in root.iterdir()} == {"backends", store.NAME, store.LOCK}
    assert list(scratch.iterdir()) == [], "the next collect removes what a killed one left"


KILLED_ONCE_IN_PLACE = """
import os, signal, sys
from pathlib import Path
from analysis.store import collect, database

published = database._publish

def publish_and_die(*given):
    published(*given)
    os.kill(os.getpid(), signal.SIGKILL)

database._publish = publish_and_die
collect.collect(Path(sys.argv[1]))
"""


def test_a_collect_with_nothing_new_removes_what_one_left_that_was_killed_once_its_work_was_in_place(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    completed(root, "r1")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_ONCE_IN_PLACE, str(root)],
        cwd=REPOSITORY,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob("assay-*"))) == 1
    monkeypatch.setattr("analysis.store.database.gettempdir", lambda: str(tmp_path))
    assert collect(root).updated == 0
    assert list(tmp_path.glob("assay-*")) == []


def test_what_a_running_collect_writes_is_left_alone(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analysis.store.database.gettempdir", lambda: str(tmp_path))
    host = os.uname().nodename
    dead = subprocess.Popen(["true"])
    dead.wait()
    names = [f".{store.NAME}.{{}}@{host}", f".{store.NAME}.{{}}@other"]
    for pid in (os.getppid(), dead.pid):
        for name in names:
            (root / name.format(pid)).touch()
        (tmp_path / f"assay-{pid}@{host}-x").mkdir()
    completed(root, "r1")
    collect(root)
    names_left = {path.name for path in (*root.glob(".results*"), *tmp_path.glob("assay-*"))}
    expected = {names[0].format(os.getppid()), f"assay-{os.getppid()}@{host}-x"}
    assert names_left == expected | {names[1].format(pid) for pid in (os.getppid(), dead.pid)}


def test_a_database_that_was_torn_is_built_anew(root: Path, sql: Ask) -> None:
    completed(root, "r1")
    collect(root)
    content = store.database(root).read_bytes()
    store.database(root).write_bytes(content[: len(content) // 2])
    assert collect(root).runs == 1
    assert sql("SELECT count(*) AS n FROM steps") == [{"n": 21}]
    assert collect(root).updated == 0


def test_a_database_that_another_program_holds_open_for_writing_can_be_collected(
    root: Path, sql: Ask
) -> None:
    """As where somebody opened it with `duckdb results.duckdb`: what they write there is lost, by design."""
    completed(root, "r1")
    collect(root)
    script = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print(1, flush=True); sys.stdin.readline()"
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(store.database(root))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stdout.readline() == b"1\n"
    completed(root, "r2")
    assert collect(root).runs == 2
    assert sql("SELECT count(*) AS n FROM runs") == [{"n": 2}]
    process.communicate(b"\n", timeout=PATIENCE_SECONDS)
    assert sql("SELECT count(*) AS n FROM runs") == [{"n": 2}]
