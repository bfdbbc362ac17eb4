"""Queries by name, for `runner sql @NAME`: those of the report, as it runs them, and docs/questions.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis import charts
from analysis.query.questions import Question, questions
from analysis.query.statements import (
    FRONTIERS,
    INFERENCE_SUMMARY,
    PROBES,
    TRAINING_METRICS,
    TRAINING_SUMMARY,
)
from analysis.report import backends, facts
from analysis.store.database import open_for_reading, studies_of
from model.record.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

_TABLES = {
    "runs": Question("Table of runs", "", facts.RUNS_SQL),
    "attempts": Question("Attempts of each run", "", facts.QUERIES["attempts"]),
    "quarantine": Question("Files that could not be read", "", facts.QUERIES["quarantine"]),
    "training_metrics": Question(
        "Rate, tokens that train, MFU and TFLOP/s of each group", "", TRAINING_METRICS, ("training",)
    ),
    "training_summary": Question(
        "Loss, rate, MFU, time and memory of each group", "", TRAINING_SUMMARY, ("training",)
    ),
    "inference_summary": Question(
        "Latency of prompts and of decoded tokens of each group", "", INFERENCE_SUMMARY, ("inference",)
    ),
    "reported": Question("What others report of each group", "", facts.QUERIES["reported"]),
    "frontiers": Question("Largest value that fits, of each run", "", FRONTIERS, ("frontier",)),
    "probes": Question("Every probe of them", "", PROBES, ("frontier",)),
    "columns": Question("Dictionary of columns", "", facts.QUERIES["columns"]),
}


def queries() -> dict[str, Question]:
    """Every named query: the questions, then the report's tables and figures."""
    named = dict(questions())
    named |= _TABLES
    for name in charts.names():
        chart = charts.load(name)
        named[name] = Question(f"{chart.title}: {chart.question}", "", chart.sql, chart.tasks)
    for text, sql in backends.queries().items():
        name = "verdicts" if text == "Certificates" else text.lower().replace(" ", "_")
        named[name] = Question(f"Backends: {text.lower()}", "", sql)
    return named


def queries_of(root: Path, study: str | None) -> dict[str, Question]:
    """The named queries that are about the task of a study, or without one of any study that is collected.

    All of them if nothing is. Raises UserError: there is no such study.
    """
    try:
        connection = open_for_reading(root)
    except UserError:
        if study is not None:
            raise
        return queries()
    with connection:
        studies = _chosen(studies_of(connection), study)
        rows = connection.execute("SELECT DISTINCT task FROM runs WHERE list_contains($1, study)", [studies])
        tasks = {task for (task,) in rows.fetchall()}
    return {
        name: query
        for name, query in queries().items()
        if not tasks or not query.tasks or not tasks.isdisjoint(query.tasks)
    }


def _chosen(studies: list[str], study: str | None) -> list[str]:
    """The study, or all of those that are collected. Raises UserError: it is none of them."""
    if study is not None and study not in studies:
        raise UserError(f"no collected runs of study '{study}' {did_you_mean(study, studies)}")
    return studies if study is None else [study]


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
    chosen = _chosen(studies, study)
    if len(chosen) != 1:
        raise UserError(f"say which study with --study; in the database: {', '.join(studies) or 'none'}")
    return facts.literal(by_name[name].sql, chosen[0]), chosen[0]
