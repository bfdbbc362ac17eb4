"""Batches are made ahead, in their order, and a run's position is that of the batches that it took."""

import gc
import threading

import pytest
import torch

from model.record.errors import UserError
from model.record.text import Position, Source
from model.training.data import Batches
from model.training.feed import Feed
from tests.model.conftest import run_config

CPU = torch.device("cpu")


class Planted:
    """Batches that tell how many were made, and of which the fifth cannot be made."""

    def __init__(self, corpus):
        self._batches, self.made, self.count = Batches(run_config(), Source(corpus)), threading.Condition(), 0

    @property
    def position(self):
        return self._batches.position

    def __next__(self):
        with self.made:
            self.count += 1
            self.made.notify_all()
        if self.count == 5:
            raise UserError("no text")
        return next(self._batches)


def test_batches_come_in_their_order_with_the_position_of_those_that_were_taken(corpus):
    config, position = run_config(), Position()
    stream = Batches(config, Source(corpus))
    feed = Feed(Batches(config, Source(corpus)), CPU)
    for _ in range(8):
        ready, batch = next(feed), next(stream)
        assert torch.equal(ready.inputs_BT, torch.from_numpy(batch.inputs_BT))
        assert torch.equal(ready.labels_BT, torch.from_numpy(batch.labels_BT))
        assert ready.training_tokens == batch.training_tokens
        assert feed.position == stream.position != position
        position = feed.position
    resumed = Feed(Batches(config, Source(corpus), position), CPU)
    assert torch.equal(next(resumed).inputs_BT, torch.from_numpy(next(stream).inputs_BT))


def test_two_batches_are_made_before_they_are_asked_for(corpus):
    planted = Planted(corpus)
    feed = Feed(planted, CPU)
    with planted.made:
        assert planted.made.wait_for(lambda: planted.count == 2, timeout=60)
    assert feed.position == Position()


@pytest.mark.fault
def test_a_batch_that_cannot_be_made_is_said_where_it_is_taken(corpus):
    feed = Feed(Planted(corpus), CPU)
    for _ in range(4):
        next(feed)
    with pytest.raises(UserError, match="no text"):
        next(feed)


def test_the_thread_ends_with_the_feed(corpus):
    threads = set(threading.enumerate())
    feed = Feed(Batches(run_config(), Source(corpus)), CPU)
    next(feed)
    (thread,) = set(threading.enumerate()) - threads
    del feed
    gc.collect()
    thread.join(timeout=60)
    assert not thread.is_alive()
