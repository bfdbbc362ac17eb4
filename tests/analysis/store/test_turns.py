"""Two collects at once: neither loses what the other has put into the database."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from analysis.store import database as store
from analysis.store import steps
from analysis.store.collect import collect
from tests.analysis.conftest import Ask
from tests.analysis.fabricate import completed
from tests.conftest import PATIENCE_SECONDS, until

pytestmark = pytest.mark.fault
BOTH = [{"study": "one"}, {"study": "two"}]


@pytest.fixture(autouse=True)
def _messages(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("analysis"), "propagate", True)
    caplog.set_level(logging.INFO)


def before_loading(monkeypatch: pytest.MonkeyPatch, action: Any) -> None:
    """Do something in the middle of the next collect, once."""
    load = steps.load

    def load_once(*arguments: Any) -> None:
        monkeypatch.setattr(steps, "load", load)
        action()
        load(*arguments)

    monkeypatch.setattr(steps, "load", load_once)


def started(root: Path) -> None:
    """A database that knows neither study."""
    completed(root, "r0", study="zero")
    collect(root)
    completed(root, "r1", study="one")
    completed(root, "r1", study="two")


def test_a_second_collect_waits_for_the_first_and_starts_from_its_result(
    root: Path, sql: Ask, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started(root)
    other = threading.Thread(target=collect, args=(root, "two"))

    def meanwhile() -> None:
        other.start()
        until(lambda: "waiting for another collect" in caplog.text, pause_seconds=0.02)

    before_loading(monkeypatch, meanwhile)
    collect(root, "one")
    other.join(PATIENCE_SECONDS)
    assert "waiting for another collect" in caplog.text
    assert sql("SELECT study FROM runs WHERE study <> 'zero' ORDER BY 1") == BOTH


def test_where_locks_do_not_reach_a_collect_that_was_overtaken_starts_over(
    root: Path, sql: Ask, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a Lustre mounted with localflock: each of two nodes gets the lock."""
    started(root)
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    before_loading(monkeypatch, lambda: collect(root, "two"))
    assert collect(root, "one").runs == 1
    assert "starting over from its result" in caplog.text
    assert sql("SELECT study FROM runs WHERE study <> 'zero' ORDER BY 1") == BOTH


def test_the_first_two_collects_of_a_root_may_overlap_too(
    root: Path, sql: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    completed(root, "r1", study="one")
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)

    def meanwhile() -> None:
        completed(root, "r1", study="two")
        collect(root)

    before_loading(monkeypatch, meanwhile)
    collect(root)
    assert sql("SELECT study FROM runs ORDER BY 1") == BOTH


def test_a_filesystem_without_locks_is_named_and_no_obstacle(
    root: Path, sql: Ask, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    completed(root, "r1")

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert collect(root).runs == 1
    assert "no file locks (No locks available)" in caplog.text


def test_a_lock_that_another_member_of_the_group_made_is_taken_all_the_same(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    completed(root, "r1")
    collect(root)
    open_file = os.open

    def refuse(path: Any, flags: int, *positional: Any, **options: Any) -> int:
        if Path(path).name == store.LOCK and flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "Permission denied")
        return open_file(path, flags, *positional, **options)

    monkeypatch.setattr(os, "open", refuse)
    assert collect(root).runs == 1
    assert caplog.text == ""
