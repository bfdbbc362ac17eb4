"""Builds an attempt's manifest.json: where it runs, on what, and from which checkpoint it resumes."""

from __future__ import annotations

import os
import platform
from typing import Any

from model.measure import machine
from model.measure.flops import Peak, of_run, parameter_count, peak
from model.record.config import RunConfig
from model.record.files import Unreadable
from model.record.folder import RunFolder
from model.record.records import Manifest, now
from model.training.checkpoint import inspect
from runner.job.clocks import clocks
from runner.state import gpus, process

_NOT_OURS = ("SLURM_CONF", "SLURM_JWT", "SLURM_TOPOLOGY")  # of the cluster, not of the job


def first_manifest(run_id: str, attempt: int, nodes: int = 1) -> Manifest:
    """The facts known before torch is imported: host, process, job, and package versions.

    Args:
        nodes: of the attempt. A Slurm job in which somebody launches runs on this machine may have more.
    """
    visible = (gpus.CUDA, gpus.HIP, gpus.ROCR)
    return Manifest(
        run_id=run_id,
        attempt=attempt,
        started_at=now(),
        **process.own_identity(),
        slurm={
            name: value
            for name, value in sorted(os.environ.items())
            if name in visible or (name.startswith("SLURM") and not name.startswith(_NOT_OURS))
        },
        software={"python": platform.python_version(), **machine.versions()},
        load_before=machine.load(),
        cores=os.cpu_count(),
        nodes=nodes,
    )


def resumption(folder: RunFolder, number: int) -> dict[str, Any]:
    """The attempt to resume from, as fields of the manifest: the newest that has a complete checkpoint.

    A run whose audit failed starts over, because it is unknown since when its backend was wrong.
    """
    fields: dict[str, Any] = {}
    for earlier in reversed([other for other in folder.numbers() if other < number]):
        attempt = folder.attempt(earlier)
        try:
            failed = [audit for audit in attempt.audits if not audit.passed]
        except Unreadable as error:
            return {"not_resumed": str(error), **fields}
        if failed:
            return {"not_resumed": f"attempt {earlier} failed its audit of step {failed[0].step}", **fields}
        checkpoint = attempt.path / "checkpoint"
        if checkpoint.exists():
            try:
                return {**fields, "resumed_attempt": earlier, "resumed_step": inspect(checkpoint)}
            except Unreadable as error:
                fields.setdefault("not_resumed", str(error))
    return fields


def device_facts(manifest: Manifest, config: RunConfig, peak_override: float | None) -> dict[str, Any]:
    """What torch knows about the device, and what MFU needs: fields of the manifest."""
    name, uuid, software = machine.device(config.device)
    rate = (
        Peak(peak_override, "the profile's peak_tflops")
        if peak_override and config.section.precision != "float8"
        else peak(name, config.section.precision)
    )
    return {
        "software": manifest.software | software,
        "device_name": name,
        "gpu_uuid": uuid,
        "clocks": clocks(uuid),
        "gpus": config.processes * int(config.device == "cuda"),
        "parameter_count": parameter_count(config.model) if "model" in config.section.reads else None,
        "flop_per_token": of_run(config),
        "peak_flops": rate.flops if rate else None,
        "peak_source": rate.source if rate else None,
    }
