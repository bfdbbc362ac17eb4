"""An index over reports: what each one came to, by its own summary, and nothing of reports that changed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis import charts
from analysis.audit.audit import audit
from analysis.report.build import build_report, certificates_page
from analysis.report.carried import MANIFEST, ReportManifest
from analysis.report.place import staged
from analysis.report.summary import FILE
from analysis.several.index import build_index
from analysis.store.collect import collect
from model.record.errors import UserError
from model.record.files import sha256, write
from tests.analysis.fabricate import Folder, certificate, completed, plan
from tests.analysis.report.test_build import EVIL, Page, words


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A report of a study, one of a study that has not started, and one of certificates."""
    root, reports = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("reports")
    completed(root, "r1", title=EVIL, study="first")
    Folder(root, plan("r1", study="waiting"))
    certificate(root, "auto", case=None)
    collect(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(charts, "names", lambda: ("memory", "certificates", "ratios"))
        for study in ("first", "waiting"):
            build_report(root, study, reports / study)
        certificates_page(root, reports / "certificates")
        yield reports


@pytest.fixture
def reports(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "reports"))


def test_each_report_is_listed_with_its_date_commit_outcomes_and_answer(reports: Path) -> None:
    (reports / "README.md").write_text("of somebody else")
    page = build_index(reports)
    text = words(page)
    for expected in ("2026-03-01", "a1b2c3d4e5", "1 completed", "no run has started", "1 right"):
        assert expected in text, expected
    links = [link for link in Page(page).all("href") if link.endswith("index.html")]
    assert sorted(links) == [f"{name}/index.html" for name in ("certificates", "first", "waiting")]
    assert all((reports / link).exists() for link in links)
    html = page.read_text(encoding="utf-8")
    assert "<img" not in html
    assert "<script>" not in html


def test_reports_of_one_title_are_told_apart_by_what_was_run_and_their_folders(reports: Path) -> None:
    text = words(build_index(reports))
    assert "was trained for 100 steps" in text and "(first)" not in text
    shutil.copytree(reports / "first", reports / "again")
    text = words(build_index(reports))
    assert "(first)" in text and "(again)" in text and "(waiting)" not in text


def test_an_index_that_is_made_again_is_the_same_and_its_audit_agrees(reports: Path) -> None:
    before = build_index(reports).read_bytes()
    assert build_index(reports).read_bytes() == before
    (reports / "notes.txt").write_text("of somebody else")
    assert audit(reports).findings == []
    page = reports / "index.html"
    page.write_text(page.read_text(encoding="utf-8").replace("1 completed", "2 completed"), encoding="utf-8")
    (finding,) = map(str, audit(reports).findings)
    assert "it says 2 completed" in finding and "the records give 1 completed" in finding


def test_a_summary_that_was_changed_is_not_repeated(reports: Path) -> None:
    path = reports / "first" / FILE
    path.write_text(path.read_text(encoding="utf-8").replace("1 completed", "9 completed"), encoding="utf-8")
    text = words(build_index(reports))
    assert "9 completed" not in text
    assert "its summary has been changed since it was written" in text


def test_a_report_without_a_summary_is_listed_and_says_so(reports: Path) -> None:
    (reports / "old" / "data").mkdir(parents=True)
    (reports / "old" / MANIFEST).write_text('{"schema_version": 9}')
    assert "Nothing can be said about it: its manifest cannot be read" in words(build_index(reports))


def test_a_summary_of_a_report_is_audited_with_it(reports: Path) -> None:
    path = reports / "first" / FILE
    path.write_text(path.read_text(encoding="utf-8").replace("1 completed", "9 completed"), encoding="utf-8")
    assert any(FILE in str(finding) for finding in audit(reports / "first").findings)


def listed(folder: Path, **changes: object) -> None:
    """A report of another's making, which has nothing but a summary."""
    values = {"kind": "study", "title": "foreign", "study": "s", "first": None, "last": None, "answer": ""}
    lists: dict[str, object] = {"commits": [], "outcomes": [], "warnings": []}
    (folder / "data").mkdir(parents=True)
    (folder / FILE).write_text(json.dumps(values | lists | changes))
    digest = {FILE: sha256(folder / FILE)}
    manifest = ReportManifest(study="s", code="", packages={}, renderer="", records=True, files=digest)
    write(folder / MANIFEST, manifest)


@pytest.mark.fault
def test_reports_of_others_cannot_keep_an_index_from_being_made(tmp_path: Path) -> None:
    listed(tmp_path / "half a time", last="2026-03-01T12:00:00Z")
    listed(tmp_path / "year one", first="0001-01-01T00:00:00", last="0001-01-01T00:00:00")
    listed(tmp_path / "pipe in place of a summary")
    (tmp_path / "pipe in place of a summary" / FILE).unlink()
    os.mkfifo(tmp_path / "pipe in place of a summary" / FILE)
    (tmp_path / "pipe in place of a manifest" / "data").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe in place of a manifest" / MANIFEST)
    listed(tmp_path / ".report-of-a-build-that-was-killed")
    text = words(build_index(tmp_path))
    assert text.count("foreign") == 2
    assert text.count("cannot be read") + text.count("has been changed") == 2


@pytest.mark.refused
def test_an_index_is_not_written_where_links_lead(tmp_path: Path) -> None:
    listed(tmp_path / "reports" / "one")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "reports" / "assets").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="assets is a link"):
        build_index(tmp_path / "reports")
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.refused
def test_a_folder_whose_name_no_page_can_show_is_named(tmp_path: Path) -> None:
    listed(tmp_path / os.fsdecode(b"b\xff"))
    with pytest.raises(UserError, match="rename it"):
        build_index(tmp_path)


@pytest.mark.refused
def test_only_a_folder_of_reports_gets_an_index(reports: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a report itself"):
        build_index(reports / "first")
    with pytest.raises(UserError, match="there is no report in"):
        build_index(tmp_path)
    (reports / "index.html").write_text("of somebody else")
    with pytest.raises(UserError, match="is not one of ours"):
        build_index(reports)


def test_no_report_is_written_over_an_index(reports: Path) -> None:
    before = build_index(reports).read_bytes()
    with pytest.raises(UserError, match="holds an index of reports: name a folder in it"), staged(reports):
        pass
    assert (reports / "index.html").read_bytes() == before
