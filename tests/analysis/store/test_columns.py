"""Every table and column says what it is, and those that users rely on are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.store.collect import collect
from tests.analysis.conftest import Ask
from tests.analysis.fabricate import completed


def test_every_table_and_column_says_what_it_is(root: Path, sql: Ask) -> None:
    collect(root)
    condition = "database_name = 'results' AND NOT internal"
    assert (
        sql(f"SELECT table_name, column_name FROM duckdb_columns() WHERE {condition} AND comment IS NULL")
        == []
    )
    assert sql(f"SELECT table_name FROM duckdb_tables() WHERE {condition} AND comment IS NULL") == []
    assert sql(f"SELECT view_name FROM duckdb_views() WHERE {condition} AND comment IS NULL") == []


CONTRACT = {
    "runs": """run_id study attention seed repeat position block design factors config profile outcome expected_outcome reason attempts gpu node
        nodes gpus processes steps step_seconds tokens_per_second tokens_per_second_per_process mfu tflops training_tokens_percentage final_loss
        peak_memory_bytes energy_joules wall_seconds gpu_hours git_sha git_dirty created_at started_at ended_at gpu_uuid""",
    "steps": """run_id attempt step time loss learning_rate grad_norm step_seconds tokens_per_second
        training_tokens_percentage mfu tflops memory_bytes step_seconds_min step_seconds_median step_seconds_max
        data_wait_seconds energy_joules power_watts sm_mhz throttle_reasons slowest_rank slowest_rank_seconds
        other_ranks_seconds""",
    "attempts": "run_id attempt outcome reason certificate load_before load_after cores device_users gpu_uuid",
    "certificates": """key attention verdict device_kind device_name dtype shape run_case software code kernels
        reasons not_looked_at checks failed seconds created_at""",
    "verifications": """certificate attention name what shape variant measured tolerance plain relative_error passed
        reason""",
    "backends": "attention device_name verdict certificate o_error dq_error dk_error dv_error ratio",
    "kernels": "attention direction milliseconds tflops",
    "nodes": "node gpu driver",
    "quarantine": "path reason",
}


@pytest.mark.parametrize("table", CONTRACT)
def test_the_contracts_columns_are_there(root: Path, sql: Ask, table: str) -> None:
    collect(root)
    columns = {row["column_name"] for row in sql(f"DESCRIBE {table}")}
    assert set(CONTRACT[table].split()) <= columns


def test_json_columns_are_json(root: Path, sql: Ask) -> None:
    completed(root, "r1", attention="flash")
    collect(root)
    query = "SELECT factors ->> 'attention' AS a, (config -> 'train' ->> 'steps')::INT AS n FROM runs"
    assert sql(query) == [{"a": "flash", "n": 100}]
