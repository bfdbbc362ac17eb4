"""A record tells the time of each step since the last one, how long data kept it waiting, and its energy."""

import gc
import time
import weakref
from types import SimpleNamespace

import pytest
import torch

from model.measure.nvml import power_of_all
from model.record.records import StepRecord, now
from model.record.text import Position, Source
from model.training import meter
from model.training.data import Batches
from model.training.feed import Feed, Ready
from model.training.loss import LOSSES
from model.training.meter import Meter, no_collector
from model.training.parallel.own import MOST_STEPS, Own
from model.training.trainer import train
from tests.model.conftest import run_config

CPU = torch.device("cpu")
ONE = torch.ones(())


class Sensors:
    """A GPU that draws one watt, by the test's clock."""

    sm_mhz, reasons = 1980.0, ""

    def __init__(self, clock):
        self._clock = clock

    def __call__(self, uuid):
        return SimpleNamespace(
            joules=lambda: self._clock.now, sm_mhz=lambda: self.sm_mhz, throttle_reasons=lambda: self.reasons
        )


def step(meter, clock, wait, work):
    clock.now += wait
    tokens_BT = torch.zeros(2, 4, dtype=torch.int64)
    meter.count(Ready(tokens_BT, tokens_BT, 7, Position(), None))
    clock.now += work
    meter.done()


def test_a_record_has_the_shortest_median_and_longest_step_and_the_wait_for_data(clock):
    timed = Meter(CPU)
    for wait, work in ((0.0, 1.0), (0.5, 2.5), (0.0, 2.0)):
        step(timed, clock, wait, work)
    clock.now += 100  # what follows the last step is no step's time
    record = timed.record(3, ONE, ONE, 0.1)
    assert (record.steps, record.step_seconds) == (3, 2.0)
    assert (record.step_seconds_min, record.step_seconds_median, record.step_seconds_max) == (1.0, 2.0, 3.0)
    assert record.data_wait_seconds == 0.5
    assert (record.tokens, record.training_tokens) == (24, 21)
    timed.restart()
    step(timed, clock, 0.25, 3.75)
    record = timed.record(4, ONE, ONE, 0.1)
    assert (record.steps, record.step_seconds, record.data_wait_seconds, record.tokens) == (1, 4.0, 0.25, 8)


def test_energy_is_of_the_steps_alone_and_clocks_are_of_the_record(clock, monkeypatch):
    monkeypatch.setattr(meter, "Gpu", sensors := Sensors(clock))
    timed = Meter(CPU)
    step(timed, clock, 0.0, 3.0)
    record = timed.record(1, ONE, ONE, 0.1)
    assert (record.energy_joules, record.sm_mhz, record.throttle_reasons) == (3.0, 1980.0, "")
    clock.now += 50  # a checkpoint
    timed.restart()
    sensors.sm_mhz, sensors.reasons = 1200.0, "sw_power_cap"
    step(timed, clock, 0.0, 2.0)
    record = timed.record(2, ONE, ONE, 0.1)
    assert (record.energy_joules, record.sm_mhz, record.throttle_reasons) == (2.0, 1200.0, "sw_power_cap")


def of_process(**measurements):
    return StepRecord(step=4, steps=2, time=now(), learning_rate=0.1, tokens=64, **measurements)


def test_a_record_of_several_processes_is_of_the_slowest_and_of_all_gpus():
    """Who waits for data keeps the others waiting for it, and need not be the slowest by the clock."""
    waited = of_process(
        step_seconds=1.0, data_wait_seconds=1.5, memory_bytes=10, energy_joules=5.0, sm_mhz=900,
        throttle_reasons="heat",
    )  # fmt: skip
    slowest = of_process(
        step_seconds=1.01, step_seconds_max=1.2, data_wait_seconds=0.0, memory_bytes=8, energy_joules=7.0,
        sm_mhz=1000, throttle_reasons="",
    )  # fmt: skip
    record = meter.together([(waited, None), (slowest, 0.5)])
    assert (record.step_seconds, record.step_seconds_max, record.data_wait_seconds) == (1.01, 1.2, 1.5)
    assert (record.memory_bytes, record.energy_joules, record.tokens) == (10, 12.0, 64)
    assert (record.sm_mhz, record.throttle_reasons) == (900, "heat")
    unknown = waited.model_copy(update={"energy_joules": None})
    assert meter.together([(unknown, None), (slowest, 0.5)]).energy_joules is None


