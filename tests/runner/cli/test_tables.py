"""Each verb that prints a table, on terminals of several widths: lines fit, and numbers are whole."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios

import pytest
from rich.cells import cell_len

from analysis.store.collect import collect
from runner.commands import doctor, verify
from runner.commands._console import table
from runner.commands._progress import ProgressBars
from runner.inputs.profile import read_cluster
from runner.job.tasks import RepeatRow
from tests.analysis.demo import write_demo
from tests.analysis.fabricate import certificate
from tests.conftest import environment

WIDTHS = (40, 60, 80, 120, 200)
STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
NUMBER = re.compile(r"[-+]?\d([\d.,:/]*\d)?%?")
VERBS = {
    "status": ["status"],
    "status of one": ["status", "backends/00abcdef0123"],
    "explain": ["explain", "backends/00abcdef0123"],
    "gc": ["gc", "--dry-run"],
    "compare": ["compare", "backends", "after", "--across", "all"],
    "expand": ["expand", "tiny.yaml"],
    "launch": ["launch", "tiny.yaml", "--dry-run"],
    "doctor": ["doctor"],
    "sql --list": ["sql", "--list"],
}


def check(text, piped, width):
    """Every line fits, and every number is one of those that the table has elsewhere."""
    text = STYLE.sub("", text)
    assert [line for line in text.splitlines() if cell_len(line.rstrip()) > width] == []
    text = re.sub(r"\d+ of \d+\s+columns\s+(is|are)\s+left", "", text)
    broken = [word for word in piped.split() if len(word) > 20]  # paths and other long names
    cut = [number for number in numbers(text) - numbers(piped) if not any(number in word for word in broken)]
    assert cut == []


def numbers(text):
    """The words that are numbers."""
    return {word for word in re.split(r"[\s()]+", text) if NUMBER.fullmatch(word)}


@pytest.fixture
def terminal(monkeypatch):
    """Standard output is a terminal with this many columns."""

    def resize(width):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(width))

    return resize


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """A workspace of two studies of a kind, the second of which ran later."""
    root = tmp_path_factory.mktemp("tables")
    write_demo(root)
    write_demo(root, study="after")
    for path in (root / "after").rglob("*.json*"):
        path.write_text(path.read_text().replace("2026-03-01", "2026-03-02"))
    collect(root)
    return root


@pytest.mark.parametrize("verb", VERBS)
def test_a_table_of_a_verb_fits_each_terminal_and_has_its_numbers_whole(
    cli, studies, study, terminal, verb, monkeypatch
):
    study("matrix: {seed: [0, 1], train.learning_rate: [0.001, 0.003]}\n")
    if verb == "doctor":  # once: the memory that is free changes
        checks = doctor.checks(read_cluster(None), studies)
        monkeypatch.setattr(doctor, "checks", lambda *_: checks)
    piped = cli(*VERBS[verb], root=studies)
    assert piped.code in (0, 1) and piped.out
    for width in WIDTHS if verb != "compare" else (60, 120):  # it takes seconds
        terminal(width)
        check(cli(*VERBS[verb], root=studies).out, piped.out, width)


@pytest.mark.parametrize("width", WIDTHS)
def test_tables_after_long_work_fit_too(tmp_path, terminal, capsys, width):
    (tmp_path / ".certificates").mkdir()
    certificates = [certificate(tmp_path, name) for name in ("flash", "cudnn")]
    rows = [RepeatRow.of("final loss", 2.5551, 2.5554), RepeatRow.of("device", "NVIDIA H200", "NVIDIA H100")]
    written = []
    for _ in range(2):
        verify.show(certificates)
        table(["", "original", "repeat", ""], rows)
        written.append(capsys.readouterr().out)
        terminal(width)
    check(written[1], written[0], width)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_bars_of_a_launch_fit_with_whole_numbers(terminal, width):
    terminal(width)
    bars = ProgressBars().bars
    texts = [
        ("runs", "2/6, 0:12:30 left"),
        ("learning_rate=0.001 seed=0", "step 30/60, loss 2.555, 13,187 tokens/s, 0:08 left"),
    ]
    for label, text in texts:
        bars.add_task(label, total=60, text=text)
    with bars.console.capture() as captured:
        bars.console.print(bars.make_tasks_table(bars.tasks))
    # Each text wraps at spaces alone.
    words = [word for label, text in texts for word in [*label.split(), *text.split()]]
    check(captured.get().replace("=", " "), " ".join([*words, "0.001 0 0:00:00"]), width)
    assert {*words[-7:]} <= {*captured.get().split()}


@pytest.mark.parametrize(
    ("width", "words"),
    [(40, ["sql", "from runs"]), (80, ["sql", "from runs"]), (200, ["sql", "from runs"]),
     (60, ["status", "backends"])],
)  # fmt: skip
def test_a_real_terminal_is_measured(studies, tmp_path, process, width, words):
    controller, screen = os.openpty()
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    env = environment(TERM="xterm")
    del env["COLUMNS"]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "runner", "--root", studies, *words],
        stdout=screen, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, cwd=tmp_path, env=env,
    ) as started:  # fmt: skip
        os.close(screen)
        output = b""
        while started.poll() is None or select.select([controller], [], [], 0)[0]:
            try:
                output += os.read(controller, 65536)
            except OSError:  # its end
                break
    os.close(controller)
    assert started.returncode == 0
    check(output.decode(), process("runner", "--root", studies, *words, cwd=tmp_path).stdout, width)
    assert b"left out" in output
