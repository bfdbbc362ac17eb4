"""A report that is rebuilt while its study runs: its pages reload themselves when it has changed.

Each page then has a script that reads `live.js` again every few seconds; `live.js` says which version of the
report lies there, and when its watch last gave a sign of life: where these end, the page says that nobody
rebuilds it. The last build of a watched report has neither.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from analysis.query.ask import answer
from analysis.report import render
from analysis.report.carried import LIVE, MANIFEST, ReportManifest, write_manifest
from analysis.store.database import open_for_reading, quoted
from model.record.files import read, sha256, write_text

_SCRIPT = "assets/live.js"  # from the templates
_END = "</body>"
_PATIENCE_SECONDS = 600  # beyond three signs that did not come: a build takes its time
_ADDED = re.compile(rf'<script src="[./]*{re.escape(_SCRIPT)}" [^>]*></script>\n(?={_END})')


def mark(folder: Path, seconds: float) -> None:
    """Make the pages of a report that was just written to a folder reload themselves.

    Args:
        seconds: how long a page waits before it looks again.
    """
    manifest = read(folder / MANIFEST, ReportManifest)
    version = sha256(folder / MANIFEST)
    source = render.templates() / Path(_SCRIPT).name
    write_text(folder / _SCRIPT, source.read_text(encoding="utf-8"), sync=False)
    write_text(folder / LIVE, f'window.reportVersion = "{version}";\n', sync=False)
    pages = [path for path in manifest.files if path.endswith(".html")]
    for path in pages:
        up = "../" * path.count("/")
        about = f'data-live="{up}{LIVE}" data-version="{version}" data-seconds="{seconds:g}"'
        about += f' data-patience="{_PATIENCE_SECONDS}"'
        start, end, rest = (folder / path).read_text(encoding="utf-8").rpartition(_END)
        script = f'<script src="{up}{_SCRIPT}" {about}></script>\n'
        write_text(folder / path, f"{start}{script}{end}{rest}", sync=False)
    changed = {path: sha256(folder / path) for path in (*pages, _SCRIPT, LIVE)}
    made = manifest.model_copy(update={"files": dict(sorted((manifest.files | changed).items()))})
    write_manifest(folder, made)


def sign(folder: Path, every_seconds: float) -> None:
    """Tell the pages of such a report that its watch is alive, and when it means to say so again."""
    version, *_ = (folder / LIVE).read_text(encoding="utf-8").splitlines()
    life = f"window.reportSign = [{time.time():.0f}, {every_seconds:g}];"
    write_text(folder / LIVE, f"{version}\n{life}\n", sync=False)


def unmark(folder: Path) -> None:
    """Make a report that `mark` was called for what it was before."""
    manifest = read(folder / MANIFEST, ReportManifest)
    files = {path: digest for path, digest in manifest.files.items() if path not in (LIVE, _SCRIPT)}
    for path in [path for path in files if path.endswith(".html")]:
        text = (folder / path).read_text(encoding="utf-8")
        write_text(folder / path, _ADDED.sub("", text), sync=False)
        files[path] = sha256(folder / path)
    made = manifest.model_copy(update={"files": files})
    write_manifest(folder, made)
    for path in (LIVE, _SCRIPT):
        (folder / path).unlink(missing_ok=True)


def awaited(root: Path, study: str) -> tuple[int, int]:
    """How many collected runs of a study have no outcome yet, and how many runs it has."""
    sql = f"SELECT count(*) FILTER (outcome IS NULL), count(*) FROM runs WHERE study = {quoted(study)}"
    with open_for_reading(root) as connection:
        ((waiting, every),) = answer(connection, sql).rows
    return int(waiting), int(every)
