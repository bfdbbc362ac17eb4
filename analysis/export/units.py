"""The unit of a column, which its name gives."""

from __future__ import annotations

import re

# The unit of the first ending that fits a name; a ratio or a count has none.
_UNITS = (
    ("tokens_per_second(_low|_high)?", "tokens/s"),
    ("(mfu|percentage)", "%"),
    ("tflops", "TFLOP/s"),
    ("peak_flops", "FLOP/s"),
    ("flop_per_token", "FLOP/token"),
    ("loss", "nats/token"),
    ("seconds(_25|_75)?", "s"),
    ("milliseconds", "ms"),
    ("microseconds", "us"),
    ("mtime_ns", "ns"),
    ("bytes", "B"),
    ("gigabytes_per_second", "GB/s"),
    ("hours", "h"),
    ("joules", "J"),
    ("watts", "W"),
    ("mhz", "MHz"),
    ("tokens", "tokens"),
    ("tokens_per_step", "tokens/step"),
)


def unit(column: str) -> str | None:
    """`s` for `step_seconds`; None where a column has no unit."""
    return next((name for end, name in _UNITS if re.search(rf"(^|_){end}$", column)), None)
