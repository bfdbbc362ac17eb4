"""What an attempt asks of a process of its own, in this one."""

from collections.abc import Sequence

import pytest

from model.record.config import RunConfig
from model.record.speed import Ceilings
from runner.job import ceilings


@pytest.fixture
def ceilings_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measures the device in this process: another's import of torch takes longer. `test_ceilings` starts one."""
    from model.measure.ceilings import measure

    def here(config: RunConfig, _options: Sequence[str]) -> Ceilings:
        return measure(config, lambda: None)

    monkeypatch.setattr(ceilings, "measure", here)
