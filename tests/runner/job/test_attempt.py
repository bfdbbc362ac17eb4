"""A job trains on the data that its run was planned with, and as long as its audits pass, or not at all."""

import re
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model import attention
from model.measure.hostmemory import Limit
from model.record.errors import Interrupted, UserError
from model.record.files import write
from model.record.folder import RunFolder
from model.record.outcome import Outcome
from model.record.text import Source
from model.training import audit
from model.training.checkpoint import inspect
from runner.job import attempt, slurm
from runner.job.attempt import Conclusion, ending_of
from runner.job.manifest import first_manifest, resumption
from runner.job.stop import Stop
from runner.job.tasks import Progress
from runner.state.endings import UNWRITTEN, Ending, Terminated
from tests.analysis.fabricate import Folder, plan
from tests.model.conftest import run_config

UNLIMITED = Limit(None, "nobody")


@pytest.mark.fault
@pytest.mark.parametrize("hashed", [True, False], ids=["recorded content", "no recorded content"])
def test_a_word_that_changes_after_planning_ends_the_job_before_a_backend_is_certified(
    tmp_path, monkeypatch, hashed
):
    file = tmp_path / "t.parquet"
    pq.write_table(pa.table({"text": [f"document {i}" for i in range(30)]}), file, compression="none")
    source = Source(file).checked("text")
    recorded = {"data_file": str(file), "tokenizer": "bytes", "data_fingerprint": source.fingerprint()}
    run = plan("x").model_copy(update=recorded | {"data_content": source.content if hashed else None})
    monkeypatch.setattr(attempt, "device_facts", lambda *_: pytest.fail("it went on"))
    monkeypatch.setattr(attempt, "require_certificate", lambda *_: pytest.fail("it was certified"))
    file.write_bytes(file.read_bytes().replace(b"document 17", b"dokument 17"))
    with pytest.raises(UserError, match="has changed since this run was planned"):
        attempt.do_task(run, None, None, None, None, UNLIMITED)


@pytest.mark.fault
@pytest.mark.parametrize("error", [Interrupted(7), Terminated()])
@pytest.mark.parametrize(
    ("seconds", "outcome"), [(-1.0, "timeout"), (60.0, "cancelled"), (None, "cancelled")]
)
def test_a_run_that_hangs_until_slurm_signals_it_at_its_limit_was_not_cancelled(error, seconds, outcome):
    end = None if seconds is None else time.monotonic() + seconds
    assert ending_of(error, Stop(None, cause="signal"), end).outcome == outcome


@pytest.mark.fault
def test_a_file_that_is_replaced_while_a_backend_is_certified_is_not_trained_on(tmp_path, monkeypatch):
    file = tmp_path / "t.parquet"
    pq.write_table(pa.table({"text": ["before"]}), file)
    source = Source(file).checked("text")
    recorded = {"data_file": str(file), "tokenizer": "bytes", "data_fingerprint": source.fingerprint()}
    config = run_config()
    run = plan("x").model_copy(update=recorded | {"config": config, "data_content": source.content})

    def certified(*_):
        pq.write_table(pa.table({"text": ["meanwhile"]}), file)
        return "key"

    monkeypatch.setattr(attempt, "device_facts", lambda *_: {})
    monkeypatch.setattr(attempt, "require_certificate", certified)
    monkeypatch.setattr("runner.job.ceilings.known_ceilings", lambda *_: SimpleNamespace())
    monkeypatch.setattr("model.training.trainer.train", lambda *_: pytest.fail("it trained"))
    folder = RunFolder(tmp_path)
    (tmp_path / "attempt-1").mkdir()
    progress = Progress(first_manifest("x", 1))
    with pytest.raises(UserError, match="has changed since this run was planned"):
        attempt.do_task(run, folder, progress, SimpleNamespace(requested=lambda: False), None, UNLIMITED)


def small(tmp_path, corpus, **train):
    """The folder of a run that trains in a second on a CPU."""
    source = Source(corpus).checked("text")
    recorded = {"data_file": str(corpus), "tokenizer": "bytes", "data_fingerprint": source.fingerprint()}
    config = run_config("math", **train)
    run = plan("x").model_copy(update=recorded | {"config": config, "checkpoint_seconds": 0.0})
    folder = tmp_path / "backends" / "x"
    folder.mkdir(parents=True)
    write(folder / "run.json", run)
    return RunFolder(folder)


