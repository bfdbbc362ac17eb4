"""TensorBoard event files, or a folder with those of one run; a mapping names the tags.

The lines in messages are scalars, counted from 1 in the order of writing, over all files of a folder.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analysis.importers import Importer
from analysis.importers._mapping import MappedColumn, Mapping
from analysis.importers._table import LogRow, LogTable, Refused, content_of
from model.record.errors import UserError

_NUMBERS = "fiu"  # kinds of NumPy's dtypes


def read(file: Path) -> LogTable:
    """Read the scalars of an event file, or of all in a folder: a row each, in the order of writing.

    TensorBoard's own readers pass over damaged and torn records in silence, so only its messages are used.

    Raises:
        UserError: the package tensorboard is not installed.
        Refused: there are no scalars.
    """
    try:
        from tensorboard.compat.proto import event_pb2  # noqa: F401
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError as error:
        raise UserError(
            "--format tensorboard needs the package tensorboard: pip install 'assay-studies[tensorboard]'"
        ) from error
    if not file.exists():
        raise Refused(f"{file}: no such file; give an event file or the folder of a run")
    files = [file]
    if file.is_dir():
        files = sorted(path for path in file.iterdir() if "tfevents" in path.name and path.is_file())
    table = LogTable(file, several="import each event file by itself")
    written = [(path, list(_events(path, table))) for path in files]
    written.sort(key=lambda pair: (pair[1][0].wall_time if pair[1] else 0.0, pair[0].name))
    scalars = ((event, value) for _, events in written for event in events for value in event.summary.value)
    for event, value in scalars:
        if value.HasField("simple_value"):
            number = value.simple_value
        elif value.HasField("tensor") and not value.tensor.tensor_shape.dim:  # as TensorFlow 2 writes them
            array = make_ndarray(value.tensor)
            if array.size != 1 or array.dtype.kind not in _NUMBERS:
                continue
            number = array.item()
        else:
            continue
        values = {value.tag: number, "step": event.step, "wall_time": event.wall_time}
        table.rows.append(LogRow(len(table.rows) + 1, values))
    if not table.rows:
        why = "no scalars in it; is it an event file, or the folder of one run?"
        lines = [f"{file}: {why}", *table.problems[:1]]
        below = sorted({str(path.parent) for path in file.glob("*/**/*tfevents*")}) if file.is_dir() else []
        if below:
            lines.append(f"its folders have event files: give {', '.join(below)}")
        raise Refused("\n".join(lines))
    return table


def _events(path: Path, table: LogTable) -> Iterator[Any]:
    """The events of a file that are whole. What is not goes to the table's problems.

    A record is the length of its event, that length's checksum, the event, and its checksum.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    content, start, record = content_of(path), 0, 0

    def wrong(why: str) -> None:
        table.problems.append(f"{path}: record {record}, byte {start}: {why}")

    while start < len(content):
        record += 1
        head = content[start : start + 12]
        length = int.from_bytes(head[:8], "little")
        if len(head) == 12 and head[8:] != struct.pack("<I", masked_crc32c(head[:8])):
            wrong("its length is damaged; nothing after it was read")
            return
        event, end = content[start + 12 : start + 12 + length], start + 16 + length
        if len(head) < 12 or end > len(content):
            wrong("the file ends within it")
            return
        if content[end - 4 : end] != struct.pack("<I", masked_crc32c(event)):
            wrong("it is damaged")
        else:
            try:
                yield Event.FromString(event)
            except Exception as error:
                wrong(f"not an event ({error})")
        start = end


importer = Importer(
    title="TensorBoard event files (or the folder of one run), tags named by a mapping",
    read=read,
    mapping=Mapping(
        columns={"step": MappedColumn(column="step"), "time": MappedColumn(column="wall_time", unit="s")},
    ),
)
