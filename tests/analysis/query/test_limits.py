"""`runner sql` in a process of its own: whatever the query, it ends in time, and in little memory."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.conftest import PATIENCE_SECONDS, until

pytestmark = pytest.mark.fault
ENDLESS = "WITH RECURSIVE t AS (SELECT 1 AS i UNION ALL SELECT 1 FROM t) SELECT count(*) FROM t"
# One call of a function, which looks at no signal and at no clock.
DEAF = "SELECT md5(repeat('x', 1500000000))"


def sql(root: Path, query: str, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "runner", "--root", str(root), "sql", query, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def at_work(process: subprocess.Popen[bytes]) -> None:
    """Wait until its child computes."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until(lambda: any(map(_opened, children.read_text().split())), pause_seconds=0.05)
    time.sleep(0.3)


def _opened(child: str) -> bool:
    paths = []
    with contextlib.suppress(OSError):  # it can end, or close a file, meanwhile
        paths = [str(link.readlink()) for link in Path(f"/proc/{child}/fd").iterdir()]
    return any("results.duckdb" in path for path in paths)


@pytest.mark.parametrize("query", [ENDLESS, DEAF])
def test_the_first_ctrl_c_ends_any_query(filled: Path, query: str) -> None:
    process = sql(filled, query, "--memory", "8")
    at_work(process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    assert b"Traceback" not in stderr


def test_sigterm_leaves_no_query_behind(filled: Path) -> None:
    process = sql(filled, ENDLESS)
    at_work(process)
    process.terminate()
    stdout, _ = process.communicate(timeout=PATIENCE_SECONDS)  # the pipe has no writer left
    assert (process.returncode, stdout) == (143, b"")


def test_a_query_that_takes_too_long_is_stopped(filled: Path) -> None:
    _, stderr = (process := sql(filled, ENDLESS, "--timeout", "1")).communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 2
    assert b"no answer within 1 s" in stderr
    assert b"--timeout" in stderr


@pytest.mark.parametrize(
    "query", ["SELECT length(repeat('x', 1000000000))", "SELECT list(range) FROM range(1000000000)"]
)
def test_a_query_that_needs_too_much_memory_is_refused(filled: Path, query: str) -> None:
    """The first is one string, which DuckDB's own limit does not count."""
    _, stderr = (process := sql(filled, query, "--memory", "0.4")).communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 2
    assert b"--memory" in stderr
    assert b"Traceback" not in stderr


ROW_COUNTERS: dict[str, Callable[[bytes], int]] = {
    "csv": lambda data: data.count(b"\n") - 1,
    "json": lambda data: len(json.loads(data)),
    "parquet": lambda data: int(pq.read_table(io.BytesIO(data)).num_rows),
}


@pytest.mark.parametrize(
    ("form", "rows", "memory"), [("csv", 20_000, "0.4"), ("json", 20_000, "0.4"), ("parquet", 80_000, "0.8")]
)
def test_an_answer_larger_than_the_memory_is_streamed(
    filled: Path, form: str, rows: int, memory: str
) -> None:
    """Of 8 KB a row there is, with what Python itself needs, more than the process may hold even once."""
    query = f"SELECT range AS n, repeat(chr(97 + (range % 26)::INT), 8000) AS text FROM range({rows})"
    stdout, stderr = (process := sql(filled, query, "--format", form, "--memory", memory)).communicate(
        timeout=PATIENCE_SECONDS
    )
    assert (process.returncode, stderr) == (0, b"")
    assert ROW_COUNTERS[form](stdout) == rows


def test_a_full_disk_and_a_query_that_is_no_text_are_refused_in_words(filled: Path) -> None:
    with Path("/dev/full").open("w") as device:
        command = [sys.executable, "-m", "runner", "--root", str(filled), "sql"]
        process = subprocess.run([*command, "SELECT 1"], stdout=device, stderr=subprocess.PIPE, check=False)
    assert (process.returncode, process.stderr) == (2, b"standard output: No space left on device\n")
    process = subprocess.run([*command, b"SELECT '\xff'"], capture_output=True, check=False)
    assert (process.returncode, b"the query is no UTF-8 text" in process.stderr) == (2, True)


def test_a_reader_that_leaves_ends_the_query(filled: Path) -> None:
    process = sql(filled, "SELECT range FROM range(100000000)", "--format", "csv")
    assert process.stdout
    assert process.stderr
    assert process.stdout.readline() == b"range\n"
    process.stdout.close()
    assert process.wait(PATIENCE_SECONDS) == 141
    assert process.stderr.read() == b""
    process.stderr.close()
