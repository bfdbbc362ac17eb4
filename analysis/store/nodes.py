"""Turns one record of a node's ceilings into a row. A file that cannot be read is quarantined."""

from __future__ import annotations

from pathlib import Path

from analysis.store.ingest import Reader, Row, Rows, file_rows, fitting, utc
from analysis.store.scan import Seen
from model.disk.files import Unreadable, dumps, read
from model.disk.node import KEY, NodeRecord

_SAME_NAME = ("key", "node", "gpu_uuid", "dtype", "seconds")


def read_node(root: Path, seen: Seen, rows: Rows) -> None:
    """Add the row of a record. Nothing in the file can make this raise."""
    rows.files += file_rows(seen)
    path = root / seen.files[0].path
    row = Reader(root, seen.key, rows).read(str(path), lambda: fitting(_row(_placed(path))))
    if row:
        rows.nodes.append({"study": seen.key[0], **row})


def _placed(path: Path) -> NodeRecord:
    """The record, if its file is named after its key: a copy would count twice."""
    found = read(path, NodeRecord)
    if found.key != path.stem or not KEY.fullmatch(found.key):
        raise Unreadable(f"it is the record {found.key}, which belongs in another file")
    return found


def _row(found: NodeRecord) -> Row:
    measured, clocks = found.measured, found.measured.clocks
    return {
        **{name: getattr(found, name) for name in _SAME_NAME},
        "device": found.device_name,
        "gpu": found.device_name if found.gpu_uuid else None,
        "gpus": int(found.gpu_uuid is not None),
        "driver": found.software.get("driver"),
        "software": dumps(found.software),
        "graphics_clock_mhz": clocks and clocks.graphics_mhz,
        "memory_clock_mhz": clocks and clocks.memory_mhz,
        "power_limit_watts": clocks and clocks.power_limit_watts,
        "matmul_tflops": max((each.flops for each in measured.products), default=0.0) / 1e12 or None,
        "bandwidth_gigabytes_per_second": measured.bandwidth / 1e9,
        "launch_microseconds": measured.launch.seconds * 1e6,
        "measured": dumps(measured.model_dump(mode="json")),
        "measured_at": utc(found.measured_at),
    }
