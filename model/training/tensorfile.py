"""A file of tensors, written and read a piece at a time, whatever its size.

The file has the format of safetensors, so that others can read it, but that library is not used. Tried with
version 0.8.0 and 2 GiB, loading maps the file, which fails under a memory limit with 512 MiB left and
otherwise holds all of it in memory; and a full disk does not raise an OSError. (torch.save has the same
faults.) Nothing is unpickled here.

Checksums are CRC-32 over every byte, so that any torn page or flipped bit is noticed.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from model.record.files import Unreadable, open_regular

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PIECE = 64 * 2**20  # bytes in host memory at once, both ways
DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "uint8": "U8"}  # in safetensors' words
Hold = Callable[[Collection["Tensor"]], Iterable[memoryview]]  # returns their bytes, in host memory


@dataclass(frozen=True)
class Stored:
    """A tensor in a file.

    Attributes:
        start: where its first byte is.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int


def header(tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> bytes:
    """The bytes before the tensors in the file: the length of a JSON text, and that text, which lists them.

    Args:
        about: more entries for it.
    """
    entries: dict[str, object] = {"__metadata__": dict(about)} if about else {}
    end = 0
    for name, tensor in tensors.items():
        dtype = DTYPES[str(tensor.dtype).removeprefix("torch.")]
        start, end = end, end + tensor.nbytes
        entries[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def passing(tensors: Iterable[Tensor]) -> Iterator[memoryview]:
    """The tensors' bytes, one piece in host memory at a time. The tensors must not change meanwhile."""
    return (piece.cpu().numpy().data for piece in pieces(tensor.contiguous() for tensor in tensors))


def write(
    path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None, hold: Hold = passing
) -> tuple[int, int]:
    """Write and fsync; returns the size in bytes and the checksum.

    Args:
        about: as for `header`.
        hold: called first; the bytes that it returns are written.

    Raises:
        OSError: it cannot be written.
    """
    total, held = 0, hold(tensors.values())
    with path.open("wb", buffering=0) as file:
        for piece in chain([memoryview(header(tensors, about))], held):
            total, left = zlib.crc32(piece, total), piece
            while left:  # an unbuffered write may be cut short
                left = left[file.write(left) :]
        os.fsync(file.fileno())
        return file.tell(), total


def read(path: Path, tensors: Mapping[str, Tensor]) -> int:
    """Read into the tensors, and return the checksum of what was read.

    Raises:
        Unreadable: it cannot be read, or holds other tensors.
    """
    import torch

    first, buffer = header(tensors), torch.empty(PIECE, dtype=torch.uint8)
    total = zlib.crc32(first)
    with opened(path) as file:
        if file.read(len(first)) != first:
            raise Unreadable(f"{path}: its tensors are not those of this version's model and optimizer")
        for piece in pieces(tensors.values()):
            host = buffer[: len(piece)]
            data = host.numpy().data
            if file.readinto(data) != len(piece):
                raise Unreadable(f"{path}: shorter than its tensors")
            total = zlib.crc32(data, total)
            piece.copy_(host)
    return total


def listed(path: Path) -> tuple[dict[str, Stored], dict[str, str]]:
    """The tensors of a complete file, and the other entries of its header.

    Raises:
        Unreadable: it cannot be read, or is no such file.
    """
    import torch

    with opened(path) as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length)
    dtypes = {word: getattr(torch, name) for name, word in DTYPES.items()}
    try:
        entries = json.loads(text)
        about = entries.pop("__metadata__", {})
        return {
            name: Stored(dtypes[entry["dtype"]], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
            for name, entry in entries.items()
        }, about
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unreadable(f"{path}: no list of tensors at its start") from error


def read_box(file: BufferedReader, stored: Stored, offsets: Sequence[int], box: Tensor) -> None:
    """Read the part of a stored tensor that begins at `offsets` into a tensor of the part's shape.

    Whole rows are read, also where the part has only some columns.

    Raises:
        Unreadable: the file is shorter.
    """
    import torch

    if not stored.shape:
        stored, offsets, box = replace(stored, shape=(1,)), (0,), box.unsqueeze(0)
    row = math.prod(stored.shape[1:]) * stored.dtype.itemsize
    at_once = max(1, PIECE // max(1, row))
    file.seek(stored.start + offsets[0] * row)
    for rows in torch.split(box, at_once) if box.numel() else ():
        data = torch.empty(len(rows) * row, dtype=torch.uint8)
        if file.readinto(data.numpy().data) != len(data):
            raise Unreadable(f"{file.name}: shorter than its tensors")
        part = data.view(stored.dtype).view(len(rows), *stored.shape[1:])
        for dim in range(1, box.dim()):
            part = part.narrow(dim, offsets[dim], box.shape[dim])
        rows.copy_(part)


def checksum(path: Path) -> int:
    """Read every byte, and return the checksum. Raises Unreadable if that fails."""
    total = 0
    with opened(path) as file:
        while piece := file.read(PIECE):
            total = zlib.crc32(piece, total)
    return total


def size(path: Path) -> int:
    """The file's size in bytes. Raises Unreadable if it cannot be opened."""
    with opened(path) as file:
        return file.seek(0, os.SEEK_END)


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """A file to read. Raises Unreadable if it cannot be opened or read."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            yield file
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror}") from error


def pieces(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """The tensors' own memory as bytes, at most PIECE at a time."""
    import torch

    for tensor in tensors:
        yield from torch.split(tensor.detach().view(-1).view(torch.uint8), PIECE)
