"""Which characters no text of a study or profile may have, and how a stranger among letters is named."""

from __future__ import annotations

import re
import unicodedata

# Control characters, line breaks that only some programs honor, characters that make a terminal show a text
# in another order than it is read (Boucher & Anderson 2021, arXiv:2111.00169), halves of surrogate pairs.
_HIDDEN = r"\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
HIDDEN = re.compile(f"[{_HIDDEN}]")
HIDDEN_IN_TEXT = re.compile(f"(?![\t\n])[{_HIDDEN}]")  # a text may have several lines


def code_point(character: str) -> str:
    """Such as U+0007."""
    return f"U+{ord(character):04X}"


def look_alike(word: str) -> str:
    """Name the first letter that is not ASCII, which may look like another; empty if there is none."""
    found = next((letter for letter in word if not letter.isascii()), None)
    if found is None:
        return ""
    return f"; its letter '{found}' is {code_point(found)}, {unicodedata.name(found, 'without a name')}"


def visible(line: str) -> str:
    """The line with a `?` for what a terminal could not show as one character, and a space for a tab."""
    return "".join(letter if letter.isprintable() else " " if letter == "\t" else "?" for letter in line)


def width(text: str) -> int:
    """Columns that a terminal needs for a text."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )
