"""How a report comes to its folder: to nowhere else, after other builds, and without what these left behind."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.report import place
from analysis.report.carried import MANIFEST, ReportManifest
from analysis.report.place import staged
from model.record.errors import UserError
from model.record.files import read, write
from tests.conftest import PATIENCE_SECONDS


def build(out: Path, *listed: str, text: str = "new") -> None:
    """A report of one page whose manifest lists these files."""
    with staged(out) as folder:
        (folder / "assets").mkdir()
        (folder / "assets" / "style.css").write_text("")
        (folder / "index.html").write_text(text)
        (folder / "runs.html").write_text(text)
        (folder / "data").mkdir()
        manifest = ReportManifest(
            study="s", code="", packages={}, renderer="", records=True, files=dict.fromkeys(listed, "0" * 64)
        )
        write(folder / MANIFEST, manifest)


def test_what_latex_made_of_an_earlier_document_is_removed_and_of_the_same_one_is_kept(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    build(out, "latex/report.tex")
    (out / "latex").mkdir()
    for name in ("report.pdf", "report.aux", "notes.txt"):
        (out / "latex" / name).write_text("of the first document")
    build(out, "latex/report.tex")
    assert (out / "latex" / "report.pdf").exists()
    build(out, "latex/report.tex", "latex/numbers.tex")
    assert [path.name for path in (out / "latex").iterdir()] == ["notes.txt"]
    build(out)
    assert (out / "latex" / "notes.txt").exists()


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
    for residue in ("out/.report-killed", ".report-out@12345678", ".report-out@old"):
        (tmp_path / residue / "data").mkdir(parents=True)
    (tmp_path / ".report-out@more@12345678").mkdir()
    build(tmp_path / "out")
    residue = [path.name for path in tmp_path.rglob(".report-*")]
    assert residue == [".report-out@more@12345678"], "which is of another report"


def test_a_second_build_to_a_folder_waits_for_the_first(tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(out)
    second = threading.Thread(target=build, args=(out, "second"))
    with staged(out) as folder:
        (folder / "first.html").write_text("first")
        second.start()
        second.join(0.05)
        assert second.is_alive()
        assert len(list(tmp_path.glob(".report-out@*"))) == 1
    second.join(PATIENCE_SECONDS)
    assert not second.is_alive()


@pytest.mark.refused
def test_the_report_of_another_study_is_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "pages"
    manifest = ReportManifest(study="mine", code="c", packages={}, renderer="r", records=False, files={})

    def put(changes: dict[str, str]) -> None:
        with staged(out) as folder:
            (folder / "data").mkdir()
            write(folder / MANIFEST, manifest.model_copy(update=changes))

    put({})
    with pytest.raises(UserError, match="pages has the report of study mine: name another folder"):
        put({"study": "other"})
    put({"code": "newer"})
    assert read(out / MANIFEST, ReportManifest).code == "newer"


def _before(folder: Path, staging: Path) -> None:
    os._exit(9)


def _after(folder: Path, staging: Path, exchange: Callable[[Path, Path], None] = place._exchange) -> None:
    exchange(folder, staging)
    os._exit(9)


def _between(folder: Path, staging: Path) -> None:
    folder.rename(place._aside(folder))
    os._exit(9)


def _no_exchange(folder: Path, staging: Path) -> None:
    raise OSError(errno.EINVAL, "as NFS answers")


def killed(out: Path, exchange: Callable[[Path, Path], None], follow: Callable[[Path, Path], None]) -> None:
    """Replace a report in a process that is killed on the way."""
    child = os.fork()
    if not child:
        place._exchange, place._move_in_two_steps = exchange, follow
        build(out, "index.html", "runs.html", text="newer")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def pages(out: Path) -> set[str]:
    return {path.read_text() for path in out.glob("*.html")}


@pytest.mark.fault
@pytest.mark.parametrize(
    ("exchange", "follow", "expected"),
    [(_before, _between, {"new"}), (_after, _between, {"newer"}), (_no_exchange, _between, set())],
    ids=["before the exchange", "after the exchange", "between two moves, where there is no exchange"],
)
def test_a_build_that_is_killed_leaves_the_old_report_or_the_new_one_whole(
    tmp_path: Path,
    exchange: Callable[[Path, Path], None],
    follow: Callable[[Path, Path], None],
    expected: set[str],
) -> None:
    """Also what others added stays, and the next build leaves nothing else."""
    out = tmp_path / "out"
    build(out, "index.html", "runs.html")
    (out / "latex").mkdir()
    (out / "latex" / "report.pdf").write_text("compiled")
    killed(out, exchange, follow)
    assert pages(out) == expected
    build(out, "index.html", "runs.html", text="newest")
    assert pages(out) == {"newest"}
    assert (out / "latex" / "report.pdf").read_text() == "compiled"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert not list(out.glob(".*"))


@pytest.mark.fault
@pytest.mark.parametrize("followed", [True, False], ids=["one after the other", "file by file"])
def test_where_folders_cannot_change_places_a_report_is_replaced_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, followed: bool
) -> None:
    monkeypatch.setattr(place, "_exchange", _no_exchange)
    if not followed:
        monkeypatch.setattr(place, "_move_in_two_steps", _no_exchange)
    build(tmp_path / "out", "gone.html")
    (tmp_path / "out" / "gone.html").write_text("old")
    (tmp_path / "out" / "mine.txt").write_text("mine")
    build(tmp_path / "out", text="newer")
    assert pages(tmp_path / "out") == {"newer"}
    assert (tmp_path / "out" / "mine.txt").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_folder_that_a_shell_is_in_stays_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path / "out", "index.html")
    before = (tmp_path / "out").stat()
    monkeypatch.chdir(tmp_path / "out")
    build(Path(), "index.html", text="newer")
    assert os.path.samestat(Path().stat(), before)
    assert pages(Path()) == {"newer"}


def test_a_report_is_as_readable_as_the_one_before(tmp_path: Path) -> None:
    build(tmp_path / "out")
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o777 & ~_umask()
    (tmp_path / "out").chmod(0o750)
    build(tmp_path / "out")
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o750


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
