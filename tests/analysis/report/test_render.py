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
    macros = environment().get_template("macros.html").module
    study_facts = Facts("study", "title", "", [], [], [], [])
    assert macros.groups(["FSDP2", "DDP"], study_facts).strip() == "FSDP2, DDP"  # type: ignore[attr-defined]
    assert macros.groups(["FSDP2, gathered once", "DDP"], study_facts).strip() == "FSDP2, gathered once; DDP"  # type: ignore[attr-defined]


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
    study_facts = Facts("study", "Tiny", description, [], [], [], [])
    assert (study_facts.question, study_facts.about) == (question, about)
