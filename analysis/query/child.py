"""Runs work in a child process with limits: what a query does inside C++ can be stopped in no other way."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from model.errors import AssayError, UserError


def in_child(work: Callable[[], None], seconds: int, memory_bytes: int) -> None:
    """Do work that writes to stdout in a child process, which Ctrl-C ends at once.

    Args:
        work: what to do; its errors for the user are raised here.
        seconds: time limit; 0 for none.
        memory_bytes: limit on the child's data, over all that it allocates.

    Raises:
        UserError: the work did, took too long, or used too much memory.
        SystemExit: it ended in another way, with this code.
    """
    sys.stdout.flush()
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        _child(work, seconds, memory_bytes, write)
    os.close(write)
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with open(read, encoding="utf-8") as pipe:  # noqa: PTH123  a descriptor
            said = pipe.read()  # until the child ends
        _, status = os.waitpid(child, 0)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)
    _report(status, said, seconds)


def _report(status: int, said: str, seconds: int) -> None:
    if said:
        raise UserError(said)
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGALRM:
        raise UserError(
            f"no answer within {seconds} s, so the query was stopped: select less, or raise --timeout"
        )
    if code == -signal.SIGINT:
        raise KeyboardInterrupt
    if code < 0:
        raise UserError(f"the query was ended by {signal.Signals(-code).name}: it may need more --memory")
    if code:
        sys.exit(code)


def _child(work: Callable[[], None], seconds: int, memory_bytes: int, write: int) -> NoReturn:
    """Do the work and exit, without anything that the parent would do at its end."""
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(seconds)  # the kernel keeps the time, whatever the work does
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        limit = memory_bytes if most == resource.RLIM_INFINITY else min(memory_bytes, most)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, most))
        work()
        sys.stdout.flush()
        code = 0
    except AssayError as error:
        os.write(write, str(error).encode())
    except MemoryError:
        os.write(write, b"the query needs more memory than it may use: select less, or raise --memory")
    except BrokenPipeError:  # `runner sql ... | head`
        code = 141
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)
