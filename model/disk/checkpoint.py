"""A run's state on disk, from which it resumes bit for bit where it stopped.

    attempt-N/checkpoint/state-STEP.safetensors  its tensors
                        /meta.json               Meta: the step, configuration and data position of that state
    attempt-N/checkpoint.part/                   both, while they are written

meta.json names the step, and so the state, that it belongs to. Renaming it is the one instant at which the
checkpoint changes: a crash before it leaves the old one whole, a crash after it the new one.

Torch is imported where a state is saved or loaded; inspecting one does not need it.
"""

from __future__ import annotations

import shutil
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from model.config import Frozen, RunConfig
from model.disk import files, tensorfile
from model.disk.files import Unreadable
from model.errors import UserError
from model.text import Position

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from model.optim import AdamW

_META = "meta.json"


@dataclass(frozen=True)
class State:
    """What a checkpoint saves, and is loaded into."""

    config: RunConfig
    data_fingerprint: str
    model: nn.Module
    optimizer: AdamW

    @property
    def device(self) -> torch.device:
        """Where the run trains."""
        return next(self.model.parameters()).device


class Meta(Frozen):
    """`meta.json`: which state the file holds."""

    # 1 kept its tensors in a format of its own; with 2, fingerprints did not cover all data, and a gradient's
    # norm was rounded to bfloat16 before clipping.
    schema_version: Literal[3] = 3
    step: int = Field(ge=1, description="The last step done.")
    config: str = Field(description="Canonical JSON of the run's configuration.")
    data_fingerprint: str
    position: Position = Field(description="Where the batches of the next step start.")
    size: int = Field(description="Of the state file, in bytes.")
    state_checksum: int
    checksum: int = Field(0, description="Of this record, with 0 in this place.")

    def sealed(self) -> Meta:
        """The same with its own checksum."""
        bare = self.model_copy(update={"checksum": 0})
        return self.model_copy(update={"checksum": zlib.crc32(bare.model_dump_json().encode())})


def save(kept: Path, state: State, step: int, position: Position) -> None:
    """Save the state after a step as the checkpoint `kept`, in place of an earlier one.

    Until the new one is whole, both take disk space.

    Raises:
        OSError: it cannot be written. The earlier checkpoint is still there.
    """
    part, name = kept.with_name(f"{kept.name}.part"), _state_name(step)
    shutil.rmtree(part, ignore_errors=True)  # what a killed save left
    try:
        part.mkdir(exist_ok=True)  # NFS may tell its maker that it exists already
        tensors = _tensors(state)
        size, checksum = tensorfile.write(part / name, tensors)
        meta = Meta(
            step=step,
            config=_canonical(state.config),
            data_fingerprint=state.data_fingerprint,
            position=position,
            size=size,
            state_checksum=checksum,
        )
        files.write(part / _META, meta.sealed())
        _publish(part, kept, name)
    finally:
        shutil.rmtree(part, ignore_errors=True)  # a full disk needs the space
    with suppress(OSError):  # the new checkpoint is whole, whatever becomes of the old one
        for old in kept.glob("state-*"):
            if old.name != name:
                old.unlink()


def load(kept: Path, state: State) -> tuple[int, Position]:
    """Put a checkpoint into a newly built model and optimizer, and into torch's random generators.

    Returns:
        The last step done, and where the batches of the next one start.

    Raises:
        UserError: it is of another configuration or other data.
        Unreadable: it is missing, torn, damaged, or of another version. Model and optimizer may then hold
            parts of it, and are useless.
    """
    import torch

    meta, path = _meta(kept)
    _refuse_another_run(path, meta, state)
    tensors = _tensors(state)
    _check(path, tensorfile.read(path, tensors), meta)
    torch.set_rng_state(tensors["rng.cpu"])
    if "rng.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["rng.cuda"], state.device)
    return meta.step, meta.position


def inspect(kept: Path) -> int:
    """Read every byte of a checkpoint, and give its step.

    Raises:
        Unreadable: it is missing, torn, damaged, or of another version; the text names the file and why.
    """
    meta, path = _meta(kept)
    _check(path, tensorfile.checksum(path), meta)
    return meta.step


def _state_name(step: int) -> str:
    return f"state-{step}.safetensors"


def _canonical(config: RunConfig) -> str:
    return files.dumps(config.identity())


def _meta(kept: Path) -> tuple[Meta, Path]:
    """The record of a checkpoint, and its state file, which has the right size."""
    path = kept / _META
    meta = files.read(path, Meta)
    if meta.sealed() != meta:
        raise Unreadable(f"{path}: its content does not match its checksum")
    path = path.with_name(_state_name(meta.step))
    size = tensorfile.size(path)
    if size != meta.size:
        raise Unreadable(f"{path}: {size} bytes, where {meta.size} were written")
    return meta, path


def _check(path: Path, checksum: int, meta: Meta) -> None:
    if checksum != meta.state_checksum:
        raise Unreadable(f"{path}: its content does not match its checksum")


def _refuse_another_run(path: Path, meta: Meta, state: State) -> None:
    only = "a run resumes with exactly the configuration and data that it began with"
    if meta.config != _canonical(state.config):
        raise UserError(f"{path} is a checkpoint of another configuration; {only}")
    if meta.data_fingerprint != state.data_fingerprint:
        raise UserError(f"{path} is a checkpoint of a run on other data; {only}")


def _tensors(state: State) -> dict[str, Tensor]:
    """All that the next step depends on; the optimizer's settings follow from configuration and step."""
    import torch

    tensors = {f"model.{name}": tensor for name, tensor in state.model.state_dict().items()}
    tensors |= {f"optimizer.{name}": tensor for name, tensor in state.optimizer.state().items()}
    tensors["rng.cpu"] = torch.get_rng_state()
    if state.device.type == "cuda":
        tensors["rng.cuda"] = torch.cuda.get_rng_state(state.device)
    return tensors


def _publish(part: Path, kept: Path, name: str) -> None:
    """Move the state, then the record that makes it count; each is on disk before what follows it."""
    kept.mkdir(exist_ok=True)
    files.to_disk(kept.parent)
    for file in (name, _META):
        (part / file).replace(kept / file)
        files.to_disk(kept)
