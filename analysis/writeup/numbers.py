"""Every number that a text may cite, each as LaTeX commands: its value, and the ends of its interval."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from analysis.query.latex import escaped
from analysis.report.answer.statement import Number
from analysis.report.build import Contents
from analysis.wording import decimals, percentage, readable

_DIGITS = ("Zero", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")
_INTERVAL, _RANGE = ("Low", "High", "Interval"), ("RangeLow", "RangeHigh", "Range")  # after a number's name
_FORMS = {
    "tokens per second": ",.0f",
    "tokens/s": ",.0f",
    "prompt tokens/s": ",.0f",
    "nats": ".4f",
    "percent": ".1f",
    "GiB": ",.1f",
    "nats per token": ".4f",
}


@dataclass(frozen=True)
class Macro:
    """A number as LaTeX commands.

    Attributes:
        name: in words; `control_word` makes the command's name of it.
        value, low, high: as a text says them; the ends are None without an interval and a range.
        comment: what it is, with its unit and how its interval was made.
        is_range: whether the ends are those of the range of all records or runs, and of no interval.
    """

    name: str
    value: str
    low: str | None
    high: str | None
    comment: str
    is_range: bool = False


def commands(contents: Contents) -> str:
    r"""The file of commands: `\newcommand` refuses a name that a document has already."""
    lines = [
        f"% The numbers of study {escaped(contents.facts.study)}, by `runner report --latex`: do not edit.",
        "% \\NAME is a value as a text says it, \\NAMEInterval its interval from \\NAMELow to \\NAMEHigh.",
        "% Without one, \\NAMERange is that of all records or runs, from \\NAMERangeLow to \\NAMERangeHigh.",
        "% What it is, with its unit, is in the comment before it.",
    ]
    used: set[str] = set()
    study = control_word(contents.facts.study)
    for macro in macros(contents):
        name = _unused_name(study + control_word(macro.name), used)
        lines += ["", f"% {escaped(macro.comment)}", _command(name, macro.value)]
        if macro.low is not None and macro.high is not None:
            low, high, both = _RANGE if macro.is_range else _INTERVAL
            lines.append(_command(name + low, macro.low))
            lines.append(_command(name + high, macro.high))
            lines.append(_command(name + both, f"{macro.low} to {macro.high}"))
    return "\n".join(lines) + "\n"


def _command(name: str, text: str) -> str:
    set_ = re.sub(r"-(?=[\d.])", r"\\ensuremath{-}", text).replace(",", "{,}")
    return rf"\newcommand{{\{name}}}{{{set_}}}"


def _unused_name(name: str, used: set[str]) -> str:
    """The name, with a count after it if another number has it, or one of those with its ends."""
    for count in itertools.count(1):
        tried = name if count == 1 else f"{name}No{control_word(str(count))}"
        names = {tried + end for end in ("", *_INTERVAL, *_RANGE)}
        if not names & used:
            break
    used |= names
    return tried


def control_word(text: str) -> str:
    """Letters alone, as TeX's names must be: `flash3` is FlashThree, `lr=-0.5` is LrMinusZeroPointFive."""
    text = re.sub(r"-(?=\d)", " minus ", text)
    text = re.sub(r"(?<=\d)\.(?=\d)", " point ", text)
    spoken = ""
    for character in unicodedata.normalize("NFKD", text):
        if character.isascii():
            spoken += f" {_DIGITS[int(character)]} " if character.isdigit() else character
        elif not unicodedata.combining(character):
            spoken += f" {unicodedata.name(character, f'U {ord(character):X}').title()} "
    return "".join(part[0].upper() + part[1:] for part in re.findall(r"[A-Za-z]+", spoken))


def macros(contents: Contents) -> Iterator[Macro]:
    """Each number once: of the groups, then those of the answer's sentences."""
    for group in contents.facts.groups:
        label = group.label
        if contents.task.ranks:
            yield Macro(f"{label} runs", str(group.n), None, None, f"{label}: runs with a measured rate")
        for quantity, unit, given in (
            ("tokens per second", "tokens per second", group.tokens_per_second),
            ("MFU", "percent", group.mfu),
            ("final loss", "nats per token", group.final_loss),
            ("peak memory", "GiB", group.peak_memory_gib),
        ):
            if given:
                estimate, form = given.telling, _FORMS[unit]
                low, high = (None if x is None else readable(x, form) for x in (estimate.low, estimate.high))
                in_unit = "" if unit == quantity else f", {unit}"
                comment = f"{label}: {quantity}{in_unit}: median; {estimate.method}"
                value, is_range = readable(estimate.median, form), estimate.is_range
                yield Macro(f"{label} {quantity}", value, low, high, comment, is_range)
    for number in contents.answer.numbers:
        yield _sentence_macro(number)


def _sentence_macro(number: Number) -> Macro:
    ends = [x for x in (number.low, number.high) if x is not None]
    digits = decimals(ends, number.margin, 4) if number.unit == "nats per token" else 4
    low, high = (None if x is None else _formatted(x, number.unit, digits) for x in (number.low, number.high))
    value = _formatted(number.value, number.unit, digits)
    if number.unit == "percent":  # with as many digits as its interval allows
        shares = [None if x is None else x / 100 for x in (number.low, number.high, number.margin)]
        value, *both = re.findall(r"[-+][\d.,]+", " ".join(percentage(number.value / 100, *shares)))
        low, high = both or (None, None)
    return Macro(number.name, value, low, high, f"{number.name}, {number.unit}", number.is_range)


def _formatted(value: float, unit: str, digits: int) -> str:
    """The number as sentences write it: differences of losses have their sign."""
    if unit == "nats per token":
        return f"{value:+.{digits}f}"
    if unit in _FORMS:
        return readable(value, _FORMS[unit])
    return f"{int(value):,d}" if float(value).is_integer() else f"{value:,.4g}"
