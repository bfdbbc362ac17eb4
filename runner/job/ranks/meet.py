"""How the processes of a run meet: each says when it can begin, and rank 0 starts all of them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from model.record.config import RunConfig
from model.record.errors import UserError
from model.record.folder import RunFolder
from model.record.records import Manifest, RankRecord, RunRecord
from model.training.parallel.place import Place
from runner.job.ranks.first import Ranks
from runner.job.ranks.leader import Leader, node
from runner.job.ranks.meeting import HERE, my_name, place_of
from runner.job.ranks.start import have_own_gpu, start_here
from runner.job.tasks import Progress
from runner.state.attempts import jobs_folder
from runner.state.endings import Ending

if TYPE_CHECKING:
    from model.training.parallel.world import World


def local_rank(slot: int | None) -> int:
    """Rank 0's number among the processes of its node."""
    return 0 if slot is None else int(os.environ.get("SLURM_LOCALID", "0"))


def lead(
    folder: RunFolder,
    attempt: int,
    run: RunRecord,
    options: Sequence[str],
    slot: int | None,
    steps: Callable[[], int],
    lost: Callable[[Ending], None],
) -> Ranks:
    """Act as rank 0 of a run: listen for the other processes, and start them or tell Slurm's tasks where.

    Args:
        slot: as for `run_attempt`.
        steps, lost: `steps` and `conclude` of Ranks.
    """
    size = run.config.processes
    ranks = Ranks(size, attempt, HERE if slot is None else my_name(), steps, lost)
    if slot is None:
        start_here(ranks, size, folder, options)  # before `have_own_gpu`, which would hide their GPUs
    else:
        ranks.publish(place_of(jobs_folder(folder.path.parent), slot))
    have_own_gpu(run.config, local_rank(slot))
    return ranks


def met(ranks: Ranks, note: Callable[..., None], progress: Progress, config: RunConfig) -> World:
    """Rank 0's side: wait until all are ready, note where they are, and begin.

    Raises:
        Lost, NobodyCame: as `Ranks.gathered`.
        UserError: two processes share a GPU.
        RuntimeError: torch's, if they cannot reach each other.
    """
    manifest = progress.manifest
    all_of = [RankRecord(node=node(), gpu_uuid=manifest.gpu_uuid)]
    all_of += [RankRecord(node=other.node, gpu_uuid=other.gpu_uuid) for other in ranks.gathered()]
    _own_gpus([each.gpu_uuid for each in all_of])
    note(ranks=all_of)
    address, listening = ranks.go(manifest=progress.manifest.model_dump(mode="json"))
    return _joined(Place(0, config.processes, 0, address), config, listening)


def followed(leader: Leader, place: Place, progress: Progress, config: RunConfig) -> World:
    """Another process's side: say that it is ready, and wait for rank 0."""
    leader.ready(progress.manifest.gpu_uuid)
    go = leader.order()
    progress.manifest = Manifest.model_validate(go["manifest"])
    return _joined(Place(place.rank, place.size, place.local_rank, go["address"]), config)


def _joined(place: Place, config: RunConfig, listening: socket.socket | None = None) -> World:
    import torch

    from model.training.parallel.world import join

    device = torch.device("cuda:0" if config.device == "cuda" else "cpu")
    return join(place, config.parallel, device, listening)


def _own_gpus(uuids: Sequence[str | None]) -> None:
    known = [uuid for uuid in uuids if uuid]
    if twice := sorted({uuid for uuid in known if known.count(uuid) > 1}):
        ranks = [str(rank) for rank, uuid in enumerate(uuids) if uuid == twice[0]]
        raise UserError(
            f"ranks {', '.join(ranks)} share GPU {twice[0]}: give each node as many GPUs as it has tasks, "
            "with `gpus_per_node` in the profile"
        )
