"""Runs of inference in the database: latency of prefills, decoded positions, and rates by the task's own formula."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import pytest

from analysis.audit.records import contradictions
from analysis.store import database as store
from analysis.store.collect import collect
from analysis.store.records import open_records, write_records
from model.measure.flops import flop_per_token, prefill_flop_per_token
from tests.analysis.conftest import Ask
from tests.analysis.fabricate import LLAMA, completed, inferred


def test_a_run_has_the_latency_of_its_prefills_without_its_own_warm_up(root: Path, sql: Ask) -> None:
    inferred(root, "flash", seconds=0.1)
    assert collect(root).quarantined == 0
    (run,) = sql("FROM runs")
    assert (run["task"], run["warmup_steps"], run["counted_records"], run["planned_steps"]) == (
        "inference",
        2,
        8,
        10,
    )
    assert run["step_seconds"] == pytest.approx(0.1)
    assert run["tokens_per_second"] == pytest.approx(2000 / 0.1)
    assert (run["final_loss"], run["training_tokens_percentage"]) == (None, None)
    assert (run["sequence_length"], run["batch_size"]) == (1000, 2)


@pytest.mark.parametrize(("outcome", "expected"), [("failed", (4, 2, 0.5)), ("completed", (10, 8, 0.1))])
def test_prefills_of_two_attempts_are_never_mixed(
    root: Path, sql: Ask, outcome: str, expected: tuple[int, int, float]
) -> None:
    """Each attempt starts over, so that the rates are those of the attempt that decides the outcome."""
    folder = inferred(root, "flash", seconds=0.1)
    folder.end(outcome, steps=10, final_loss=None)
    folder.start(attempt=2)
    for step in range(1, 5):
        folder.step(step, 0.5, 1, attempt=2, tokens=2000)
    folder.end("failed", attempt=2, steps=4, final_loss=None)
    collect(root)
    (run,) = sql("FROM runs")
    steps, counted, seconds = expected
    assert (run["outcome"], run["steps"], run["counted_records"]) == (outcome, steps, counted)
    assert run["step_seconds"] == pytest.approx(seconds)
    assert len(sql("FROM steps")) == steps


def test_an_attempt_that_measured_nothing_leaves_its_run_without_rates(root: Path, sql: Ask) -> None:
    folder = inferred(root, "flash")
    folder.end("preempted", steps=10, final_loss=None)
    folder.start(attempt=2)
    folder.end("failed", attempt=2, steps=0, final_loss=None)
    collect(root)
    (run,) = sql("FROM runs")
    assert (run["outcome"], run["steps"], run["step_seconds"]) == ("failed", 0, None)


def test_the_mfu_of_a_prefill_counts_the_forward_alone(root: Path, sql: Ask) -> None:
    inferred(root, "flash", seconds=0.1)
    collect(root)
    (run,) = sql("FROM runs")
    heads, layers = LLAMA.vocab_size * LLAMA.dim, LLAMA.layers
    training = flop_per_token(LLAMA, 1000)
    # A third of training, but for the output head, which only the last of 1,000 tokens meets.
    expected = training / 3 - 2 * heads + 2 * heads // 1000
    assert prefill_flop_per_token(LLAMA, 1000) == pytest.approx(expected, abs=2)
    assert 4 * layers * LLAMA.heads * LLAMA.head_dim * 1000 < expected
    assert run["mfu"] == pytest.approx(100 * run["flop_per_token"] * 20_000 / 989.4e12)
    assert run["flop_per_token"] == prefill_flop_per_token(LLAMA, 1000)


def test_a_run_has_the_median_of_its_decoded_positions(root: Path, sql: Ask) -> None:
    inferred(root, "flash", decode_seconds=0.02)
    inferred(root, "custom", decode_seconds=None)
    collect(root)
    custom, flash = sql("FROM runs ORDER BY attention")
    assert (flash["decoded_tokens"], flash["decode_seconds"]) == (4, pytest.approx(0.02))
    assert flash["decode_tokens_per_second"] == pytest.approx(2 / 0.02)
    assert (custom["decoded_tokens"], custom["decode_seconds"], custom["decode_tokens_per_second"]) == (
        None,
        None,
        None,
    )
    rows = sql("FROM decoding ORDER BY position")
    assert [(row["position"], row["token_ids"]) for row in rows] == [
        (1000 + index, f"[7,{index}]") for index in range(4)
    ]


def test_a_prefill_and_a_decoded_token_have_a_floor_and_parts_each(root: Path, sql: Ask) -> None:
    inferred(root, "flash", profiled=True)
    inferred(root, "custom", decode_seconds=None, profiled=True)
    collect(root)
    custom, flash = sql("FROM runs ORDER BY attention")
    assert sql("SELECT DISTINCT run_id FROM step_floor WHERE phase = 'decode'") == [
        {"run_id": flash["run_id"]}
    ]
    rows = sql(
        "SELECT phase, sum(seconds) AS whole FROM step_floor WHERE run_id LIKE 'flash%' GROUP BY phase"
    )
    least = {row["phase"]: row["whole"] for row in rows}
    assert flash["floor_seconds"] == custom["floor_seconds"] == pytest.approx(least["step"])
    assert flash["floor_percentage"] == pytest.approx(100 * least["step"] / flash["step_seconds"])
    assert flash["decode_floor_seconds"] == pytest.approx(least["decode"])
    assert flash["decode_floor_percentage"] == pytest.approx(100 * least["decode"] / flash["decode_seconds"])
    assert (custom["decode_floor_seconds"], custom["decode_floor_percentage"]) == (None, None)
    # The head of 1 GiB, read for two tokens, takes longer than they would at 700 TFLOP/s.
    assert flash["ceiling_tflops"] == pytest.approx(700, rel=0.02) and flash["ceiling_percentage"] > 0


def test_shares_are_of_the_prefill_and_of_the_decoded_token(root: Path, sql: Ask) -> None:
    inferred(root, "flash", profiled=True)
    collect(root)
    rows = sql("SELECT phase, part, seconds, share FROM step_profile WHERE part = 'products' ORDER BY phase")
    assert rows == [
        {"phase": "decode", "part": "products", "seconds": 0.006, "share": pytest.approx(0.6)},
        {"phase": "step", "part": "products", "seconds": 0.06, "share": pytest.approx(0.6)},
    ]


def test_training_decodes_nothing_and_keeps_its_rule_of_the_warm_up(root: Path, sql: Ask) -> None:
    completed(root, "r1")
    collect(root)
    (run,) = sql("FROM runs")
    assert (run["task"], run["decoded_tokens"], run["decode_seconds"]) == ("training", None, None)
    assert run["warmup_steps"] == max(1, min(10, run["planned_steps"] // 10))


def test_reports_carry_what_was_decoded(root: Path, tmp_path: Path) -> None:
    inferred(root, "flash")
    collect(root)
    with store.open_for_reading(root) as connection:
        write_records(connection, "inference", tmp_path / "records")
    with open_records(tmp_path / "records") as connection:
        assert connection.sql("SELECT decoded_tokens, counted_records FROM runs").fetchall() == [(4, 8)]


@pytest.mark.fault
def test_what_was_decoded_stays_when_its_folder_is_purged(root: Path, sql: Ask) -> None:
    inferred(root, "flash")
    collect(root)
    shutil.rmtree(root / "inference")
    collect(root)
    with duckdb.connect(store.database(root)) as connection:
        connection.execute("UPDATE database_version SET fingerprint = 'old'")
    collect(root)
    assert len(sql("FROM decoding")) == 4


@pytest.mark.fault
@pytest.mark.parametrize(
    "content", [b"null\n", b'{"position": -1}\n', b"\xff\n"], ids=["null", "schema", "encoding"]
)
def test_positions_that_cannot_be_read_are_quarantined_alone(root: Path, sql: Ask, content: bytes) -> None:
    folder = inferred(root, "flash")
    (folder.path / "attempt-1" / "decode.jsonl").write_bytes(content)
    assert collect(root).quarantined == 1
    (run,) = sql("FROM runs")
    assert (run["decode_seconds"], run["step_seconds"]) == (None, pytest.approx(0.1))


@pytest.mark.fault
@pytest.mark.parametrize(
    "change", ["position = position + 9 WHERE position = 1003", "run_id = 'r1', study = 'backends'"]
)
def test_records_that_contradict_themselves_are_found(root: Path, change: str) -> None:
    inferred(root, "flash")
    completed(root, "r1")
    collect(root)
    with duckdb.connect(store.database(root)) as connection:
        assert list(contradictions(connection)) == []
        connection.execute(f"UPDATE decoding SET {change}")
        assert list(contradictions(connection))
