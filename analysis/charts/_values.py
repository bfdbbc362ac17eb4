"""Values of figures in words and tables: numbers, intervals, and what medians of groups say together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, isfinite, log10

from analysis import stats
from analysis.charts import Table
from analysis.stats.paired import Ratio
from analysis.wording import UNKNOWN, capital, number, range_word

_MOST_DECIMALS = 9
_WIDE = 1_000  # times the smallest value, from which values share digits, not decimals
_LONG = 40  # characters of a name, beyond which a headline shortens it


def d3(form: str) -> str:
    """The format for marks: d3 writes `g` of large numbers as powers of ten, and `r` never."""
    return f"{form[:-1]}r" if form.endswith("g") else form


def in_a_headline(estimate: stats.Estimate, form: str, digits: int = 4) -> str:
    """The median with at most so many digits, and no more than two that the interval's half width covers."""
    plain, value = form.replace("~", ""), abs(estimate.median)
    if not plain.endswith("f") or not value or not isfinite(value):
        return number(estimate.median, plain)
    start, _, decimals = plain.removesuffix("f").partition(".")
    most = [int(decimals or 0), digits - 1 - floor(log10(value))]
    if estimate.low is not None and estimate.high is not None and estimate.high > estimate.low:
        most.append(1 - floor(log10((estimate.high - estimate.low) / 2)))
    return number(estimate.median, f"{start}.{max(0, min(most))}f")


def fitting(form: str, values: Iterable[float | None]) -> str:
    """The format with as many decimals as the smallest value needs for three digits.

    Args:
        form: d3 format of a fixed number of decimals, such as `,.0f`; others are returned as they are.
        values: that the figure shows; zeros and unknown ones count for nothing.
    """
    sizes = [abs(value) for value in values if value and isfinite(value)]
    comma, _, decimals = form.removesuffix("f").partition(".")
    if not sizes or not form.endswith("f") or comma not in ("", ","):
        return form
    if min(sizes) >= 10 ** (1 - int(decimals)):
        return form
    places = 2 - floor(log10(min(sizes)))
    if places > _MOST_DECIMALS or max(sizes) >= _WIDE * min(sizes):
        return f"{comma}.3g"
    return f"{comma}.{places}f"


def brief(value: float) -> str:
    """A number with two digits, or all before the decimal point: never a power of ten of a large one."""
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.2g}"


def in_all(count: int) -> str:
    """`both groups`, `all 5 groups`."""
    return "both groups" if count == 2 else f"all {count} groups"


def of_estimates(estimates: Iterable[stats.Estimate]) -> list[float | None]:
    """All numbers that a figure shows of estimates: the medians and the ends of their intervals."""
    return [value for estimate in estimates for value in (estimate.median, estimate.low, estimate.high)]


def interval(ends: stats.Estimate | Ratio, form: str) -> str:
    """Both ends, after the word where they are a range and no interval; a dash without any."""
    if ends.low is None or ends.high is None:
        return UNKNOWN
    return f"{range_word(ends.is_range)}{number(ends.low, form)} to {number(ends.high, form)}"


def names(labels: Sequence[str], most: int = 4) -> str:
    """The labels in a sentence: the first few, and how many more there are."""
    between = "; " if any("," in label for label in labels) else ", "
    if len(labels) > most:
        return f"{between.join(labels[: most - 1])} and {len(labels) - most + 1} more"
    *first, last = labels
    return f"{between.join(first)} and {last}" if first else last


def shortened(labels: Collection[str]) -> dict[str, str]:
    """Each label as a headline has it: of a long one the first settings that tell it from the others."""
    short = {}
    for label in labels:
        short[label] = label
        parts = label.split(", ")
        for kept in range(1, len(parts) if len(label) > _LONG else 0):
            start = ", ".join(parts[:kept])
            if not any(f"{other}, ".startswith(f"{start}, ") for other in labels if other != label):
                short[label] = f"{start}, ..."
                break
    return short


def in_single_runs(runs: Mapping[str, int]) -> str:
    """How a headline ends whose numbers are of single runs, by the number of runs of each label."""
    single = [label for label, count in runs.items() if count == 1]
    if not single:
        return ""
    if len(single) < len(runs):
        return f"; {names(list(shortened(single).values()), 2)} in one run"
    return ", one run each" if len(single) > 1 else ", one run"


@dataclass(frozen=True)
class Ends:
    """How a headline speaks of a quantity.

    Attributes:
        what: it is, as a sentence goes on.
        unit: after a value, with the space before it; empty where `what` says it.
        first, last: how its ends are called.
        high_first: whether the largest comes first.
    """

    what: str
    unit: str = ""
    first: str = "highest"
    last: str = "lowest"
    high_first: bool = True


def range_of(estimates: Mapping[str, stats.Estimate], ends: Ends, form: str) -> str:
    """The groups with the largest and the smallest median, as a headline.

    Args:
        estimates: by label; at least one.
        form: d3 format of a value.
    """
    texts = {label: in_a_headline(estimate, form) for label, estimate in estimates.items()}
    order = sorted(estimates, key=lambda label: estimates[label].median, reverse=ends.high_first)
    first, last = texts[order[0]], texts[order[-1]]
    short = shortened(estimates)
    at = {
        text: [label for label in estimates if texts[label] == text] for text in dict.fromkeys((first, last))
    }
    suffix = in_single_runs({label: estimates[label].n for labels in at.values() for label in labels})
    several = any(estimate.n > 1 for estimate in estimates.values())
    what = f"Median {ends.what}" if several else capital(ends.what)
    if len(estimates) == 1:
        return f"{what}: {first}{ends.unit}{suffix}"
    if first == last:
        return f"{what}: {first}{ends.unit} in {in_all(len(estimates))}{suffix}"
    named = {text: names([short[label] for label in labels], 3) for text, labels in at.items()}
    return (
        f"{what}: {ends.first} {first}{ends.unit} ({named[first]}), "
        f"{ends.last} {last}{ends.unit} ({named[last]}){suffix}"
    )


def estimates_table(
    estimates: Mapping[str, stats.Estimate], labels: Sequence[str], what: str, form: str
) -> Table:
    """The groups with median, interval and how it was made, in the order of the labels."""
    rows = [
        (
            label,
            str(estimate.n),
            number(estimate.median, form),
            interval(estimate, form),
            estimate.method,
        )
        for label in labels
        if (estimate := estimates.get(label))
    ]
    return Table(("group", "runs", f"median, {what}", "interval", "how the interval was made"), tuple(rows))
