"""The errors that reach a person. Each is caught once, at the command line, and printed without a traceback.

AssayError
├── UserError            something to type differently: exit code 2
├── Unsupported          this backend, data or precision cannot run here: outcome `unsupported`
├── Diverged             the loss became NaN or infinite: outcome `diverged`
├── AuditFailed          attention went wrong in a running model: outcome `failed`
├── Interrupted          stopped on request after step N
└── (runner.inputs.document and runner.state.slurm add InvalidFile and SchedulerError)
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")  # `Path` makes one slash of two
_UNMAPPED = "failed to map segment from shared object"  # the dynamic linker's


class AssayError(Exception):
    """Base of every error that this project raises on purpose; its text is for a person."""

    exit_code = 2


class UserError(AssayError):
    """The user asked for something that does not exist or is not valid; the text names the valid choices."""


class OfAnotherProcess(OSError):
    """An error of another process of the run, which this one was told of; the text names the process."""


class Unsupported(AssayError):
    """What was asked for cannot run here.

    Args:
        reasons: one sentence each, saying what is missing and what to do about it.
    """

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = list(reasons)


class Diverged(AssayError):
    """The loss or the gradient norm is no longer a finite number."""


class AuditFailed(AssayError):
    """An audit found that the running model's attention is wrong; the text has the numbers."""


class Interrupted(AssayError):
    """The run was asked to stop, and did so after a step.

    Args:
        step: the last step done.
        saved: whether a checkpoint holds it.
        unit: what is counted, for people.
    """

    def __init__(self, step: int, saved: bool = True, unit: str = "steps") -> None:
        self.step, self.saved, self.unit = step, saved, unit
        super().__init__(f"stopped on request; {self.kept}")

    @property
    def kept(self) -> str:
        """What can be resumed from."""
        if self.saved:
            return f"a checkpoint was saved at step {self.step}"
        done = f"its {self.step} {self.unit} are lost" if self.step else f"no {self.unit} were done"
        return f"{done}, so it starts over"


def one_line(error: BaseException, most: int = 300) -> str:
    """What an exception says, in one line; its text is cut to `most` characters, and an ellipsis shows it."""
    text = " ".join(str(error).split())
    shown = text if len(text) <= most else text[: most - 4].rstrip() + " ..."
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__


def did_you_mean(word: str, choices: Sequence[str], meant: str | None = None) -> str:
    """List the valid choices, after the nearest one: `(did you mean 'a'? valid: a, b, c)`.

    Args:
        meant: the nearest one, where the caller knows it better than by its letters.
    """
    from difflib import get_close_matches

    if not choices:
        return "(there are none yet)"
    near = meant or next(iter(get_close_matches(word, choices, n=1)), None)
    hint = f"did you mean '{near}'? " if near else ""
    return f"({hint}valid: {', '.join(choices)})"


def local_path(given: str | Path) -> Path:
    """A path of this machine, as a person writes it: `~` is the home folder, as in a shell.

    Raises:
        UserError: it is a URL, or the home folder is unknown.
    """
    text = str(given)
    if scheme := _URL.match(text):
        local = "write it without file://" if scheme[1].lower() == "file" else "name a local copy or folder"
        raise UserError(f"{text!r} is a URL, not a path of this machine: {local}")
    try:
        return Path(given).expanduser()
    except RuntimeError as error:
        raise UserError(f"{text!r}: the home folder is unknown; write the path in full") from error


def no_runs(root: Path, study: str, studies: Sequence[str]) -> UserError:
    """An error that says that a study has no run folders, and what to type instead."""
    if any((root / study / ".reports").glob("[0-9]*-*")):
        return UserError(
            f"of study '{study}' there are only the records of a report under {root}: "
            "`runner sql`, `report` and `compare` take its runs, but none can be seen or continued here"
        )
    none = "(nor of any other: start some with `runner launch STUDY`, or name another folder with --root)"
    return UserError(
        f"no runs of study '{study}' under {root} {did_you_mean(study, studies) if studies else none}"
    )


STANDARD_OUTPUT = "standard output"  # what errors in writing to it have for a file's name
_FREE = "free some space, or name a folder that has some with TMPDIR"
_SHORT = {  # what the system says where a machine is short of something, and what to do
    errno.ENOSPC: _FREE,
    errno.EDQUOT: _FREE,
    errno.EFBIG: "raise `ulimit -f`",
    errno.EMFILE: "raise `ulimit -n`",
    errno.EAGAIN: "raise `ulimit -u` or `ulimit -v`",
    errno.ENOMEM: "raise `ulimit -v`",
}


def shortage(error: BaseException | None) -> str | None:
    """What to do about an error if it, or one of its causes, comes of what this machine or shell lacks."""
    while error is not None:
        if out_of_host_memory(error):
            return _SHORT[errno.ENOMEM]
        text = str(error)
        for number, advice in _SHORT.items():
            if os.strerror(number) in text:
                return advice
        error = error.__cause__
    return None


def memory_ran_out(error: BaseException | None) -> BaseException | None:
    """The error, or that of its causes, by which Python, Arrow or DuckDB says that memory ran out, if any."""
    while error is not None:
        if isinstance(error, MemoryError) or "Out of Memory Error" in str(error):
            return error
        error = error.__cause__
    return None


def out_of_host_memory(error: BaseException) -> bool:
    """Whether an error of Python, the system or the dynamic linker says that host memory has run out.

    Where no file may be executed, the linker says the same.
    """
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    text = str(error)
    if not isinstance(error, ImportError | OSError | RuntimeError) or _UNMAPPED not in text:
        return False
    library = Path(getattr(error, "path", None) or text.partition(":")[0])
    if not library.is_absolute() or not library.exists():
        return True
    return not os.statvfs(library).f_flag & os.ST_NOEXEC
