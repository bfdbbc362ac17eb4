"""Where a process stands is where the thread does that its main thread waits for."""

from threading import Thread
from types import SimpleNamespace

from model.disk import checkpoint
from model.keeper import Checkpoints, Keeper
from model.text import START
from runner.job.ranks.where import place
from tests.conftest import until

STATE = SimpleNamespace(config=SimpleNamespace(train=SimpleNamespace(steps=9)))


def test_a_process_that_waits_until_it_may_go_on_after_a_checkpoint_is_where_the_checkpoint_is(
    tmp_path, monkeypatch
):
    seen = []
    world = {"__name__": "model.parallel.world", "until": until, "seen": seen}
    exec("def gather(): until(lambda: seen, 0.01)", world)
    monkeypatch.setattr(checkpoint, "save", lambda *given, hold: world["gather"]())
    asking = Thread(target=lambda: seen.append(until(waiting, 0.01)), daemon=True)
    asking.start()
    with Keeper(Checkpoints(tmp_path, None, lambda: False, None), STATE) as keeper:
        keeper.keep(3, START)
        asking.join()
        assert not place(3).waits
    (found,) = seen
    assert found.steps == 3


def waiting():
    found = place(3)
    return found if found.waits else None
