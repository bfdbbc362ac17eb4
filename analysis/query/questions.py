"""Ten questions that people ask about a study, as SQL: docs/questions.md has their answers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Question:
    """A question with its query.

    Attributes:
        text: the question.
        note: what to know about the answer; may be empty.
        sql: one SELECT; `$study` stands for the study's name.
    """

    text: str
    note: str
    sql: str


@cache
def questions() -> dict[str, Question]:
    """The questions by name, in order."""
    text = Path(__file__).with_name("questions.sql").read_text(encoding="utf-8")
    return dict(_parsed(block) for block in text.strip().split("\n\n")[1:])


def _parsed(block: str) -> tuple[str, Question]:
    lines = block.splitlines()
    name, question, *note = [line.removeprefix("-- ") for line in lines if line.startswith("-- ")]
    sql = "\n".join(line for line in lines if not line.startswith("-- "))
    return name, Question(question, " ".join(note), sql)