def goes_wrong_after(calls):
    tally, math = [], attention.load("math")

    def attend(q, k, v, causal):
        tally.append(1)
        o = math.attend(q, k, v, causal)
        return o if len(tally) <= calls else o * 1.01

    return replace(math, attend=attend)


@pytest.fixture
def attempted(monkeypatch, ceilings_here):
    """Runs an attempt in this process with a backend that no trial has seen, and returns its folder."""

    def run(folder, number, backend):
        monkeypatch.setattr(attempt, "require_certificate", lambda *_: "key")
        monkeypatch.setattr(attention, "require", lambda *_: backend)
        monkeypatch.setattr(Stop, "listen", lambda _: None)
        monkeypatch.setattr(audit, "every", lambda _: 10)
        folder.attempt(number).path.mkdir()
        attempt.run_attempt(folder, number)
        return folder.attempt(number)

    return run


def test_reading_a_text_maps_little_of_the_memory_that_a_run_may_map(
    tmp_path, corpus, attempted, monkeypatch
):
    """pyarrow's own pool would map 1 GiB at its first allocation, which a busy machine takes for use."""
    monkeypatch.delenv("ARROW_DEFAULT_MEMORY_POOL", raising=False)
    attempted(small(tmp_path, corpus), 1, attention.load("math"))
    read = (
        "import pyarrow.parquet as pq, re, pathlib\n"
        "mapped = lambda: int(re.search(r'VmData:\\s+(\\d+)', pathlib.Path('/proc/self/status').read_text())[1])\n"
        f"before = mapped(); pq.ParquetFile({str(corpus)!r}).read(); print((mapped() - before) // 1024)"
    )
    process = subprocess.run([sys.executable, "-c", read], check=True, capture_output=True, text=True)
    assert int(process.stdout) < 300  # MiB, most of them stacks of its threads


@pytest.mark.fault
def test_a_failed_audit_ends_the_attempt_with_its_numbers_and_no_checkpoint_up_to_it_is_used(
    tmp_path, corpus, attempted
):
    folder = small(tmp_path, corpus, steps=40, log_every=1)
    first = attempted(folder, 1, goes_wrong_after(2 * 15))
    outcome, reason = first.settled
    assert outcome == "failed"
    assert [entry.passed for entry in first.audits] == [True] * (len(first.audits) - 1) + [False]
    last = first.audits[-1]
    assert reason == f"attention is wrong in {last.where}: {last.reason}"
    assert re.search(r"step \d+, layer \d, sample \d, heads \d to \d, rows 0 to 31: o is off by", reason)
    assert 15 < last.step <= 30
    assert inspect(first.path / "checkpoint") == last.step - 1  # it is whole, and must not be used
    second = attempted(folder, 2, attention.load("math"))
    assert second.settled[0] == "completed"
    assert second.manifest.resumed_attempt is None
    assert second.manifest.not_resumed == f"attempt 1 failed its audit of step {last.step}"
    assert [entry.step for entry in second.audits if entry.step <= last.step] == [
        entry.step for entry in first.audits
    ]
    assert all(entry.passed for entry in second.audits)


@pytest.mark.fault
def test_no_other_run_gets_the_gpu_while_the_step_is_profiled(tmp_path, corpus, attempted, monkeypatch):
    uuid, hold, refused = f"GPU-{uuid4()}", attempt.process.hold_gpu, []

    def profiled(*_):
        with pytest.raises(UserError, match="in use by another run"):
            hold(uuid)
        refused.append(uuid)

    monkeypatch.setattr(attempt.process, "hold_gpu", lambda _none: hold(uuid))
    monkeypatch.setattr("runner.job.tasks.training.profile_steps", profiled)
    assert attempted(small(tmp_path, corpus), 1, attention.load("math")).settled[0] == "completed"
    assert refused == [uuid]
    with hold(uuid):  # free again
        pass


