"""Entry point of the command line.

Exit codes: 0: all as expected; 1: some run ended unexpectedly; 2: usage or configuration error; 3: the
scheduler refused or cannot be reached; 130: interrupted; 141: nobody read the output to its end.
"""

import signal

# Until `main` can answer Ctrl-C, it ends the process at once. Python would answer with a traceback.
# If the caller ignores it, as a script does for its background jobs, it stays ignored.
ANSWERED = signal.getsignal(signal.SIGINT) is signal.default_int_handler
if ANSWERED:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import contextlib  # noqa: E402
import gc  # noqa: E402
import io  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from typing import TYPE_CHECKING, NoReturn  # noqa: E402

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _Output(io.FileIO):
    """Standard output, whose errors name it: those of other open files do not know their names."""

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write as much as can be."""
        try:
            return super().write(data)
        except OSError as error:
            from model.record.errors import STANDARD_OUTPUT

            error.filename = STANDARD_OUTPUT
            raise


def main() -> NoReturn:
    """Run the command line and exit; errors of the user are printed without a traceback."""
    try:
        if ANSWERED:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        gc.set_threshold(1_000_000)  # records have no cycles, so looking for cycles only costs time
        if sys.stderr is None:  # closed by `2>&-`; print would then write messages among the results
            sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115  # pathlib takes long to import
        if sys.stdout is None:  # closed by `>&-`
            sys.stderr.write("standard output is closed: redirect it to a file or to /dev/null\n")
            code = 2
        else:
            # Not every locale can write every title. JSON is UTF-8 whatever the locale.
            sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
            sys.stdout = io.TextIOWrapper(
                io.BufferedWriter(_Output(sys.stdout.fileno(), "w", closefd=False)),
                encoding="utf-8",
                errors="backslashreplace",
                line_buffering=bool(sys.stdout.line_buffering or sys.stdout.write_through),  # type: ignore[union-attr]
            )
            from runner.cli.run import run
            from runner.state.guard import close_umask

            close_umask()
            code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    if ANSWERED:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # while Python ends, too
    if code == 130:
        # At once: what was interrupted still holds a database, whose binding would complain on stderr.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # closed, or its reader is gone
                if stream is not None:
                    stream.flush()
        os._exit(code)
    sys.exit(code)
