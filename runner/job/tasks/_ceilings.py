"""Notes in an attempt's manifest what its device can do."""

from __future__ import annotations

from runner.job import ceilings
from runner.job.tasks import Given


def noted(given: Given) -> None:
    """Measure the device unless an attempt of the study has; only in the process that records."""
    if not given.records:
        return
    study = given.folder.path.parent
    run = given.run
    known = ceilings.known(run.config, given.progress.manifest, study, given.options, run.memory_bytes)
    given.note(**vars(known))