def test_a_checkpoint_is_used_only_if_no_audit_of_its_attempt_failed(tmp_path, corpus, attempted):
    folder = small(tmp_path, corpus, steps=30)
    first = attempted(folder, 1, attention.load("math"))
    folder.attempt(2).path.mkdir()
    (folder.attempt(2).path / "checkpoint").symlink_to(first.path / "checkpoint")
    lines = (first.path / "audits.jsonl").read_text().splitlines(keepends=True)
    failed = lines[-1].replace('"passed":true', '"passed":false')
    for label, content, usable in (
        ("passed", lines, True),
        ("none", [], True),
        ("failed", [*lines[:-1], failed], False),
        ("torn", [*lines, failed[:40]], True),
        ("damaged", [failed[:40] + "\n", *lines], False),
        ("failed earlier", [failed, *lines], False),
    ):
        (first.path / "audits.jsonl").write_text("".join(content))
        resumed = resumption(folder, 2)
        assert resumed.get("resumed_attempt") == (1 if usable else None), label
        assert ("not_resumed" not in resumed) == usable, label
        assert resumption(folder, 3)["resumed_attempt"] == 2, f"{label}: the run has started over"


@pytest.mark.parametrize(("own", "peak"), [(5, 7), (9, 9)])
def test_a_result_has_the_peak_of_the_process_that_needs_most(tmp_path, monkeypatch, own, peak):
    """Records say it of all processes; the one that writes the result knows its own alone."""
    progress = Progress(first_manifest("r1", 1), memory_bytes=7)
    monkeypatch.setattr(attempt.machine, "peak_memory_bytes", lambda _device: own)
    folder = RunFolder(tmp_path)
    folder.attempt(1).path.mkdir()
    Conclusion(folder, plan("r1"), progress, Stop(None), None, UNLIMITED).record(Ending(Outcome.COMPLETED))
    assert folder.attempt(1).result.peak_memory_bytes == peak


def test_a_run_that_cannot_write_its_result_says_what_it_is(tmp_path, monkeypatch, capsys):
    """Else nobody learns that it was another process that failed."""

    def leave(code):
        raise SystemExit(code)

    monkeypatch.setattr("os._exit", leave)
    killed = Ending(Outcome.FAILED, "rank 1 on n1: killed by SIGKILL")
    folder, progress = RunFolder(tmp_path / "gone"), Progress(first_manifest("r1", 1))
    conclusion = Conclusion(folder, plan("r1"), progress, Stop(None), None, UNLIMITED)
    with pytest.raises(SystemExit) as stopped:
        conclusion.record(killed)
    assert stopped.value.code == UNWRITTEN
    assert capsys.readouterr().err == (
        "could not write the result (No such file or directory), which is failed: rank 1 on n1: killed by SIGKILL\n"
    )


@pytest.mark.fault
@pytest.mark.parametrize(
    ("outcome", "earlier", "steps", "goes_on"),
    [
        ("node_failed", None, 0, True),
        ("node_failed", "node_failed before a step", 0, False),
        ("node_failed", "node_failed before a step", 1, True),
        ("node_failed", "node_failed", 0, True),
        ("node_failed", "cancelled", 0, True),
        ("preempted", None, 0, True),
        ("preempted", "preempted before a step", 0, False),
        ("failed", None, 1, False),
        ("timeout", None, 1, True),
        ("timeout", None, 0, False),
    ],
)
def test_a_run_goes_back_into_the_queue_unless_it_would_start_over_again_and_again(
    root, monkeypatch, outcome, earlier, steps, goes_on
):
    monkeypatch.setenv("ASSAY_REQUEUE", "yes")
    folder, number = Folder(root, plan("r1")), 2 if earlier else 1
    if earlier:
        folder.start()
        folder.event("ended", outcome=earlier.partition(" ")[0])
        if earlier in ("node_failed", "cancelled"):
            folder.step(1)
    progress = Progress(first_manifest("r1", number))
    progress.steps = steps
    arguments = Ending(Outcome(outcome)), outcome == "timeout", progress, RunFolder(folder.path)
    assert slurm.should_go_on(*arguments) == goes_on
    monkeypatch.delenv("ASSAY_REQUEUE")
    assert slurm.should_go_on(*arguments) == (goes_on and outcome != "node_failed"), (
        "its job ends with the node"
    )
