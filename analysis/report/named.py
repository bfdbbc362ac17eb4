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
    found = dict(questions())
    found |= {name: Question(text, "", sql) for name, (text, sql) in _TABLES.items()}
    for name in charts.names():
        chart = charts.load(name)
        found[name] = Question(f"{chart.title}: {chart.question}", "", chart.sql)
    for text, sql in backends.queries().items():
        name = "verdicts" if text == "Certificates" else text.lower().replace(" ", "_")
        found[name] = Question(f"Backends: {text.lower()}", "", sql)
    return found


def find(root: Path, name: str, study: str | None) -> tuple[str, str]:
    """The SQL of a named query for one study, and that study.

    Args:
        name: without the @.
        study: may be None if the database has only one.

    Raises:
        UserError: there is no such query or study, or no telling which study is meant.
    """
    known = queries()
    if name not in known:
        raise UserError(f"no query is named '@{name}' {did_you_mean(name, sorted(known))}")
    meant = _study(root, study)
    return facts.literal(known[name].sql, meant), meant


def _study(root: Path, study: str | None) -> str:
    with open_for_reading(root) as connection:
        names = studies_of(connection)
    if study is None and len(names) == 1:
        return names[0]
    if study is None:
        raise UserError(f"say which study with --study; in the database: {', '.join(names) or 'none'}")
    if study not in names:
        raise UserError(f"no collected runs of study '{study}' {did_you_mean(study, names)}")
    return study
