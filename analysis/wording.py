"""Verdicts in words, and the numbers, names and lists that sentences are made of."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import floor, log10

from analysis.stats.estimate import FEWEST_RUNS, Estimate
from analysis.stats.machines import FEWEST_BLOCKS, Drift
from analysis.stats.paired import RECORDS
from analysis.stats.repeats import FIRST, Look
from analysis.stats.rows import grouped
from analysis.stats.verdict import (
    Incomparable,
    Looks,
    MarginTest,
    NoMargin,
    NotFinite,
    NothingPaired,
    PairTest,
    SingleRuns,
    TooFewRecords,
    Untested,
    Verdict,
)
from model.record.units import counted

UNKNOWN = "\N{EN DASH}"  # in a table, in place of a number
_MOST_DECIMALS = 7
_VAGUE = 0.2  # the width of an interval of a relative change, beyond which it says nothing
_MOST_LISTED = 12  # items of a list within a sentence
FEW = 4  # groups that a sentence names, where it holds of all
DECLARE_LOSS_MARGIN = "Declare `margins: {loss: NATS}` in the study before it runs."
IMPORT_LOSS_MARGIN = "Import again with `--margin loss=NATS`."


def sentence(verdict: Verdict) -> str:
    """The verdict in full, with its numbers and what it rests on."""
    if isinstance(verdict.reason, Incomparable):
        return withheld(verdict.reason.differences)
    return _loss(verdict) if verdict.quantity == "loss" else _rate(verdict)


def columns(verdict: Verdict) -> dict[str, object]:
    """The verdict as a row of a table, or an object of JSON."""
    return {
        "kind": verdict.kind,
        "sentence": sentence(verdict),
        "difference": verdict.difference,
        "low": verdict.low,
        "high": verdict.high,
        "n": verdict.n,
        "level": verdict.level,
        "method": verdict.method,
    }


def withheld(differences: Sequence[str]) -> str:
    """Why no verdict is given."""
    return f"Withheld, because the runs are not comparable: {' '.join(differences)}"


def _rate(verdict: Verdict) -> str:
    first, second = verdict.groups or ("", "")
    match verdict.reason:
        case MarginTest(margin) if verdict.level == RECORDS:
            return (
                f"Rate {enclosed(verdict)} in one run each: {verdict.kind} by a margin of "
                f"{100 * margin:.3g} %, of these two runs alone."
            )
        case MarginTest(margin):
            words = {
                "equivalent": "unchanged within",
                "different": f"{faster(verdict)} by more than",
                "inconclusive": "too uncertain for",
            }[verdict.kind]
            return f"Rate {enclosed(verdict)}: {words} the margin of {100 * margin:.3g} %."
        case NoMargin():
            return f"Rate {enclosed(verdict)}: not tested, because no margin was stated."
        case PairTest() as test:
            return _tested(verdict, test)
        case Looks(margin):
            return f"{_at_last_look(verdict, margin)}: {verdict.method}."
        case Untested():
            return f"{first} and {second} are not tested: {verdict.method}."
        case SingleRuns() as runs if verdict.groups:
            ends = "" if verdict.low is None or verdict.high is None else (
                f" ({1 + verdict.low:.4g} to {1 + verdict.high:.4g} over its records)"
            )  # fmt: skip
            how = f"{FEWEST_RUNS} {'logs' if verdict.imported else 'runs'} of each"
            return (
                f"{first} ran at {1 + (verdict.difference or 0):.4g} of the rate of {second}{ends} "
                f"{in_runs(runs)}{_on_gpus(runs)}: {verdict.kind}, not a finding. "
                f"Repeats would make it one: {how}."
            )
        case SingleRuns() as runs:
            end = "not tested" if verdict.low is None else "which says nothing about other runs"
            return f"Rate {enclosed(verdict)} {in_runs(runs)}: {verdict.kind}, {end}."
    raise AssertionError(verdict)


def _tested(verdict: Verdict, test: PairTest) -> str:
    """What a ranking says of a pair, its faster group first."""
    first, second = verdict.groups or ("", "")
    ends = (verdict.difference, verdict.low, verdict.high)
    if test.turned:
        first, second = second, first
        share, high, low = (None if end is None else inverse(end) for end in ends)
        ends = (share, low, high)
    among = f" among {test.pairs} pairs" if test.pairs > 1 else ""
    seen = f"{in_parentheses(*ends)[:-1]}; {p_value(test.p)}{among}), {test.how}"
    if verdict.kind != "different":
        return f"{first} and {second} are not told apart: {seen}."
    ahead, behind = (first, second) if (ends[0] or 0) > 0 else (second, first)
    return f"{ahead} is faster than {behind}: {seen}."


def inverse(difference: float) -> float:
    """The relative difference of the second from the first, given that of the first from the second."""
    return difference and -difference / (1 + difference)


def _at_last_look(verdict: Verdict, margin: float | None) -> str:
    first, second = verdict.groups or ("", "")
    if verdict.low is None:
        return f"{first} and {second} are not tested yet"
    if verdict.kind == "different":
        return f"{first} is {faster(verdict)} than {second}"
    if verdict.kind == "equivalent":
        return f"{first} and {second} are equally fast within the margin"
    open_ = "shown neither to be equivalent within the margin nor to differ by more"
    return f"{first} and {second} are {open_ if margin else 'not told apart'}"


def _loss(verdict: Verdict) -> str:
    noise = (
        ""
        if verdict.noise is None
        else f" Two repeats differ by {verdict.noise:.2g} nats (standard deviation, pooled over both groups)."
    )
    match verdict.reason:
        case NothingPaired():
            return "Inconclusive: no two runs saw the same data in the same order at the same steps."
        case NotFinite(None):
            return "Inconclusive: both losses stop being finite at the same step."
        case NotFinite(step):
            return f"Different: the loss of one of them is not finite at step {step}."
        case TooFewRecords():
            method = verdict.method.rpartition(", steps ")[0]
            return f"Inconclusive: {verdict.difference:+.4f} nats, {method}.{noise}"
    value, ends = nats(verdict)
    seen = f"{verdict.kind.capitalize()}: {value} nats ({ends}; {verdict.method})"
    match verdict.reason:
        case MarginTest(margin):
            place = {"equivalent": "within", "different": "beyond"}.get(
                verdict.kind, "neither within nor beyond"
            )
            return f"{seen}, {place} the margin of {margin:.3g} nats.{noise}"
        case NoMargin():
            hint = IMPORT_LOSS_MARGIN if verdict.imported else DECLARE_LOSS_MARGIN
            return f"{seen}. {hint}{noise}"
    raise AssertionError(verdict)


def because(verdict: Verdict, margin: float | None, imported: Collection[str]) -> str:
    """What decided a verdict, or what is missing for one, in a few words for a row that has its numbers.

    Args:
        margin: that the runs state; None if they state none, or not the same.
        imported: labels of the groups of imported runs, to which a study adds nothing.
    """
    if isinstance(verdict.reason, Incomparable):
        return sentence(verdict)
    if verdict.quantity == "loss":
        return _because_of_loss(verdict)
    stated = f"the stated margin of {100 * margin:.3g} %" if margin else ""
    match verdict.reason:
        case SingleRuns() as runs:
            ends = "range" if verdict.is_range else "interval"
            end = {None: "there is no interval", False: f"the {ends} includes equality"}.get(verdict.apart)
            if end:
                return f"{in_runs(runs)}{_on_gpus(runs)}: {end}"
            includes = ", whose own difference it includes" if runs.on_other_gpus else ""
            return f"not a finding: {in_runs(runs)}{_on_gpus(runs)}{includes}"
        case NoMargin():
            return "not tested: no margin was stated"
        case PairTest(_, pairs) if verdict.kind == "different":
            return "by a test of the difference" + (f", corrected for {pairs} pairs" if pairs > 1 else "")
    if verdict.kind == "different":
        return f"by more than {stated}" if stated else ""
    if verdict.kind == "equivalent":
        return f"within {stated}"
    if verdict.apart is None:
        return verdict.method
    if stated:
        why = (
            f"the interval excludes equality, but not {stated}"
            if verdict.apart
            else f"the interval is too wide for {stated}"
        )
        return f"{why}; more repeats would narrow it"
    if verdict.apart:
        return "the interval excludes equality, but the test, which is corrected for all pairs, does not"
    how = (
        "import again with `--margin tokens_per_second=PERCENT`"
        if imported
        else "state `margins: {tokens_per_second: PERCENT}` in the study before it runs"
    )
    return f"not told apart, which does not make them equal: to test that, {how}"


def _because_of_loss(verdict: Verdict) -> str:
    match verdict.reason:
        case MarginTest(margin):
            place = {"equivalent": "within", "different": "by more than"}.get(
                verdict.kind, "the interval lies neither within nor beyond"
            )
            return f"{place} the stated margin of {margin:.3g} nats"
        case NoMargin():
            return f"no margin is stated: {IMPORT_LOSS_MARGIN if verdict.imported else DECLARE_LOSS_MARGIN}"
        case TooFewRecords():
            return verdict.method
    return sentence(verdict).partition(": ")[2]


def faster(verdict: Verdict) -> str:
    """The direction of a difference of rates."""
    return "faster" if (verdict.difference or 0) > 0 else "slower"


def in_runs(runs: SingleRuns) -> str:
    """How many runs an observed difference is of: `in one run each`, `in one run against the median of 3`."""
    if runs.repeat_of:
        return "in one run each, of the same repeat"
    if runs.first == runs.second == 1:
        return "in one run each"
    one, other = ("one run" if n == 1 else f"the median of {n}" for n in (runs.first, runs.second))
    return f"in {one} against {other}"


def _on_gpus(runs: SingleRuns) -> str:
    return ", on different GPUs" if runs.on_other_gpus else ""


def drift(tested: Drift) -> str:
    """Whether the machine drifted."""
    if tested.p is None or tested.change is None or tested.low is None or tested.high is None:
        few = f"{counted(tested.blocks, 'block')}, at least {FEWEST_BLOCKS} are needed"
        if tested.of > tested.blocks:
            most = f"no more than {tested.blocks}" if tested.blocks > 1 else "no two"
            but = f" but {listed(tested.noisy)}" if tested.noisy else ""
            few = f"of {tested.of} blocks, {most} have a group in common{but}; {FEWEST_BLOCKS} must"
        why = {
            "blocks": few,
            "order": "the runs were not started in blocks (`order: interleaved`)",
            "unknown": "in which order the runs were started is unknown",
        }[tested.lacking or "blocks"]
        return f"Drift was not tested: {why}."
    if not tested.drifted and tested.high - tested.low > _VAGUE:
        return f"No drift was found, but {tested.blocks} blocks as uneven as these would hide one."
    blocks = counted(tested.blocks, "block")
    if tested.of > tested.blocks:
        blocks = f"{tested.blocks} of {tested.of} blocks"
    if tested.partial:
        blocks += f", without {counted(tested.partial, 'group')} that did not run in all of them"
    word = "slower" if tested.change > 0 else "faster"
    without = f", without {listed(tested.noisy)}, whose runs vary far more" if tested.noisy else ""
    trend = (
        f"{100 * abs(tested.change):.2g} % {word} from the first block to the last ({blocks}); "
        f"{percent(tested.low)} to {percent(tested.high)} %, p = {tested.p:.2g}{without}."
    )
    return f"The machine drifted: steps became {trend}" if tested.drifted else f"No drift was found: {trend}"


def look(seen: Look) -> str:
    """What the pairs so far say, for the launcher and the report."""
    if seen.ratio is None or seen.low is None or seen.high is None:
        return f"{seen.pairs} of at least {FIRST} pairs of runs: no interval yet"
    state = "reached" if seen.reached else "not reached"
    return (
        f"{seen.pairs} pairs of runs: ratio {seen.ratio:.4g} ({seen.low:.4g} to {seen.high:.4g}), half width "
        f"{100 * seen.half_width:.2g} %, target {100 * seen.target:.2g} % {state}; "
        f"corrected for {seen.looks} looks"
    )


def group_name(label: str) -> str:
    """A group's name, set off from the words around it."""
    return f"`{label.replace('`', chr(39))}`"


