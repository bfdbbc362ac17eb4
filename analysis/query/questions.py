"""Ten questions that people ask about a study, as SQL, and their answers on one: docs/questions.md."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

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
        tasks: those that it is about; empty for any.
    """

    text: str
    note: str
    sql: str
    tasks: tuple[str, ...] = ()


@cache
def questions() -> dict[str, Question]:
    """The questions by name, in order."""
    text = Path(__file__).with_name("questions.sql").read_text(encoding="utf-8")
    by_name = {}
    for block in text.strip().split("\n\n")[1:]:
        lines = block.splitlines()
        name, question, *note = [line.removeprefix("-- ") for line in lines if line.startswith("-- ")]
        sql = "\n".join(line for line in lines if not line.startswith("-- "))
        name, _, tasks = name.partition(": ")
        by_name[name] = Question(question, " ".join(note), sql, tuple(tasks.split(", ")) if tasks else ())
    return by_name


_MOST = 12  # rows shown


def questions_page(connection: DuckDBPyConnection, study: str, start: str) -> str:
    """Every question with its SQL and the answer for a study.

    Args:
        start: the page's heading and introduction.
    """
    sections = [start]
    for name, question in questions().items():
        result = answer(connection, question.sql.replace("$study", quoted(study)))
        cells = [
            tuple("" if value is None else str(value).replace("|", "\\|") for value in row)
            for row in (result.columns, ("---",) * len(result.columns), *result.rows[:_MOST])
        ]
        shown = "\n".join(f"| {' | '.join(row)} |" for row in cells) if result.rows else "No rows."
        if (more := len(result.rows) - _MOST) > 0:
            shown += f"\n\nand {more} more rows"
        note = f"{question.note}\n\n" if question.note else ""
        sql = f"```sql\n{question.sql}\n```"
        sections.append(f"## {question.text}\n\n{note}`runner sql @{name}`\n\n{sql}\n\n{shown}\n")
    return "\n".join(sections)
