"""What is on disk survives crashes and says what is wrong with it."""

import errno
import json
import os
from contextlib import nullcontext
from pathlib import Path

import pytest
from pydantic import ValidationError

from model.record.files import Unreadable, append, dumps, read, read_lines, temporary, write
from model.record.folder import settle
from model.record.outcome import Outcome
from model.record.records import LedgerEvent, Result, StepRecord, finite, now


def step(number=1):
    return StepRecord(
        step=number, steps=1, time=now(), loss=1.5, learning_rate=0.1, grad_norm=1.0, step_seconds=0.5, tokens=8,
        training_tokens=8, memory_bytes=1,
    )  # fmt: skip


def result(outcome, reason=None):
    return Result(
        run_id="r", attempt=1, outcome=outcome, reason=reason, steps=1, final_loss=1.0, peak_memory_bytes=1,
        started_at=now(), ended_at=now(), wall_seconds=0.0,
    )  # fmt: skip


def ended(outcome, reason="said"):
    return LedgerEvent(time=now(), event="ended", attempt=1, outcome=outcome, reason=reason)


def test_a_line_of_the_ledger_that_a_later_version_wrote_can_be_read():
    newer_event = json.loads(ended(Outcome.FAILED).model_dump_json()) | {"color": "green"}
    assert LedgerEvent.model_validate_json(json.dumps(newer_event)).outcome == "failed"
    with pytest.raises(ValidationError):
        LedgerEvent.model_validate_json(json.dumps(newer_event | {"schema_version": 2}))


def test_a_whole_record_is_read_back_as_written_and_leaves_no_temporary_file(tmp_path):
    write(tmp_path / "result.json", result(Outcome.COMPLETED))
    assert read(tmp_path / "result.json", Result).outcome is Outcome.COMPLETED
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.fault
def test_a_record_and_its_name_are_on_disk_when_it_is_written(tmp_path, monkeypatch):
    """A power failure after a result was written must not lose the file's name, which is in the folder."""
    calls = []
    replace = Path.replace
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: calls.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    )
    monkeypatch.setattr(Path, "replace", lambda *paths: calls.append("rename") or replace(*paths))
    write(tmp_path / "result.json", result(Outcome.COMPLETED))
    assert calls == [str(temporary(tmp_path / "result.json")), "rename", str(tmp_path)]


@pytest.mark.fault
@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO])
def test_only_a_filesystem_that_cannot_sync_folders_is_excused(tmp_path, monkeypatch, code):
    def fsync(descriptor):
        if Path(f"/proc/self/fd/{descriptor}").is_dir():
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fsync)
    with nullcontext() if code == errno.EINVAL else pytest.raises(OSError, match="Input/output"):
        write(tmp_path / "result.json", result(Outcome.COMPLETED))


def test_hosts_that_share_a_filesystem_use_other_temporary_names(tmp_path, monkeypatch):
    own_path = temporary(tmp_path / "x")
    other_host = os.uname_result(("Linux", "another.host", "", "", ""))
    monkeypatch.setattr(os, "uname", lambda: other_host)
    assert temporary(tmp_path / "x") != own_path


@pytest.mark.fault
def test_nothing_is_written_through_a_link_that_another_user_put_into_a_shared_folder(tmp_path):
    (target := tmp_path / "mine").write_text("mine")
    path = tmp_path / "result.json"
    temporary(path).symlink_to(target)
    write(path, result(Outcome.COMPLETED))
    assert not path.is_symlink()
    (tmp_path / "steps.jsonl").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        append(tmp_path / "steps.jsonl", step())
    assert target.read_text() == "mine"


@pytest.mark.fault
def test_lines_are_read_back_and_a_torn_last_one_is_left_out(tmp_path):
    path = tmp_path / "steps.jsonl"
    assert read_lines(path, StepRecord) == []
    for number in (1, 2, 3):
        append(path, step(number))
    path.write_bytes(path.read_bytes()[:-20])
    assert [record.step for record in read_lines(path, StepRecord)] == [1, 2]


@pytest.mark.fault
def test_lines_after_a_torn_one_are_read_and_the_torn_one_is_given_up(tmp_path):
    path = tmp_path / "ledger.jsonl"
    for number in (1, 2, 3):
        append(path, step(number))
        path.write_bytes(path.read_bytes()[:-20] if number == 2 else path.read_bytes())
    append(path, step(4))
    assert [record.step for record in read_lines(path, StepRecord)] == [1, 3, 4]
    path.write_bytes(path.read_bytes().replace(b"\n\n", b"\n"))
    with pytest.raises(Unreadable):
        read_lines(path, StepRecord)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b'{"schema_version": 2}'])
@pytest.mark.fault
def test_a_broken_record_is_named(tmp_path, content):
    (tmp_path / "result.json").write_bytes(content)
    with pytest.raises(Unreadable, match=r"result\.json"):
        read(tmp_path / "result.json", Result)


@pytest.mark.fault
def test_a_broken_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "steps.jsonl"
    append(path, step())
    path.write_bytes(path.read_bytes() + b"garbage\n")
    append(path, step(2))
    with pytest.raises(Unreadable, match=r"steps\.jsonl"):
        read_lines(path, StepRecord)


@pytest.mark.parametrize(
    ("own_result", "events", "outcome"),
    [
        (None, [], None),
        (result(Outcome.COMPLETED), [], "completed"),
        (result(Outcome.COMPLETED), [ended(Outcome.FAILED)], "completed"),
        (None, [ended(Outcome.FAILED)], "failed"),
        (result(Outcome.CANCELLED), [], "cancelled"),
        (result(Outcome.CANCELLED), [ended(Outcome.PREEMPTED)], "preempted"),
        (result(Outcome.OOM_HOST), [ended(Outcome.CANCELLED)], "oom_host"),
    ],
)
def test_an_attempt_is_settled_by_its_own_word_and_by_who_stopped_it(own_result, events, outcome):
    settled = settle(own_result, events)
    assert (settled and settled[0].value) == outcome


def test_canonical_text_is_equal_for_equal_values():
    assert dumps({"b": 1, "a": [1.0, "é"]}) == dumps({"a": [1.0, "é"], "b": 1}) == '{"a":[1.0,"é"],"b":1}'
    with pytest.raises(ValueError, match="Out of range"):
        dumps(float("nan"))


def test_numbers_that_json_cannot_hold_become_null():
    assert [finite(x) for x in (1.0, float("nan"), float("inf"))] == [1.0, None, None]
    line = step().model_copy(update={"loss": finite(float("nan"))}).model_dump_json()
    assert json.loads(line)["loss"] is None
