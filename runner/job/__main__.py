"""`python -m runner.job RUN_FOLDER ATTEMPT LAUNCHER_PID`: one attempt for the local queue.

Launchers start this module from code snapshots of other versions: its name and arguments stay as they are.
"""

from __future__ import annotations

import sys

from model.disk.folder import RunFolder
from runner.job.attempt import run_attempt
from runner.job.stop import die_with


def main() -> None:
    """Run an attempt, and die with its launcher: an orphan would spoil the next timing."""
    run_folder, number, launcher = sys.argv[1:]
    die_with(int(launcher))
    run_attempt(RunFolder(run_folder), int(number))


if __name__ == "__main__":
    main()
