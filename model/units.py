"""Amounts as a person reads them: bytes and seconds. The text always carries its unit."""

from __future__ import annotations

from pydantic import ByteSize


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
