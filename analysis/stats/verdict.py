"""What may be said of a difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Literal

Kind = Literal["equivalent", "different", "inconclusive", "observed", "withheld"]
_MOST_DECIMALS = 7


@dataclass(frozen=True)
class Verdict:
    """A difference, what may be said of it, and the sentence that says it.

    Attributes:
        kind: 'equivalent' and 'different' are findings; 'inconclusive' is neither; 'observed' is a difference
            of single runs; 'withheld' is one of runs that are not comparable.
        sentence: for the report.
        difference: relative difference of the rates (0.01: the first is 1 % faster), or nats for losses
            (first minus second); None if it is not known.
        low, high: the interval's ends, in the same unit; None where it is refused.
        n: number of runs, or of pairs of runs.
        level: 'records of one run each' or 'runs'.
        method: how the interval was made, worded for a caption.
    """

    kind: Kind
    sentence: str
    difference: float | None
    low: float | None
    high: float | None
    n: int
    level: str
    method: str

    @property
    def apart(self) -> bool | None:
        """Whether the interval excludes equality; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return self.low > 0 or self.high < 0


def in_runs(a: int, b: int) -> str:
    """How many runs an observed difference is of: `in one run each`, `in one run against the median of 3`."""
    if a == b == 1:
        return "in one run each"
    one, other = ("one run" if n == 1 else f"the median of {n}" for n in (a, b))
    return f"in {one} against {other}"


def name(label: str) -> str:
    """A group's name, set off from the words around it."""
    return f"`{label.replace('`', chr(39))}`"


def in_a_row(labels: Sequence[str]) -> str:
    """Groups one after the other, parted by semicolons where a name has a comma."""
    return ("; " if any("," in label for label in labels) else ", ").join(labels)


def p_value(p: float) -> str:
    """A p value in a sentence: `p = 0.012`."""
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"


def percent(share: float) -> str:
    """A relative difference as a signed number of percent, without the unit or a power of ten: `+1.2`."""
    if abs(share) >= 1:
        return f"{100 * share:+,.0f}"
    powers = abs(share) >= 0.995 or 0 < abs(share) < 1e-6  # two digits would be 1e+02, or 1e-05
    return f"{100 * share:{'+.4f' if powers else '+.2g'}}"


def readable(value: float, form: str) -> str:
    """A number in a format of a fixed number of decimals, or with three digits where these would hide it.

    A rate of 0.4 is 0.400 in the format `,.0f`, and not 0. In `,.4g` 12,345 has no power of ten, and in
    `#,.4g` 1.5 has its zeros, 1.500.
    """
    digits = int(form[:-1].partition(".")[2] or 0)
    if form.endswith("f") and form[0] != "+" and 0 < abs(value) < 10 ** (1 - digits):
        return _three_digits(value)
    if form.endswith("g") and 10**digits <= abs(float(f"{value:.{digits}g}")) < 1e9:
        return f"{value:,.0f}"
    return format(value, form).removesuffix(".")


def _three_digits(value: float) -> str:
    """A number with three digits, and without a power of ten unless that needs more than nine decimals."""
    places = 2 - floor(log10(abs(value)))
    return f"{value:.{places}f}" if places <= 9 else f"{value:.2e}"


def percentage(share: float, low: float | None, high: float | None, margin: float | None = None) -> str:
    """`-5.22 %; -5.54 to -4.91 %`: digits that tell the interval's ends apart, and from the margin."""
    if low is None or high is None:
        return f"{percent(share)} %"
    width = 100 * (high - low)
    least = min(4, max(0, 1 - floor(log10(width)))) if width > 1e-9 else 2
    digits = decimals((100 * low, 100 * high), None if margin is None else 100 * margin, least)
    return f"{100 * share:+.{digits}f} %; {100 * low:+.{digits}f} to {100 * high:+.{digits}f} %"


def enclosed(share: float, low: float, high: float, margin: float | None = None) -> str:
    """The same for a sentence: `-5.22 % (-5.54 to -4.91 %)`."""
    value, _, ends = percentage(share, low, high, margin).partition("; ")
    return f"{value} ({ends})"


def decimals(ends: Sequence[float], margin: float | None, least: int) -> int:
    """How many decimals it takes that no end rounds onto zero or the margin, or across."""
    limits = (0.0, *(() if margin is None else (-margin, margin)))
    for digits in range(least, _MOST_DECIMALS):
        if all(
            (round(end, digits) > it) - (round(end, digits) < it) == (end > it) - (end < it)
            for end in ends
            for it in limits
        ):
            return digits
    return _MOST_DECIMALS
