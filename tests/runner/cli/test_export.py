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
    answer = cli("export", "backends", "--out", tmp_path / "shared", root=root)
    assert (answer.code, answer.out.strip()) == (0, str(tmp_path / "shared"))
    answer = cli("collect", tmp_path / "shared" / "backends.tar.gz", root=tmp_path / "there")
    assert answer.code == 0, answer.err
    assert "1 run of study backends unpacked; 0 new certificates" in answer.err
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
        answer = cli("collect", source, root=workspace)
        assert answer.code == 0, answer.err
        assert "1 run of study backends" in answer.err
    assert len(ask(workspace, "FROM runs").rows) == 1
    assert "there are only the records of a report" in cli("status", "backends", root=workspace).err
    answer = cli("export", "backends", "--out", tmp_path / "shared", root=workspace)
    assert answer.code == 0 and "1 run left out of the archive (no files here): r1" in answer.err
    assert "there is no archive" in answer.err and not [*tmp_path.glob("shared/*.gz")]
    (tmp_path / "report.zip").touch()
    for source, message in (
        (tmp_path / "reports", f"has 1 report in it: name one, such as {page.parent}"),
        (tmp_path / "report.zip", "unpack it, and name the folder of the report in it"),
        (tmp_path / "nowhere", "no such file or folder"),
    ):
        answer = cli("collect", source, root=workspace)
        assert answer.code == 2 and message in answer.err, answer


@pytest.mark.usefixtures("unforked")
def test_a_report_is_audited_by_its_folder(cli: Cli, root: Path, tmp_path: Path) -> None:
    """Exit code 0: all match; 1: something does not; 2: not a report."""
    page = Path(cli("report", "backends", "--out", tmp_path / "report").out.strip())
    answer = cli("audit", page.parent, "--folders")
    assert (answer.code, answer.out) == (0, ""), answer
    assert "all match its records" in answer.err
    assert answer.err.startswith(
        "a match proves that the pages follow from the report's records by this code, not "
    )
    page.write_text(page.read_text().replace("1 run of each group", "9 run of each group\x1b[2J"))
    answer = cli("audit", page)  # of a report, a page will do
    assert answer.code == 1
    assert "\x1b" not in answer.out
    assert "index.html: Setup / What was run, Repeats, Value: it says 9 run of" in answer.out
    answer = cli("audit", page.parent, "--json")
    audit = json.loads(answer.out)
    assert (answer.code, audit["match"], len(audit["findings"])) == (1, False, 1)
    assert audit["findings"][0]["file"] == "index.html"
    answer = cli("audit", tmp_path / "nowhere")
    assert (answer.code, answer.out) == (2, "")
    assert "name the folder that `runner report` wrote" in answer.err


@pytest.mark.refused
@pytest.mark.parametrize("verb", ["report", "export"])
def test_a_folder_with_other_files_is_not_written_to(cli: Cli, root: Path, tmp_path: Path, verb: str) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("mine")
    answer = cli(verb, "backends", "--out", tmp_path / "home", root=root)
    assert (answer.code, answer.out) == (2, "")
    assert "home holds other files, such as thesis.tex" in answer.err
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["thesis.tex"]
