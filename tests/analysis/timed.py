"""Attention alone, timed, as an attempt records it."""

from __future__ import annotations

from typing import Any

from model.attention import Case
from model.disk import files
from model.disk.kernels import DIRECTIONS, FILE, MODES, KernelTime, KernelTimes
from tests.analysis.fabricate import START, Folder


def kernels(folder: Folder, case: Case, attempt: int = 1, **said: float | str) -> KernelTimes:
    """Attention alone at a shape, as the attempt wrote it.

    Args:
        said: by backend, the milliseconds of its forward (a backward takes 2.5 times as long), or how it ended.
    """
    times = []
    for mode in MODES[case.device]:
        for name, found in said.items():
            for direction in DIRECTIONS:
                times.append(_kernel_time(name, direction, mode, found, case))
    made = KernelTimes(
        run_id=folder.run.run_id,
        attempt=attempt,
        case=case,
        rounds=7,
        cache_bytes=2**28,
        product_flop=2 * 8192**3,
        product_seconds=[2 * 8192**3 / 700e12] * 7,
        times=times,
        measured_at=START,
    )
    files.write(folder.path / f"attempt-{attempt}" / FILE, made)
    return made


def _kernel_time(name: str, direction: str, mode: str, found: float | str, case: Case) -> KernelTime:
    values: dict[str, Any] = {"attention": name, "direction": direction, "mode": mode}
    if isinstance(found, str):
        return KernelTime(**values, outcome=found, reason=f"{name} ended as {found}")  # type: ignore[arg-type]
    factor = (2.5 if direction == "backward" else 1.0) * (1.0 if mode == "graph" else 1.02)
    spread = (0.97, 0.98, 0.99, 1.0, 1.01, 1.02, 1.03)
    return KernelTime(
        **values,
        outcome="completed",
        seconds=[found / 1e3 * factor * part for part in spread],
        memory_bytes=4 * case.batch * case.sequence_length * case.heads * case.head_dim,
        sm_mhz=[1755.0, 1740.0] if case.device == "cuda" else [],
        throttle_reasons=[""] if case.device == "cuda" else [],
        certificate=f"{name:0<64}",
    )
