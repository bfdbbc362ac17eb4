"""`runner verify` says in each certificate which commit of the code it is of."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

import model
from model import attention
from model.attention.verify import cases
from model.attention.verify.certificate import Certificate, describe
from model.record import backends
from model.record.errors import UserError
from runner.cli.app import app
from runner.commands import verify
from runner.job.trial import Crashed, TooLong, Trial
from tests.analysis.fabricate import certificate


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    process = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return process.stdout.strip()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout that the package `model` seems to lie in."""
    folder = tmp_path / "checkout" / "model"
    folder.mkdir(parents=True)
    (folder / "code.py").write_text("")
    git(folder.parent, "init", "-q")
    git(folder.parent, "add", ".")
    git(folder.parent, "commit", "-qm", "one")
    monkeypatch.setattr(model, "__path__", [str(folder)])
    return folder


def test_the_commit_is_that_of_the_code_not_of_the_folder_it_is_called_in(package: Path) -> None:
    assert verify.checkout() == {"git_sha": git(package, "rev-parse", "HEAD"), "git_dirty": False}
    (package / "code.py").write_text("changed")
    assert verify.checkout() == {"git_sha": git(package, "rev-parse", "HEAD"), "git_dirty": True}


def test_outside_of_a_repository_the_commit_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site" / "model").mkdir(parents=True)
    monkeypatch.setattr(model, "__path__", [str(tmp_path / "site" / "model")])
    assert verify.checkout() == {"git_sha": None, "git_dirty": None}


@pytest.mark.parametrize("crashed", [False, True])
def test_every_certificate_is_stamped_also_that_of_a_backend_that_crashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crashed: bool
) -> None:
    bare = certificate(tmp_path, "flash", case=None)
    assert bare.git_sha is None
    certificates: list[Certificate] = []
    monkeypatch.setattr(verify, "checkout", lambda: {"git_sha": "a" * 40, "git_dirty": True})
    monkeypatch.setattr(verify, "run_trials", lambda *_: [RuntimeError("it crashed") if crashed else bare])
    monkeypatch.setattr("model.training.certify.without_trial", lambda *_: bare)
    monkeypatch.setattr(verify.admission, "keep", lambda answer, _: certificates.append(answer))
    (stamped,) = verify.verify(["flash"], "cpu", tmp_path)
    assert certificates == [stamped]
    assert (stamped.git_sha, stamped.git_dirty) == ("a" * 40, True)


def test_the_table_says_who_takes_parts_of_sequences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stamped = certificate(tmp_path, "flash", case=None)
    check = stamped.checks[0]
    answers = {
        "yes": [describe(entry.case) for entry in cases.covering("cuda", compiled=True)],
        "no": [
            describe(entry.case) for entry in cases.covering("cuda", compiled=True) if not entry.case.offset
        ],
        "": [],
    }
    for answer, shapes in answers.items():
        checks = [check.model_copy(update={"case": shape}) for shape in shapes]
        verify.show([stamped.model_copy(update={"checks": checks, "kernels": {}})])
        heads, row = capsys.readouterr().out.splitlines()
        assert row[heads.index("parallel.context") :].strip() == answer


@pytest.mark.fault
def test_a_backend_that_cannot_be_loaded_is_told_and_the_others_are_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str) -> None:
        if name == "broken":
            raise UserError("'broken' cannot be imported")

    monkeypatch.setattr(backends, "names", lambda: ("broken", "flash"))
    monkeypatch.setattr(attention, "load", load)
    requests: list[list[str]] = []
    monkeypatch.setattr(verify, "verify", lambda names, *_: requests.append(list(names)) or [])
    answer = CliRunner().invoke(app, ["--root", str(tmp_path), "verify", "--device", "cpu"])
    assert (answer.exit_code, requests) == (1, [["flash"]])
    assert "'broken' cannot be imported" in answer.stderr


@pytest.mark.fault
@pytest.mark.parametrize(
    "answer",
    [TooLong(Trial("flash")), MemoryError("no room"), Crashed(Trial("flash"), -9)],
    ids=["time", "memory", "the OOM killer"],
)
def test_a_trial_that_lacks_time_or_memory_says_nothing_about_its_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verify, "run_trials", lambda *_: [answer])
    assert verify.verify(["flash"], "cpu", tmp_path) == []
    assert "flash: no verdict: " in capsys.readouterr().err
