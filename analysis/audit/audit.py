"""Rebuilds a report from the records that it carries, and lists what in it does not follow from them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol

from analysis.audit import folders
from analysis.audit.compare import compare_files, compare_tables
from analysis.audit.finding import Alike, AuditFinding, ComparedReport
from analysis.audit.records import contradictions
from analysis.query.ask import answer
from analysis.report import carried, output
from analysis.report.build import write_certificates, write_report
from analysis.report.carried import FINDINGS, MANIFEST, QUERIES, RECORDS, SCRIPT, ReportManifest
from analysis.report.figures import csv_bytes
from analysis.several.index import write_index
from analysis.several.pair import SIDES, write_pair
from analysis.store.database import in_memory, scripts
from analysis.store.records import open_records, selections
from analysis.writeup.write import write as write_latex
from model.record.errors import AssayError, UserError, memory_ran_out, shortage
from model.record.files import no_link, sha256

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_CHANGED = "its content has changed: its SHA-256 differs from the manifest's"


class Write(Protocol):
    """Makes a report in an empty folder."""

    def __call__(self, *, out: Path) -> None:
        """Write everything to `out`."""


@dataclass(frozen=True)
class AuditResult:
    """The result of auditing a report.

    Attributes:
        study: None for the page of `runner verify`.
        same_code: whether the report was made by the code that audits it.
        numbers: how many printed numbers were compared with recomputed ones.
        skipped: how many were not, because pages are laid out differently now.
        files: how many files were held against the manifest.
        findings: what does not match; none if all does.
        notes: what could not be compared, and why.
    """

    study: str | None
    same_code: bool
    numbers: int
    skipped: int
    files: int
    findings: list[AuditFinding]
    notes: list[str]


def audit(report: Path, root: Path | None = None) -> AuditResult:
    """Compute everything in a report again from its records and queries, and compare.

    Args:
        report: the report's folder.
        root: also hold the records against the run folders under this workspace.

    Raises:
        UserError: this is no report, is of a newer version, or carries no records.
    """
    manifest = carried.manifest_with_records(report)
    result = ComparedReport()

    # Files that are missing, were added, are links, or changed since the report was written.
    present = _present_files(report, manifest) - {MANIFEST}
    # What compiling the report's document adds to its folder.
    compiled = set(carried.COMPILED - manifest.files.keys()) if manifest.latex else set()
    for path in sorted(present | manifest.files.keys()):
        if path not in present:
            result.findings.append(AuditFinding(path, "the file is missing"))
        elif _is_link(report, path):
            result.findings.append(AuditFinding(path, "it is a link: its target is not part of the report"))
        elif path not in manifest.files and path not in compiled:
            added = "the file was added: the manifest does not list it"
            result.findings.append(AuditFinding(path, added))
        elif path in manifest.files and sha256(report / path) != manifest.files[path]:
            result.findings.append(AuditFinding(path, _CHANGED))
    if made_later := sorted(compiled & present):
        result.notes.append(f"not compared, because LaTeX made them afterwards: {', '.join(made_later)}")

    try:
        with ExitStack() as opened:
            connections = _open_all_records(report, manifest, opened)
            _check_records(result, manifest, connections, root)
            _compare(result, report, manifest, _writer(report, manifest, connections))
    except AssayError as error:
        if memory_ran_out(error):  # which says nothing about the report
            raise
        if advice := shortage(error):
            raise UserError(f"{report} could not be audited: {error}; {advice}") from error
        result.findings.append(AuditFinding(RECORDS, f"the records cannot be used: {error}"))

    # That a file was changed says nothing where another finding says what in it was.
    explained = {finding.file for finding in result.findings if finding.what != _CHANGED}
    return AuditResult(
        study=manifest.study,
        same_code=manifest.code == carried.code(),
        numbers=result.numbers,
        skipped=result.skipped,
        files=len(manifest.files),
        findings=[
            finding
            for finding in result.findings
            if finding.what != _CHANGED or finding.file not in explained
        ],
        notes=result.notes,
    )


def rebuild(report: Path, out: Path, shared_script: bool | None = None) -> None:
    """Write a report again by today's code, from the records that it carries.

    Args:
        out: an empty folder; or an index's own, which holds the reports that it lists.
        shared_script: as `write_report` takes it; None for what the report has.

    Raises:
        UserError: this is no report, is of a newer version, or carries no records.
    """
    manifest = carried.manifest_with_records(report)
    if shared_script is not None:
        manifest = manifest.model_copy(update={"shared_script": shared_script})
    with ExitStack() as opened:
        write = _writer(report, manifest, _open_all_records(report, manifest, opened), records=True)
        write(out=out)


def _present_files(report: Path, manifest: ReportManifest) -> set[str]:
    """The files of the report; the folder of an index also holds other reports."""
    present = set(carried.files(report))
    return present if manifest.reports is None else present & {*manifest.files, MANIFEST}


def _is_link(report: Path, path: str) -> bool:
    steps = (report / path, *(report / path).parents)
    return any(step.is_symlink() for step in steps[: len(Path(path).parts)])


def _open_all_records(report: Path, manifest: ReportManifest, opened: ExitStack) -> list[DuckDBPyConnection]:
    """The records that a report carries: of its study, of the two sides of a comparison, none of an index."""
    if manifest.reports is not None:
        return []
    if manifest.pair:
        return [opened.enter_context(open_records(report / RECORDS / side)) for side in SIDES]
    connection = opened.enter_context(open_records(report / RECORDS))
    output.load(connection, report / RECORDS)
    return [connection]


def _check_records(
    result: ComparedReport,
    manifest: ReportManifest,
    connections: Sequence[DuckDBPyConnection],
    root: Path | None,
) -> None:
    """Hold the records against each other and, if a workspace is given, against its run folders."""
    for connection in connections:
        result.findings += contradictions(connection)
    if root is None:
        return
    if manifest.pair:
        result.notes.append("the records of a comparison are not checked against run folders")
    elif manifest.reports is None:
        (connection,) = connections
        folders.compare(result, connection, manifest.study, root)
        if manifest.study is not None:
            folders.compare_output(result, connection, manifest.study, root)


def _writer(
    report: Path,
    manifest: ReportManifest,
    connections: Sequence[DuckDBPyConnection],
    records: bool = False,
) -> Write:
    """What makes the report again from its records.

    Args:
        records: whether the new report carries its records, too.
    """
    if manifest.reports is not None:
        return partial(write_index, report, names=manifest.reports, in_order=manifest.in_order)
    if manifest.pair:
        a, b = connections
        return partial(write_pair, a, b, manifest.pair, records=records)
    (connection,) = connections
    if manifest.study is None:
        write = partial(write_certificates, connection)
    else:
        extra = write_latex if manifest.latex else None
        write = partial(write_report, connection, manifest.study, extra=extra)
    shared = manifest.shared_script
    return partial(write, records=records, figures=manifest.figures, shared_script=shared)


def _compare(result: ComparedReport, report: Path, manifest: ReportManifest, write: Write) -> None:
    """Make the report again, and compare."""
    installed, recorded = carried.packages(), manifest.packages
    alike = Alike(
        code=manifest.code == carried.code(),
        altair=recorded.get("altair") == installed.get("altair"),
        renderer=manifest.renderer == carried.renderer(),
    )
    if not alike.code:
        version = recorded.get("assay-studies", "of unknown version")
        result.notes.append(
            f"other code made the report (assay {version}): its pages are compared where they are laid out "
            "as now, and its tables with what its own queries give"
        )
    if not alike.altair:
        result.notes.append("another version of altair made the figures: of these, the data is compared")
    if not alike.renderer:
        result.notes.append(
            "the SVG files were drawn with other fonts or versions: their text is compared, "
            "not their positions"
        )

    with TemporaryDirectory(prefix="assay-audit-") as scratch:
        try:
            _write(write, Path(scratch))
        except UserError as error:
            if alike.code or memory_ran_out(error):
                raise
            result.notes.append(f"pages were not compared: {error}")
        else:
            _compare_all(result, report, manifest, Path(scratch), alike)

    # Where other code made the tables, each is held against the report's own query, on its own views.
    of_study = manifest.pair is None and manifest.reports is None  # others have no table that a query gives
    if of_study and not alike.code:
        texts = tuple(_text(report / QUERIES / name) for name in scripts())
        with open_records(report / RECORDS, texts) as connection:
            for table in sorted((report / "data").glob("*.csv")):
                query = _text(report / QUERIES / f"{table.stem}.sql")
                recomputed = csv_bytes(answer(connection, query)).decode()
                compare_tables(result, f"data/{table.name}", _text(table), recomputed)


def _write(write: Write, out: Path) -> None:
    """Make the report again. The records may hold anything, and so make any part of it fail."""
    try:
        write(out=out)
    except AssayError:
        raise
    except Exception as error:
        raise UserError(f"no report can be made from them: {type(error).__name__}: {error}") from error


def _compare_all(
    result: ComparedReport, report: Path, manifest: ReportManifest, rebuilt: Path, alike: Alike
) -> None:
    expected = set(carried.files(rebuilt)) - {MANIFEST}
    present = {path for path in _present_files(report, manifest) if not _is_link(report, path)}
    installed, recorded = carried.packages(), manifest.packages
    same_script = all(recorded.get(name) == installed.get(name) for name in ("altair", "vl-convert-python"))
    for path in sorted(expected & present):
        if path == SCRIPT and not same_script:
            result.notes.append(f"{SCRIPT} was not compared: another version of vl-convert made it")
        elif alike.code or path.startswith(FINDINGS) or not path.endswith((".csv", ".sql")):
            compared = compare_files(report, rebuilt, path, alike)
            result.findings += compared.findings
            result.numbers += compared.numbers
            result.skipped += compared.skipped

    # Files that only one of the two reports has, whatever its manifest lists.
    with closing(in_memory()) as connection:
        names = selections(connection, None)
    places = [RECORDS, *(f"{RECORDS}/{side}" for side in SIDES)]
    tables = {f"{folder}/{name}.parquet" for folder in places for name in names}
    records = {path for path in present if path.startswith(f"{RECORDS}/")}
    result.findings += [
        AuditFinding(path, "it holds the records of no table")
        for path in sorted(records - tables - {f"{RECORDS}/{output.FILE}"})
    ]
    reported = {finding.file for finding in result.findings}
    others = manifest.files.keys() & (present - records)
    if alike.code:
        missing, unknown = sorted(expected - present - reported), sorted(others - expected - reported)
        result.findings += [AuditFinding(path, "the file is missing") for path in missing]
        result.findings += [AuditFinding(path, "no report of this study has such a file") for path in unknown]
    elif unknown := sorted(others - expected):
        result.notes.append(f"not compared, because this version makes no such files: {', '.join(unknown)}")


def _text(path: Path) -> str:
    """A file's text, which no link leads to."""
    try:
        descriptor = no_link(path, os.O_RDONLY)
        with open(descriptor, encoding="utf-8", errors="backslashreplace", newline="") as file:  # noqa: PTH123
            return file.read()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
