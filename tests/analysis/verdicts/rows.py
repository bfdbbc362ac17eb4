"""Rows as MEASURED_RUNS and LOADS give them, made up: what the findings need, and what the guard reads."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from tests.analysis.verdicts.compared_rows import row

Row = dict[str, Any]
START = datetime(2026, 3, 1, 12)
DESIGN = {
    "order": "interleaved",
    "order_seed": 7,
    "baseline": {"attention": "cudnn"},
    "margins": {"loss": 0.005},
    "until": None,
}


def run(label: str, seconds: float = 0.4, seed: int | None = 0, repeat: int = 1, **changes: Any) -> Row:
    """A completed run of a backend; `changes` are columns."""
    position = 10 * (seed or 0) + repeat
    started = START + timedelta(minutes=2 * position, seconds=len(label))
    fields = row() | {
        "run_id": f"{label}{seed}{repeat}",
        "label": label,
        "attention": label,
        "seed": seed,
        "repeat": repeat,
        "block": position,
        "position": position,
        "design": DESIGN,
        "factors": {"attention": label, "seed": seed},
        "config": {"attention": label, "data": {"path": "text.parquet", "mode": "pad"}, "train": {}},
        "scale": "full",
        "step_seconds": seconds,
        "counted_step_seconds": None,
        "batch_size": 1,
        "data_fingerprint": "f" * 16,
        "created_at": START,
        "started_at": started,
        "ended_at": started + timedelta(minutes=1),
        "final_loss": 3.0,
        "node": "n1",
        "software": {"torch": "2.13.0"},
        "peak_flops": 1e12,
        "training_tokens_percentage": 50.0,
        "imported": None,
        "load_before": 0.1,
        "load_after": 1.0,
        "load_of_others": 0.1,
        "cores": 2,
        "device_users": 0,
        "resumed_step": None,
    }
    return fields | changes


def repeated(label: str, seconds: list[float], **changes: Any) -> list[Row]:
    """Repeats of one configuration, one a block."""
    return [run(label, value, repeat=repeat, **changes) for repeat, value in enumerate(seconds, start=1)]
