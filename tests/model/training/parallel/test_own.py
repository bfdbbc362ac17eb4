"""The slowest process of a run is told from what each spends itself, since all of them end a step together."""

import time
from multiprocessing import Lock, RawArray, RawValue
from types import SimpleNamespace

import pytest

from model.training import meter, step
from model.training.feed import Feed
from model.training.llama import Block
from model.training.optim import AdamW
from model.training.parallel import split
from model.training.parallel.own import Own
from model.training.parallel.world import ALONE
from tests.conftest import PATIENCE_SECONDS
from tests.model.training.parallel.processes import together
from tests.model.training.parallel.test_equality import MORE, WAYS, compiled, config, records, texts  # noqa: F401

HELD_UP = 0.1  # seconds, of each planted call
# Where a process is slow on purpose: whose attribute, its name.
BLOCK, DATA, UPDATE = (Block, "forward"), (Feed, "__next__"), (AdamW, "step")
# The processes of a run share this clock, on which time goes by in planted calls alone, and whether each counts now.
CLOCK, COUNTING = RawValue("d"), RawArray("b", 4)
ONE_AT_A_TIME = Lock()  # nobody begins to count between the look at who counts and the time that goes by then


@pytest.fixture(autouse=True)
def shared_clock(monkeypatch):
    """The processes are forked, and find the clock in place of the host's."""
    CLOCK.value, COUNTING[:] = 0, [0] * len(COUNTING)
    monkeypatch.setattr(meter, "time", SimpleNamespace(perf_counter=lambda: CLOCK.value))


def alone(own_count):
    """Whether only this process counts; if so, time goes by."""
    with ONE_AT_A_TIME:
        if sum(COUNTING) > own_count:
            return False
        CLOCK.value += HELD_UP
        return True


def held_up(call, world):
    """A call that the others have to wait for: time goes by as soon as none of them counts its own."""

    def slow_call(*arguments, **options):
        own_count = COUNTING[world.place.rank]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not alone(own_count):
            assert time.monotonic() < deadline, "a process counts as its own what it waits for"
            time.sleep(0.001)
        return call(*arguments, **options)

    return slow_call


def shown(world):
    """Show the other processes whether this one counts."""

    def then_show(call):
        def shows(own, *arguments):
            with ONE_AT_A_TIME:
                call(own, *arguments)
                COUNTING[world.place.rank] = own._marks is not None and own._running

        return shows

    for name in ("start", "pause", "resume"):
        setattr(Own, name, then_show(getattr(Own, name)))


def planted(world, texts, config, rank, place, train=records):  # noqa: F811
    """The records of a run one of whose processes is slow."""
    shown(world)
    if world.place.rank == rank:
        owner, name = place
        setattr(owner, name, held_up(getattr(owner, name), world))
    return train(world, texts, config)


def slow_loss(world, texts, config, rank):  # noqa: F811
    shown(world)
    if world.place.rank == rank:
        step.LOSSES = {name: held_up(loss, world) for name, loss in step.LOSSES.items()}
    return compiled(world, texts, config)[0]


def names(step_records, rank):
    """Whether the records of a run say that the rank was slowest, for what was planted in it alone."""
    assert step_records
    for record in step_records:
        assert (record.slowest_rank, record.other_ranks_seconds) == (rank, 0)
        assert record.slowest_rank_seconds >= HELD_UP - 1e-9


@pytest.mark.fault
@pytest.mark.parametrize("way", [way for way in WAYS if "TP" not in way])
def test_a_process_whose_blocks_are_slow_is_found_and_named(way, texts):  # noqa: F811
    last_rank = config(WAYS[way]).processes - 1
    step_records, *_ = together(planted, texts, config(WAYS[way], steps=3), last_rank, BLOCK, **WAYS[way])
    names(step_records, last_rank)


@pytest.mark.fault
@pytest.mark.parametrize("place", [DATA, UPDATE], ids=["data", "update"])
@pytest.mark.parametrize("way", ["DDP", "FSDP2"])
def test_slow_data_and_a_slow_update_count_too(way, place, texts):  # noqa: F811
    settings = config(WAYS[way], steps=3, **MORE["in parts, recomputed"])
    step_records, _ = together(planted, texts, settings, 1, place, **WAYS[way])
    names(step_records, 1)


@pytest.mark.fault
@pytest.mark.filterwarnings("default")  # Dynamo looks at what warns
def test_it_is_found_beside_compiled_blocks(texts):  # noqa: F811
    step_records, _ = together(
        slow_loss, texts, config(WAYS["FSDP2"], compile=True, steps=3), 1, **WAYS["FSDP2"]
    )
    names(step_records, 1)


@pytest.mark.parametrize("way", ["TP", "CP with TP"])
def test_nothing_is_said_where_blocks_themselves_wait(way, texts):  # noqa: F811
    step_records, *_ = together(records, texts, config(WAYS[way], steps=2), **WAYS[way])
    assert step_records
    for record in step_records:
        assert not {"slowest_rank", "slowest_rank_seconds", "other_ranks_seconds"} & set(record.model_dump())


def with_another_torch(world, texts, config):  # noqa: F811
    split._WAITING = ("as_a_later_version_may_call_it",)
    return records(world, texts, config)


@pytest.mark.fault
def test_nothing_is_said_where_pytorch_waits_elsewhere(texts):  # noqa: F811
    step_records, _ = together(with_another_torch, texts, config(WAYS["FSDP2"], steps=2), **WAYS["FSDP2"])
    assert [record.slowest_rank for record in step_records] == [None, None]


def test_a_run_of_one_process_has_none_of_it_in_its_records(texts):  # noqa: F811
    step_records = records(ALONE, texts, config(steps=1))
    assert not [name for name in step_records[0].model_dump() if "rank" in name]
