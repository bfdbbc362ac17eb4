"""What a run is doing where it has no steps: printed to its log, and written to a file for launchers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from model.record.config import Frozen
from model.record.files import Unreadable, read, write_text

FILE = "phase.json"


class Stage(Frozen):
    """How far a trial is, the timing of attention alone or its bytes, or the search for a frontier.

    Attributes:
        begun: the stage, round or probe that it has begun (0: it waits), of how many.
        what: is checked, called or tried.
    """

    backend: str
    begun: int
    total: int
    what: str
    doing: Literal["certifying", "timing", "counting", "probing"] = "certifying"

    def __str__(self) -> str:
        of = f" ({self.begun} of {self.total})" if self.total else ""
        return f"{self.doing} {self.backend}{of}: {self.what}"


Tell = Callable[[Stage], None]


@contextmanager
def shown(attempt: Path) -> Iterator[Tell]:
    """Yield a function that shows a stage; the file is removed when the body ends."""

    def tell(stage: Stage) -> None:
        sys.stdout.write(f"{stage}\n")
        sys.stdout.flush()
        with suppress(OSError):
            write_text(attempt / FILE, stage.model_dump_json(), sync=False)

    try:
        yield tell
    finally:
        with suppress(OSError):
            (attempt / FILE).unlink(missing_ok=True)


def current(attempt: Path) -> Stage | None:
    """The stage that a run is at; None before the first and after the last."""
    with suppress(Unreadable):
        return read(attempt / FILE, Stage)
    return None
