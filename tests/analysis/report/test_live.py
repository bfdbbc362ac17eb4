"""A watched report reloads itself; nothing of that is left in the report that is there when the watch is over."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import pytest

from analysis.audit.audit import audit
from analysis.report import live
from analysis.report.carried import MANIFEST, ReportManifest, files
from analysis.report.place import staged
from model.record.errors import UserError
from model.record.files import read, sha256


def written(report: Path, out: Path) -> dict[str, bytes]:
    """What is in a folder once a report has come into place there; but for where it is, seen from its root."""
    manifest = read(out / MANIFEST, ReportManifest).model_copy(update={"roots": ()})
    contents = {path: (out / path).read_bytes() for path in files(report)}
    return contents | {MANIFEST: manifest.model_dump_json().encode()}


def build(report: Path, out: Path, watched: bool) -> None:
    """Put a report that was built elsewhere into place, as `build_report` does."""
    with staged(out) as folder:
        shutil.copytree(report, folder, dirs_exist_ok=True)
        if watched:
            live.mark(folder, 2)


@pytest.fixture
def watched(demo_report: Path, tmp_path: Path) -> Path:
    build(demo_report, tmp_path / "out", watched=True)
    return tmp_path / "out"


def test_every_page_of_a_watched_report_looks_for_a_newer_one(watched: Path) -> None:
    version = (watched / "live.js").read_text().split('"')[1]
    for page in watched.rglob("*.html"):
        up = "../" * (len(page.relative_to(watched).parts) - 1)
        attributes = f'data-live="{up}live.js" data-version="{version}" data-seconds="2" data-patience="600"'
        assert (
            page.read_text().count(f'<script src="{up}assets/live.js" {attributes}></script>\n</body>') == 1
        )


def test_its_manifest_lists_its_files_as_they_are(watched: Path) -> None:
    digests = read(watched / MANIFEST, ReportManifest).files
    assert {path: sha256(watched / path) for path in files(watched) if path != MANIFEST} == digests


def test_an_audit_of_it_says_to_wait(watched: Path) -> None:
    with pytest.raises(UserError, match="wait until that has ended"):
        audit(watched)


def test_its_version_follows_from_what_it_says(demo_report: Path, watched: Path) -> None:
    before = (watched / "live.js").read_text()
    build(demo_report, watched, watched=True)
    assert (watched / "live.js").read_text() == before
    manifest = read(watched / MANIFEST, ReportManifest)
    (watched / MANIFEST).write_text(manifest.model_copy(update={"code": "another"}).model_dump_json())
    live.mark(watched, 2)
    assert (watched / "live.js").read_text() != before


def test_the_last_build_is_an_ordinary_report(demo_report: Path, watched: Path) -> None:
    build(demo_report, watched, watched=False)
    assert files(watched) == files(demo_report)
    assert written(demo_report, watched) == written(demo_report, demo_report)


def test_a_report_that_cannot_be_built_again_becomes_an_ordinary_one(
    demo_report: Path, watched: Path
) -> None:
    live.unmark(watched)
    assert files(watched) == files(demo_report)
    assert written(demo_report, watched) == written(demo_report, demo_report)


def test_what_makes_open_pages_reload_comes_into_place_last(
    demo_report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[str] = []
    move = Path.replace

    def recorded_move(source: Path, target: Path) -> Path:
        if ".report-" not in str(target):
            moved.append(target.name)
        return move(source, target)

    monkeypatch.setattr(Path, "replace", recorded_move)
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")  # which cannot change places with another folder
    build(demo_report, tmp_path / "out", watched=True)
    assert moved[-2:] == ["manifest.json", "live.js"]
    assert moved.count("live.js") == 2, "the script, among the assets, and the version"


def test_a_sign_of_life_keeps_the_version_and_is_no_part_of_the_report(watched: Path) -> None:
    before = (watched / "live.js").read_text()
    live.sign(watched, 30)
    script = (watched / "live.js").read_text()
    assert script.startswith(before)
    match = re.fullmatch(r"window\.reportSign = \[(\d+), 30\];", script.removeprefix(before).strip())
    assert match
    assert abs(int(match[1]) - time.time()) < 600
    live.sign(watched, 30)
    assert (watched / "live.js").read_text().count("reportSign") == 1
    live.unmark(watched)
    assert not (watched / "live.js").exists()
