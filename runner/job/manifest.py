"""Builds an attempt's manifest.json: where it runs, and with which hardware and software."""

from __future__ import annotations

import os
import platform
from typing import Any

from model.measure import machine
from model.measure.flops import Peak, of_run, parameter_count, peak
from model.record.config import SECTIONS, RunConfig
from model.record.records import Manifest, now
from runner.job.clocks import clocks
from runner.state import gpus, process


def first_manifest(run_id: str, attempt: int, nodes: int = 1) -> Manifest:
    """The facts known before torch is imported: host, process, job, and package versions.

    Args:
        nodes: of the attempt. A Slurm job in which somebody launches runs on this machine may have more.
    """
    return Manifest(
        run_id=run_id,
        attempt=attempt,
        started_at=now(),
        **process.me(),
        slurm={name: value for name, value in sorted(os.environ.items()) if _tells(name)},
        software={"python": platform.python_version(), **machine.versions()},
        load_before=machine.load(),
        cores=os.cpu_count(),
        nodes=nodes,
    )


def with_device(manifest: Manifest, config: RunConfig, peak_override: float | None) -> dict[str, Any]:
    """What torch knows about the device, and what MFU needs: fields of the manifest."""
    name, uuid, software = machine.device(config.device)
    known = (
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
        "parameter_count": parameter_count(config.model) if "model" in SECTIONS[config.task] else None,
        "flop_per_token": of_run(config),
        "peak_flops": known.flops if known else None,
        "peak_source": known.source if known else None,
    }


def _tells(name: str) -> bool:
    if name in (gpus.CUDA, gpus.HIP, gpus.ROCR):
        return True
    return name.startswith("SLURM") and not name.startswith(("SLURM_CONF", "SLURM_JWT", "SLURM_TOPOLOGY"))
