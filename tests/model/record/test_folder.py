"""An attempt is put together in one place: what was noted about it counts from its last claim on."""

import pytest

from model.record.files import Unreadable, append, write
from model.record.folder import Attempt, RunFolder, run_folders
from model.record.outcome import Outcome
from model.record.records import LedgerEvent, Result, now
from tests.analysis.fabricate import plan


@pytest.fixture
def note(tmp_path):
    """Writes a line about attempt 1 and returns its time."""

    def line(event, **facts):
        ledger_event = LedgerEvent(time=now(), event=event, attempt=1, **facts)
        append(tmp_path / "ledger.jsonl", ledger_event)
        return ledger_event.time

    return line


@pytest.fixture
def attempt(tmp_path):
    return lambda: RunFolder(tmp_path).attempt(1)


@pytest.mark.parametrize("suffix", ["", ".rehearsal", ".reproduced", ".rehearsal.reproduced"])
def test_the_runs_of_a_study_with_the_longest_name_are_found(tmp_path, suffix):
    run = tmp_path / ("n" * 100 + suffix) / "r1"
    run.mkdir(parents=True)
    assert [folder.path for folder in run_folders(tmp_path)] == [run]


def test_a_released_claim_is_no_claim_and_a_new_one_counts_alone(note, attempt):
    note("claimed", executor="local")
    note("submitted", executor="slurm", job_id="7")
    note("released")
    first_attempt = attempt()
    assert first_attempt.released
    assert (first_attempt.events, first_attempt.job_id, first_attempt.executor, first_attempt.settled) == (
        (),
        None,
        None,
        None,
    )
    claimed_at = note("claimed", executor="local")
    first_attempt = attempt()
    assert not first_attempt.released
    assert first_attempt.event("claimed").time == claimed_at
    assert (first_attempt.job_id, first_attempt.executor) == (None, "local")
    assert len(first_attempt.noted) == 4


def test_outcome_and_end_come_from_the_same_line(note, attempt):
    note("claimed", executor="local")
    note("ended", outcome=Outcome.LOST, reason="first")
    ended_at = note("ended", outcome=Outcome.FAILED, reason="last")
    note("ended")
    first_attempt = attempt()
    assert first_attempt.settled == (Outcome.FAILED, "last")
    assert first_attempt.ended_at == ended_at


def test_lines_about_other_attempts_are_not_its_own(note, tmp_path):
    note("claimed", executor="local")
    assert Attempt(RunFolder(tmp_path), 2).noted == ()


def test_records_can_stand_in_for_files(tmp_path, attempt):
    (tmp_path / "attempt-1").mkdir()
    moment = now()
    write(
        tmp_path / "attempt-1" / "result.json",
        Result(
            run_id="r", attempt=1, outcome=Outcome.COMPLETED, reason=None, steps=1, final_loss=1.0,
            peak_memory_bytes=1, started_at=moment, ended_at=moment, wall_seconds=0.0,
        ),
    )  # fmt: skip
    first_attempt = attempt()
    assert first_attempt.settled == (Outcome.COMPLETED, None)
    assert first_attempt.holding(None, None).settled is None
    assert first_attempt.settled == (Outcome.COMPLETED, None)


def test_attempts_are_those_that_have_a_folder_in_the_order_of_their_numbers(tmp_path):
    for name in ("attempt-10", "attempt-2", "attempt-x", "other"):
        (tmp_path / name).mkdir()
    assert [attempt.number for attempt in RunFolder(tmp_path).attempts()] == [2, 10]


@pytest.mark.refused
def test_a_plan_of_another_version_says_what_to_do(tmp_path):
    record = plan("r1", study="tiny")
    folder = RunFolder(tmp_path / "tiny" / "r1")
    folder.path.mkdir(parents=True)
    file = folder.path / "run.json"
    write(file, record)
    assert folder.run == record
    file.write_text(file.read_text().replace('"chain"', '"requeue"'))
    with pytest.raises(
        Unreadable, match="/tiny/r1/run.json: unknown key 'requeue': another version of assay "
    ) as error:
        _ = folder.run
    assert "CHANGELOG.md says how" in str(error.value) and "anew with another --root" in str(error.value)
    file.write_text("{}")
    with pytest.raises(Unreadable, match="run.json: run_id: Field required"):
        _ = folder.run
