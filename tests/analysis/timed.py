"""Attention alone, timed, as an attempt records it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model.record import files
from model.record.case import Case
from model.record.config import CallConfig, RunConfig
from model.record.folder import KERNELS
from model.record.kernels import DIRECTIONS, MODES, NO_BACKWARD, KernelTime, KernelTimes, Traffic
from tests.analysis.fabricate import START, Folder, certificate, plan


def kernels(
    folder: Folder, case: Case, attempt: int = 1, traffic: Traffic | None = None, **said: float | str
) -> KernelTimes:
    """Attention alone at a shape, as the attempt wrote it.

    Args:
        traffic: of every call from Python.
        said: by backend, the milliseconds of its forward (a backward takes 2.5 times as long), or how it ended.
    """
    times = []
    for mode in MODES[case.device]:
        for name, milliseconds in said.items():
            for direction in DIRECTIONS:
                time = _kernel_time(name, direction, mode, milliseconds, case)
                counts = time.seconds and mode == "eager"
                times.append(time.model_copy(update={"traffic": traffic if counts else None}))
    record = KernelTimes(
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
    files.write(folder.path / f"attempt-{attempt}" / KERNELS, record)
    return record


def certified(root: Path, attention: str) -> None:
    """A study `kernels` of one run that timed one backend, under the certificate that it names."""
    case = Case("cuda", "bfloat16", 1, 512, heads=16, kv_heads=16, head_dim=128)
    config = RunConfig(task="attention", call=CallConfig(shape="B1 T512 H16 D128", steps=7))
    folder = Folder(root, plan("r1", "kernels", config=config))
    folder.start(flop_per_token=None, parameter_count=None)
    record, key = kernels(folder, case, **{attention: 1.0}), certificate(root, attention).key
    times = [time.model_copy(update={"certificate": key}) for time in record.times]
    files.write(folder.path / "attempt-1" / KERNELS, record.model_copy(update={"times": times}))
    folder.end(steps=7, final_loss=None)


def _kernel_time(name: str, direction: str, mode: str, milliseconds: float | str, case: Case) -> KernelTime:
    values: dict[str, Any] = {"attention": name, "direction": direction, "mode": mode}
    if isinstance(milliseconds, str):
        return KernelTime(**values, outcome=milliseconds, reason=f"{name} ended as {milliseconds}")  # type: ignore[arg-type]
    if case.fp8 and direction == "backward":
        return KernelTime(**values, outcome="unsupported", reason=NO_BACKWARD)
    factor = (2.5 if direction == "backward" else 1.0) * (1.0 if mode == "graph" else 1.02)
    spread = (0.97, 0.98, 0.99, 1.0, 1.01, 1.02, 1.03)
    return KernelTime(
        **values,
        outcome="completed",
        seconds=[milliseconds / 1e3 * factor * part for part in spread],
        host_seconds=[20e-6 * part for part in spread] if case.device == "cuda" else [],
        kernel_seconds=milliseconds / 1e3 if (case.device, mode) == ("cuda", "eager") else None,
        memory_bytes=4 * case.batch * case.sequence_length * case.heads * case.head_dim,
        sm_mhz=[1755.0, 1740.0] if case.device == "cuda" else [],
        throttle_reasons=[""] if case.device == "cuda" else [],
        certificate=f"{name:0<64}",
    )
