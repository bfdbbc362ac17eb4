"""A run's state on disk, from which it resumes bit for bit.

    attempt-N/checkpoint/state-STEP.safetensors  its tensors
                        /meta.json               Meta: the step, configuration and data position of that state
    attempt-N/checkpoint.part/                   both, while they are written

meta.json names the step, and so the state, that it belongs to. Renaming it is the one instant at which the
checkpoint changes: a crash before it leaves the old one whole, a crash after it the new one.

A run of several processes has a state file from each. `model.training.parallel.shards` saves and loads
these; this module inspects them.

Torch is imported where a state is saved or loaded; inspecting one does not need it.
"""

from __future__ import annotations

import shutil
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, Self

from pydantic import Field, RootModel

from model.record import files
from model.record.config import Frozen, ParallelConfig, RunConfig
from model.record.errors import UserError
from model.record.files import Unreadable
from model.record.text import Position
from model.training import tensorfile

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


_META = "meta.json"
_READERS = 8  # files that are inspected at once


class Optimizer(Protocol):
    """The part of an optimizer that a checkpoint needs: its tensors by name, to save and to load into."""

    def state(self) -> dict[str, Tensor]: ...  # noqa: D102


@dataclass(frozen=True)
class TrainingState:
    """The state that a checkpoint saves, and is loaded into."""

    config: RunConfig
    data_fingerprint: str
    model: nn.Module
    optimizer: Optimizer

    @property
    def device(self) -> torch.device:
        """The device on which the run trains."""
        return next(self.model.parameters()).device


class StateFile(Frozen):
    """A file of a checkpoint."""

    name: str = Field(pattern=r"^state-[0-9-]+\.safetensors$")  # and so no path to elsewhere
    size: int = Field(description="In bytes.")
    checksum: int


class _Sealed(Frozen):
    """A record whose last field, `checksum`, is that of its own text. Subclasses add it, to keep it last."""

    def sealed(self) -> Self:
        """The same with its own checksum."""
        bare = self.model_copy(update={"checksum": 0})
        return self.model_copy(update={"checksum": zlib.crc32(bare.model_dump_json().encode())})


class Meta(_Sealed):
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

    @property
    def files(self) -> list[StateFile]:
        """The file of tensors, as a list."""
        return [StateFile(name=_state_name(self.step), size=self.size, checksum=self.state_checksum)]


class ShardsMeta(_Sealed):
    """`meta.json` of a run of several processes: which state their files hold together."""

    schema_version: Literal[4] = 4
    step: int = Field(ge=1, description="The last step done.")
    config: str = Field(description="Canonical JSON of the run's configuration, apart from `parallel`.")
    parallel: ParallelConfig
    data_fingerprint: str
    position: Position = Field(description="Where the batches of the next step start.")
    files: list[StateFile] = Field(description="What each process wrote, by rank.")
    checksum: int = Field(0, description="Of this record, with 0 in this place.")


class _AnyMeta(RootModel[Annotated[Meta | ShardsMeta, Field(discriminator="schema_version")]]):
    """The record of a checkpoint that one process wrote, or several."""


def save(
    folder: Path,
    state: TrainingState,
    step: int,
    position: Position,
    hold: tensorfile.Hold = tensorfile.passing,
) -> None:
    """Save the state after a step in a checkpoint's folder, in place of an earlier one.

    Until the new one is whole, both take disk space.

    Args:
        hold: as `tensorfile.write`; it may copy the tensors, and let others change them once it returns.

    Raises:
        OSError: it cannot be written. The earlier checkpoint is still there.
    """
    part, name = part_of(folder), _state_name(step)
    shutil.rmtree(part, ignore_errors=True)  # what a killed save left
    try:
        part.mkdir(exist_ok=True)  # NFS may tell its maker that it exists already
        tensors = _tensors(state)
        size, checksum = tensorfile.write(part / name, tensors, hold=hold)
        meta = Meta(
            step=step,
            config=canonical(state.config),
            data_fingerprint=state.data_fingerprint,
            position=position,
            size=size,
            state_checksum=checksum,
        )
        publish(folder, meta)
    finally:
        shutil.rmtree(part, ignore_errors=True)  # a full disk needs the space


