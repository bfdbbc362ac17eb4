from types import SimpleNamespace

import pytest

from model.training import meter


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on only where a test says so."""
    test_clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(meter, "time", SimpleNamespace(perf_counter=lambda: test_clock.now))
    return test_clock
