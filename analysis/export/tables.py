"""A study's tables and views as Parquet, with a data dictionary as CSV and as a Frictionless Data Package."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.export.units import unit
from analysis.store.database import quoted
from analysis.store.dictionary import Relation, relations
from analysis.store.records import write_table
from analysis.store.steps import LINES
from model.record.errors import UserError
from model.record.files import require_own_folder, sha256, write_text

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_PACKAGE = "datapackage.json"
_PROFILE = "https://datapackage.org/profiles/2.0/datapackage.json"
# How a table's rows belong to a study: by its name, or by the certificates that its attempts name.
_OF = "SELECT certificate FROM admissions WHERE study = $study"
_CONDITIONS = {"study": "study = $study", "certificate": f"certificate IN ({_OF})", "key": f"key IN ({_OF})"}
_TYPES = {
    "BOOLEAN": "boolean",
    "DOUBLE": "number",
    "FLOAT": "number",
    "TIMESTAMP": "datetime",
    "DATE": "date",
}


def write_tables(
    connection: DuckDBPyConnection, study: str, out: Path, root: Path, replace: bool = False
) -> None:
    """Write `tables/NAME.parquet`, `dictionary.csv` and `datapackage.json` to a folder.

    Args:
        connection: an open database that has runs of the study.
        root: the workspace that it is of.
        replace: whether this may take the place of the export of another workspace.

    Raises:
        UserError: the folder holds other files, or the export of another study, which this would mix with, or
            of another workspace.
    """
    require_own_folder(out, (_PACKAGE,), "export")
    here = os.path.relpath(root.resolve(), out.resolve())
    _require_same(out, study, None if replace else here)
    name = quoted(study)
    described = sorted(relations(connection))
    written = [table for table in described if _condition(table) and table.name not in LINES]
    (out / "tables").mkdir(parents=True, exist_ok=True)
    for table in written:
        sql = f"SELECT * FROM {table.name} WHERE {_condition(table)} ORDER BY ALL".replace("$study", name)
        write_table(connection, out / "tables" / f"{table.name}.parquet", sql)
    with (out / "dictionary.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("table", "column", "type", "unit", "meaning"))
        for table in written:
            writer.writerow((table.name, "", "", "", table.meaning))
            writer.writerows(
                (table.name, column.name, column.type, unit(column.name), column.meaning)
                for column in table.columns
            )
    title = connection.execute(
        "SELECT max_by(title, created_at) FROM run_records WHERE study = $1", [study]
    ).fetchall()[0][0]
    package = _package(written, study, title, out) | {"root": here}
    write_text(out / _PACKAGE, json.dumps(package, indent=1, ensure_ascii=False) + "\n", sync=False)


def _require_same(out: Path, study: str, here: str | None) -> None:
    """Refuse a folder that has the export of another study or, if `here` is given, of another workspace."""
    try:
        descriptor = json.loads((out / _PACKAGE).read_text(encoding="utf-8"))
        there, root = descriptor["name"], descriptor.get("root")
    except (OSError, ValueError, LookupError, TypeError):
        return
    if there != _package_name(study):
        raise UserError(
            f"{out} already has the export of study {there}: name another folder, or remove that one first"
        )
    if here and isinstance(root, str) and root != here:
        before, now = (os.path.normpath(out.resolve() / path) for path in (root, here))
        raise UserError(
            f"{out} already has the export of study {there} from {before}, and this one is from {now}: "
            "name another folder, or replace it with --replace"
        )


def _package_name(study: str) -> str:
    return study.lower()


def _condition(relation: Relation) -> str | None:
    """The condition that picks a study's rows; None if no column says which study a row belongs to."""
    names = {column.name for column in relation.columns}
    return next((condition for name, condition in _CONDITIONS.items() if name in names), None)


def _package(tables: list[Relation], study: str, title: str | None, out: Path) -> dict[str, Any]:
    """The descriptor, by the Data Package standard, version 2."""
    resources: list[dict[str, Any]] = []
    for table in tables:
        path, fields = f"tables/{table.name}.parquet", list[dict[str, str]]()
        for column in table.columns:
            whole = column.type.endswith(("int", "integer"))
            kind = "integer" if whole else _TYPES.get(column.type.upper(), "string")
            stated_unit = {"unit": of_name} if (of_name := unit(column.name)) else {}
            fields.append(
                {"name": column.name, "type": kind, "description": column.meaning or "", **stated_unit}
            )
        resources.append(
            {
                "name": table.name,
                "path": path,
                "format": "parquet",
                "mediatype": "application/vnd.apache.parquet",
                "description": table.meaning or "",
                "bytes": (out / path).stat().st_size,
                "hash": f"sha256:{sha256(out / path)}",
                "schema": {"fields": fields},
            }
        )
    return {
        "$schema": _PROFILE,
        "name": _package_name(study),
        "title": title or study,
        "description": f"Records and results of study {study}; times are UTC, unknown is null.",
        "resources": resources,
    }
