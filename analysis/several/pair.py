"""The page of a comparison: what `runner compare` prints, with the records of both sides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.query.ask import recording
from analysis.query.formats import csv_lines
from analysis.report import facts, render
from analysis.report import summary as summaries
from analysis.report.carried import (
    FINDINGS,
    RECORDS,
    PairManifest,
    SideManifest,
    named,
    seal,
    write_queries,
)
from analysis.report.place import staged
from analysis.report.summary import Summary
from analysis.store.records import write_records
from analysis.verdicts.comparison import CompareOptions, compare
from analysis.verdicts.sections import sections, summary, wrong
from analysis.verdicts.source import StudySource, read_open
from analysis.wording import capital

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SIDES = ("a", "b")
_ORDER = ("wrong", "results", "verdicts", "before", "settings", "alone")  # what a reader wants first, first


@dataclass(frozen=True)
class PairSide:
    """What the page says of one side: (topic, text), and whether it was imported."""

    name: str
    facts: list[tuple[str, str]]
    imported: bool


def build_pair(
    a: StudySource,
    b: StudySource,
    options: CompareOptions,
    out: Path,
    replace: bool = False,
) -> Path:
    """Write the page of a comparison, with the records of both sides, from which it can be audited.

    Args:
        a, b: what is compared; both were collected.
        out: folder to write to; made if missing; the report that was there is replaced.
        replace: whether it may take the place of another comparison.

    Returns:
        Path of its index.html.

    Raises:
        UserError: as `compare` and `read` do.
    """
    pair = PairManifest(
        a=_side(a),
        b=_side(b),
        match=list(options.names),
        margins=dict(options.margins),
        across=list(options.across),
        single_runs=options.single_runs,
    )
    roots = [a.root, b.root]
    with a.open() as first, b.open() as second, staged(out, roots, replace) as folder:
        write_pair(first, second, pair, folder, records=True)
    return out / "index.html"


def _side(source: StudySource) -> SideManifest:
    """A source under a name that says nothing of where it lies on this machine."""
    where = Path(source.text)
    name = "/".join(where.parts[-2:]) if where.is_absolute() else source.text
    return SideManifest(name=name, study=source.study, commit=source.commit)


def write_pair(
    first: DuckDBPyConnection, second: DuckDBPyConnection, pair: PairManifest, out: Path, records: bool
) -> None:
    """Write the page of `build_pair` from open databases to an empty folder."""
    with recording() as asked:
        both = read_open((_source(pair.a), first), (_source(pair.b), second))
        options = CompareOptions(pair.match, pair.margins, pair.across, pair.single_runs)
        comparison = compare(*both, options)
    tables = sorted(sections(comparison), key=lambda section: _ORDER.index(section.name))
    outcome, wrong_labels = summary(comparison), wrong(comparison)
    runs = [run for side in both for run in side.runs]
    a, b = comparison.names
    short = Summary(
        kind="comparison",
        title=f"{b} compared with {a}",
        study=None,
        **summaries.moments(runs),
        commits=summaries.commits(runs),
        outcomes=facts.endings(runs),
        answer=next(iter(comparison.regressions), f"{capital(outcome)}."),
        warnings=[f"flagged in its log: {label}" for label in wrong_labels],
    )

    render.write_assets(out)
    (out / FINDINGS).mkdir(parents=True)
    for section in tables:
        table = csv_lines([section.columns, *section.rows])
        (out / FINDINGS / f"{section.name}.csv").write_text(table, encoding="utf-8")
    sides = []
    for measured in both:
        started = [run["started_at"] for run in measured.runs if run["started_at"]]
        when = f"{render.moment(min(started))} to {render.moment(max(started))}" if started else "unknown"
        environment = facts.environment(measured.runs)
        origin = sorted({Path(run["imported"]["file"]).name for run in measured.runs if run["imported"]})
        about = [
            ("Study", f"{measured.runs[0]['study']}: {measured.runs[0]['title']}"),
            ("Runs", "; ".join(facts.endings(measured.runs))),
            ("Started", when),
            *((topic, ", ".join(entries) or "unknown") for topic, entries in environment.items()),
            *([("Imported from", ", ".join(origin))] if origin else []),
        ]
        sides.append(PairSide(measured.name, about, bool(origin)))
    values = {
        "comparison": comparison,
        "sides": sides,
        "summary": outcome,
        "sections": tables,
        "wrong": wrong_labels,
        "queries": list(dict.fromkeys(asked)),
    }
    summaries.write(out, short)
    page = render.environment().get_template("pair.html").render(values)
    (out / "index.html").write_text(page, encoding="utf-8")
    write_queries(out, named({}, asked))
    if records:
        for name, side, connection in zip(SIDES, (pair.a, pair.b), (first, second), strict=True):
            write_records(connection, side.study, out / RECORDS / name)
    seal(out, None, records=records, pair=pair)


def _source(side: SideManifest) -> StudySource:
    return StudySource(side.name, Path(), side.study, side.commit)
