"""`runner export` and `runner audit`, as a user types them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.query.ask import ask
from tests.analysis.fabricate import completed

Cli = Callable[..., Any]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    completed(root, "r1")
    return root


def test_what_one_workspace_exports_another_collects(cli: Cli, root: Path, tmp_path: Path) -> None:
    done = cli("export", "backends", "--out", tmp_path / "shared", root=root)
    assert (done.code, done.out.strip()) == (0, str(tmp_path / "shared"))
    done = cli("collect", tmp_path / "shared" / "backends.tar.gz", root=tmp_path / "there")
    assert done.code == 0, done.err
    assert "1 run of study backends unpacked; 0 new certificates" in done.err
    assert len(ask(tmp_path / "there", "FROM runs").rows) == 1
    assert cli("collect", tmp_path / "absent.tar.gz", root=tmp_path / "there").code == 2


@pytest.fixture
def unforked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in this process: what draws has threads here, which a fork of it would wait for in vain."""

    def here(work: Callable[[], int | None], *_: object) -> None:
        if code := work():
            raise SystemExit(code)

    monkeypatch.setattr("analysis.query.child.in_child", here)


@pytest.mark.usefixtures("unforked")
def test_what_one_workspace_reports_another_collects(cli: Cli, root: Path, tmp_path: Path) -> None:
    page = Path(cli("report", "backends", "--out", tmp_path / "reports/first", root=root).out.strip())
    workspace = tmp_path / "there"
    for source in (page.parent, page):
        done = cli("collect", source, root=workspace)
        assert done.code == 0, done.err
        assert "1 run of study backends" in done.err
    assert len(ask(workspace, "FROM runs").rows) == 1
    assert "there are only the records of a report" in cli("status", "backends", root=workspace).err
    done = cli("export", "backends", "--out", tmp_path / "shared", root=workspace)
    assert done.code == 0 and "1 run left out of the archive (no files here): r1" in done.err
    assert "there is no archive" in done.err and not [*tmp_path.glob("shared/*.gz")]
    (tmp_path / "report.zip").touch()
    for source, message in (
        (tmp_path / "reports", f"has 1 report in it: name one, such as {page.parent}"),
        (tmp_path / "report.zip", "unpack it, and name the folder of the report in it"),
        (tmp_path / "nowhere", "no such file or folder"),
    ):
        done = cli("collect", source, root=workspace)
        assert done.code == 2 and message in done.err, done


@pytest.mark.usefixtures("unforked")
def test_a_report_is_audited_by_its_folder(cli: Cli, root: Path, tmp_path: Path) -> None:
    """Exit code 0: all match; 1: something does not; 2: not a report."""
    page = Path(cli("report", "backends", "--out", tmp_path / "report").out.strip())
    done = cli("audit", page.parent, "--folders")
    assert (done.code, done.out) == (0, ""), done
    assert "all match its records" in done.err
    assert done.err.startswith(
        "a match proves that the pages follow from the report's records by this code, not "
    )
    page.write_text(page.read_text().replace("1 run of each group", "9 run of each group\x1b[2J"))
    done = cli("audit", page)  # of a report, a page will do
    assert done.code == 1
    assert "\x1b" not in done.out
    assert "index.html: Setup / What was run, Repeats, Value: it says 9 run of" in done.out
    done = cli("audit", page.parent, "--json")
    audit = json.loads(done.out)
    assert (done.code, audit["match"], len(audit["findings"])) == (1, False, 1)
    assert audit["findings"][0]["file"] == "index.html"
    done = cli("audit", tmp_path / "nowhere")
    assert (done.code, done.out) == (2, "")
    assert "name the folder that `runner report` wrote" in done.err


@pytest.mark.refused
@pytest.mark.parametrize("verb", ["report", "export"])
def test_a_folder_with_other_files_is_not_written_to(cli: Cli, root: Path, tmp_path: Path, verb: str) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("mine")
    done = cli(verb, "backends", "--out", tmp_path / "home", root=root)
    assert (done.code, done.out) == (2, "")
    assert "home holds other files, such as thesis.tex" in done.err
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["thesis.tex"]
