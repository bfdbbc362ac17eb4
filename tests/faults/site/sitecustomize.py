"""Imported by every Python that has this folder on PYTHONPATH: takes the disk away, or sets the clock.

FAULT_FILE is a regular expression. Right before a path that it finds is opened for writing for the first
time, by whatever process, the disk under FAULT_ROOT is filled up, becomes read-only, or refuses that process this
file alone; or that process is killed or stopped; as FAULT says.

PACE_SECONDS is how long each step record waits before it is written, until there is a file ROOT.hurry: a run that a
test only needs to be there then leaves the processor to the others, and goes on fast when the test has done with it.

STAND_IN_TRAINER, if set, gives jobs a stand-in for the trainer and torch.

ASSAY_TEST_SHARED is a folder where jobs keep what they compile of a snapshot, by the hash of the source: a snapshot
keeps no byte code, and each of several hundred jobs would take a processor 0.1 s to compile the same files.

CLOCK_FILE holds the seconds by which the wall clock is off, and may change at any time. The monotonic clock
is as it is. (Debian's faketime lets time.sleep of Python 3.11 fail.)
"""

import datetime
import errno
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

WRITES = os.O_WRONLY | os.O_RDWR


def strike(root, kind):
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    if kind == "refuse":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if kind == "read-only":
        subprocess.run(["mount", "--bind", root, root], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", root], check=True)
        return
    ballast = os.open(f"{root}/ballast", os.O_WRONLY | os.O_CREAT)
    try:
        for size in (65536, 4096, 1):
            try:
                while os.write(ballast, b"x" * size):
                    pass
            except OSError:
                continue
    finally:
        os.close(ballast)


def arm(pattern, root, kind):
    once = Path(f"{root}.struck")  # beside the disk: the first process that comes here strikes

    def hook(event, arguments):
        if (
            event != "open"
            or not isinstance(arguments[0], str)
            or not arguments[2]
            or not arguments[2] & WRITES
        ):
            return
        if arguments[0].startswith(f"{root}/") and pattern.search(arguments[0][len(root) :]):
            try:
                os.close(os.open(once, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            strike(root, kind)

    sys.addaudithook(hook)


def keep_pace(seconds):
    def hook(event, arguments):
        if event == "open" and str(arguments[0]).endswith("/steps.jsonl") and (arguments[2] or 0) & WRITES:
            root = Path(arguments[0]).parents[3]
            if not Path(f"{root}.hurry").exists():
                time.sleep(seconds)

    sys.addaudithook(hook)


def set_clock(file):
    real, seconds = time.time, lambda: int(file.read_text())

    class Datetime(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) + datetime.timedelta(seconds=seconds())

    Datetime.__name__ = Datetime.__qualname__ = "datetime"
    datetime.datetime = Datetime
    time.time = lambda: real() + seconds()


def keep_compiled(folder):
    import _imp
    import contextlib
    import hashlib
    import marshal
    from importlib.machinery import SourceFileLoader

    compiled = SourceFileLoader.source_to_code

    def source_to_code(loader, data, path, **options):
        cache = Path(folder, f"{hashlib.sha256(data).hexdigest()}.{sys.implementation.cache_tag}")
        try:
            code = marshal.loads(cache.read_bytes())
        except OSError:
            code = compiled(loader, data, path, **options)
            with contextlib.suppress(OSError):  # another user's folder
                (aside := cache.with_name(f"{cache.name}.{os.getpid()}")).write_bytes(marshal.dumps(code))
                aside.replace(cache)
        else:
            _imp._fix_co_filename(code, path)
        return code

    SourceFileLoader.source_to_code = source_to_code


# No test takes the power away. A launch syncs the 400 files of a snapshot, one after another.
os.fsync = lambda descriptor: None

# A Slurm job carries the text of runner/slurm.py on its command line.
IN_JOB = {"runner.job", "runner.job.ranks.follower"} & {*sys.orig_argv} or any(
    "def run_in_job" in word for word in sys.orig_argv
)
if "ASSAY_TEST_SHARED" in os.environ and any("def install(" in word for word in sys.orig_argv):
    keep_compiled(os.environ["ASSAY_TEST_SHARED"])
if "STAND_IN_TRAINER" in os.environ and IN_JOB:
    import stand_in

    stand_in.install()
if "CLOCK_FILE" in os.environ:
    set_clock(Path(os.environ["CLOCK_FILE"]))
if "PACE_SECONDS" in os.environ:
    keep_pace(float(os.environ["PACE_SECONDS"]))
if "FAULT_FILE" in os.environ:
    arm(re.compile(os.environ["FAULT_FILE"]), os.environ["FAULT_ROOT"], os.environ["FAULT"])