def test_the_power_of_several_processes_is_of_all_gpus_once_each_has_a_window_that_is_long_enough():
    record = of_process(step_seconds=0.1, memory_bytes=10)
    first, second = (
        record.model_copy(update={"power_joules": 800.0, "power_seconds": seconds, "power_steps": steps})
        for seconds, steps in ((1.3, 12), (1.2, 11))
    )
    combined = meter.together([(first, None), (second, None)])
    assert (combined.power_joules, combined.power_seconds, combined.power_steps) == (1600.0, 1.3, 12)
    for short in (record, second.model_copy(update={"power_seconds": 1.05})):
        combined = meter.together([(first, None), (short, None)])
        assert (combined.power_joules, combined.power_seconds, combined.power_steps) == (None, None, None)
    assert power_of_all([first])["power_joules"] == 800.0


def test_the_slowest_process_is_the_one_that_spent_most_itself_beside_the_median_of_the_others():
    record = of_process(step_seconds=2.0, memory_bytes=10)
    combined = meter.together([(record, seconds) for seconds in (1.0, 1.2, 1.9, 1.1)])
    assert (combined.slowest_rank, combined.slowest_rank_seconds, combined.other_ranks_seconds) == (
        2,
        1.9,
        1.1,
    )
    for process_seconds in ((1.0, None), (None, None)):
        combined = meter.together([(record, seconds) for seconds in process_seconds])
        assert (combined.slowest_rank, combined.slowest_rank_seconds, combined.other_ranks_seconds) == (
            None,
            None,
            None,
        )


def test_what_a_process_spends_itself_is_of_the_steps_alone(clock):
    own, marks = Own(), meter.clock(CPU)
    own.resume()  # of a step before anybody asks
    own.start(marks)
    clock.now += 1.0
    with own.apart():
        clock.now += 100
        with own.apart():
            clock.now += 100
    clock.now += 2.0
    own.pause()
    with own.apart():
        clock.now += 100
    own.pause()
    clock.now += 100
    own.resume()
    own.resume()
    clock.now += 4.0
    own.done()
    own.done()
    assert own.seconds() == 3.5
    own.resume()  # of a step that is profiled
    own.done()
    clock.now += 8.0
    own.start(marks)
    for step in range(1, 2 * MOST_STEPS + 1):  # those that are counted, and as many again
        own.resume()
        clock.now += step
        with own.apart():
            clock.now += 100
        own.done()
    assert own.seconds() == (MOST_STEPS + 1) / 2
    assert len(marks.spans()) == 2 * MOST_STEPS + 1
    own.start(marks)
    assert own.seconds() is None


def test_a_gpu_is_timed_by_events_that_are_used_again(clock, monkeypatch):
    events = []

    class Event:
        """Passed as soon as it is recorded; in milliseconds, as CUDA has it."""

        def __init__(self, enable_timing):
            events.append(self)

        def record(self):
            self.at = clock.now

        def elapsed_time(self, later):
            return 1e3 * (later.at - self.at)

        def synchronize(self):
            """The device has passed it."""

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="a1"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 5)
    monkeypatch.setattr(meter, "Gpu", Sensors(clock))
    timed = Meter(torch.device("cuda"))
    for steps in (3, 2, 3):
        for _ in range(steps):
            step(timed, clock, 0.25, 1.75)
        clock.now += 100
        record = timed.record(steps, ONE, ONE, 0.1)
        assert (record.steps, record.step_seconds, record.step_seconds_max) == (steps, 2.0, 2.0)
        assert (record.data_wait_seconds, record.memory_bytes) == (0.25 * steps, 5)
        timed.restart()
    assert len(events) == 7, "the start, and two of each of three steps"


