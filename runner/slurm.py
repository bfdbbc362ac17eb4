"""Where a Slurm job starts: the text of this file is in its batch script, as `python -P -c TEXT ARGUMENT...`.

So is the text of runner/start.py, which checks the code snapshot and runs what it has checked. Slurm keeps a
copy of the script, so nobody who can write in the study's folder, or put another in its place, can change it.
This starts snapshots of every version, because each has `run_in_job` below. Pickles of earlier versions that
still wait in a queue also name `run_in_job`: neither its name nor its arguments may change.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def run_in_job(run_folders: Sequence[str], attempts: Sequence[int]) -> str:
    """Run the attempt of this task's slot, given folder and attempt of each run that shares the job."""
    from runner.job.child import QuickExit
    from runner.job.entry import run_slot

    leaving = QuickExit()
    outcome = run_slot(run_folders, attempts)
    leaving.done = True
    return outcome


def main() -> None:
    """Run attempts: `STUDY SNAPSHOT START RUN/ATTEMPT...`; the installed code's without a snapshot."""
    study, snapshot, text, *attempts = sys.argv[1:]
    if snapshot:
        start: dict[str, Any] = {"__name__": "start"}
        exec(compile(text, "start.py", "exec"), start)  # noqa: S102  Slurm's copy of it
        start["install"](Path(snapshot).resolve())
    from runner.slurm import run_in_job as run  # the snapshot's

    names, numbers = zip(*(attempt.split("/") for attempt in attempts), strict=True)
    run([f"{study}/{name}" for name in names], [int(number) for number in numbers])


if __name__ == "__main__":
    main()
