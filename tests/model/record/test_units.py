"""Amounts carry their unit and as many digits as a person reads."""

import io
import sys
from pathlib import Path

import pytest

from model.record.units import clock, counted, duration, say, size


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (2**20 - 1, "1024.0 KiB"),
        (2**20, "1.0 MiB"),
        (2**30, "1.0 GiB"),
        (4 * 2**30 + 2**29, "4.5 GiB"),
        (5 * 2**40, "5120.0 GiB"),
    ],
)
def test_bytes_are_counted_in_powers_of_1024_up_to_gib(amount, text):
    assert size(amount) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00:00"), (59.6, "0:01:00"), (3599, "0:59:59"), (3600, "1:00:00"), (360_001, "100:00:01")],
)
def test_a_clock_counts_hours_without_end(seconds, text):
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4336, "0.434 s"), (119.9, "120 s"), (120, "2.0 min"), (7199, "120.0 min"), (11_520, "3.20 h")],
)
def test_a_duration_takes_the_unit_that_suits_its_length(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "run", "0 runs"),
        (1, "run", "1 run"),
        (1200, "run", "1,200 runs"),
        (1, "process", "1 process"),
        (2, "process", "2 processes"),
    ],
)
def test_a_noun_has_the_number_of_its_count(count, noun, text):
    assert counted(count, noun) == text


@pytest.mark.fault
def test_a_line_that_nobody_can_hear_ends_nothing(monkeypatch):
    closed = io.StringIO()
    closed.close()
    with Path("/dev/full").open("wb", buffering=0) as full:
        for stderr in (None, closed, io.TextIOWrapper(full, write_through=True)):
            monkeypatch.setattr(sys, "stderr", stderr)
            say("nobody hears this")
            if stderr is not None and not stderr.closed:
                with pytest.raises(OSError, match="No space"):
                    stderr.write("the same without care")
