"""Where a Slurm job starts. Neither the name of this function nor its arguments may change.

Submitit's pickles name it, and a job runs the code of its own snapshot, which may be of another version than
its launcher.
"""

from __future__ import annotations

from collections.abc import Sequence


def run_in_job(run_folders: Sequence[str], attempts: Sequence[int]) -> str:
    """Run the attempt of this task's slot, given folder and attempt of each run that shares the job."""
    from runner.job.entry import run_slot
    from runner.job.stop import QuickExit

    leaving = QuickExit()
    said = run_slot(run_folders, attempts)
    leaving.done = True
    return said
