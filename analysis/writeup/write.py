"""Writes `latex/` into a report: the same rows give the same bytes."""

from __future__ import annotations

import shutil
from pathlib import Path

from analysis import drawings
from analysis.report.build import Contents
from analysis.writeup import document, methods, numbers, references, tables

FOLDER = "latex"


def write(report: Path, contents: Contents) -> None:
    """Write document, tables, figures, numbers, methods and references.

    Args:
        report: a report's folder, with its figures drawn.
    """
    folder = report / FOLDER
    for part in ("tables", "figures"):
        (folder / part).mkdir(parents=True)
    latex_tables, keys = tables.tables(contents), references.used(contents)
    texts = {
        "report.tex": document.document(contents, latex_tables, keys),
        "numbers.tex": numbers.commands(contents),
        "methods.tex": methods.methods(contents),
        "references.bib": references.bibtex(keys),
    } | {f"tables/{name}.tex": text for name, text in latex_tables.items()}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    for drawn in contents.figures:
        if not drawn.figure:
            continue
        for end, inches in drawings.WIDTHS.items():
            download, own = (place / "figures" / f"{drawn.name}{end}.pdf" for place in (report, folder))
            if download.exists():
                shutil.copyfile(download, own)
            else:
                own.write_bytes(drawings.drawing(drawn.figure.spec, "pdf", inches))
