"""Rows of the view `runs`, as the guard gets them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

NOON = datetime(2026, 3, 1, 12)


def row(**changes: Any) -> dict[str, Any]:
    """A completed run of an hour, certified, on one H200."""
    return {
        "run_id": "r1",
        "label": "auto",
        "attention": "auto",
        "task": "training",
        "seed": 0,
        "outcome": "completed",
        "config": {
            "model": {"dim": 4096},
            "data": {"path": "train.parquet"},
            "train": {"warmup_steps": 10, "steps": 100, "learning_rate": 5e-5, "batch_size": 1},
        },
        "sequence_length": 4096,
        "steps": 100,
        "planned_steps": 100,
        "git_sha": "a" * 40,
        "git_dirty": False,
        "code": "c" * 64,
        "device": "NVIDIA H200",
        "gpus": 1,
        "gpu_uuid": None,
        "nodes": 1,
        "processes": 1,
        "node": "nid001",
        "software": {"python": "3.11.7", "torch": "2.13.0", "driver": "570.86"},
        "data_fingerprint": "f" * 32,
        "flop_per_token": 51_540_000_000,
        "peak_flops": 989.4e12,
        "training_tokens_percentage": 100.0,
        "started_at": NOON,
        "ended_at": NOON + timedelta(hours=1),
        "repeat": 1,
        "imported": None,
        "design": None,
        "tokens_per_step": 4096.0,
        "wall_seconds": 3600.0,
        "power_limit_watts": 700.0,
        "sm_mhz": 1980.0,
        "memory_mhz": 3201.0,
        "power_capped_seconds": 1800.0,
        "slowed_seconds": 0.0,
        "device_users": 0,
        "clocks_changed": None,
        "sm_mhz_low": None,
        "sm_mhz_high": None,
        "throttle_reasons": None,
        "data_wait_percentage": None,
        "verdict": "right",
    } | changes


def runs(n: int = 3, **changes: Any) -> list[dict[str, Any]]:
    """Runs that differ by seed."""
    return [row(run_id=f"r{seed}", seed=seed, **changes) for seed in range(n)]
