"""A collected workspace to ask, which no query can change."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.store.collect import collect
from tests.analysis.fabricate import completed


@pytest.fixture(scope="package")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs [a]*")
    completed(root, "r1", attention="flash")
    collect(root)
    return root
