"""No text in a CSV file is a formula to a spreadsheet, and every number stays one."""

from __future__ import annotations

import pytest

from analysis.query.formats import csv_lines


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("=HYPERLINK(A1)", "'=HYPERLINK(A1)"),
        ("+1+cmd|' /C calc'!A0", "'+1+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("@SUM(1)", "'@SUM(1)"),
        ("\t=1", "'\t=1"),
        ("flash = 2", "flash = 2"),
        (-1.5, "-1.5"),
        ("-1.5e-05", "-1.5e-05"),
        ("+5.2 %", "+5.2 %"),
        (None, ""),
        ("", ""),
    ],
)
def test_a_text_that_begins_like_a_formula_has_an_apostrophe_before_it(value: object, expected: str) -> None:
    assert csv_lines([["x", value]]) == f"x,{expected}\n"


def test_cells_are_quoted_where_csv_needs_it() -> None:
    assert csv_lines([['=1,"2"']]) == '"\'=1,""2"""\n'
