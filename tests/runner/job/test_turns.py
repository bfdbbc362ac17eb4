"""Runs of an array that start together: one makes the certificate, the others wait for it."""

import os
import subprocess
import sys
from datetime import datetime
from threading import Barrier, Thread

import pytest

from model.attention.verify.certificate import Certificate
from runner.job import admission
from runner.job.trial import Trial
from runner.job.turns import turn
from tests.conftest import CERTIFICATES, environment, until
from tests.model.attention.verify.planted import CASE

KEY = "k" * 64


def certificate(verdict: str = "right", key: str = KEY) -> Certificate:
    return Certificate(
        backend="math", verdict=verdict, reasons=[], device="cpu", device_name="CPU", software={}, code="0",
        case=CASE, key=key, kernels={}, checks=[], seconds=1.0, created_at=datetime.now().astimezone(),
    )  # fmt: skip


@pytest.fixture
def trials(monkeypatch, tmp_path):
    """Counts trials, each of which ends as told, with one key and a cache of the test's own."""

    def hold(trials, _device, _options):
        hold.held.append(trials[0])
        until(lambda: hold.may_end, 0.01)
        yield hold.answer

    hold.held, hold.may_end, hold.answer = [], True, certificate()
    monkeypatch.setattr(admission, "run_trials", hold)
    monkeypatch.setattr(admission, "key_of", lambda *_: KEY)
    monkeypatch.setenv("RUNNER_CERTIFICATES", str(tmp_path / "cache"))
    return hold


def admitted_together(trials, root, count):
    """What runs that start together get, and what those that wait are told."""
    trials.may_end, barrier, answers, stages = False, Barrier(count), [], []

    def run():
        barrier.wait()
        try:
            answers.append(admission.admit("math", CASE, root, (), stages.append))
        except MemoryError as error:
            answers.append(error)

    threads = [Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    until(lambda: len(stages) == count - 1, 0.01)
    trials.may_end = True
    for thread in threads:
        thread.join()
    return answers, stages


def test_runs_that_start_together_make_one_certificate(trials, root) -> None:
    answers, stages = admitted_together(trials, root, 4)
    assert len(trials.held) == 1 and [answer.verdict for answer in answers] == ["right"] * 4
    assert {str(stage) for stage in stages} == {
        "certifying math: waiting for another run to make its certificate"
    }
    assert [path.suffix for path in (root / ".certificates").iterdir()] == [".json"]


@pytest.mark.fault
def test_runs_whose_maker_ran_out_of_memory_do_not_queue_for_the_same(trials, root) -> None:
    trials.answer = MemoryError("64 GiB")
    answers, _ = admitted_together(trials, root, 3)
    assert len(trials.held) == 3 and all(isinstance(answer, MemoryError) for answer in answers)


@pytest.mark.fault
def test_the_turn_of_a_maker_that_died_passes_on(tmp_path) -> None:
    path = tmp_path / "key.lock"
    code = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-S", "-c", code, str(path)], stdout=subprocess.PIPE) as maker:
        maker.stdout.readline()
        with turn(path, 60.0, maker.kill) as place:
            assert place and place.waited and not place.in_vain


@pytest.mark.fault
def test_a_maker_that_hangs_is_not_waited_for_without_end(tmp_path) -> None:
    path = tmp_path / "key.lock"
    with turn(path, 60.0, lambda: None) as first, turn(path, 0.0, lambda: None) as second:
        assert first and second is None


@pytest.mark.fault
def test_without_a_place_for_locks_each_run_makes_its_own(tmp_path) -> None:
    (tmp_path / "file").touch()
    with turn(tmp_path / "file" / "key.lock", 60.0, lambda: None) as place:
        assert place is None


# --------------------------------------------------------------------------------------------- the cache


def test_another_root_uses_the_certificate_of_this_machine(trials, tmp_path) -> None:
    for name in ("one", "two"):
        assert admission.admit("math", CASE, tmp_path / name, ()).verdict == "right"
        assert (tmp_path / name / ".certificates" / f"{KEY}.json").exists()
    assert len(trials.held) == 1


@pytest.mark.refused
def test_a_wrong_backend_is_tried_again_in_another_root(trials, tmp_path) -> None:
    trials.answer = certificate("wrong").model_copy(update={"reasons": ["right: o is off"]})
    for name in ("one", "two"):
        with pytest.raises(admission.BackendRefused, match=f"{name}/.certificates"):
            admission.admit("math", CASE, tmp_path / name, ())
    assert len(trials.held) == 2


@pytest.mark.fault
def test_a_cache_that_cannot_be_written_loses_nothing(trials, root, monkeypatch, tmp_path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RUNNER_CERTIFICATES", str(tmp_path / "file" / "cache"))
    assert admission.admit("math", CASE, root, ()).verdict == "right"


@pytest.mark.fault
def test_a_certificate_under_another_key_proves_nothing(trials, root) -> None:
    admission.keep(certificate(key="other"), root)
    (root / ".certificates" / "other.json").rename(root / ".certificates" / f"{KEY}.json")
    admission.admit("math", CASE, root, ())
    assert trials.held == [Trial("math", CASE)]


def test_the_cache_is_where_the_user_keeps_caches(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("RUNNER_CERTIFICATES")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert admission.cache() == tmp_path / "assay" / "certificates"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert admission.cache() == tmp_path / ".cache" / "assay" / "certificates"


def test_nothing_that_a_test_does_reaches_the_users_own_cache() -> None:
    assert os.environ["RUNNER_CERTIFICATES"] == environment()["RUNNER_CERTIFICATES"] == CERTIFICATES


@pytest.mark.fault
def test_a_lock_that_is_a_link_to_another_file_does_not_empty_it(tmp_path):
    (file := tmp_path / "mine").write_text("mine")
    (tmp_path / "lock").symlink_to(file)
    with turn(tmp_path / "lock", 0.1, lambda: None) as place:
        assert place is None
    assert file.read_text() == "mine"


@pytest.mark.fault
@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file to another user needs root")
def test_a_certificate_of_another_user_of_the_root_is_not_believed(tmp_path, trials, monkeypatch):
    admission.keep(certificate(), tmp_path)
    file = tmp_path / admission.FOLDER / f"{KEY}.json"
    monkeypatch.setenv("RUNNER_CERTIFICATES", str(tmp_path / "empty"))
    os.chown(file, 54322, 54300)
    admission.admit("math", CASE, tmp_path, ())
    assert len(trials.held) == 1
    assert file.stat().st_uid == 0


@pytest.mark.fault
def test_a_root_whose_certificates_belong_to_another_user_can_be_used(tmp_path, trials, monkeypatch, caplog):
    def denied(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(admission, "write", denied)
    assert admission.admit("math", CASE, tmp_path, ()).verdict == "right"
    assert "the database will not show this certificate" in caplog.text
