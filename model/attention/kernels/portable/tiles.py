"""Which tiles each kernel takes on which GPU.

Chosen from what the compiler says of each (`python benchmarks/tiles.py`): they fit into shared memory, and their loops
spill few registers or none. docs/kernel-log.md says what has been measured of them; of AMD's, nothing has.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from triton.errors import TritonError
from triton.runtime.errors import OutOfResources

from model.record import rocm
from model.record.errors import Unsupported, one_line


class Tile(NamedTuple):
    """Rows (queries of a group of heads) and keys of a tile, warps of a program, and stages of its loads."""

    rows: int
    keys: int
    warps: int
    stages: int


# For each kernel and head dim; smaller head dims take those of 64.
Tiles = dict[str, dict[int, Tile]]
HOPPER: Tiles = {  # and data-centre Blackwell: 227 KiB of shared memory
    "forward": {64: Tile(128, 64, 8, 3), 128: Tile(128, 128, 8, 2), 256: Tile(128, 64, 8, 2)},
    "few": {64: Tile(16, 64, 4, 3), 128: Tile(16, 64, 4, 3), 256: Tile(16, 32, 4, 2)},
    "dq": {64: Tile(128, 64, 4, 3), 128: Tile(128, 64, 8, 3), 256: Tile(128, 32, 8, 3)},
    "dkdv": {64: Tile(64, 64, 4, 3), 128: Tile(32, 64, 4, 3), 256: Tile(64, 32, 4, 2)},
}
AMPERE: Tiles = {  # A100 and Orin: 163 KiB
    "forward": {64: Tile(128, 64, 4, 2), 128: Tile(128, 64, 8, 3), 256: Tile(64, 32, 8, 3)},
    "few": {64: Tile(16, 64, 4, 3), 128: Tile(16, 64, 4, 3), 256: Tile(16, 32, 4, 2)},
    "dq": {64: Tile(128, 32, 4, 2), 128: Tile(64, 64, 8, 2), 256: Tile(64, 32, 8, 2)},
    "dkdv": {64: Tile(32, 128, 8, 2), 128: Tile(64, 64, 8, 2), 256: Tile(32, 64, 8, 2)},
}
SMALL: Tiles = {  # other Ampere, Ada, and Blackwell without data centre: 99 KiB
    "forward": {64: Tile(128, 64, 4, 2), 128: Tile(128, 64, 8, 2), 256: Tile(64, 32, 8, 2)},
    "few": {64: Tile(16, 64, 4, 3), 128: Tile(16, 64, 4, 3), 256: Tile(16, 32, 4, 2)},
    "dq": {64: Tile(128, 32, 4, 2), 128: Tile(64, 64, 8, 2), 256: Tile(64, 16, 8, 2)},
    "dkdv": {64: Tile(32, 128, 8, 2), 128: Tile(64, 64, 8, 2), 256: Tile(32, 32, 8, 2)},
}
WITHOUT_TENSOR_CORES: Tiles = {  # float32, and Turing, where Triton multiplies without them: 64 KiB
    "forward": {64: Tile(32, 32, 4, 1), 128: Tile(32, 16, 4, 1), 256: Tile(16, 16, 4, 1)},
    "few": {64: Tile(16, 32, 4, 1), 128: Tile(16, 16, 4, 1), 256: Tile(16, 16, 4, 1)},
    "dq": {64: Tile(32, 16, 4, 1), 128: Tile(16, 16, 8, 1), 256: Tile(16, 16, 8, 1)},
    "dkdv": {64: Tile(32, 16, 4, 1), 128: Tile(16, 16, 8, 1), 256: Tile(16, 16, 8, 1)},
}
AMD: Tiles = {  # MI200 and MI300: 64 KiB, of which two programs share one; warps of 64, four of which may have 512 registers
    "forward": {64: Tile(128, 64, 4, 2), 128: Tile(128, 64, 4, 1), 256: Tile(64, 32, 4, 1)},
    "few": {64: Tile(16, 64, 4, 2), 128: Tile(16, 32, 4, 2), 256: Tile(16, 32, 4, 1)},
    "dq": {64: Tile(128, 32, 4, 2), 128: Tile(64, 32, 4, 2), 256: Tile(64, 16, 4, 2)},
    "dkdv": {64: Tile(32, 64, 4, 2), 128: Tile(32, 64, 4, 1), 256: Tile(16, 32, 4, 1)},
}
INTERPRETED = Tile(32, 16, 4, 1)  # small, so that short sequences have several
FEW = 16  # rows, for which "few" is meant


@cache
def chosen(kernel: str, head_dim: int, dtype: torch.dtype, device: torch.device) -> Tile:
    """The tile of "forward", "few" (the forward of few rows), "dq" or "dkdv"."""
    if device.type != "cuda":
        return INTERPRETED
    capability = None if rocm.version() else torch.cuda.get_device_capability(device)
    return for_gpu(capability, dtype)[kernel][max(64, head_dim)]


def for_gpu(capability: tuple[int, int] | None, dtype: torch.dtype) -> Tiles:
    """All tiles for a precision and NVIDIA GPUs of a compute capability; None: for AMD's."""
    if dtype == torch.float32 or (capability and capability < (8, 0)):
        return WITHOUT_TENSOR_CORES
    if capability is None:
        return AMD
    if capability in ((8, 0), (8, 7)):
        return AMPERE
    return HOPPER if (9, 0) <= capability < (12, 0) else SMALL


def sized(own: Tile, size: Sequence[int] | None) -> Tile:
    """The tile with as many rows and keys as were asked for; its warps and stages stay."""
    return own._replace(rows=size[0], keys=size[1]) if size else own


def refusal(error: TritonError, tile: Tile, size: Sequence[int] | None) -> Exception:
    """Why a kernel cannot have such a tile here; the error itself, where nobody asked for it and it would fit."""
    rows, keys = tile.rows, tile.keys
    instead = "change call.tile" if size else "choose another backend"
    if isinstance(error, OutOfResources):
        what = "bytes of shared memory" if error.name == "shared memory" else error.name
        needs = f"needs {error.required:,d} {what} for a tile of {rows} x {keys}, and this GPU has"
        return Unsupported([f"{needs} {error.limit:,d}: {instead}"])
    if size:
        return Unsupported([f"Triton makes no tile of {rows} x {keys} here ({one_line(error)}): {instead}"])
    return error


@cache
def busy(device: torch.device) -> int:
    """Number of small programs that keep the device busy."""
    return 2 * torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 8
