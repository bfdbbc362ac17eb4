"""What a report carries besides its pages, so that its numbers can be computed again without the run folders.

- `data/records/TABLE.parquet`: the study's rows of every base table;
- `data/queries/NAME.sql`: every query that the pages are made of, after `schema.sql` and `views.sql`;
- `data/manifest.json`: which code and which packages made it, and the SHA-256 of every file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import model
from analysis import drawings
from analysis.report import output, render
from analysis.store.database import scripts
from analysis.store.records import write_records
from model.record.backends import described
from model.record.config import Frozen
from model.record.errors import UserError
from model.record.files import Unreadable, read, sha256, write_text

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

RECORDS, QUERIES, MANIFEST = "data/records", "data/queries", "data/manifest.json"
# What compiling a report's document adds to its folder.
COMPILED = frozenset(f"latex/report.{end}" for end in ("aux", "bbl", "blg", "log", "out", "pdf"))
SCRIPT = "assets/vega.js"  # a library, which draws the figures
LIVE = "live.js"  # only while `runner report --watch` rebuilds the report
FINDINGS = "data/findings"  # tables that statistics make, where all others are answers of queries
_RECORDS = ("config", "outcome", "sections", "units")  # modules of `model.record` that decide what pages say
_PACKAGES = ("assay-studies", "altair", "duckdb", "jinja2", "numpy", "pyarrow", "scipy", "vl-convert-python")
PROBE: dict[str, Any] = {
    "config": {},
    "data": {"values": [{"label": "Wij 0123456789", "value": 1}]},
    "mark": "bar",
    "encoding": {
        "y": {"field": "label", "type": "nominal"},
        "x": {"field": "value", "type": "quantitative"},
    },
}


class SideManifest(Frozen):
    """One of two sources that a report compares: the runs of a study, or those planned at a commit."""

    name: str
    study: str
    commit: str | None


class PairManifest(Frozen):
    """The two sources of a comparison, and its options, as `runner compare` was given them."""

    a: SideManifest
    b: SideManifest
    match: list[str]
    margins: dict[str, float]
    across: list[str]
    single_runs: bool


class ReportManifest(Frozen):
    """`data/manifest.json`: what made a report, and what belongs to it.

    Attributes:
        study: None for the page of `runner verify`, a comparison and an index.
        pair: what a comparison compares; its records lie in two folders, `a` and `b`.
        reports: folders of the reports that an index lists.
        in_order: whether it lists them in this order, as chapters, and not by when their runs started.
        roots: the workspaces that it was made from, relative to its folder; empty of older ones, and of those
            that were made again from their records.
        code: SHA-256 of the code and templates that decide what pages say.
        packages: version by package, of those that numbers or drawings depend on.
        renderer: SHA-256 of a fixed drawing: it depends on the machine's fonts.
        records: whether the report carries its records.
        figures: formats of the figures.
        latex: whether it has a folder for a text.
        shared_script: whether its pages use the script of the folder that it lies in, in place of a copy.
        files: SHA-256 of every other file, by its path in the report.
    """

    schema_version: Literal[1] = 1
    study: str | None
    pair: PairManifest | None = None
    reports: list[str] | None = None
    in_order: bool = False
    roots: tuple[str, ...] = ()
    code: str
    packages: dict[str, str]
    renderer: str
    records: bool
    figures: tuple[drawings.Format, ...] = ("svg",)
    latex: bool = False
    shared_script: bool = False
    files: dict[str, str]

    @property
    def subject(self) -> str:
        """What the report is about, in words."""
        if self.pair:
            return "a comparison"
        if self.reports is not None:
            return "an index of reports"
        return f"the report of study {self.study}" if self.study else "the page of `runner verify`"


def carry(
    connection: DuckDBPyConnection,
    study: str | None,
    folder: Path,
    queries: Mapping[str, str],
    records: bool,
) -> None:
    """Add records and queries to a folder with the pages of a report; `seal` then ends it.

    Args:
        queries: SQL by name.
        records: without them the report can not be audited.
    """
    write_queries(folder, queries)
    if records:
        write_records(connection, study, folder / RECORDS)
        output.carry(connection, folder / RECORDS)


def write_queries(folder: Path, queries: Mapping[str, str]) -> None:
    """Write queries by name, and before them the scripts that make what they read."""
    (folder / QUERIES).mkdir(parents=True)
    for name, sql in {**scripts(), **{f"{name}.sql": sql for name, sql in queries.items()}}.items():
        (folder / QUERIES / name).write_text(sql.rstrip() + "\n", encoding="utf-8")


def seal(
    folder: Path,
    study: str | None,
    *,
    records: bool,
    figures: tuple[drawings.Format, ...] = ("svg",),
    latex: bool = False,
    shared_script: bool = False,
    pair: PairManifest | None = None,
    reports: list[str] | None = None,
    in_order: bool = False,
    only: Sequence[str] | None = None,
    probed: str | None = None,
) -> None:
    """Write the manifest of a folder that has all else; the arguments are what `ReportManifest` says.

    Args:
        only: the files that are ours, where the folder has others.
        probed: what `renderer` would find, where it is known.
    """
    manifest = ReportManifest(
        study=study,
        pair=pair,
        reports=reports,
        in_order=in_order,
        code=code(),
        packages=packages(),
        renderer=probed or renderer(),
        records=records,
        figures=figures,
        latex=latex,
        shared_script=shared_script,
        files={path: sha256(folder / path) for path in only or files(folder)},
    )
    write_manifest(folder, manifest)


def write_manifest(folder: Path, manifest: ReportManifest) -> None:
    """Write the manifest of a report's folder."""
    write_text(folder / MANIFEST, manifest.model_dump_json(indent=1) + "\n", sync=False)