def named_or_counted(labels: Sequence[str]) -> str:
    """The names of a few groups; of more how many they are."""
    return listed(list(map(group_name, labels))) if len(labels) <= FEW else counted(len(labels), "group")


def listed(items: Sequence[str]) -> str:
    """`a, b and c`; of a long list the first ones, and how many more there are."""
    shown = list(items)
    if len(shown) > _MOST_LISTED:
        shown = [*shown[: _MOST_LISTED - 1], f"{len(shown) - _MOST_LISTED + 1} more"]
    return " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))


def in_a_row(labels: Sequence[str]) -> str:
    """Groups one after the other, parted by semicolons where a name has a comma."""
    return ("; " if any("," in label for label in labels) else ", ").join(labels)


def methods(estimates: Mapping[str, Estimate]) -> str:
    """What the intervals are, for a caption: each method once, with its labels where there are several."""
    labels = grouped(estimates, lambda label: (estimates[label].n, estimates[label].method))
    if len(labels) == 1:
        ((n, method),) = labels
        return f"n = {n}: {method}"
    return "; ".join(
        f"n = {n} ({in_a_row(sorted(group))}): {method}" for (n, method), group in labels.items()
    )


def capital(text: str) -> str:
    """The text with a capital, whatever follows it."""
    return text[:1].upper() + text[1:]


