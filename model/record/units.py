"""What a person reads: sizes, times and counts in words, text with nothing hidden, and a run's messages."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from pydantic import ByteSize

# They change the order in which the text around them is shown, also beyond the word that they stand in
# (Boucher & Anderson 2021, arXiv:2111.00169). Letters of languages written from right to left do not.
_TURNING = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_CODES = {code: f"[U+{code:04X}]" for code in _TURNING}


def size(amount: int) -> str:
    """Bytes, in a power of 1024 up to GiB: `12 bytes`, `4.0 GiB`."""
    if amount < 1024:
        return f"{amount} bytes"
    unit = "KiB" if amount < 2**20 else "MiB" if amount < 2**30 else "GiB"
    return f"{ByteSize(amount).to(unit):.1f} {unit}"


def clock(seconds: float) -> str:
    """Seconds as `H:MM:SS`, the way a profile writes a time limit."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def duration(seconds: float) -> str:
    """Seconds in the unit that suits their length: `0.43 s`, minutes from 120 s, hours from 120 min."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.2f} h"


def counted(count: int, noun: str) -> str:
    """A count of things: `1 run`, `1,200 runs`, `2 processes`."""
    many = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{count:,d} {noun if count == 1 else many}"


def in_order(value: Any) -> Any:
    """The value; in a text, the code of each character that would change the order of others: `[U+202E]`.

    A subclass of `str` whose `translate` returns its own kind stays of that kind, such as escaped HTML.
    """
    return value if not isinstance(value, str) or value.isascii() else value.translate(_CODES)


def first_line(error: Exception) -> str:
    """The first line of what an exception says, else its kind; without a stop at its end."""
    first = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return visible(first.strip(" .:"))


def harmless(text: str) -> str:
    """A message of several lines, each `visible`: it does not steer a terminal. A cell is one line."""
    return "\n".join(map(visible, text.split("\n")))


def visible(line: str) -> str:
    """The line with a `?` for what a terminal could not show as one character, and a space for a tab."""
    if line.isprintable():
        return line
    return "".join(letter if letter.isprintable() else " " if letter == "\t" else "?" for letter in line)


def say(text: str) -> None:
    """Write a line of a run to stderr. If that is closed, or a file on a full disk, the line is lost."""
    if sys.stderr is not None:  # Python's word for a descriptor that was closed when it started
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()
