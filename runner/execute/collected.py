"""Collects, after settling attempts whose end nobody recorded."""

from __future__ import annotations

from pathlib import Path

from analysis.store.collect import CollectSummary, collect
from analysis.store.scan import Key
from model.record.folder import RunFolder


def collected(root: Path, study: str | None = None, rebuild: bool = False) -> CollectSummary:
    """Bring the database up to date, as `collect` does, also with the ends that only Slurm knows.

    The files of runs that the database knows to be over are not read, which takes long over 10,000 runs.
    """

    def settle(runs: list[Key]) -> None:
        from runner.execute.reconcile import reconciled_runs  # slow to import, and seldom needed

        # The root as it was given: job folders are named with it, which tells whose an sbatch is.
        reconciled_runs([RunFolder(f"{root}/{name}/{run}") for name, run in runs])

    return collect(root, study, rebuild, settle)
