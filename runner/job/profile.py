"""Writes where the time of a completed run's step goes. The run's result is on disk by then."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from model import attention
from model.record.files import write
from model.record.profile import FILE, StepProfile
from model.record.records import Manifest
from model.record.stderr import say

if TYPE_CHECKING:
    from model.training.profile import Done


def keep(done: Done, manifest: Manifest, attempt: Path | None) -> None:
    """Do a few more steps under the profiler. The run is over: errors here do not change its outcome.

    Args:
        attempt: None in processes of the run that write nothing.
    """
    found = _profile(done, manifest)
    try:
        if attempt:
            write(attempt / FILE, found)
    except OSError as error:
        say(f"the profile of the step could not be written: {error}")


def _profile(done: Done, manifest: Manifest) -> StepProfile:
    from model.training.profile import profiled

    config = done.config
    launches = attention.load(config.attention).launches
    kernels = launches.on(config.device) if launches else None
    try:
        return profiled(done, manifest.run_id, manifest.attempt, kernels)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        say(f"the step could not be profiled: {reason}")
        return StepProfile(run_id=manifest.run_id, attempt=manifest.attempt, steps=0, reason=reason)
