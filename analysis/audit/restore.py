"""Takes the records of a report into a workspace. Nothing in a report is trusted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pydantic import TypeAdapter

from analysis.audit.records import contradictions
from analysis.report.carried import MANIFEST, RECORDS, manifest_with_records
from analysis.store import reports
from analysis.store.database import NAME as NAME_OF_DATABASE
from analysis.store.records import open_records
from analysis.store.scan import reported_plans
from model.record.config import RunConfig, Scalar
from model.record.errors import UserError
from model.record.files import Unreadable, is_plain, sha256
from model.record.folder import folders, run_folders
from model.record.outcome import Outcome
from model.record.records import NAME, DesignRecord

_PLANS = """\
SELECT study, run_id, title, factors::VARCHAR, config::VARCHAR, design::VARCHAR, why::VARCHAR, imported
FROM run_records ANTI JOIN removed_runs USING (study, run_id) ORDER BY run_id"""
_Factors = TypeAdapter(dict[str, Scalar | None])
_Lines = TypeAdapter(list[str])
_Kind = tuple[str, tuple[str, ...]]  # a study's title, and its factors


@dataclass(frozen=True)
class Restored:
    """What came out of a report.

    Attributes:
        study: its name.
        runs: how many it has.
        own: how many of these the workspace has itself, which take precedence.
        again: whether it had been collected before.
    """

    study: str
    runs: int
    own: int
    again: bool


def restore(report: Path, root: Path) -> Restored:
    """Keep the records of a report in a workspace, where `collect` reads them.

    So a study can be asked, compared and continued where only its report is left.

    Raises:
        UserError: it is no report of one study; it carries no records, others than it was written with, or
            some that contradict each other; or the study of that name is another one here. Nothing was kept.
    """
    manifest = manifest_with_records(report)
    study = manifest.study
    if study is None or not NAME.fullmatch(study) or study == NAME_OF_DATABASE:
        raise UserError(f"{report} is {manifest.subject}: name the report of one study")
    if any((report / place).is_symlink() for place in ("data", RECORDS)):
        raise UserError(f"{report / RECORDS} is a link: name the report that it leads to")
    hashes = {path: sha256(path) for path in (report / RECORDS).glob("*") if is_plain(path)}
    listed = {report / place: digest for place, digest in manifest.files.items() if place.startswith(RECORDS)}
    if hashes != listed:
        wrong = sorted({*hashes.items()} ^ {*listed.items()})[0][0]
        raise UserError(f"{wrong} is not what {MANIFEST} lists: `runner audit {report}` says more")
    try:
        runs = _runs(report, study)
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
        why = "; ".join(map(str.strip, str(error).splitlines()[:3]))
        raise UserError(f"{report}: its records are none that this version can read: {why}") from error
    own_kinds = {*islice(_kinds(root, study), 20)}
    if own_kinds and own_kinds.isdisjoint(kind for _, kind in runs):
        theirs, ours = (f"'{title}' over {', '.join(over)}" for title, over in (runs[0][1], min(own_kinds)))
        raise UserError(
            f"{report}: its study {study} is {theirs}, and here it is {ours}: "
            "collect it with another --root, and compare the two"
        )

    again = reports.keep(report / RECORDS, root, study)
    own = {*folders(root / study)}
    return Restored(study, len(runs), sum(run_id in own for run_id, _ in runs), again)


def _runs(report: Path, study: str) -> list[tuple[str, _Kind]]:
    """The ids of the runs that the study had, each with what kind of study it says that it is of.

    Raises:
        UserError, ValueError, TypeError, AttributeError, KeyError: the records are no such thing.
    """
    with closing(open_records(report / RECORDS)) as records:
        if wrong := next(contradictions(records), None):
            raise UserError(f"{report}: its records contradict each other: {wrong}")
        for (outcome,) in records.execute("SELECT DISTINCT outcome FROM attempts").fetchall():
            _ = outcome and Outcome(outcome)
        rows = records.execute(_PLANS).fetchall()
    for name, run_id, _, factors, config, design, why, imported in rows:
        if name != study or not NAME.fullmatch(run_id):
            raise UserError(f"{report}: {name}/{run_id} is no run of study {study}")
        if imported is None:
            RunConfig.model_validate_json(config)
            _ = design and DesignRecord.model_validate_json(design)
            _ = why and _Lines.validate_json(why)
        _Factors.validate_json(factors)
    if not rows:
        raise UserError(f"{report} has no runs")
    return [(run_id, (title, tuple(sorted(json.loads(factors))))) for _, run_id, title, factors, *_ in rows]


def _kinds(root: Path, study: str) -> Iterator[_Kind]:
    """What kind of study the runs in the workspace are of, and those of reports that were collected."""
    for folder in run_folders(root, study):
        with suppress(Unreadable):  # a collect says why
            plan = folder.imported if folder.is_imported else folder.run
            yield plan.title, tuple(sorted(plan.factors))
    for row in reported_plans(root, study, "title", "factors"):
        with suppress(ValueError, TypeError):
            yield row["title"], tuple(sorted(json.loads(row["factors"])))
