"""What a report says of the code that made it."""

import pytest

from analysis.report import carried


@pytest.mark.parametrize(
    "source", ["measure/flops.py", "record/config.py", "record/sections.py", "record/units.py"]
)
def test_another_formula_or_configuration_is_other_code(monkeypatch, source):
    digest = carried.sha256
    code = carried.code.__wrapped__()

    def altered_digest(path):
        return "another" if path.as_posix().endswith(f"/model/{source}") else digest(path)

    monkeypatch.setattr(carried, "sha256", altered_digest)
    assert carried.code.__wrapped__() != code
