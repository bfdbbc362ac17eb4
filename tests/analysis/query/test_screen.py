"""A table on a terminal shows each number whole or not at all, in lines that fit."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from analysis.query import screen
from analysis.query.ask import ask
from analysis.query.formats import FORMATS

WIDTHS = (40, 60, 80, 120, 200)
HEADS = ["run", "factors", "status", "step", "loss", "last tokens/s", "reason"]
ROWS = [
    ["first/aaaaaaaaaaaa", "learning_rate=0.001 seed=0", "completed", "60/60", "2.555", "13,187", ""],
    [
        "first/bbbbbbbbbbbb",
        "learning_rate=0.003 seed=0",
        "oom_gpu (as expected)",
        "5/60",
        "",
        "",
        "no room " * 20,
    ],
]


def lines(columns: list[str], rows: list[list[str]], width: int, **options: Any) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    with console.capture() as capture:
        console.print(screen.fitted(console, columns, rows, **options))
    output_lines = [line.rstrip() for line in capture.get().splitlines()]
    assert max(map(cell_len, output_lines)) <= width
    return output_lines


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("options", [{}, {"wrap": False}, {"narrow": False, "wrap": False}])
def test_a_number_is_whole_or_its_column_is_left_out(width: int, options: dict[str, bool]) -> None:
    output_lines = lines(HEADS, ROWS, width, **options)
    assert (
        "first/aaaaaaaaaaaa"
        in output_lines[2 if "last" not in output_lines[0] or "tokens/s" in output_lines[0] else 3]
    )
    text = "\n".join(output_lines)
    note = text.partition("left out (")[2].replace("\n", " ")
    for head, number in (("step", "60/60"), ("loss", "2.555"), ("last tokens/s", "13,187")):
        assert (number in text) != (head in note)
    if note:
        count = note.partition(")")[0].count(",") + 1
        assert f"{count} of 7 columns {'is' if count == 1 else 'are'} left out" in text.replace("\n", " ")


@pytest.mark.parametrize("wrap", [True, False])
def test_a_terminal_of_60_columns_has_the_steps_of_each_run(wrap: bool) -> None:
    assert any("60/60" in line for line in lines(HEADS, ROWS, 60, wrap=wrap))


def test_a_text_wraps_whole_or_is_cut_with_an_ellipsis() -> None:
    rows = [["a", "one two three four five six seven eight"], ["b", "x"]]
    wrapped = " ".join(" ".join(lines(["k", "words"], rows, 20)).split())
    assert "one two three four five six seven eight" in wrapped
    assert lines(["k", "words"], rows, 20, wrap=False)[2] == "a  one two three fo…"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed=0 rate=0.00123 batch=8", "seed=0 rate=…"),
        ("seed=0 of 1e-05 and more", "seed=0 of …"),
        ("step 12 of 1,234,567 done", "step 12 of …"),
        ("seed 1 and the next word", "seed 1 and the…"),
    ],
)
def test_a_cut_text_ends_in_no_part_of_a_number(text: str, expected: str) -> None:
    width = len("0123456789abcde")
    assert lines(["t"], [[text], ["x"]], width, wrap=False)[2] == expected


def test_columns_that_do_not_fit_whole_make_room_for_those_that_do() -> None:
    rows = [
        ["r1", "{" + "x" * 90 + "}", *map(str, range(100, 130))],
        ["r2", "{}", *map(str, range(200, 230))],
    ]
    output_lines = lines(["run", "config", *(f"c{n}" for n in range(30))], rows, 40, narrow=False, wrap=False)
    assert output_lines[0].split() == ["run", *(f"c{n}" for n in range(7))]
    assert (
        output_lines[-1] == "24 of 32 columns are left out; `| less"
        or "24 of 32 columns are left out" in output_lines[-2]
    )


def test_one_row_that_does_not_fit_is_a_block_with_all_values() -> None:
    output_lines = lines(
        ["run", "config", "loss"], [["r1", "word " * 20, "2.5554"]], 40, narrow=False, wrap=False
    )
    assert output_lines[0].split() == ["run", "r1"]
    assert output_lines[-1].split() == ["loss", "2.5554"]
    assert " ".join(output_lines).count("word") == 20


def test_a_number_wider_than_the_terminal_is_on_several_lines() -> None:
    output_lines = lines(["n", "m"], [["1" * 50, "2"], ["3", "4"]], 40, narrow=False, wrap=False)
    assert "".join(output_lines).count("1") == 50 + 1  # and in `1 of 2 columns`


def test_wide_letters_are_measured_as_the_terminal_shows_them() -> None:
    lines(["名前", "n"], [["損失" * 30, "1"], ["x", "2"]], 40, wrap=False)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_line_break_in_a_value_is_shown_and_breaks_no_row(
    filled: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    buffer = io.BytesIO()
    sql = "SELECT 'one' || chr(10) || 'two' || chr(13) || 'three' AS a, 1 AS b UNION ALL SELECT 'x', 2"
    FORMATS["table"](ask(filled, sql), buffer)
    assert any(r"one\ntwo\rthree" in line for line in buffer.getvalue().decode().split("\n"))


@pytest.mark.parametrize("width", WIDTHS)
def test_every_column_of_runs_is_shown_whole_or_counted(
    filled: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    buffer = io.BytesIO()
    answer = ask(filled, "FROM runs UNION ALL FROM runs")
    FORMATS["table"](answer, buffer)
    head, _, *_ = text = re.sub(r"\x1b\[[0-9;]*m", "", buffer.getvalue().decode()).splitlines()
    assert set(head.split()) <= set(answer.columns) and len(head) <= width
    missing = len(answer.columns) - len(head.split())
    assert f"{missing} of {len(answer.columns)} columns are left out" in " ".join(text)
    cells = dict(zip(head.split(), text[2].split(), strict=False))
    assert cells["run_id"] == "r1"
