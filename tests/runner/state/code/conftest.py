"""Tests of what is written when a snapshot is taken."""

import pytest

from runner.state.code import snapshot
from tests import linked


@pytest.fixture(autouse=True)
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots are written, and tests may edit them."""
    monkeypatch.setattr(snapshot, "_write", linked.written)
