"""What holds of every format, whatever it is: a new importer is held to this by existing.

An importer is tried with each kind of file below that it reads, so that a new one needs nothing here unless
its files are of a new kind; then this says so.
"""

from __future__ import annotations

import csv
import json
import struct
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from analysis import importers
from analysis.importers import Refused, RunRecords
from model.record.errors import UserError
from tests.analysis.importers import made

Row = dict[str, Any]
LOSSES = [(step, 5 - step / 8) for step in range(1, 21)]


def _csv(path: Path, rows: Sequence[Row], ending: str = "\n") -> Path:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(
            file, list(dict.fromkeys(name for row in rows for name in row)), lineterminator=ending
        )
        table.writeheader()
        table.writerows(rows)
    return path


def _jsonl(path: Path, rows: Sequence[Row], ending: str = "\n") -> Path:
    path.write_bytes("".join(json.dumps(row) + ending for row in rows).encode())
    return path


def _parquet(path: Path, rows: Sequence[Row], ending: str = "") -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = dict.fromkeys(name for row in rows for name in row)
    pq.write_table(
        pa.table({name: [row.get(name) for row in rows] for name in names}), path, write_page_checksum=True
    )
    return path


def _events(path: Path, rows: Sequence[Row], ending: str = "") -> Path:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    def record(event: Event) -> bytes:
        content = event.SerializeToString()
        length = struct.pack("<Q", len(content))
        sums = (struct.pack("<I", masked_crc32c(part)) for part in (length, content))
        return length + next(sums) + content + next(sums)

    events = [Event(wall_time=1.7e9, file_version="brain.Event:2")]
    for row in rows:
        numbers = {
            tag: value for tag, value in row.items() if tag != "step" and isinstance(value, int | float)
        }
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in numbers.items()]
        events.append(Event(wall_time=1.7e9 + row["step"], step=row["step"], summary=Summary(value=values)))
    path.write_bytes(b"".join(map(record, events)))
    return path


# Kinds of files by the ending of their names. A kind of text lines has a line break.
KINDS: dict[str, Callable[[Path, Sequence[Row], str], Path]] = {
    "csv": _csv, "jsonl": _jsonl, "parquet": _parquet, "tfevents": _events,
}  # fmt: skip
TEXTS = ("csv", "jsonl")


class Format:
    """A format with one kind of its files, whose columns are called as it wants them."""

    def __init__(self, name: str, kind: str, folder: Path) -> None:
        self.name, self.kind, self.folder = name, kind, folder
        mapping = importers.load(name).mapping
        self.step = mapping.column("step") or "step"
        self.mapping = {"columns": {"step": self.step, "loss": "loss"}}

    def write(self, points: Sequence[tuple[int, float]], ending: str = "\n", **fields: Any) -> Path:
        rows = [{self.step: step, "loss": loss, **fields} for step, loss in points]
        return KINDS[self.kind](self.folder / f"log.{self.kind}", rows, ending)

    def read(self, path: Path, **mapping: Any) -> list[RunRecords]:
        return made.read(path, self.name, self.mapping | mapping)

    def losses(self, path: Path) -> list[tuple[int, float | None]]:
        (log,) = self.read(path)
        return [(step.step, step.loss) for step in log.steps]


def formats(name: str, folder: Path, kinds: Sequence[str] = tuple(KINDS)) -> list[Format]:
    """The format with each kind of file that it reads."""
    readable: list[Format] = []
    for kind in KINDS:
        if kind == "tfevents" and find_spec("tensorboard") is None:
            continue
        log_format = Format(name, kind, folder)
        try:
            assert log_format.losses(log_format.write(LOSSES)) == LOSSES
        except (Refused, UserError):
            continue
        readable.append(log_format)
    if not readable:
        pytest.importorskip("tensorboard")
    assert readable, f"no kind of file here is read by {name}: add the kind that it reads to KINDS"
    return [log_format for log_format in readable if log_format.kind in kinds]


def _left_out(log: RunRecords) -> list[str]:
    return log.run.imported.not_imported


every_format = pytest.mark.parametrize("name", importers.names())


@every_format
def test_the_later_of_two_values_of_a_step_counts_and_the_other_is_listed(name: str, tmp_path: Path) -> None:
    for log_format in formats(name, tmp_path):
        (log,) = log_format.read(
            log_format.write([*LOSSES[:10], *((step, loss + 1) for step, loss in LOSSES[5:])])
        )
        assert [(step.step, step.loss) for step in log.steps] == [
            *LOSSES[:5], *((step, loss + 1) for step, loss in LOSSES[5:])
        ], log_format.kind  # fmt: skip
        assert len(_left_out(log)) == 5, log_format.kind
        assert all("was logged again by a run that resumed" in line for line in _left_out(log)), (
            log_format.kind
        )


@every_format
def test_two_runs_in_one_source_are_refused_with_what_to_do(name: str, tmp_path: Path) -> None:
    for log_format in formats(name, tmp_path):
        with pytest.raises(Refused, match="two runs in one file; (split the file|import each event file)"):
            log_format.read(log_format.write([*LOSSES, *LOSSES]))
        interleaved = [point for step, loss in LOSSES for point in ((step, loss), (step, loss + 1))]
        with pytest.raises(
            Refused, match="several runs in one file; (split the file|import each event file)"
        ):
            log_format.read(log_format.write(interleaved))


