"""What a report comes to in a few lines, `data/summary.json`: an index over several reports reads these."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from analysis.report.facts import endings
from analysis.verdicts.values import commit
from model.record.config import Frozen
from model.record.files import write_text

if TYPE_CHECKING:
    from analysis.report.answer import StudyAnswer
    from analysis.report.backends import Backends
    from analysis.report.facts import Facts
    from analysis.verdicts.values import Row

FILE = "data/summary.json"


class Summary(Frozen):
    """A report in short.

    Attributes:
        first, last: when the first and the last run started, UTC; of certificates, when they were made.
        commits: of its runs, shortened.
        outcomes: `6 completed`, `1 oom_gpu as expected`.
        ran: what was run; empty where no study was, and in summaries of versions without it.
        answer: to the study's question, in a sentence or two.
        warnings: what a reader must know before quoting it: wrong backends, errors in imported logs.
    """

    schema_version: Literal[1] = 1
    kind: Literal["study", "certificates", "comparison"]
    title: str
    study: str | None
    first: datetime | None
    last: datetime | None
    commits: list[str]
    outcomes: list[str]
    ran: str = ""
    answer: str
    warnings: list[str]


def write(out: Path, summary: Summary) -> None:
    """Write it to a report's folder."""
    write_text(out / FILE, summary.model_dump_json(indent=1) + "\n", sync=False)


def of_study(facts: Facts, answer: StudyAnswer) -> Summary:
    """The summary of a study's report."""
    flagged = [f"flagged ({checks}): {label}" for label, checks in sorted(facts.flagged.items())]
    return Summary(
        kind="study",
        title=facts.title,
        study=facts.study,
        **moments(facts.runs),
        commits=commits(facts.runs),
        outcomes=endings(facts.runs),
        ran=answer.ran.text,
        answer=" ".join(sentence.text for sentence in answer.headline),
        warnings=flagged,
    )


def of_machine(backends: Backends) -> Summary:
    """The summary of the page of `runner verify`."""
    made = [row["created_at"] for row in backends.certificates]
    return Summary(
        kind="certificates",
        title=f"Attention backends on {' and '.join(backends.devices)}",
        study=None,
        first=min(made, default=None),
        last=max(made, default=None),
        commits=[],
        outcomes=backends.counts,
        answer="Whether each backend computes attention correctly, and which kernels it runs.",
        warnings=[f"wrong: {row['attention']}" for row in backends.wrong],
    )


def moments(runs: Iterable[Row]) -> dict[str, datetime | None]:
    """When the first and the last of the runs started."""
    started = [run["started_at"] for run in runs if run["started_at"]]
    return {"first": min(started, default=None), "last": max(started, default=None)}


def commits(runs: Iterable[Row]) -> list[str]:
    """The commits that runs of this program were planned at."""
    return sorted({commit(run) for run in runs if not run["imported"]})
