"""Values of figures in words and tables: numbers, intervals, and what medians of groups say together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import floor, isfinite, log10

from analysis import stats
from analysis.charts import Table

UNKNOWN = "\N{EN DASH}"  # in a table, in place of a number
_MOST_DECIMALS = 9


def number(value: float | None, form: str) -> str:
    """A value as the figure prints it; `form` is its d3 format. A dash where it is unknown."""
    return UNKNOWN if value is None else format(value, form.replace("~", ""))


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
    return f"{comma}.{places}f" if places <= _MOST_DECIMALS else f"{comma}.3g"


def capital(text: str) -> str:
    """With a capital, whatever follows it."""
    return text[:1].upper() + text[1:]


def brief(value: float) -> str:
    """A number with two digits, or all before the decimal point: never a power of ten of a large one."""
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.2g}"


def in_all(count: int) -> str:
    """`both groups`, `all 5 groups`."""
    return "both groups" if count == 2 else f"all {count} groups"


def of_estimates(estimates: Iterable[stats.Estimate]) -> list[float | None]:
    """All numbers that a figure shows of estimates: the medians and the ends of their intervals."""
    return [value for estimate in estimates for value in (estimate.median, estimate.low, estimate.high)]


def interval(low: float | None, high: float | None, form: str) -> str:
    """Both ends; a dash where there is no interval."""
    return UNKNOWN if low is None or high is None else f"{number(low, form)} to {number(high, form)}"


def names(labels: Sequence[str], most: int = 4) -> str:
    """The labels in a sentence: the first few, and how many more there are."""
    between = "; " if any("," in label for label in labels) else ", "
    if len(labels) > most:
        return f"{between.join(labels[: most - 1])} and {len(labels) - most + 1} more"
    *first, last = labels
    return f"{between.join(first)} and {last}" if first else last


def groups(labels: Sequence[str]) -> str:
    """The labels like `names`, or their number where they have commas, which part other things in a title."""
    if len(labels) > 1 and any("," in label for label in labels):
        return f"{len(labels)} groups"
    return names(labels)


def observed_in(runs: Mapping[str, int]) -> str:
    """How a title begins of a range whose ends are groups of so many runs; empty where none is of one run."""
    single = [label for label, count in runs.items() if count == 1]
    if len(single) < len(runs):
        return f"Observed, {single[0]} in a single run" if single else ""
    return "Observed in single runs" if len(single) > 1 else "Observed in a single run"


def shares_of(
    shares: Mapping[str, float], groups: Mapping[str, Sequence[object]], what: str, whole: str
) -> str:
    """The smallest and the largest share, in percent: an observation where one of the two is a single run.

    Args:
        shares: by label, of 1; at least one.
        groups: the runs of each label.
        what: what takes these shares, as the sentence starts.
        whole: of what they are.
    """
    low, high = (end(shares, key=lambda label: shares[label]) for end in (min, max))
    observed = observed_in({label: len(groups[label]) for label in (low, high)})
    percentages = {label: f"{100 * shares[label]:.0f} %" for label in (low, high)}
    ends = f"{' to '.join(f'{percentage} ({label})' for label, percentage in percentages.items())} of {whole}"
    if len(shares) > 1 and percentages[low] == percentages[high]:
        ends = f"{percentages[low]} of {whole} in {in_all(len(shares))}"
    return f"{f'{observed}: {what}' if observed else capital(what)} {ends}"


def range_of(estimates: Mapping[str, stats.Estimate], what: str, form: str) -> str:
    """What the medians of groups say, as a title: an observation where an end of the range is a single run.

    Args:
        estimates: by label; at least one.
        what: the quantity with its unit, such as `tokens per second`.
        form: d3 format of a value.
    """
    low, high = (end(estimates, key=lambda label: estimates[label].median) for end in (min, max))
    first, last = (number(estimates[label].median, form) for label in (low, high))
    observed = observed_in({label: estimates[label].n for label in (low, high)})
    if len(estimates) == 1:
        return f"{observed or 'Median'}: {first} {what} ({low})"
    start = f"{observed or 'Medians'}: "
    if first == last:
        return f"{start}{first} {what} in {in_all(len(estimates))}"
    text = {label: number(estimate.median, form) for label, estimate in estimates.items()}
    at = [names([label for label in estimates if text[label] == value], 3) for value in (first, last)]
    return f"{start}{first} ({at[0]}) to {last} ({at[1]}) {what}"


def estimates_table(
    estimates: Mapping[str, stats.Estimate], labels: Sequence[str], what: str, form: str
) -> Table:
    """The groups with median, interval and how it was made, in the order of the labels."""
    rows = [
        (
            label,
            str(estimate.n),
            number(estimate.median, form),
            interval(estimate.low, estimate.high, form),
            estimate.method,
        )
        for label in labels
        if (estimate := estimates.get(label))
    ]
    return Table(("group", "runs", f"median, {what}", "interval", "how the interval was made"), tuple(rows))
