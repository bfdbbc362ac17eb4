"""Where a Slurm job starts: the text of this file is in its batch script, as `python -P -c TEXT ARGUMENT...`.

Slurm keeps a copy of the script, so nobody who can write in a code snapshot can change what checks it. Until
the check is done this imports only the standard library. It starts snapshots of every version, because each
has `runner/start.py` and `run_in_job` below. Pickles of earlier versions that still wait in a queue also name
`run_in_job`: neither its name nor its arguments may change.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def run_in_job(run_folders: Sequence[str], attempts: Sequence[int]) -> str:
    """Run the attempt of this task's slot, given folder and attempt of each run that shares the job."""
    from runner.job.entry import run_slot
    from runner.job.stop import QuickExit

    leaving = QuickExit()
    said = run_slot(run_folders, attempts)
    leaving.done = True
    return said


def checked(home: Path, start_hash: str) -> dict[str, Any]:
    """Check a snapshot and return what its start.py defines; ends the process if others could change it.

    Args:
        start_hash: SHA-256 of start.py, which in turn checks the other files against the folder's name.
    """
    for folder, _, names in os.walk(home):
        for path in (Path(folder), *(Path(folder, name) for name in names)):
            facts = path.stat()
            if facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
                sys.exit(
                    f"{path} belongs to another user or is writable by others, who could run code as you"
                )
    text = (home / "runner" / "start.py").read_bytes()
    if hashlib.sha256(text).hexdigest() == start_hash:
        start: dict[str, Any] = {"__name__": "start"}
        exec(compile(text, home / "runner" / "start.py", "exec"), start)  # noqa: S102  it is what was launched
        if start["digest"](start["read"](home)) == home.name:
            return start
    sys.exit(f"the code snapshot {home} was edited after it was taken; launch again to take a new one")


def main() -> None:
    """Run attempts: `STUDY SNAPSHOT START_HASH RUN/ATTEMPT...`; the installed code's without a snapshot."""
    study, snapshot, start_hash, *attempts = sys.argv[1:]
    if snapshot:
        home = Path(snapshot).resolve()
        checked(home, start_hash)["install"](home)
    from runner.slurm import run_in_job as run  # the snapshot's

    names, numbers = zip(*(attempt.split("/") for attempt in attempts), strict=True)
    run([f"{study}/{name}" for name in names], [int(number) for number in numbers])


if __name__ == "__main__":
    main()
