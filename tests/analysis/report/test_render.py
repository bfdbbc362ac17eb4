"""How text stands on pages."""

from __future__ import annotations

from analysis.report.render import said


def test_a_number_and_its_percent_sign_stay_on_one_line_and_backticks_mark_code() -> None:
    assert said("`a<b` (-5.2 %; -6.9 to -4.1 %)") == (
        "<code>a&lt;b</code> (-5.2\N{NO-BREAK SPACE}%; -6.9 to -4.1\N{NO-BREAK SPACE}%)"
    )
