"""A workspace to fabricate run folders in, and questions to its database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.query.ask import ask

Ask = Callable[[str], list[dict[str, Any]]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty workspace, whose path has what DuckDB would take for a pattern."""
    path = tmp_path / "runs [a]*"
    path.mkdir()
    return path


@pytest.fixture
def sql(root: Path) -> Ask:
    """Rows of a query over the collected workspace."""
    return lambda query: ask(root, query).records()
