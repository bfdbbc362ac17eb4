"""The bottom floor: what a run is, the model it trains, and the kernels it trains with."""

from __future__ import annotations

from pathlib import Path


def modules(folder: Path) -> dict[str, Path]:
    """The files of a folder in which each file is one thing: a backend, a chart, a format, a verb.

    Returns:
        Paths by name, sorted; `_NAME.py` is what they share. Nothing is imported.
    """
    return {path.stem: path for path in sorted(folder.glob("[!_]*.py"))}
