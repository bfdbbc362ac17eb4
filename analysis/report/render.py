"""Turns templates into pages. Every page opens from file:// without a network: its assets lie beside it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.charts.certificates import NOT_FINITE, ratio_text
from analysis.report import correctness
from analysis.report.backends import short_kernels
from analysis.report.runs import MOST_NAMED
from analysis.stats import Estimate
from analysis.stats.verdict import PairTest, Verdict
from analysis.verdicts.values import shown_outcome
from analysis.wording import UNKNOWN, drift, in_a_row, number, percentage, readable
from model.record.files import write_text
from model.record.units import counted, duration, in_order

if TYPE_CHECKING:
    from jinja2 import Environment

ASSETS = ("style.css", "page.js")


def templates() -> Path:
    """The templates' folder: `assay_data/` beside the packages in a wheel, `reports/` in a checkout."""
    beside = Path(__file__).parents[2]
    packed = beside / "assay_data" / "templates"
    return packed if packed.is_dir() else beside / "reports" / "templates"


def write_assets(out: Path) -> None:
    """Write what every page of a report needs beside it to `out/assets`."""
    assets = out / "assets"
    assets.mkdir(parents=True, exist_ok=True)
    for name in ASSETS:
        write_text(assets / name, (templates() / name).read_text(encoding="utf-8"), sync=False)


@cache
def environment() -> Environment:
    """Jinja that escapes everything, lets no text reorder others, and rejects undefined names."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(templates()),
        autoescape=True,
        finalize=in_order,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["most_named"] = MOST_NAMED
    made.filters |= {
        "number": number,
        "interval": interval,
        "tested_value": correctness.value,
        "gib": lambda size: number(None if size is None else size / 2**30, ",.1f"),
        "moment": moment,
        "shown_outcome": shown_outcome,
        "error": relative_error,
        "ratio": lambda value: UNKNOWN if value is None else ratio_text(value),
        "duration": lambda seconds: UNKNOWN if seconds is None else duration(seconds),
        "script_json": script_json,
        "said": prose,
        "percentage": lambda verdict: percentage(verdict.difference or 0.0, verdict.low, verdict.high),
        "corrected_p": corrected_p,
        "drift": drift,
        "whole": whole,
        "in_a_row": in_a_row,
        "counted": lambda count, noun: UNKNOWN if count is None else counted(count, noun),
        "plain": plain,
        "short_kernels": short_kernels,
        "with_ids": with_ids,
        "pretty": lambda value: json.dumps(value, indent=1, ensure_ascii=False),
    }
    return made


def with_ids(runs: Iterable[dict[str, Any]], ids: Iterable[str]) -> list[dict[str, Any]]:
    """The runs that are named, in their own order."""
    wanted = frozenset(ids)
    return [run for run in runs if run["run_id"] in wanted]


def plain(value: Any) -> str:
    """A setting as people write it: a text without quotes, anything else as JSON, a dash for none."""
    if value is None:
        return UNKNOWN
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def script_json(value: Any) -> Any:
    """JSON that is safe in a script element whatever its strings contain: no `<` can end the element."""
    from markupsafe import Markup

    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 - escaped just above; HTML escapes would not be JSON


def prose(text: str) -> Any:
    """A sentence in which `backticks` mark code, and whose numbers keep their percent signs."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(whole(text)))))  # noqa: S704 - escaped here


def whole(text: str) -> str:
    """A text in which no line breaks before a percent sign."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


def relative_error(value: float | None) -> str:
    """A ratio of any size, to two digits."""
    if value == math.inf:
        return NOT_FINITE
    return number(value, ".1e" if value and value < 0.1 else ".2g")


def interval(estimate: Estimate | None, form: str = ",.0f") -> str:
    """The two ends, or a dash where there are none."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return UNKNOWN
    return f"{readable(estimate.low, form)} {UNKNOWN} {readable(estimate.high, form)}"


def corrected_p(verdict: Verdict) -> str:
    """The p value of a pair of a ranking; a dash for one that was not tested."""
    if not isinstance(verdict.reason, PairTest):
        return UNKNOWN
    return "< 0.0001" if verdict.reason.p < 1e-4 else f"{verdict.reason.p:.2g}"


def moment(value: datetime | None) -> str:
    """A UTC time to the second."""
    return UNKNOWN if value is None else f"{value:%Y-%m-%d %H:%M:%S} UTC"
