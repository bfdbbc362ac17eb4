"""TensorBoard event files, or a folder with those of one run; a mapping names the tags."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from analysis.importers import Importer
from analysis.logs.mapping import Column, Mapping
from analysis.logs.table import Refused, Row, Table
from model.errors import UserError


def read(file: Path) -> Table:
    """Read the scalars of an event file, or of a folder's: a row a step, with the tags as columns.

    Raises:
        UserError: the package tensorboard is not installed.
        Refused: there are no scalars.
    """
    if not file.exists():
        raise Refused(f"{file}: no such file; give an event file or the folder of a run")
    events = _accumulated(file)
    rows: dict[int, dict[str, Any]] = {}
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            row = rows.setdefault(event.step, {"step": event.step})
            row.setdefault(tag, event.value)
            row["wall_time"] = max(event.wall_time, row.get("wall_time", 0.0))
    if not rows:
        raise Refused(f"{file}: no scalars in it; is it an event file, or the folder of one run?")
    return Table(file, [Row(line, rows[step]) for line, step in enumerate(sorted(rows), start=1)])


def _accumulated(file: Path) -> Any:
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise UserError(
            "--format tensorboard needs the package tensorboard: pip install 'assay-studies[tensorboard]'"
        ) from error
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # what it could not read, we say
    events = EventAccumulator(str(file), size_guidance={"scalars": 0})
    events.Reload()
    return events


importer = Importer(
    title="TensorBoard event files (or the folder of one run), tags named by a mapping",
    read=read,
    mapping=Mapping(
        columns={"step": Column(column="step"), "time": Column(column="wall_time", unit="s")},
    ),
)
