"""What a report says of the code that made it."""

import pytest

from analysis.report import carried


@pytest.mark.parametrize(
    "source", ["measure/flops.py", "record/config.py", "record/sections.py", "record/units.py"]
)
def test_another_formula_or_configuration_is_other_code(monkeypatch, source):
    hashed = carried.sha256
    before = carried.code.__wrapped__()

    def changed(path):
        return "another" if path.as_posix().endswith(f"/model/{source}") else hashed(path)

    monkeypatch.setattr(carried, "sha256", changed)
    assert carried.code.__wrapped__() != before
