"""Ten questions that people ask about a study, as SQL, and their answers on one: docs/questions.md."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.query.ask import answer
from analysis.store.database import quoted

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


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


_MOST = 12  # rows shown


def questions_page(connection: DuckDBPyConnection, study: str, start: str) -> str:
    """Every question with its SQL and the answer for a study.

    Args:
        start: the page's heading and introduction.
    """
    return "\n".join([start, *(_section(connection, study, *item) for item in questions().items())])


def _section(connection: DuckDBPyConnection, study: str, name: str, question: Question) -> str:
    note = f"{question.note}\n\n" if question.note else ""
    shown = _markdown_table(connection, question.sql.replace("$study", quoted(study)))
    return f"## {question.text}\n\n{note}`runner sql @{name}`\n\n```sql\n{question.sql}\n```\n\n{shown}\n"


def _markdown_table(connection: DuckDBPyConnection, sql: str) -> str:
    """A query's first rows as a Markdown table."""
    result = answer(connection, sql)
    if not result.rows:
        return "No rows."
    lines = [result.columns, ("---",) * len(result.columns), *result.rows[:_MOST]]
    text = "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)
    more = len(result.rows) - _MOST
    return text + (f"\n\nand {more} more rows" if more > 0 else "")


def _cell(value: Any) -> str:
    return "" if value is None else str(value).replace("|", "\\|")
