"""Runs work in a child process with limits: what a query does inside C++ can be stopped in no other way."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from analysis.store.database import first_lines, limit_memory
from model.measure.hostmemory import Limit, oom_kills
from model.record.errors import STANDARD_OUTPUT, AssayError, UserError, memory_ran_out, shortage

_LESS = {"query": "select less, or ", "audit": ""}  # what else helps


def in_child(work: Callable[[], int | None], seconds: int, memory_bytes: int, what: str = "query") -> None:
    """Do work that writes to stdout in a child process, which Ctrl-C ends at once.

    Args:
        work: what to do; its errors for the user are raised here, and an exit code that it returns is.
        seconds: time limit; 0 for none.
        memory_bytes: limit on the memory that the child has in use.
        what: what messages call the work.

    Raises:
        UserError: the work did, took too long, or used too much memory.
        SystemExit: it ended in another way, with this code.
    """
    sys.stdout.flush()
    (read, write), kills = os.pipe(), oom_kills()
    if (child := os.fork()) == 0:
        _child(work, seconds, memory_bytes, write, what)
    os.close(write)
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with open(read, encoding="utf-8") as pipe:  # noqa: PTH123  a descriptor
            message = pipe.read()  # until the child ends
        _, status = os.waitpid(child, 0)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)
    if message:
        raise UserError(message)
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGALRM:
        raise UserError(
            f"no answer within {seconds} s, so the {what} was stopped: {_LESS[what]}raise --timeout"
        )
    if code == -signal.SIGINT:
        raise KeyboardInterrupt
    if code < 0:
        killed = f"the {what} was killed by {signal.Signals(-code).name}"
        raise UserError(f"{killed}: this machine ran out of memory" if oom_kills() > kills else killed)
    if code:
        sys.exit(code)


def _child(
    work: Callable[[], int | None], seconds: int, memory_bytes: int, write: int, what: str
) -> NoReturn:
    """Do the work and exit, without anything that the parent would do at its end."""
    code = 1

    def outgrown(reason: str) -> None:
        advice = f"{_LESS[what]}raise --memory, half of which is DuckDB's"
        os.write(write, f"the {what} ran {reason}: {advice}".encode())
        os._exit(1)

    try:
        for number in (signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(seconds)  # the kernel keeps the time, whatever the work does
        limit = Limit(memory_bytes, "--memory")
        limit.watch(outgrown)
        limit.hold()
        limit_memory(memory_bytes // 2)  # the rest is for what DuckDB does not count, and for writing
        done = work()
        sys.stdout.flush()
        code = done or 0
    except (AssayError, MemoryError) as error:
        if cause := memory_ran_out(error):
            outgrown(f"out of memory: {first_lines(cause, 1) or limit.state()}")
        os.write(write, str(error).encode())
    except BrokenPipeError:  # `runner sql ... | head`
        code = 141
    except BaseException as error:
        if isinstance(error, OSError) and error.filename == STANDARD_OUTPUT:
            os.write(write, f"{STANDARD_OUTPUT}: {error.strerror}".encode())
        elif isinstance(error, OSError | ImportError) and (advice := shortage(error)):
            os.write(write, f"the {what} cannot go on: {first_lines(error, 1)}; {advice}".encode())
        else:
            sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)
