"""A difference in percent is a number that a reader, and a text in LaTeX, can take as it stands."""

from __future__ import annotations

import pytest

from analysis.stats.equivalence import change
from analysis.wording import percent, percentage, readable, sentence


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.012, "+1.2"), (0.0, "+0"), (-0.997, "-99.7000"), (2e-16, "+0.0000"), (0.99, "+99"), (12.3, "+1,230")],
)
def test_percent_has_no_power_of_ten(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("low", "high", "margin", "text"),
    [
        (-0.01004, -0.00996, 0.01, "-1.0000 %; -1.0040 to -0.9960 %"),
        (-0.012, 0.00001, None, "-0.600 %; -1.200 to +0.001 %"),
        (0.5, 1.5, 0.02, "+100 %; +50 to +150 %"),
    ],
)
def test_an_interval_has_the_digits_that_part_its_ends_from_zero_and_the_margin(
    low: float, high: float, margin: float | None, text: str
) -> None:
    assert "; ".join(percentage((low + high) / 2, low, high, margin)) == text


def test_a_sentence_never_rounds_an_interval_onto_the_margin_that_it_crosses() -> None:
    verdict = change({1: 1.0, 2: 1.0, 3: 1.0}, {1: 1.0101, 2: 1.01005, 3: 1.01015}, 0.01)
    assert verdict.kind == "inconclusive"
    assert "-1.00 %" not in sentence(verdict).replace("margin of 1 %", "")
    assert verdict.low is not None
    assert f"{100 * verdict.low:+.4f}"[:6] in sentence(verdict)


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (0.4, ",.0f", "0.400"),
        (108.0, ",.4g", "108"),
        (108.0, "#,.4g", "108.0"),
        (5405.2, "#,.4g", "5,405"),
        (12345.6, "#,.4g", "12,346"),
        (12345.6, ",.4g", "12,346"),
        (999.4, "#,.3g", "999"),
        (999.5, "#,.3g", "1,000"),
        (-999.97, "#,.4g", "-1,000"),
        (9999.7, ",.4g", "10,000"),
        (0.0, "#,.4g", "0.000"),
    ],
)
def test_a_number_has_the_digits_of_its_format_and_no_power_of_ten(
    value: float, form: str, text: str
) -> None:
    assert readable(value, form) == text
