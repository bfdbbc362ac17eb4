"""An index over the reports of a folder, made from the summary that each of them carries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from urllib.parse import quote

from analysis import drawings
from analysis.report import render
from analysis.report.carried import MANIFEST, SCRIPT, ReportManifest, read_manifest, seal
from analysis.report.place import require_room
from analysis.report.summary import FILE, Summary
from model.record.errors import UserError
from model.record.files import Unreadable, read, sha256, write_text

_CHANGED = "its summary has been changed since it was written: run `runner audit`"
_OWN = ("index.html", *(f"assets/{name}" for name in render.ASSETS))


@dataclass(frozen=True)
class ListedReport:
    """A report of the index.

    Attributes:
        folder: its name; `link` leads to its first page.
        summary: None if it has none that can be trusted to be its own; `why` then says why.
    """

    folder: str
    summary: Summary | None
    why: str = ""

    @property
    def link(self) -> str:
        """Relative, with the characters that a URL cannot have written otherwise."""
        return f"{quote(self.folder)}/index.html"


def build_index(folder: Path) -> Path:
    """Write an index of the reports that lie in a folder, one folder each.

    Returns:
        Path of its index.html.

    Raises:
        UserError: there is no report, or the folder is a report itself, or has another index.html.
    """
    _require_place(folder)
    names = sorted(path.parent.parent.name for path in folder.glob(f"[!.]*/{MANIFEST}"))
    if not names:
        raise UserError(f"there is no report in {folder}: build some into its folders, with --out")
    if unnamed := [name for name in names if not name.isprintable()]:
        raise UserError(f"{str(folder / unnamed[0])!r} has a name that no page can show: rename it")
    write_index(folder, folder, names)
    return folder / "index.html"


def build_chapters(folder: Path, chapters: Mapping[str, Callable[[Path], Path]]) -> Path:
    """Write several reports into folders of one, and a front page that lists them in their order.

    Args:
        chapters: by folder, what builds a report there.

    Returns:
        Path of the front page.

    Raises:
        UserError: as `build_index`, before any is built, and as they do.
    """
    _require_place(folder)
    for name, build in chapters.items():
        build(folder / name)
    write_index(folder, folder, [*chapters], in_order=True)
    return folder / "index.html"


def _require_place(folder: Path) -> None:
    """Raise UserError if the folder is a report itself, or has something else where an index goes."""
    manifest = _manifest(folder)
    if manifest and manifest.reports is None:
        raise UserError(f"{folder} is a report itself: name the folder that has several")
    if manifest is None and (folder / "index.html").exists():
        raise UserError(f"{folder}/index.html is not one of ours: move it away")
    require_room(folder, (*_OWN, SCRIPT, MANIFEST))


def write_index(reports: Path, out: Path, names: Sequence[str], in_order: bool = False) -> None:
    """Write the index of these reports to another folder, or to the one that they lie in.

    Args:
        in_order: whether it lists them as they are given, and not the newest first.
    """

    def order(report: ListedReport) -> tuple[float, str]:  # the newest first, those without a time last
        last = report.summary.last if report.summary else None
        if last is None:
            return 0, report.folder
        return -(last if last.tzinfo else last.replace(tzinfo=UTC)).timestamp(), report.folder

    shares = any(
        manifest.shared_script for name in names if (manifest := _manifest(reports / name)) is not None
    )
    listed = [_listed(reports, name) for name in names]
    listed = listed if in_order else sorted(listed, key=order)
    render.write_assets(out)
    if shares:
        write_text(out / SCRIPT, drawings.script(), sync=False)
    (out / "data").mkdir(exist_ok=True)
    titles = Counter(report.summary.title for report in listed if report.summary)
    shared = {title for title, count in titles.items() if count > 1}
    page = (
        render.environment()
        .get_template("reports.html")
        .render({"listed": listed, "shared": shared, "in_order": in_order})
    )
    write_text(out / "index.html", page, sync=False)
    seal(
        out,
        None,
        records=True,
        reports=[*names] if in_order else sorted(names),
        in_order=in_order,
        only=(*_OWN, SCRIPT) if shares else _OWN,
    )


def _listed(reports: Path, name: str) -> ListedReport:
    manifest, path = _manifest(reports / name), reports / name / FILE
    if manifest is None:
        return ListedReport(name, None, "its manifest cannot be read")
    if FILE not in manifest.files:
        return ListedReport(name, None, "it comes from a version without summaries: build it again")
    try:
        if not _plain(path) or sha256(path) != manifest.files[FILE]:
            return ListedReport(name, None, _CHANGED)
        return ListedReport(name, read(path, Summary))
    except (OSError, Unreadable):
        return ListedReport(name, None, "its summary cannot be read")


def _manifest(folder: Path) -> ReportManifest | None:
    try:
        return read_manifest(folder) if _plain(folder / MANIFEST) else None
    except OSError:  # a folder that may not be entered
        return None


def _plain(path: Path) -> bool:
    """Whether it is a file of that folder: to read a pipe would never end, and a link may lead anywhere."""
    return path.is_file() and not path.is_symlink()
