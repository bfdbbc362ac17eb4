"""A difference in percent is a number that a reader, and a text in LaTeX, can take as it stands."""

from __future__ import annotations

import pytest

from analysis.stats.verdict import percent


@pytest.mark.parametrize(
    ("share", "said"),
    [(0.012, "+1.2"), (0.0, "+0"), (-0.997, "-99.7000"), (2e-16, "+0.0000"), (0.99, "+99"), (12.3, "+1,230")],
)
def test_percent_has_no_power_of_ten(share: float, said: str) -> None:
    assert percent(share) == said
