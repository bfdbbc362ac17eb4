"""Queries by name, for `runner sql @NAME`: those of the report, as it runs them, and docs/questions.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis import charts
from analysis.query.questions import Question, questions
from analysis.query.statements import INFERENCE_SUMMARY, TRAINING_METRICS, TRAINING_SUMMARY
from analysis.report import backends, facts
from analysis.store.database import open_for_reading, studies_of
from model.record.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

_TABLES = {
    "runs": ("Table of runs", facts.RUNS_SQL),
    "attempts": ("Attempts of each run", facts.QUERIES["attempts"]),
    "quarantine": ("Files that could not be read", facts.QUERIES["quarantine"]),
    "training_metrics": ("Rate, tokens that train, MFU and TFLOP/s of each group", TRAINING_METRICS),
    "training_summary": ("Loss, rate, MFU, time and memory of each group", TRAINING_SUMMARY),
    "inference_summary": ("Latency of prompts and of decoded tokens of each group", INFERENCE_SUMMARY),
    "columns": ("Dictionary of columns", facts.QUERIES["columns"]),
}


def queries() -> dict[str, Question]:
    """Every named query: the questions, then the report's tables and figures."""
    named = dict(questions())
    named |= {name: Question(text, "", sql) for name, (text, sql) in _TABLES.items()}
    for name in charts.names():
        chart = charts.load(name)
        named[name] = Question(f"{chart.title}: {chart.question}", "", chart.sql)
    for text, sql in backends.queries().items():
        name = "verdicts" if text == "Certificates" else text.lower().replace(" ", "_")
        named[name] = Question(f"Backends: {text.lower()}", "", sql)
    return named


def find(root: Path, name: str, study: str | None) -> tuple[str, str]:
    """The SQL of a named query for one study, and that study.

    Args:
        name: without the @.
        study: may be None if the database has only one.

    Raises:
        UserError: there is no such query or study, or no telling which study is meant.
    """
    by_name = queries()
    if name not in by_name:
        raise UserError(f"no query is named '@{name}' {did_you_mean(name, sorted(by_name))}")
    with open_for_reading(root) as connection:
        studies = studies_of(connection)
    if study is None and len(studies) != 1:
        raise UserError(f"say which study with --study; in the database: {', '.join(studies) or 'none'}")
    if study is not None and study not in studies:
        raise UserError(f"no collected runs of study '{study}' {did_you_mean(study, studies)}")
    meant = study if study is not None else studies[0]
    return facts.literal(by_name[name].sql, meant), meant
