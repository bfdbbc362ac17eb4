"""Entry point of the command line; maps errors to exit codes.

0: all as expected; 1: some run ended unexpectedly; 2: usage or configuration error; 3: the scheduler refused
or cannot be reached; 130: interrupted.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from typing import NoReturn

from model.errors import AssayError
from runner.cli.app import app
from runner.commands._console import say
from runner.state.guard import close_umask


def main() -> None:
    """Run the command line and exit; errors of the user are printed without a traceback."""
    gc.set_threshold(1_000_000)  # records have no cycles, so looking for cycles only costs time
    _show_messages()
    close_umask()
    try:
        app(prog_name="runner")
    except AssayError as error:
        _stop(error.exit_code, str(error))
    except KeyboardInterrupt:
        _stop(130, "interrupted")
    except BrokenPipeError:  # `runner sql ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _stop(141)


class _Said(logging.Handler):
    """Says a message as the verbs do: where sys.stderr is now, and a broken pipe ends the command."""

    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


def _show_messages() -> None:
    """Send log messages of our packages to standard error, unformatted."""
    for package in ("runner", "analysis"):
        messages = logging.getLogger(package)
        messages.addHandler(_Said())
        messages.setLevel(logging.INFO)
        messages.propagate = False


def _stop(code: int, text: str = "") -> NoReturn:
    if text:
        say(text)
    sys.exit(code)
