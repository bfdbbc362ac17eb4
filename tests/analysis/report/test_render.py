"""How text stands on pages."""

from __future__ import annotations

import pytest

from analysis.report.facts import Facts
from analysis.report.render import environment, prose


def test_a_number_and_its_percent_sign_stay_on_one_line_and_backticks_mark_code() -> None:
    assert prose("`a<b` (-5.2 %; -6.9 to -4.1 %)") == (
        "<code>a&lt;b</code> (-5.2\N{NO-BREAK SPACE}%; -6.9 to -4.1\N{NO-BREAK SPACE}%)"
    )


def test_groups_whose_names_have_commas_are_parted_by_semicolons() -> None:
    parts = environment().get_template("macros.html").module
    known = Facts("study", "title", "", [], [], [], [])
    assert parts.groups(["FSDP2", "DDP"], known).strip() == "FSDP2, DDP"  # type: ignore[attr-defined]
    assert parts.groups(["FSDP2, gathered once", "DDP"], known).strip() == "FSDP2, gathered once; DDP"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("description", "question", "about"),
    [
        ("Tiny study.", "Tiny", "Tiny study."),
        ("Tiny", "Tiny", ""),
        ("", "Tiny", ""),
        ("Is it fast? Tiny.", "Is it fast?", "Tiny."),
        ("Is it fast?", "Is it fast?", ""),
    ],
)
def test_a_description_is_whole_beside_a_title_that_it_begins_with(
    description: str, question: str, about: str
) -> None:
    known = Facts("study", "Tiny", description, [], [], [], [])
    assert (known.question, known.about) == (question, about)
