"""Questions with their answers on one study, as Markdown: docs/questions.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analysis.query.ask import answer
from analysis.query.questions import Question, questions
from analysis.store.database import quoted

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_MOST = 12  # rows shown


def page(connection: DuckDBPyConnection, study: str, start: str) -> str:
    """Every question with its SQL and the answer for a study.

    Args:
        start: the page's heading and introduction.
    """
    return "\n".join([start, *(_one(connection, study, *each) for each in questions().items())])


def _one(connection: DuckDBPyConnection, study: str, name: str, question: Question) -> str:
    note = f"{question.note}\n\n" if question.note else ""
    shown = table(connection, question.sql.replace("$study", quoted(study)))
    return f"## {question.text}\n\n{note}`runner sql @{name}`\n\n```sql\n{question.sql}\n```\n\n{shown}\n"


def table(connection: DuckDBPyConnection, sql: str) -> str:
    """A query's first rows as a Markdown table."""
    found = answer(connection, sql)
    if not found.rows:
        return "No rows."
    lines = [found.columns, ("---",) * len(found.columns), *found.rows[:_MOST]]
    text = "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)
    more = len(found.rows) - _MOST
    return text + (f"\n\nand {more} more rows" if more > 0 else "")


def _cell(value: Any) -> str:
    return "" if value is None else str(value).replace("|", "\\|")
