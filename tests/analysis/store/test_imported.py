"""Runs that another program made pass through the same database; what their logs do not say is NULL."""

from pathlib import Path
from typing import Any

import pytest

from analysis.store.collect import collect
from model.record import files
from model.record.folder import NoPlan, RunFolder
from model.record.imported import Imported, ImportedRun, ImportedStep
from model.record.outcome import Outcome
from model.record.records import Manifest, Result
from runner.state.ledger import brief_state
from runner.state.runs import last_step
from tests.analysis.conftest import Ask
from tests.analysis.fabricate import START, completed


def write_log(root: Path, run_id: str = "log-0123456789ab", **changes: Any) -> Path:
    """An imported run of which only steps and losses are known."""
    fields: dict[str, Any] = {
        "run_id": run_id,
        "group": "g",
        "study": "theirs",
        "title": "Their logs",
        "factors": {"log": "first"},
        "imported": Imported(
            format="csv",
            file="/logs/first.csv",
            sha256="0" * 64,
            imported_at=START,
            version="0.1.0",
            records=2,
        ),
        "created_at": START,
    }
    folder = root / "theirs" / run_id
    attempt = folder / "attempt-1"
    attempt.mkdir(parents=True)
    files.write(folder / "run.json", ImportedRun(**(fields | changes)))
    nobody = dict.fromkeys(("started_at", "host", "pid", "pid_started", "gpus", "nodes"))
    files.write(
        attempt / "manifest.json", Manifest(run_id=run_id, attempt=1, slurm={}, software={}, **nobody)
    )
    for step in (10, 20):
        files.append(attempt / "steps.jsonl", ImportedStep(step=step, steps=10, loss=9 - step / 10))
    times = dict.fromkeys(("started_at", "ended_at", "wall_seconds", "peak_memory_bytes", "reason"))
    ended = Result(run_id=run_id, attempt=1, outcome=Outcome.COMPLETED, steps=20, final_loss=7.0, **times)
    files.write(attempt / "result.json", ended)
    return folder


def test_what_an_imported_log_does_not_say_is_null_and_the_rest_is_there(root: Path, sql: Ask) -> None:
    write_log(root)
    assert collect(root).quarantined == 0
    (run,) = sql("SELECT * FROM runs")
    unknown = ("attention", "seed", "planned_steps", "git_sha", "device", "gpus", "gpu_hours", "wall_seconds", "mfu",
               "tokens_per_second", "step_seconds", "certificate", "verdict", "profile")  # fmt: skip
    assert {name: run[name] for name in unknown} == dict.fromkeys(unknown)
    assert (run["outcome"], run["steps"], run["final_loss"], run["label"]) == (
        "completed",
        20,
        7.0,
        "log-0123456789ab",
    )
    assert '"format":"csv"' in str(sql("SELECT imported::VARCHAR AS i FROM runs")[0]["i"])
    assert [row["loss"] for row in sql("SELECT loss FROM steps ORDER BY step")] == [8.0, 7.0]
    assert sql("SELECT count(*) FILTER (counted) AS n FROM steps") == [
        {"n": 1}
    ]  # W is 10 where no plan is known


@pytest.mark.refused
def test_a_step_without_tokens_is_none_of_our_own_runs(root: Path, sql: Ask) -> None:
    folder = write_log(root)
    own_folder = folder.with_name("0123456789ab")
    folder.rename(own_folder)
    collect(root)
    assert sql("SELECT count(*) AS n FROM step_records") == [{"n": 0}]
    assert {row["path"] for row in sql("SELECT path FROM quarantine")} == {"theirs/0123456789ab/run.json"}


def test_a_torn_line_of_an_imported_run_is_forgiven_as_in_any_other(root: Path, sql: Ask) -> None:
    with (write_log(root) / "attempt-1" / "steps.jsonl").open("a") as steps:
        steps.write('{"step": 3')
    assert collect(root).quarantined == 0
    assert sql("SELECT count(*) AS n FROM steps") == [{"n": 2}]


def test_the_status_of_an_imported_run_is_known_and_its_plan_is_refused(root: Path) -> None:
    folder = RunFolder(write_log(root))
    state = brief_state(folder)
    assert (state.phase, state.outcome, state.brief.steps) == ("ended", "completed", None)
    newest = last_step(state)
    assert newest and (newest.step, newest.tokens_per_second) == (20, None)
    with pytest.raises(NoPlan, match=r"theirs/log-0123456789ab was imported from /logs/first\.csv"):
        _ = state.run


def test_an_imported_run_is_the_same_whatever_is_collected_with_it(root: Path, sql: Ask) -> None:
    """A run of this program in the same batch has columns that a log cannot fill."""
    write_log(root)
    completed(root, "r1", study="own")
    collect(root)
    together = sql("SELECT * FROM run_records WHERE study = 'theirs'")
    (root / "own" / "r1" / "run.json").unlink()
    (root / "results.duckdb").unlink()
    collect(root, "theirs")
    assert sql("SELECT * FROM run_records WHERE study = 'theirs'") == together
    assert together[0]["repeat"] == 1


def test_records_without_tokens_or_seconds_change_no_rate(root: Path, sql: Ask) -> None:
    """Some records give no tokens, others no seconds: each rate is of those that give what it needs."""
    folder = write_log(root)
    steps = folder / "attempt-1" / "steps.jsonl"
    steps.unlink()
    for step in range(1, 101):
        tokens = {"tokens": 1000 if step % 2 else None, "training_tokens": 400 if step % 3 else None}
        files.append(
            steps, ImportedStep(step=step, steps=1, step_seconds=0.5 if step % 5 else None, **tokens)
        )
    collect(root)
    (run,) = sql("SELECT tokens_per_step, tokens_per_second, training_tokens_percentage FROM runs")
    assert run == {"tokens_per_step": 1000, "tokens_per_second": 2000, "training_tokens_percentage": 40}
    rates = (
        "SELECT most, round(sum(tokens) / sum(seconds), 6) AS rate FROM curves GROUP BY most ORDER BY most"
    )
    assert sql(rates) == [{"most": 32, "rate": 2000}, {"most": 256, "rate": 2000}]