def read_manifest(folder: Path) -> ReportManifest | None:
    """The manifest of a report's folder; None if there is none that can be read."""
    try:
        return read(folder / MANIFEST, ReportManifest)
    except Unreadable:
        return None


def manifest_with_records(report: Path) -> ReportManifest:
    """The manifest of a report that carries its records.

    Raises:
        UserError: this is no report, is of a newer version, is being written, or carries no records.
    """
    path = report / MANIFEST
    if not path.is_file():
        parts = [name for name in (RECORDS, QUERIES, MANIFEST) if not (report / name).exists()]
        if any(report.glob("*.html")):
            missing = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
            there = f"{missing} {'are' if len(parts) > 1 else 'is'} missing; name the whole folder"
        else:
            there = "name the folder"
        raise UserError(f"{report} is no report with its records: {there} that `runner report` wrote")
    try:
        manifest = read(path, ReportManifest)
    except Unreadable as error:
        raise UserError(f"{error}; a newer version of assay may have written it") from error
    if LIVE in manifest.files:
        raise UserError(f"{report} is being rebuilt by `runner report --watch`: wait until that has ended")
    if not manifest.records:
        raise UserError(f"{report} carries no records: it was made with --no-records")
    return manifest


def named(names: Mapping[str, str], asked: Sequence[str]) -> dict[str, str]:
    """Every query that was asked, once, by its name, or by a number where it has none."""
    others = [sql for sql in dict.fromkeys(asked) if sql not in names.values()]
    return {**names, **{f"query-{place}": sql for place, sql in enumerate(others, start=1)}}


def files(folder: Path) -> list[str]:
    """Paths of all files below a folder, with slashes, sorted."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


@cache
def code() -> str:
    """SHA-256 of what decides what pages say: this package's code and SQL, templates, parts of `model`."""
    package = Path(__file__).parents[1]
    sources = {path for pattern in ("*.py", "*.sql") for path in package.rglob(pattern)}
    here = Path(model.__path__[0])
    sources |= {here / "measure/flops.py", *(here / f"record/{name}.py" for name in _RECORDS)}
    sources |= {path for path in render.templates().iterdir() if path.is_file()}
    digests = {f"{path.parent.name}/{path.name}": sha256(path) for path in sources}
    digests |= {f"attention/{name}": str(described(name)) for name in model.modules(here / "attention")}
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def packages() -> dict[str, str]:
    """Versions of the packages that numbers or drawings depend on."""
    installed = {}
    for name in _PACKAGES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # run from a checkout, or optional
            continue
    return installed


@cache
def renderer() -> str:
    """Hash of a drawing with text, bars and axes: equal hashes mean equal fonts and versions."""
    return drawings.digest(PROBE)
