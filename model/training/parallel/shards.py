"""Checkpoints of runs of several processes, by PyTorch's distributed checkpoints (DCP).

    attempt-N/checkpoint/state-STEP-RANK.safetensors  what one process wrote
                        /meta.json                    checkpoint.ShardsMeta: the state that they are together
    attempt-N/checkpoint.part/                        all of them, while they are written

DCP plans which process writes which shard, each once, however many processes hold it, and which parts of
which files a process needs, whatever shards it has itself. So a run can continue with another number of
processes, split in another way.

How bytes get to disk and back is ours, behind DCP's StorageWriter and StorageReader. DCP's own readers do not
suit:
- FileSystemReader calls `pickle.load` on a file of the checkpoint, which executes code that others put there.
- HuggingFaceStorageReader unpickles nothing, but maps files; `model.training.tensorfile` says what is wrong
  with that. Neither has checksums, or one instant at which the new checkpoint takes the old one's place.

Each file's header says, in JSON, which parts of which tensors it holds, in HuggingFaceStorageWriter's words,
so that others can read the files by DCP. Sizes and checksums of all files are in meta.json, which rank 0
renames into place once every process's file is on disk. Messages between processes are pickled, but nothing
on disk is.

Every tensor has the same value on any number of processes. Each rank's random generators are saved too; ranks
that did not exist before begin with the generators that the run's seed gives them.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from model.record.errors import OfAnotherProcess, UserError
from model.record.files import Unreadable
from model.record.text import Position
from model.training import checkpoint, tensorfile
from model.training.checkpoint import Meta, ShardsMeta, StateFile, TrainingState
from model.training.parallel.world import World

PATIENCE = timedelta(hours=1)  # with processes that still write, when this one has ended
_SHARDS, _OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"  # HuggingFaceStorageWriter's words
Answer = TypeVar("Answer")
_RANDOM = "rng."
_PLANNING = {"flatten_state_dict": False, "flatten_sharded_tensors": False}  # there are tensors only


def connect() -> distributed.ProcessGroup:
    """A process group for checkpoints alone, apart from all other communication; all must call this."""
    return distributed.new_group(backend="gloo", timeout=PATIENCE)


def save(
    folder: Path,
    state: TrainingState,
    step: int,
    position: Position,
    world: World,
    group: distributed.ProcessGroup,
    hold: tensorfile.Hold = tensorfile.passing,
) -> None:
    """Save the state after a step in a checkpoint's folder, in place of an earlier one; all must call it.

    Until the new one is whole, both take disk space.

    Args:
        hold: as `checkpoint.save`; each process holds what it writes, however much else it has.

    Raises:
        OSError: one of the processes cannot write; all raise it, and the text names the process. The earlier
            checkpoint is still there.
    """
    meta = partial(
        ShardsMeta,
        step=step,
        config=checkpoint.canonical(state.config),
        parallel=world.parallel,
        data_fingerprint=state.data_fingerprint,
        position=position,
    )
    writer = _Writer(
        folder, f"state-{step}-{world.place.rank}.safetensors", lambda files: meta(files=files), hold
    )
    tensors = checkpoint.trained(state) | _random(state, world.place.rank)
    try:
        with _own_errors(folder, world):
            dcp.save(
                tensors,
                storage_writer=writer,
                planner=dcp.DefaultSavePlanner(**_PLANNING),
                process_group=group,
            )
    finally:
        if world.is_first:
            shutil.rmtree(checkpoint.part_of(folder), ignore_errors=True)  # a full disk needs the space


def load(folder: Path, state: TrainingState, world: World) -> tuple[int, Position]:
    """Put a checkpoint into a newly built model and optimizer, and into torch's random generators.

    All must call it. It does not matter how many processes saved it.

    Returns:
        The last step done, and where the batches of the next one start.

    Raises:
        UserError: it is of another configuration or other data.
        Unreadable: it is missing, torn, damaged, or of another version. Model and optimizer may then hold
            parts of it, and are useless.
    """
    reader = _agreed(world, partial(_opened, folder, state, world))
    tensors = checkpoint.trained(state)
    _agreed(world, partial(_refuse_other_tensors, folder, reader.metadata, tensors))
    random = {name: x for name, x in _random(state, world.place.rank).items() if name in reader.parts}
    with _own_errors(folder, world), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as a single process has it
        dcp.load(
            tensors | random,
            storage_reader=reader,
            planner=dcp.DefaultLoadPlanner(**_PLANNING),
            no_dist=world.mesh is None,
        )
    for name, value in random.items():
        if name.startswith(f"{_RANDOM}cpu"):
            torch.set_rng_state(value)
        else:
            torch.cuda.set_rng_state(value, state.device)
    return reader.meta.step, reader.meta.position


def _opened(folder: Path, state: TrainingState, world: World) -> _Reader:
    """A reader of a checkpoint, of whose files this process has verified its share."""
    meta = checkpoint.read_meta(folder)
    checkpoint.refuse_another_run(folder, meta, state)
    for file in meta.files[world.place.rank :: world.place.size]:
        checkpoint.verify(folder, file)
    return _Reader(folder, meta)


def _agreed(world: World, ask: Callable[[], Answer]) -> Answer:
    """Ask in this process; if any process raises a UserError, all raise it."""
    answer, problem = None, None
    try:
        answer = ask()
    except UserError as error:
        problem = error
    for raised in world.gather(problem):
        if raised:
            raise raised
    return answer  # type: ignore[return-value]  # no process has a problem


def _random(state: TrainingState, rank: int) -> dict[str, Tensor]:
    """The states of a rank's random generators; rank 0's have the names that a single process gives them."""
    own = f".{rank}" if rank else ""
    states = {f"{_RANDOM}cpu{own}": torch.get_rng_state()}
    if state.device.type == "cuda":
        states[f"{_RANDOM}cuda{own}"] = torch.cuda.get_rng_state(state.device)
    return states


def _refuse_other_tensors(folder: Path, metadata: Metadata, tensors: dict[str, Tensor]) -> None:
    """Raise Unreadable unless the files hold exactly these tensors, in full."""
    stored = {
        name: (tensor.properties.dtype, tensor.size, sum(chunk.sizes.numel() for chunk in tensor.chunks))
        for name, tensor in metadata.state_dict_metadata.items()
        if isinstance(tensor, TensorStorageMetadata) and not name.startswith(_RANDOM)
    }
    if stored != {name: (x.dtype, x.shape, x.numel()) for name, x in tensors.items()}:
        raise Unreadable(f"{folder}: its tensors are not those of this version's model and optimizer")


@contextmanager
def _own_errors(folder: Path, world: World) -> Iterator[None]:
    """Raise a process's error instead of DCP's, which is no Exception: this one's, if it has any.

    An OSError names the processes that have one, and a file or the checkpoint.
    """
    try:
        yield
    except CheckpointException as error:
        own = error.failures.get(world.place.rank)
        cause, _ = own or min(error.failures.items())[1]
        if isinstance(cause, OSError) and cause.errno:
            ranks = ", ".join(map(str, sorted(error.failures)))
            text = f"{cause.strerror} (rank{'s' * (len(error.failures) > 1)} {ranks})"
            kind = OSError if own else OfAnotherProcess
            raise kind(cause.errno, text, cause.filename or str(folder)) from error
        raise cause from error


@dataclass
class _Writer(dcp.StorageWriter):  # type: ignore[misc]  # mypy does not follow torch.distributed
    """Writes the file of one process, and on rank 0 the record of all.

    Attributes:
        name: of this process's file.
        hold: as `save`.
        meta: makes the record of all processes' files.
    """

    folder: Path
    name: str
    meta: Callable[[list[StateFile]], ShardsMeta]
    hold: tensorfile.Hold

    def reset(self, checkpoint_id: object = None) -> None:
        """Begin; each writer saves once."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Prepare nothing: rank 0 does it for all, in `prepare_global_plan`."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Leave the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Make room, on rank 0, before any process writes. Raises OSError."""
        part = checkpoint.part_of(self.folder)
        shutil.rmtree(part, ignore_errors=True)  # what a killed save left
        part.mkdir(exist_ok=True)
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this process's part of the plan, and wait until it is on disk. Raises OSError."""
        part = checkpoint.part_of(self.folder)
        part.mkdir(exist_ok=True)  # another node may not see yet that it is there
        tensors = {item.index.fqn: planner.resolve_data(item) for item in plan.items}
        offsets = {
            item.index.fqn: {_OFFSETS: list(item.tensor_data.chunk.offsets)}
            for item in plan.items
            if item.tensor_data
        }
        about = {_SHARDS: json.dumps(offsets)}
        size, checksum = tensorfile.write(part / self.name, tensors, about, self.hold)
        file = StateFile(name=self.name, size=size, checksum=checksum)
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(MetadataIndex(self.name), size, file)])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Make the files count, on rank 0, once all are on disk. Raises OSError."""
        checkpoint.publish(self.folder, self.meta([result.storage_data for [result] in results]))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: object) -> bool:
        """Whether it could write there; DCP asks when it has to choose a writer."""
        return False


@dataclass
class _Reader(dcp.StorageReader):  # type: ignore[misc]
    """Reads what a process needs, from the files of all."""

    folder: Path
    meta: Meta | ShardsMeta

    @cached_property
    def parts(self) -> dict[str, dict[tuple[int, ...], tuple[Path, tensorfile.Stored]]]:
        """The parts of each tensor by their offsets, and where they are."""
        parts = defaultdict[str, dict[tuple[int, ...], tuple[Path, tensorfile.Stored]]](dict)
        for path in [self.folder / file.name for file in self.meta.files]:
            stored, about = tensorfile.listed(path)
            offsets = json.loads(about.get(_SHARDS, "{}"))
            for name, part in stored.items():
                at = offsets[name][_OFFSETS] if offsets else [0] * len(part.shape)
                parts[name][tuple(at)] = (path, part)
        return parts

    @cached_property
    def metadata(self) -> Metadata:
        """The same in DCP's words; a tensor ends where its last part does."""
        described = {}
        for name, parts in self.parts.items():
            chunks = [
                ChunkStorageMetadata(torch.Size(at), torch.Size(stored.shape))
                for at, (_, stored) in parts.items()
            ]
            ends = [[a + b for a, b in zip(chunk.offsets, chunk.sizes, strict=True)] for chunk in chunks]
            (dtype, *_) = [stored.dtype for _, stored in parts.values()]
            size = torch.Size(max(along) for along in zip(*ends, strict=True))
            described[name] = TensorStorageMetadata(TensorProperties(dtype=dtype), size, chunks)
        return Metadata(described)

    def reset(self, checkpoint_id: object = None) -> None:
        """Begin; each reader loads once."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Give what there is to read."""
        return self.metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Prepare nothing: files are open only while they are read."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Leave the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Leave the plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read each part into its tensor. Raises Unreadable."""
        by_file = defaultdict(list)
        for item in plan.items:
            index = item.storage_index
            path, stored = self.parts[index.fqn][tuple(index.offset or ())]
            by_file[path].append((stored, item))
        for path, items in by_file.items():
            with tensorfile.opened(path) as file:
                for stored, item in items:
                    target = planner.resolve_tensor(item).detach()
                    tensorfile.read_box(file, stored, item.storage_offsets, target)
                    planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: object) -> bool:
        """Whether it could read that; DCP asks when it has to choose a reader."""
        return False
