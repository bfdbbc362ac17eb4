"""The order in which runs start. Pure; a later launch of the same study orders the same runs alike."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from model.record.records import Order

Place = tuple[int, int | None]  # position, from 1; block, from 1, or None where the order has no blocks


def places(runs: Sequence[tuple[str, str]], order: Order, seed: int | None) -> list[Place]:
    """The place of each run in the order of starting.

    Block n holds the n-th repetition of every group, so that drift during the runs (clocks, temperature,
    other users, caches) affects all groups alike. A shuffled order is that of a hash of the seed and each
    run's id: leaving runs out, or adding some, does not reorder the others.

    Args:
        runs: group and id of each, in the order of the file.
    """
    blocks = _repetitions([group for group, _ in runs])
    shuffled, in_blocks = order != "as written", order == "interleaved"
    keys = [
        (block if in_blocks else 0, _drawn(seed, run) if shuffled else "")
        for block, (_, run) in zip(blocks, runs, strict=True)
    ]
    started = sorted(range(len(runs)), key=keys.__getitem__)
    positions = {number: n for n, number in enumerate(started, 1)}
    return [(positions[number], block if in_blocks else None) for number, block in enumerate(blocks)]


def _repetitions(groups: Sequence[str]) -> list[int]:
    """Which repetition of its group each run is: all seeds once, in the file's order, then again."""
    seen: Counter[str] = Counter()
    found = []
    for group in groups:
        seen[group] += 1
        found.append(seen[group])
    return found


def _drawn(seed: int | None, run_id: str) -> str:
    return hashlib.sha256(f"{seed}/{run_id}".encode()).hexdigest()
