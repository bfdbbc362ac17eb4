"""A root that cannot be written to is read all the same, and not one of its files changes."""

import os
import shutil
from pathlib import Path

import pytest

from analysis.store import database
from analysis.store.collect import collect
from tests.analysis.fabricate import Folder, completed, plan

READ = (
    "status tiny", "explain r1", "logs r1", "report tiny --out page", "export tiny --out pack",
    "compare tiny other", "sql 'select * from runs'", "sql @runs --study tiny",
)  # fmt: skip


@pytest.fixture(params=["never collected", "collected before the last run", "collected"])
def kept(root, request, monkeypatch, tmp_path):
    """A root in which this user can write to nothing; one of its runs is in flight."""
    completed(root, "r1", study="tiny")
    completed(root, "r2", study="other")
    if request.param != "never collected":
        collect(root)
    Folder(root, plan("r3", study="tiny", seed=3)).event("claimed", executor="local", host="far", pid=1)
    if request.param == "collected":
        collect(root)
    access = os.access

    def refused(path, mode, **options):
        inside = Path(os.fsdecode(path)).resolve().is_relative_to(root)
        return not (inside and mode & os.W_OK) and access(path, mode, **options)

    monkeypatch.setattr(os, "access", refused)
    yield root
    shutil.rmtree(database._elsewhere.pop(root.resolve(), tmp_path / "none"), ignore_errors=True)


def tree(root):
    return {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in root.rglob("*")}


@pytest.mark.parametrize("command", READ)
def test_what_only_reads_works(cli, kept, command):
    import shlex

    files = tree(kept)
    code, out, err = cli(*shlex.split(command))
    assert code == 0 and (out or command.startswith("sql")), err  # a child process answers SQL
    assert tree(kept) == files


def test_collect_says_what_works_without_it(cli, kept):
    code, _, err = cli("collect", "--rebuild")
    assert code == 2 and "report, compare, export and sql read it all the same" in err


def test_a_database_of_another_user_in_a_folder_with_the_sticky_bit_is_left_alone(root, monkeypatch):
    completed(root, "r1", study="tiny")
    collect(root)
    root.chmod(0o1777)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert not database.can_collect(root)
