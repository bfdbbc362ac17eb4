"""`python -m runner.job RUN_FOLDER ATTEMPT LAUNCHER_PID`: runs one attempt for the local queue.

Launchers start this module from code snapshots of other versions, so its name and arguments must not change.
"""

from __future__ import annotations

import sys

from model.record.folder import RunFolder
from runner.job.attempt import run_attempt
from runner.job.child import QuickExit, die_with


def main() -> None:
    """Run an attempt, and die with the launcher: an orphan would distort later timings."""
    run_folder, number, launcher = sys.argv[1:]
    die_with(int(launcher))
    leaving = QuickExit()
    run_attempt(RunFolder(run_folder), int(number))
    leaving.done = True


if __name__ == "__main__":
    main()