def number(value: float | None, form: str) -> str:
    """A number in a format of Python's or d3's, as `readable` has it; a dash where it is unknown."""
    return UNKNOWN if value is None else readable(value, form.replace("~", ""))


def range_word(is_range: bool) -> str:
    """What stands before two ends: `range ` where they are a range and no interval."""
    return "range " if is_range else ""


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

    A rate of 0.4 is 0.400 in the format `,.0f`, and not 0, but one that needs more than nine decimals has a
    power of ten. In `,.4g` 12,345 has none, and in `#,.4g` 1.5 has its zeros, 1.500.
    """
    digits = int(form[:-1].partition(".")[2] or 0)
    if form.endswith("f") and form[0] != "+" and 0 < abs(value) < 10 ** (1 - digits):
        places = 2 - floor(log10(abs(value)))
        return f"{value:.{places}f}" if places <= 9 else f"{value:.2e}"
    if form.endswith("g") and 10**digits <= abs(float(f"{value:.{digits}g}")) < 1e9:
        return f"{value:,.0f}"
    return format(value, form).removesuffix(".")


def percentage(
    share: float, low: float | None, high: float | None, margin: float | None = None
) -> tuple[str, str]:
    """A relative difference, and its interval where there is one: `-5.22 %`, `-5.54 to -4.91 %`.

    With digits that tell the interval's ends apart, and from the margin.
    """
    if low is None or high is None:
        return f"{percent(share)} %", ""
    width = 100 * (high - low)
    least = min(4, max(0, 1 - floor(log10(width)))) if width > 1e-9 else 2
    digits = decimals((100 * low, 100 * high), None if margin is None else 100 * margin, least)
    return f"{100 * share:+.{digits}f} %", f"{100 * low:+.{digits}f} to {100 * high:+.{digits}f} %"


def enclosed(verdict: Verdict) -> str:
    """The same of a verdict on rates."""
    return in_parentheses(verdict.difference, verdict.low, verdict.high, verdict.margin)


def in_parentheses(
    share: float | None, low: float | None, high: float | None, margin: float | None = None
) -> str:
    """A relative difference and its interval for a sentence: `-5.22 % (-5.54 to -4.91 %)`."""
    value, ends = percentage(share or 0.0, low, high, margin)
    return f"{value} ({ends})" if ends else value


def nats(verdict: Verdict) -> tuple[str, str]:
    """A difference of losses, and its interval where there is one: `+0.0012`, `+0.0004 to +0.0020`."""
    if verdict.low is None or verdict.high is None:
        return f"{verdict.difference or 0.0:+.4f}", ""
    form = f"+.{decimals((verdict.low, verdict.high), verdict.margin, 4)}f"
    return f"{verdict.difference or 0.0:{form}}", f"{verdict.low:{form}} to {verdict.high:{form}}"


def decimals(ends: Sequence[float], margin: float | None, least: int) -> int:
    """How many decimals it takes that no end rounds onto zero or the margin, or across."""
    limits = (0.0, *(() if margin is None else (-margin, margin)))
    for digits in range(least, _MOST_DECIMALS):
        if all(
            (round(end, digits) > limit) - (round(end, digits) < limit) == (end > limit) - (end < limit)
            for end in ends
            for limit in limits
        ):
            return digits
    return _MOST_DECIMALS
