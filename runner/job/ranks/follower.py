"""`python -m runner.job.ranks.follower PARENT_PID`: a process other than rank 0.

It reads its orders on standard input (`runner.job.ranks.start.Follower`), records nothing, and ends when
rank 0 does.
"""

from __future__ import annotations

import os
import sys
import traceback
from functools import partial
from socket import socket

from model.measure import machine
from model.measure.hostmemory import Limit
from model.record.errors import Interrupted
from model.record.outcome import Outcome
from model.record.records import RunRecord
from model.record.stderr import say
from runner.job.manifest import first_manifest
from runner.job.ranks.first import is_echo
from runner.job.ranks.leader import Leader
from runner.job.ranks.meet import followed
from runner.job.ranks.start import Follower, have_own_gpu
from runner.job.ranks.stopped import end_it
from runner.job.stop import QuickExit, Stop, die_with
from runner.job.tasks import Afterwards, Given, Progress, checked, memory_limit, prepared
from runner.state import process
from runner.state.endings import Ending, of_exception


def main() -> None:
    """Do this process's part of the run, then follow rank 0's orders until it ends."""
    die_with(int(sys.argv[1]))
    leaving = QuickExit()
    asked = Follower.from_json(sys.stdin.read())
    stop = Stop(None)  # rank 0 knows the time limit
    stop.listen()
    silent = partial(end_it, asked)
    leader = Leader(asked.meeting, asked.place.rank, steps=lambda: stop.steps, silent=silent)
    run, gpu = asked.planned, None
    os.environ.update(machine.thread_limits(run.cpus))  # where rank 0 has not set them

    def failed(ending: Ending, echo: bool) -> None:
        leader.ended(ending, echo)
        os._exit(1)

    limit = memory_limit(run)
    try:
        limit.watch(lambda reason: failed(Ending(Outcome.OOM_HOST, reason), echo=False))
        afterwards, gpu = _work(asked, run, leader, stop, limit)
        leader.done()
        leader.order()
        if afterwards:
            afterwards()
    except Interrupted:  # all processes were, and rank 0 records it
        pass
    except BaseException as error:
        ending = of_exception(error, run.config.device, limit)
        limit.release()
        say(traceback.format_exc().rstrip())
        failed(ending, is_echo(error))
    leader.done()
    leaving.done = True
    if gpu:  # held until here: what follows the result is measured on it, too
        gpu.close()
    leader.outlast()


def _work(
    asked: Follower, run: RunRecord, leader: Leader, stop: Stop, limit: Limit
) -> tuple[Afterwards | None, socket | None]:
    """Do the run's task; returns what follows the result, and what `hold_gpu` returned."""
    config = run.config
    source = run.source and checked(run, run.source)
    have_own_gpu(config, asked.place.local_rank)
    work = prepared(config)
    limit.hold()
    progress = Progress(first_manifest(run.run_id, asked.meeting.attempt))
    uuid = machine.device(config.device)[1]
    progress.manifest = progress.manifest.model_copy(update={"gpu_uuid": uuid})
    progress.gpu = process.hold_gpu(uuid)
    meet = partial(followed, leader, asked.place, progress, config)
    given = Given(run, asked.folder, progress, stop, asked.options, source, meet, records=False)
    return work.run(given), progress.gpu


if __name__ == "__main__":
    main()
