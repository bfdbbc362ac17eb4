"""Where a process stands is where the thread does that its main thread waits for."""

import inspect
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from types import SimpleNamespace

import pytest
import torch

from model.record.errors import UserError
from model.record.text import START
from model.training import checkpoint
from model.training.feed import Feed
from model.training.keeper import Checkpoints, Keeper
from runner.job.ranks.standstill import Whereabouts, whereabouts
from tests.conftest import PATIENCE_SECONDS, until

STATE = SimpleNamespace(config=SimpleNamespace(train=SimpleNamespace(steps=9)))


def test_a_process_that_waits_until_it_may_go_on_after_a_checkpoint_is_where_the_checkpoint_is(
    tmp_path, monkeypatch
):
    seen = []
    world = {"__name__": "model.training.parallel.world", "until": until, "seen": seen}
    exec("def gather(): until(lambda: seen, 0.01)", world)
    monkeypatch.setattr(checkpoint, "save", lambda *arguments, hold: world["gather"]())
    asking = Thread(target=lambda: seen.append(until(waiting, 0.01)), daemon=True)
    asking.start()
    with Keeper(Checkpoints(tmp_path, None, lambda: False, None), STATE) as keeper:
        keeper.keep(3, START)
        asking.join()
        assert not whereabouts(3).waits
    (position,) = seen
    assert position.steps == 3


class Stuck:
    """Batches of which the first is made when it is told to."""

    position = START

    def __init__(self):
        self.told, self.asked = Event(), Event()

    def __next__(self):
        self.asked.set()
        self.told.wait(PATIENCE_SECONDS)
        raise UserError("no more")


def test_a_process_that_waits_for_data_is_where_the_data_are_made():
    """What they are made with, such as a library that reads a file, is not our own code.

    The thread of a feed that nobody reads from any more is idle.
    """
    earlier = ThreadPoolExecutor(1, "data")
    earlier.submit(int).result()
    batches, places = Stuck(), []
    line = f"{inspect.getsourcefile(Feed)}:{_line(Feed._make, 'next(self._batches)')}"

    def ask():
        until(lambda: batches.asked.is_set() and whereabouts(3).line == line, 0.01)
        places.append(whereabouts(3))
        batches.told.set()

    (asking := Thread(target=ask, daemon=True)).start()
    with pytest.raises(UserError, match="no more"):
        next(Feed(batches, torch.device("cpu")))
    asking.join()
    earlier.shutdown()
    assert places == [Whereabouts(3, line, waits=False)]


def _line(function, text):
    lines, first = inspect.getsourcelines(function)
    return next(number for number, line in enumerate(lines, first) if text in line)


def waiting():
    place = whereabouts(3)
    return place if place.waits else None
