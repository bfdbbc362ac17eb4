"""What a launch is made of is recorded whole, once, cheaply, without secrets and without running anything."""

import os
import resource
import shutil
import socket
import subprocess
from contextlib import contextmanager

import pytest

from model.record.errors import UserError
from model.record.records import Provenance
from runner.state import guard
from runner.state.code import provenance, repository, snapshot
from tests.conftest import REPOSITORY


@pytest.fixture
def repo(tmp_path):
    """A repository with one commit."""
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "a.py").write_text("one\ntwo\nthree\n")
    (folder / "gone.py").write_text("gone\n")
    (folder / "run.sh").write_text("true\n")
    (folder / ".gitignore").write_text("*.log\n")
    commit(folder)
    return folder


def git(folder, *arguments):
    identity = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    process = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        env={**os.environ, **identity},
        capture_output=True,
        check=True,
    )
    return process.stdout.decode()


def commit(folder):
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "message")


def tree(folder):
    """Mode and content by name, without git's own."""
    files = (path for path in folder.rglob("*") if ".git" not in path.parts and not path.is_dir())
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else (path.stat().st_mode & 0o100, path.read_bytes())
        for path in files
    }


def test_a_clean_repository_gives_its_commit_and_no_diff(repo):
    assert repository.state(repo) == repository.RepositoryState(
        git(repo, "rev-parse", "HEAD").strip(), False, None
    )


def test_outside_a_repository_nothing_is_known_and_nothing_fails(tmp_path, monkeypatch):
    assert repository.state(tmp_path / "nowhere") == repository.RepositoryState()
    git(tmp_path, "init", "-q")
    assert repository.state(tmp_path) == repository.RepositoryState(), "no commit yet"
    monkeypatch.setenv("PATH", "/nowhere")
    assert repository.state(tmp_path) == repository.RepositoryState(), "no git"


@pytest.mark.fault
def test_a_repository_that_does_not_answer_in_time_is_not_waited_for(repo, tmp_path, monkeypatch):
    (slow := tmp_path / "git").write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(repository, "TIMEOUT_SECONDS", 0.2)
    assert repository.state(repo) == repository.RepositoryState()


def test_the_diff_makes_the_working_tree_from_the_commit(repo, tmp_path):
    """Changed, staged, deleted, made executable, and untracked under names that need care."""
    (repo / "a.py").write_text("one\n2\nthree\nfour")
    (repo / "staged.py").write_text("staged\n")
    git(repo, "add", "staged.py")
    (repo / "gone.py").unlink()
    (repo / "run.sh").chmod(0o755)
    (repo / "sub folder").mkdir()
    (repo / "sub folder" / "b c.txt").write_text("x y\n")
    (repo / 'é"\\\t\n.txt').write_text("no end of line")
    (repo / "empty").touch()
    (repo / "tool").write_text("#!/bin/sh\n")
    (repo / "tool").chmod(0o755)
    (repo / "link").symlink_to("a.py")
    (repo / "x.log").write_text("ignored\n")
    (repo / "binary").write_bytes(b"\0\1")
    state = repository.state(repo)
    assert state.dirty
    assert b"# left out: binary (not text)" in state.diff
    assert b"ignored" not in state.diff
    git(tmp_path, "clone", "-q", str(repo), "clone")
    (tmp_path / "x.diff").write_bytes(state.diff)
    git(tmp_path / "clone", "apply", str(tmp_path / "x.diff"))
    expected = tree(repo)
    for name in ("x.log", "binary"):
        del expected[name]
    assert tree(tmp_path / "clone") == expected


def test_a_file_that_was_only_touched_is_no_change(repo):
    os.utime(repo / "a.py", (1, 1))
    assert repository.state(repo).dirty is False


@pytest.mark.parametrize(
    ("name", "dirty"),
    [
        ("exports/first/tables/runs.csv", False),
        ("reports/build/first/assets/page.js", False),
        ("experiments/first.yaml", False),
        ("roots/first/.code/0123/model/__init__.py", False),
        ("plugin.py", True),
        ("tools/plugin.py", True),
        ("kernel.so", True),
        ("ours/kernels/attention.cu", True),
    ],
)
def test_an_untracked_file_makes_code_another_only_if_a_run_can_import_it(repo, name, dirty):
    (repo / "ours").mkdir()
    (repo / "ours" / "__init__.py").touch()
    commit(repo)
    (repo / name).parent.mkdir(parents=True, exist_ok=True)
    (repo / name).write_text("text\n")
    state = repository.state(repo)
    assert state.dirty is dirty
    assert name.encode() in state.diff, "kept as evidence, whatever it is"