def load(folder: Path, state: TrainingState) -> tuple[int, Position]:
    """Put a checkpoint into a newly built model and optimizer, and into torch's random generators.

    Returns:
        The last step done, and where the batches of the next one start.

    Raises:
        UserError: it is of another configuration or other data.
        Unreadable: it is missing, torn, damaged, or of another version. Model and optimizer may then hold
            parts of it, and are useless.
    """
    import torch

    meta = read_meta(folder)
    refuse_another_run(folder, meta, state)
    (file,) = meta.files
    tensors, path = _tensors(state), folder / file.name
    _check_size(path, file)
    _check(path, tensorfile.read(path, tensors), file)
    torch.set_rng_state(tensors["rng.cpu"])
    if "rng.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["rng.cuda"], state.device)
    return meta.step, meta.position


def inspect(folder: Path) -> int:
    """Read every byte of a checkpoint, and return its step.

    Raises:
        Unreadable: it is missing, torn, damaged, or of another version; the text names the file and why.
    """
    meta = read_meta(folder)
    with ThreadPoolExecutor(_READERS) as readers:
        list(readers.map(partial(verify, folder), meta.files))
    return meta.step


def verify(folder: Path, file: StateFile) -> None:
    """Read every byte of a checkpoint's file. Raises Unreadable if it is not what was written."""
    path = folder / file.name
    _check_size(path, file)
    _check(path, tensorfile.checksum(path), file)


def read_meta(folder: Path) -> Meta | ShardsMeta:
    """The record of a checkpoint. Raises Unreadable."""
    path = folder / _META
    meta = files.read(path, _AnyMeta).root
    if meta.sealed() != meta:
        raise Unreadable(f"{path}: its content does not match its checksum")
    return meta


def is_of_several(folder: Path) -> bool:
    """Whether several processes saved it. Raises Unreadable."""
    return isinstance(read_meta(folder), ShardsMeta)


def refuse_another_run(folder: Path, meta: Meta | ShardsMeta, state: TrainingState) -> None:
    """Raise UserError if the checkpoint is of another run; the number of processes does not matter."""
    only = "a run resumes with exactly the configuration and data that it began with"
    if meta.config != canonical(state.config):
        raise UserError(f"{folder} is a checkpoint of another configuration; {only}")
    if meta.data_fingerprint != state.data_fingerprint:
        raise UserError(f"{folder} is a checkpoint of a run on other data; {only}")


def canonical(config: RunConfig) -> str:
    """The configuration that must be the same for a run to resume: everything but its number of processes."""
    fields = config.identity()
    fields.pop("parallel", None)
    return files.dumps(fields)


def part_of(folder: Path) -> Path:
    """The folder of a checkpoint while it is written."""
    return folder.with_name(f"{folder.name}.part")


def publish(folder: Path, meta: Meta | ShardsMeta) -> None:
    """Replace the earlier checkpoint by the state files in `part_of(folder)`, which are complete.

    The files move first, then the record that makes them valid; each is on disk before the next step.

    Raises:
        OSError: that failed. The earlier checkpoint is still there.
    """
    part, names = part_of(folder), [file.name for file in meta.files]
    files.write(part / _META, meta.sealed())
    if folder.is_symlink():  # to the checkpoint of another attempt, which stays as it is
        folder.unlink()
    folder.mkdir(exist_ok=True)
    files.to_disk(folder.parent)
    for moved in (names, [_META]):
        for name in moved:
            (part / name).replace(folder / name)
        files.to_disk(folder)
    with suppress(OSError):  # the new checkpoint is whole, whatever becomes of the old one
        for old in folder.glob("state-*"):
            if old.name not in names:
                old.unlink()


def _state_name(step: int) -> str:
    return f"state-{step}.safetensors"


def _check_size(path: Path, file: StateFile) -> None:
    if (size := tensorfile.size(path)) != file.size:
        raise Unreadable(f"{path}: {size} bytes, but {file.size} were written")


def _check(path: Path, checksum: int, file: StateFile) -> None:
    if checksum != file.checksum:
        raise Unreadable(f"{path}: its content does not match its checksum")


def trained(state: TrainingState) -> dict[str, Tensor]:
    """The tensors that change with each step; the optimizer's settings follow from configuration and step."""
    tensors = {f"model.{name}": tensor for name, tensor in state.model.state_dict().items()}
    return tensors | {f"optimizer.{name}": tensor for name, tensor in state.optimizer.state().items()}


def _tensors(state: TrainingState) -> dict[str, Tensor]:
    """Everything that the next step depends on."""
    import torch

    tensors = trained(state)
    tensors["rng.cpu"] = torch.get_rng_state()
    if state.device.type == "cuda":
        tensors["rng.cuda"] = torch.cuda.get_rng_state(state.device)
    return tensors
