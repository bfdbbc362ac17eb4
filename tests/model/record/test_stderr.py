"""What a run says on stderr does not end it."""

import io
import sys
from pathlib import Path

import pytest

from model.record.stderr import say


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
