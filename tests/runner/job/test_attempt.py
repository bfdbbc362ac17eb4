"""A job trains on the data that its run was planned with, or not at all."""

import time
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model.disk.folder import RunFolder
from model.errors import Interrupted, UserError
from model.text import Source
from runner.job import attempt
from runner.job.attempt import _ending
from runner.job.manifest import first_manifest
from runner.job.stop import Stop
from runner.state.endings import Terminated
from tests.analysis.fabricate import plan


@pytest.mark.fault
@pytest.mark.parametrize("known", [True, False], ids=["recorded content", "no recorded content"])
def test_a_word_that_changes_after_planning_ends_the_job_before_a_backend_is_certified(
    tmp_path, monkeypatch, known
):
    file = tmp_path / "t.parquet"
    pq.write_table(pa.table({"text": [f"document {i}" for i in range(30)]}), file, compression="none")
    source = Source(file).checked("text")
    recorded = {"data_file": str(file), "tokenizer": "bytes", "data_fingerprint": source.fingerprint()}
    run = plan("x").model_copy(update=recorded | {"data_content": source.content if known else None})
    monkeypatch.setattr(attempt, "with_device", lambda *_: pytest.fail("it went on"))
    monkeypatch.setattr(attempt, "_certificate", lambda *_: pytest.fail("it was certified"))
    file.write_bytes(file.read_bytes().replace(b"document 17", b"dokument 17"))
    with pytest.raises(UserError, match="has changed since this run was planned"):
        attempt._train(run, None, None, None)


@pytest.mark.fault
@pytest.mark.parametrize("error", [Interrupted(7), Terminated()])
@pytest.mark.parametrize(("left", "outcome"), [(-1.0, "timeout"), (60.0, "cancelled"), (None, "cancelled")])
def test_a_run_that_hangs_until_slurm_signals_it_at_its_limit_was_not_cancelled(error, left, outcome):
    end = None if left is None else time.monotonic() + left
    assert _ending(error, Stop(None, cause="signal"), end).outcome == outcome


@pytest.mark.fault
def test_a_file_that_is_replaced_while_a_backend_is_certified_is_not_trained_on(tmp_path, monkeypatch):
    file = tmp_path / "t.parquet"
    pq.write_table(pa.table({"text": ["before"]}), file)
    source = Source(file).checked("text")
    recorded = {"data_file": str(file), "tokenizer": "bytes", "data_fingerprint": source.fingerprint()}
    config = plan("x").config.model_copy(update={"device": "cpu"})
    run = plan("x").model_copy(update=recorded | {"config": config, "data_content": source.content})

    def certified(*_):
        pq.write_table(pa.table({"text": ["meanwhile"]}), file)
        return "key"

    monkeypatch.setattr(attempt, "with_device", lambda manifest, *_: manifest)
    monkeypatch.setattr(attempt, "_certificate", certified)
    monkeypatch.setattr("runner.job.ceilings.known", lambda *_: SimpleNamespace())
    monkeypatch.setattr("model.trainer.train", lambda *_: pytest.fail("it trained"))
    folder = RunFolder(tmp_path)
    (tmp_path / "attempt-1").mkdir()
    progress = attempt.Progress(first_manifest("x", 1))
    with pytest.raises(UserError, match="has changed since this run was planned"):
        attempt._train(run, folder, progress, SimpleNamespace(requested=lambda: False))
