"""Which of a run's processes a process is. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """One process of a run.

    Attributes:
        rank: among all processes of the run, from 0.
        size: number of processes.
        local_rank: among those of its node, from 0; its GPU's number if it sees several.
        address: HOST:PORT at which rank 0 listens for the others; empty if it is alone.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    address: str = ""