def test_a_run_on_a_cpu_has_times_and_no_sensors(corpus):
    records = []
    train(run_config("math", steps=7), Source(corpus), records.append)
    for record in records:
        assert 0 < record.step_seconds_min <= record.step_seconds_median <= record.step_seconds_max
        assert record.step_seconds_min <= record.step_seconds * (1 + 1e-9)
        assert record.step_seconds <= record.step_seconds_max * (1 + 1e-9)
        assert 0 < record.data_wait_seconds < record.steps * record.step_seconds
        assert (record.energy_joules, record.sm_mhz, record.throttle_reasons) == (None, None, None)
        assert (record.power_joules, record.power_seconds, record.power_steps) == (None, None, None)


@pytest.mark.fault
def test_data_that_come_late_are_seen(corpus, clock, monkeypatch):
    next_batch, loss = Feed.__next__, LOSSES["cross_entropy"]

    def delayed(seconds, call):
        def delayed_call(*arguments):
            clock.now += seconds
            return call(*arguments)

        return delayed_call

    monkeypatch.setattr(Feed, "__next__", delayed(3.0, next_batch))
    monkeypatch.setattr("model.training.step.LOSSES", {"cross_entropy": delayed(1.0, loss)})
    records = []
    train(run_config("math", steps=10), Source(corpus), records.append)
    assert [(record.step_seconds, record.data_wait_seconds) for record in records] == [
        (4.0, 3.0 * record.steps) for record in records
    ]


class Cycle:
    """Garbage that only the collector finds."""

    def __init__(self):
        self.itself = self


def test_the_collector_runs_at_records_and_never_in_a_step(corpus, monkeypatch):
    garbage, alive = [], []
    loss = LOSSES["cross_entropy"]

    def littering(*arguments):
        garbage.append(weakref.ref(Cycle()))
        assert not gc.isenabled()
        return loss(*arguments)

    monkeypatch.setattr("model.training.step.LOSSES", {"cross_entropy": littering})
    train(
        run_config("math", steps=10),
        Source(corpus),
        lambda _: alive.append([reference() is not None for reference in garbage]),
    )
    assert alive == [[True], [False] + [True] * 4, [False] * 5 + [True] * 5]
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


@pytest.mark.fault
def test_the_collector_is_as_before_where_training_fails():
    @no_collector()
    def fails():
        assert not gc.isenabled()
        raise ValueError

    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            with pytest.raises(ValueError):
                fails()
            assert gc.isenabled() is enabled
        finally:
            gc.enable()


def test_a_step_leaves_nothing_for_the_collector(corpus):
    """Else memory would grow from record to record."""
    counts = []
    train(run_config("math", log_every=100), Source(corpus), lambda _: counts.append(gc.collect()))
    assert counts[1] == 0


def on_gpu(**settings):
    return run_config("math", **settings).model_copy(update={"device": "cuda"})


@pytest.mark.gpu
def test_a_gpu_tells_each_step_and_what_it_draws(corpus):
    config, records = on_gpu(steps=200, log_every=100), []
    pytest.importorskip("pynvml")
    train(config, Source(corpus), records.append)
    for record in records:
        assert 0 < record.step_seconds_min <= record.step_seconds_median <= record.step_seconds_max
        assert record.energy_joules >= 0
        assert record.sm_mhz > 0
        assert record.throttle_reasons is not None


@pytest.mark.gpu
@pytest.mark.fault
def test_a_gpu_that_waits_for_its_data_is_seen(corpus, monkeypatch):
    """Its own clock tells: the host, which is ahead of it, need not notice."""
    next_batch = Batches.__next__

    def slow_batch(batches):
        time.sleep(0.1)
        return next_batch(batches)

    shares = []
    for source in (next_batch, slow_batch):
        monkeypatch.setattr(Batches, "__next__", source)
        records = []
        train(on_gpu(steps=60, log_every=50), Source(corpus), records.append)
        shares.append(records[1].data_wait_seconds / (records[1].step_seconds * records[1].steps))
    fed, starved = shares
    assert fed < 0.5 < starved
