"""Frontiers, as attempts of task frontier record them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model.record import files
from model.record.config import FrontierConfig, RunConfig
from model.record.folder import FRONTIER
from model.record.frontier import Frontier, Probe
from model.record.outcome import Outcome
from tests.analysis.fabricate import H200, START, Folder, plan

GIB = 2**30


def frontier(
    root: Path,
    run_id: str,
    attention: str,
    foreseen: int,
    ends: dict[int, str],
    fraction: float = 1.0,
    most: int = 65536,
    device: str = H200,
    **changes: Any,
) -> Folder:
    """A run that sought the longest sequence: a token takes a MiB, a tenth more than forecast.

    Args:
        ends: how the probe of each length ended, in order.
    """
    section = FrontierConfig(sequence_length=most, multiple=256, memory_fraction=fraction)
    config = RunConfig(task="frontier", attention=attention, frontier=section)
    factors = {"attention": attention, "frontier.memory_fraction": fraction}
    no_text = dict.fromkeys(("data_file", "tokenizer", "data_fingerprint"))
    run = plan(run_id, "frontier", attention, config=config, factors=factors, **(no_text | changes))
    folder = Folder(root, run)
    folder.start(device=device, flop_per_token=None)
    probes = []
    for length, outcome in ends.items():
        measured: dict[str, Any] = {}
        if outcome in ("fits", "edge") or Outcome(outcome).out_of_memory:
            measured = {"peak_bytes": length * 2**20, "reserved_bytes": length * 2**20 + GIB, "retries": 0}
            measured |= {"outside_bytes": GIB // 2} | ({"retries": 2} if outcome == "edge" else {})
        reason = None if outcome == "fits" else f"{length} tokens ended as {outcome}"
        probes.append(
            Probe.model_validate(
                {"value": length, "purpose": "search", "outcome": outcome, "reason": reason, "seconds": 20.0}
                | {"forecast_bytes": length * 2**20 * 9 // 10}
                | measured
            )
        )
    record = Frontier(
        run_id=run_id,
        attempt=1,
        find="sequence_length",
        multiple=256,
        most=most,
        card_bytes=int(fraction * 80 * GIB),
        memory_fraction=fraction,
        foreseen=foreseen,
        probes=probes,
        measured_at=START,
    )
    files.write(folder.path / "attempt-1" / FRONTIER, record)
    folder.end(steps=len(probes), final_loss=None, peak_memory_bytes=(record.largest or probes[0]).peak_bytes)
    return folder
