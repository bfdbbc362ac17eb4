"""A collected workspace to ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.store.collect import collect
from tests.analysis.fabricate import completed


@pytest.fixture
def filled(root: Path) -> Path:
    completed(root, "r1", attention="flash")
    collect(root)
    return root
