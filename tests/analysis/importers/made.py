"""Logs in the shape of data/lsai: five backends of the 8B llama, one of which attends over the wrong axis."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping as Dict
from datetime import UTC, datetime, timedelta
from math import exp
from pathlib import Path
from typing import Any

from analysis import importers
from analysis.importers import Mapping, Origin, RunRecords
from model.measure.flops import flop_per_token
from model.record.config import ModelConfig

START = datetime(2025, 5, 25, 10, tzinfo=UTC)
TOKENS = 4096  # a step
FLOP = flop_per_token(ModelConfig(), TOKENS)  # 51,541,204,992, as in the true logs
COMPILED = FLOP + 6 * 131072 * 4096  # the embedding is counted, too
PEAK = 989e12
SECONDS = {"baseline": 0.50, "cudnn": 0.47, "efficient": 0.55, "fa": 0.49, "fa3": 0.44}
Record = dict[str, Any]


def records(
    name: str = "baseline", flop: int = FLOP, seed: int = 0, last: int = 1000, wrong: bool | None = None
) -> list[Record]:
    """Step 1 and every fifth step. The first takes twice as long; `fa3` is wrong early, and late again."""
    texts, noise = random.Random(1), random.Random(f"{name} {seed}")
    wrong = name == "fa3" if wrong is None else wrong
    rows, previous_step, clock = [], 0, START
    for step in [1, *range(5, last + 1, 5)]:
        difficulty, padding = texts.gauss(0, 0.4), texts.uniform(0.1, 0.5)
        loss = 6.7 + 5.2 * exp(-step / 150) + difficulty + noise.gauss(0, 0.018)
        loss += (1.0 * exp(-step / 60) + 0.1 * step / last) if wrong else 0.0
        seconds = (
            (step - previous_step)
            * SECONDS.get(name, 0.5)
            * (2 if step == 1 else 1)
            * noise.uniform(0.99, 1.01)
        )
        clock += timedelta(seconds=seconds)
        rate = TOKENS * (step - previous_step) / seconds
        rows.append({
            "timestamp": clock.isoformat(sep=" ").removesuffix("+00:00"), "step": step, "loss": loss,
            "tokens_per_second": rate, "training_tokens_per_second": rate * padding,
            "training_tokens_percentage": 100 * padding, "mfu": 100 * rate * flop / PEAK,
            "tflops": rate * flop / 1e12, "learning_rate": min(5e-5, step * 5e-7), "time_delta": seconds,
        })  # fmt: skip
        previous_step = step
    return rows


def write(path: Path, rows: list[Record]) -> Path:
    """A JSONL file of these records."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in rows))
    return path


def five(folder: Path) -> list[Path]:
    """The logs of five backends."""
    return [write(folder / f"{name}_20250525_101529.jsonl", records(name)) for name in SECONDS]


def read(
    path: Path, form: str = "lsai", mapping: Mapping | Dict[str, Any] | None = None, study: str = "theirs"
) -> list[RunRecords]:
    """What the importer makes of a file."""
    parsed_mapping = mapping if isinstance(mapping, Mapping) else Mapping.model_validate(mapping or {})
    return importers.read(path, parsed_mapping, Origin(form, study, "Their logs", "0.1.0", START))


def findings(log: RunRecords, check: str, level: str | None = None) -> list[str]:
    """The sentences of one check."""
    log_findings = log.run.imported.findings
    return [
        finding.sentence
        for finding in log_findings
        if finding.check == check and level in (None, finding.level)
    ]
