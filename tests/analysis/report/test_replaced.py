"""How a report comes to its folder: to nowhere else, after other builds, and without what these left behind."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from analysis.report.carried import MANIFEST, ReportManifest, complete
from model.disk.files import read, write
from model.errors import UserError


def build(out: Path, *listed: str) -> None:
    """A report of one page whose manifest lists these files."""
    with complete(out) as folder:
        (folder / "assets").mkdir()
        (folder / "assets" / "style.css").write_text("")
        (folder / "index.html").write_text("new")
        (folder / "data").mkdir()
        made = ReportManifest(
            study="s", code="", packages={}, renderer="", records=True, files=dict.fromkeys(listed, "0" * 64)
        )
        write(folder / MANIFEST, made)


@pytest.mark.refused
@pytest.mark.parametrize("name", ["assets", "data"])
def test_it_is_not_written_where_a_link_leads(tmp_path: Path, name: str) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    build(out)
    (out / name).rename(elsewhere)
    (out / name).symlink_to(elsewhere)
    before = {path: path.stat().st_mtime_ns for path in elsewhere.iterdir()}
    with pytest.raises(UserError, match=f"{name} is a link"):
        build(out)
    assert {path: path.stat().st_mtime_ns for path in elsewhere.iterdir()} == before


@pytest.mark.refused
def test_a_link_to_a_folder_in_place_of_a_page_is_refused(tmp_path: Path) -> None:
    build(tmp_path / "out")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / "index.html").unlink()
    (tmp_path / "out" / "index.html").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"index\.html is a folder"):
        build(tmp_path / "out")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_link_to_a_file_in_place_of_a_page_is_replaced(tmp_path: Path) -> None:
    build(tmp_path / "out")
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "out" / "index.html").unlink()
    (tmp_path / "out" / "index.html").symlink_to(tmp_path / "theirs")
    build(tmp_path / "out")
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert (tmp_path / "out" / "index.html").read_text() == "new"


@pytest.mark.fault
def test_names_that_are_no_files_in_the_manifest_before_are_passed_over(tmp_path: Path) -> None:
    build(tmp_path / "out", "data", "nul\0", "x" * 300, "/etc/hostname")
    build(tmp_path / "out")
    assert (tmp_path / "out" / "index.html").read_text() == "new"


@pytest.mark.fault
def test_what_a_killed_build_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "out" / ".report-killed" / "data").mkdir(parents=True)
    build(tmp_path / "out")
    assert not (tmp_path / "out" / ".report-killed").exists()


def test_a_second_build_to_a_folder_waits_for_the_first(tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(out)
    second = threading.Thread(target=build, args=(out, "second"))
    with complete(out) as folder:
        (folder / "first.html").write_text("first")
        second.start()
        second.join(0.05)
        assert second.is_alive()
        assert len(list(out.glob(".report-*"))) == 1
    second.join(10)
    assert not second.is_alive()


@pytest.mark.refused
def test_the_report_of_another_study_is_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "pages"
    made = ReportManifest(study="mine", code="c", packages={}, renderer="r", records=False, files={})

    def put(changed: dict[str, str]) -> None:
        with complete(out) as folder:
            (folder / "data").mkdir()
            write(folder / MANIFEST, made.model_copy(update=changed))

    put({})
    with pytest.raises(UserError, match="pages has the report of study mine: name another folder"):
        put({"study": "other"})
    put({"code": "newer"})
    assert read(out / MANIFEST, ReportManifest).code == "newer"