def test_an_untracked_link_to_a_package_and_a_repository_inside_make_code_another(repo, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (repo / "linked").symlink_to(tmp_path / "package")
    assert repository.state(repo).dirty is True
    (repo / "linked").unlink()
    assert repository.state(repo).dirty is False
    git(repo, "init", "-q", "inner")
    (repo / "inner" / "text.txt").write_text("text\n")
    commit(repo / "inner")
    assert repository.state(repo).dirty is True


def test_the_folders_that_verbs_write_by_default_are_ignored_here():
    process = subprocess.run(
        [
            "git",
            "-C",
            str(REPOSITORY),
            "check-ignore",
            "--no-index",
            "exports/x",
            "reports/build/x",
            "runs/x",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.stdout.split() == ["exports/x", "reports/build/x", "runs/x"]


def test_what_does_not_fit_is_named_and_the_rest_can_be_applied(repo, tmp_path, monkeypatch):
    monkeypatch.setattr(repository, "MAX_DIFF_BYTES", 2000)
    monkeypatch.setattr(repository, "MAX_FILE_BYTES", 10_000)
    (repo / "a.py").write_text("changed\n")
    (repo / "large").write_text("x" * 10_001)
    for number in range(200):
        (repo / f"n{number:03}").write_text("text\n" * 50)
    diff = repository.state(repo).diff
    assert len(diff) < 2000 + 60 * 100
    assert b"# left out: large (10,001 bytes)\n" in diff
    assert b"bytes, over the limit)\n" in diff
    assert diff.endswith(b" more\n")
    (tmp_path / "x.diff").write_bytes(diff)
    git(repo, "stash", "-q", "-u")
    git(repo, "apply", str(tmp_path / "x.diff"))
    assert (repo / "a.py").read_text() == "changed\n"


def test_a_file_that_may_hold_a_secret_is_named_and_not_kept(repo):
    for name in (".env", "server.key", "my_credentials.json"):
        (repo / name).write_text("hunter2")
    diff = repository.state(repo).diff
    assert b"hunter2" not in diff
    assert diff.count(b"may hold a secret") == 3


@pytest.mark.fault
def test_looking_at_a_repository_runs_nothing_of_it_and_writes_nothing(repo, tmp_path):
    spy = tmp_path / "spy"
    spy.write_text(f"#!/bin/sh\necho $0 $* >> {tmp_path}/ran\ncat\n")
    spy.chmod(0o755)
    (repo / ".gitattributes").write_text("*.py filter=evil diff=evil\n*.sh filter=evil.er=x\n")
    (repo / "b.py").write_text("b\n")
    commit(repo)
    for hook in ("post-index-change", "pre-commit", "post-checkout", "fsmonitor-watchman"):
        shutil.copy(spy, repo / ".git" / "hooks" / hook)
    settings = {
        "core.fsmonitor": spy, "core.pager": spy, "diff.external": spy, "diff.evil.textconv": spy,
        "diff.evil.command": spy, "filter.evil.clean": spy, "filter.evil.smudge": spy,
        "filter.evil.required": "true", "filter.evil.er=x.process": spy, "filter.evil.er=x.required": "true",
        "core.hooksPath": repo / ".git" / "hooks", "core.sshCommand": spy, "credential.helper": spy,
        "core.untrackedCache": "true", "gpg.program": spy, "log.showSignature": "true",
    }  # fmt: skip
    for key, value in settings.items():
        git(repo, "config", key, str(value))
    (tmp_path / "ran").unlink(missing_ok=True)
    for path in (repo / "a.py", repo / "b.py", repo / "run.sh"):
        path.write_text("changed\n")
    os.utime(repo / "gone.py", (1, 1))
    index = (repo / ".git" / "index").read_bytes()
    state = repository.state(repo)
    assert state.diff.count(b"+changed") == 3
    assert b"gone.py" not in state.diff
    assert not (tmp_path / "ran").exists()
    assert (repo / ".git" / "index").read_bytes() == index


@pytest.mark.fault
def test_variables_of_a_git_hook_do_not_lead_to_another_repository(repo, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other"))
    assert repository.state(repo).commit


@pytest.fixture
def fresh(monkeypatch):
    """Nothing remembered from another test."""
    provenance._evidence.cache_clear()
    yield
    provenance._evidence.cache_clear()


def test_a_provenance_says_who_where_and_with_what(repo, fresh, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/x/runner", "launch", "study.yaml"])
    record = provenance.provenance(repo)
    assert record.command == ["runner", "launch", "study.yaml"]
    assert (record.host, record.code) == (socket.gethostname(), snapshot.current())
    assert record.git_dirty is False
    assert record.diff is None


def test_only_listed_variables_are_recorded(repo, fresh, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    record = provenance.provenance(repo)
    assert record.environment["OMP_NUM_THREADS"] == "3"
    assert set(record.environment) <= set(provenance.VARIABLES)
    provenance.keep(repo, tmp_path / "study")
    contents = [path.read_bytes() for path in (tmp_path / "study").rglob("*") if path.is_file()]
    assert b"hunter2" not in b"".join(contents) + record.model_dump_json().encode()


def test_a_user_without_a_name_is_none(repo, fresh, monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: {}["uid"])
    assert provenance.provenance(repo).user is None


def test_what_the_hashes_name_is_kept_once(repo, fresh, tmp_path):
    (repo / "a.py").write_text("changed\n")
    record = provenance.provenance(repo)
    study = tmp_path / "runs" / "study"
    for _ in range(3):
        provenance.keep(repo, study)
    names = sorted(path.name for path in (study / ".provenance").iterdir())
    assert names == sorted([f"{record.diff}.diff", f"{record.packages}.lock"])
    lines = (study / ".provenance" / f"{record.packages}.lock").read_text().splitlines()
    assert any(line.startswith("pydantic==") for line in lines)
    assert lines == sorted(
        lines, key=lambda line: line.partition("==")[0].lower().replace("_", "-").replace(".", "-")
    )
    assert [path.name for path in (study / ".code").iterdir()] == [record.code]


@pytest.mark.parametrize(("umask", "closed"), [(0o077, 0o077), (0o002, 0o022)])
def test_nobody_else_can_write_to_what_is_kept_or_read_the_changes(repo, fresh, tmp_path, umask, closed):
    (repo / "a.py").write_text("changed\n")
    previous = os.umask(umask)
    guard.close_umask()
    try:
        provenance.keep(repo, tmp_path / "study")
        (diff,) = tmp_path.glob("study/.provenance/*.diff")
    finally:
        os.umask(previous)
    assert diff.stat().st_mode & 0o777 == 0o600
    for path in {*(tmp_path / "study").rglob("*")} - {diff}:
        assert path.stat().st_mode & 0o777 == (0o777 if path.is_dir() else 0o666) & ~closed


@pytest.mark.fault
def test_a_full_disk_is_a_users_error_and_leaves_nothing_behind(repo, fresh, tmp_path):
    with small_files(), pytest.raises(UserError, match="File too large; free some space"):
        provenance.keep(repo, tmp_path / "study")
    assert not [path for path in tmp_path.glob("study/**/*") if path.name != ".code"]
    with small_files(), pytest.raises(UserError, match="choose another place with --root"):
        provenance._store({"0" * 64 + ".lock": b"x" * 5000}, tmp_path / "study")
    assert not list(tmp_path.glob("study/.provenance/*"))


@contextmanager
def small_files():
    """No file may grow over a thousand bytes: what a full disk looks like to a writer.

    Around the call only: the limit is the whole process's, and pytest's own output may be a file.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.refused
def test_a_root_that_is_no_folder_is_a_users_error(repo, fresh, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="choose another place with --root"):
        provenance.keep(repo, tmp_path / "file" / "study")


def test_a_record_from_before_these_fields_can_be_read():
    document = '{"git_sha": null, "git_dirty": null, "command": ["runner"], "version": "0.1.0"}'
    assert Provenance.model_validate_json(document).code is None
