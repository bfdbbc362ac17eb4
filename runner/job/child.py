"""Child processes on a node: each ends with its parent, leaves quickly, and answers on standard output."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TextIO

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies: an orphan would distort later timings."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent process has already exited")


class QuickExit:
    """Ends this process without tearing torch down, which takes most of a second and frees nothing.

    Made before torch is imported, so that everything registered with atexit later has run by then.

    Attributes:
        done: whether the work has ended well, so that the exit code is 0.
    """

    def __init__(self) -> None:
        self.done = False

        def leave() -> None:
            if self.done:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)

        atexit.register(leave)


def answer_stream() -> TextIO:
    """Standard output, for answers alone: what compilers and libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def kill_group(child: subprocess.Popen[bytes]) -> None:
    """Kill a child that was started in a session of its own, with all that it has started; wait for it."""
    if child.poll() is None:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
