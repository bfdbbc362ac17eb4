"""A stand-in for `model.training.parallel.world` without torch: rank 0 answers the others over TCP when all have asked.

It is loaded under the name of the module that it stands in for, so that a process that waits here is seen to wait.
"""

import os
import pickle
import socket
from types import SimpleNamespace


class World:
    """What jobs use of the processes of a run."""

    def __init__(self, place, mesh=None):
        self.place, self.mesh, self.links = place, mesh, []
        self.is_first = place.rank == 0

    def gather(self, value):
        """What each process says, by rank."""
        try:
            if not self.is_first:
                pickle.dump(value, self.links[0])
                self.links[0].flush()
                return pickle.load(self.links[0])
            values = [value, *(pickle.load(link) for link in self.links)]
            for link in self.links:
                pickle.dump(values, link)
                link.flush()
            return values
        except (OSError, EOFError) as error:
            raise RuntimeError(f"Connection closed by peer: {error!r}") from error

    def most(self, value):
        """The largest of what they say."""
        return max(self.gather(value))

    def any(self, value):
        """Whether any says so."""
        return bool(self.most(int(value)))


ALONE = World(SimpleNamespace(rank=0, size=1))


def hurry():
    """Have those that watch each other look more often, as TURN_SECONDS says."""
    import __main__  # of a process other than rank 0, runner.job.ranks.follower
    from runner.job.ranks import first
    from runner.state import process

    first.ASK_SECONDS = __main__.TURN_SECONDS = float(os.environ["TURN_SECONDS"])
    if "SLURM_JOB_ID" in os.environ:  # nodes of the test cluster are one machine, and are to be several
        process.alive = lambda _process: None


def join(place, _parallel, _device, listening=None):
    """Meet at rank 0's address."""
    if "TURN_SECONDS" in os.environ:
        hurry()
    world = World(place, mesh="stand-in")
    host, port = place.address.split(":")
    if place.rank:
        world.links = [socket.create_connection((host, int(port))).makefile("rwb")]
        pickle.dump(place.rank, world.links[0])
        world.links[0].flush()
        return world
    with listening:
        links = [listening.accept()[0].makefile("rwb") for _ in range(place.size - 1)]
    ranks = [pickle.load(link) for link in links]
    world.links = [link for _, link in sorted(zip(ranks, links, strict=True), key=lambda pair: pair[0])]
    return world
