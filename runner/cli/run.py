"""Runs one command line, and turns whatever ends it into an exit code and a message without a traceback."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from model.record.errors import AssayError
from runner.cli.app import ReaderGone, app
from runner.commands._console import say

_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
_INTERRUPTED = "Query interrupted"  # what DuckDB raises on Ctrl-C while it answers
_LOOP = "Symlink loop from "  # what pathlib raises, up to Python 3.12
BROKEN_PIPE = 141  # what a shell reports for a program that SIGPIPE ended


def run(arguments: Sequence[str]) -> int:
    """Run a command line without the program's name, and return its exit code."""
    for package in ("runner", "analysis"):  # their log messages go to standard error, unformatted
        messages = logging.getLogger(package)
        messages.handlers = [_Said()]
        messages.setLevel(logging.INFO)
        messages.propagate = False
    try:
        try:
            app(list(arguments), prog_name="runner")
        finally:
            sys.stdout.flush()  # a full disk shows here, and not after the last chance to say so
    except SystemExit as end:
        return int(end.code or 0)
    except AssayError as error:
        return _ended(error.exit_code, str(error))
    except KeyboardInterrupt:
        return _ended(130, "interrupted")
    except RuntimeError as error:
        if str(error).startswith(_LOOP):
            return _ended(2, str(error))
        if str(error) != _INTERRUPTED:
            raise
        return _ended(130, "interrupted")
    except (BrokenPipeError, ReaderGone):  # `runner sql ... | head`
        _drop(sys.stdout, sys.stderr)
        return BROKEN_PIPE
    except OSError as error:
        try:
            sys.stdout.flush()
        except OSError:
            _drop(sys.stdout)
        if error.filename is not None:
            return _ended(2, f"{os.fsdecode(error.filename)}: {error.strerror}")
        # An error in writing to an open file does not know its name.
        return _ended(2, f"cannot write: {error.strerror}" if error.errno in _WRITING else str(error))
    return 0


def _ended(code: int, text: str) -> int:
    """Say why the command ended, and return its exit code."""
    try:
        say(text)
    except OSError:  # stderr is closed or its disk is full, which must not change the exit code
        _drop(sys.stderr)
    return code


def _drop(*streams: TextIO) -> None:
    """Discard what is left in these streams: Python would try to write it again at exit."""
    for stream in streams:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class _Said(logging.Handler):
    """Prints messages like the verbs: on the current sys.stderr, where a broken pipe ends the command."""

    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())
