"""Amounts as people write them: `3GiB` of memory, `H:MM:SS` of time."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, ByteSize, TypeAdapter

_BYTES = TypeAdapter(ByteSize)


def parse_memory(text: str) -> int:
    """Bytes of `512MiB`, `3GiB`, ... Raises ValueError."""
    amount = re.fullmatch(r"\d+(?:\.\d+)? ?[KMGT]iB", text)
    if not amount or not (parsed := _BYTES.validate_python(text)):
        raise ValueError(f"expected an amount of memory such as 512MiB or 3GiB, got '{text}'")
    return int(parsed)


def parse_time(text: str) -> int:
    """Seconds of `H:MM:SS` or `D-HH:MM:SS`, as Slurm writes a time limit. Raises ValueError."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)", text)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0, 0)
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if not total:
        raise ValueError(f"expected a time limit such as 0:30:00 or 12:00:00, got '{text}'")
    return total


def _memory(text: str) -> str:
    parse_memory(text)
    return text


def _time(text: str) -> str:
    parse_time(text)
    return text


Memory = Annotated[str, AfterValidator(_memory)]
Time = Annotated[str, AfterValidator(_time)]
