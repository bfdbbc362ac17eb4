"""The power of a GPU is of windows that its counter can tell, however coarse that is."""

from types import SimpleNamespace

import pytest
import torch

from model.record.text import Position
from model.training import meter
from model.training.feed import Ready
from model.training.meter import Meter

CPU = torch.device("cpu")


class Counter:
    """A GPU whose counter moves ten times a second, as an H200's: 700 W at work, 100 W in pauses."""

    def __init__(self, clock, phase):
        self._clock, self._phase, self._spans = clock, phase, []

    def __call__(self, uuid):
        return SimpleNamespace(joules=self.joules, sm_mhz=lambda: None, throttle_reasons=lambda: None)

    def spend(self, seconds, watts):
        self._spans.append((self._clock.now, watts))
        self._clock.now += seconds

    def joules(self):
        moved = (self._clock.now + self._phase) // 0.1 * 0.1 - self._phase
        starts = [start for start, _ in self._spans[1:]] + [self._clock.now]
        return sum(
            watts * max(0.0, min(moved, end) - start)
            for (start, watts), end in zip(self._spans, starts, strict=True)
        )

    def record(self, timed, step, seconds):
        """One step, and its record."""
        timed.count(READY)
        self.spend(seconds, 700.0)
        timed.done()
        return timed.record(step)


READY = Ready(torch.zeros(1, 1), torch.zeros(1, 1), 1, Position(), None)


def short_steps(clock, monkeypatch, phase, steps, seconds, pauses):
    """The records of steps, each followed by a pause as the next of `pauses` says, of a GPU of two rates."""
    monkeypatch.setattr(meter, "Gpu", counter := Counter(clock, phase))
    counter.spend(30.0, 100.0)
    timed, records = Meter(CPU), []
    for step in range(1, steps + 1):
        records.append(counter.record(timed, step, seconds))
        counter.spend(pauses(step), 100.0)
        timed.restart()
    return records


PHASES = [0.0, 0.013, 0.031, 0.057, 0.071, 0.099]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("seconds", [0.09, 0.1, 0.115, 0.23])
def test_short_steps_have_a_power_over_a_second_and_more_that_nobody_exceeds(
    clock, monkeypatch, phase, seconds
):
    """By a counter whose grain is as long as a step: energy over a step's own time was up to 1,400 W."""
    records = short_steps(clock, monkeypatch, phase, 60, seconds, lambda _: 0.01)
    windows = [record for record in records if record.power_steps]
    watts = [reading.power_joules / (reading.power_seconds + 0.1) for reading in windows]
    mean = (700 * seconds + 100 * 0.01) / (seconds + 0.01)
    assert all(0.7 * mean < reading <= 700 for reading in watts)
    assert all(reading.power_seconds >= 1.1 for reading in windows)
    joules, lasted = (
        sum(getattr(reading, f"power_{name}") for reading in windows) for name in ("joules", "seconds")
    )
    assert mean * (1 - 0.3 / lasted) < joules / lasted <= 700
    starts = [reading.step - reading.power_steps for reading in windows]
    assert starts == [0, *[reading.step for reading in windows[:-1]]], "every step is in one window"


@pytest.mark.parametrize("phase", PHASES)
def test_a_checkpoint_is_in_no_window_of_power_and_short_pauses_are(clock, monkeypatch, phase):
    checkpoint = {7: 20.0, 30: 5.0}
    records = short_steps(clock, monkeypatch, phase, 60, 0.2, lambda step: checkpoint.get(step, 0.05))
    windows = [record for record in records if record.power_steps]
    spans = [(window.step - window.power_steps, window.step) for window in windows]
    assert not [(start, end) for start, end in spans for saved in checkpoint if start < saved < end]
    assert {7, 30} <= {start for start, _ in spans}, "a window begins anew"
    for window in windows:
        share = 0.2 * window.power_steps / window.power_seconds
        assert 0.7 * (700 * share) < window.power_joules / (window.power_seconds + 0.1) <= 700


def test_records_of_a_second_have_a_power_each_also_after_long_pauses(clock, monkeypatch):
    records = short_steps(clock, monkeypatch, 0.05, 5, 1.0, lambda _: 3.0)
    assert [record.power_steps for record in records] == [1] * 5
    assert all(600 < entry.power_joules / entry.power_seconds <= 700 for entry in records)


def test_no_power_is_told_across_a_reading_that_failed(clock, monkeypatch):
    monkeypatch.setattr(meter, "Gpu", counter := Counter(clock, 0.0))
    counter.spend(1.0, 100.0)
    timed = Meter(CPU)
    read_joules = timed._gpu.joules
    timed._gpu.joules = lambda: None
    assert counter.record(timed, 1, 2.0).power_steps is None
    timed._gpu.joules = read_joules
    timed.restart()
    record = counter.record(timed, 2, 2.0)
    assert (record.power_steps, record.power_seconds) == (1, pytest.approx(2.1))
