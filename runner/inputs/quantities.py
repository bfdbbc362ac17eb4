"""Parses quantities in YAML files: memory as `3GiB`, time as `H:MM:SS`."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, ByteSize, TypeAdapter

_BYTES = TypeAdapter(ByteSize)


def parse_memory(text: str) -> int:
    """Convert `512MiB`, `3GiB` and the like to bytes. Raises ValueError."""
    amount = re.fullmatch(r"\d{1,6}(?:\.\d{1,6})? ?[KMGT]iB", text, re.ASCII)
    if not amount or not (parsed := _BYTES.validate_python(text)):
        raise ValueError(f"expected an amount of memory such as 512MiB or 3GiB, got '{text}'")
    return int(parsed)


def parse_time(text: str) -> int:
    """Convert `H:MM:SS` or `D-HH:MM:SS`, Slurm's format for time limits, to seconds. Raises ValueError."""
    match = re.fullmatch(r"(?:(\d{1,4})-)?(\d{1,5}):([0-5]\d):([0-5]\d)", text, re.ASCII)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0, 0)
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if not total:
        raise ValueError(f"expected a time limit such as 0:30:00 or 12:00:00, got '{text}'")
    return total


def _memory(text: Any) -> Any:
    """Check before the type is checked, so that the error for a number without a unit shows an example."""
    parse_memory(text if isinstance(text, str) else str(text))
    return text


def _time(text: Any) -> Any:
    parse_time(text if isinstance(text, str) else str(text))
    return text


Memory = Annotated[str, BeforeValidator(_memory)]
Time = Annotated[str, BeforeValidator(_time)]