@every_format
def test_quantities_that_are_logged_one_after_the_other_are_one_run(name: str, tmp_path: Path) -> None:
    for log_format in formats(name, tmp_path):
        rows = [{log_format.step: step, "loss": loss} for step, loss in LOSSES]
        rows += [{log_format.step: step, "norm": 0.5} for step, _ in LOSSES]
        path = KINDS[log_format.kind](tmp_path / f"log.{log_format.kind}", rows, "\n")
        (log,) = log_format.read(path, columns=log_format.mapping["columns"] | {"grad_norm": "norm"})
        assert [(step.step, step.loss) for step in log.steps] == LOSSES, log_format.kind
        assert {step.grad_norm for step in log.steps} == {0.5}, log_format.kind
        assert not _left_out(log), log_format.kind


@every_format
def test_of_a_file_that_was_cut_off_nothing_is_wrong_and_what_is_missing_is_said(
    name: str, tmp_path: Path
) -> None:
    """A cut between two lines is the log of a run that goes on."""
    for log_format in formats(name, tmp_path):
        content = log_format.write([(step, loss + 0.0625) for step, loss in LOSSES]).read_bytes()
        written = [(step, loss + 0.0625) for step, loss in LOSSES]
        for end in range(1, len(content)):
            path = tmp_path / f"cut.{log_format.kind}"
            path.write_bytes(content[:end])
            try:
                (log,) = log_format.read(path)
            except Refused:
                continue
            points = [(step.step, step.loss) for step in log.steps]
            ends_a_line = log_format.kind in TEXTS and content[end - 1 : end] == b"\n"
            is_single = len(points) == 1 and "may lack digits" in str(log.run.imported.findings)
            assert is_single or points == written[: len(points)], (log_format.kind, end)
            assert is_single or ends_a_line or _left_out(log) or _at_a_border(log_format, content, end), (
                log_format.kind,
                end,
            )


def _at_a_border(log_format: Format, content: bytes, end: int) -> bool:
    """Whether an event file, or a JSONL object, ends there."""
    if log_format.kind == "jsonl":
        return content[end : end + 1] == b"\n"
    start = 0
    while log_format.kind == "tfevents" and start < end:
        start += 16 + int.from_bytes(content[start : start + 8], "little")
    return log_format.kind == "tfevents" and start == end


@every_format
def test_of_a_damaged_file_nothing_is_wrong_in_silence(name: str, tmp_path: Path) -> None:
    """A byte that no text has is put in place of each byte in turn."""
    for log_format in formats(name, tmp_path):
        content = log_format.write(LOSSES).read_bytes()
        for offset in range(len(content) // 3, len(content), 7):
            path = tmp_path / f"damaged.{log_format.kind}"
            path.write_bytes(content[:offset] + bytes([content[offset] ^ 255]) + content[offset + 1 :])
            try:
                (log,) = log_format.read(path)
            except Refused:
                continue
            points = [(step.step, step.loss) for step in log.steps]
            assert set(points) <= set(LOSSES), (log_format.kind, offset)
            assert len(points) == len(LOSSES) or _left_out(log), (log_format.kind, offset)


@every_format
def test_columns_that_the_mapping_does_not_name_are_left_out(name: str, tmp_path: Path) -> None:
    """Whatever they are called and hold, also without a name, and twice."""
    odd_columns = {"": 0, " ": 1.5, "x": "a", "learning_rate": 1e-3}
    for log_format in formats(name, tmp_path):
        (log,) = log_format.read(log_format.write(LOSSES, **odd_columns))
        assert [(step.step, step.loss) for step in log.steps] == LOSSES, log_format.kind
        named_columns = importers.load(name).mapping.columns
        assert ({step.learning_rate for step in log.steps} == {None}) == (
            "learning_rate" not in named_columns
        )
        assert not _left_out(log), log_format.kind
        if log_format.kind == "csv":
            lines = log_format.write(LOSSES).read_text().splitlines()
            (tmp_path / "log.csv").write_text("".join(f",{line},,x\n" for line in lines))
            assert log_format.losses(tmp_path / "log.csv") == LOSSES


@every_format
def test_empty_input_is_refused(name: str, tmp_path: Path) -> None:
    for log_format in formats(name, tmp_path):
        path = tmp_path / f"empty.{log_format.kind}"
        path.write_bytes(b"")
        with pytest.raises(Refused, match="empty"):
            log_format.read(path)


@every_format
def test_a_byte_order_mark_and_other_line_breaks_change_nothing(name: str, tmp_path: Path) -> None:
    for log_format in formats(name, tmp_path, TEXTS):
        content = log_format.write(LOSSES, "\r\n").read_bytes()
        assert content.count(b"\r\n") >= len(LOSSES)
        (tmp_path / f"log.{log_format.kind}").write_bytes(b"\xef\xbb\xbf" + content)
        (log,) = log_format.read(tmp_path / f"log.{log_format.kind}")
        assert [(step.step, step.loss) for step in log.steps] == LOSSES, log_format.kind
        assert not _left_out(log), log_format.kind
