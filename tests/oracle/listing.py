"""All kinds of texts and cells with a number or a verdict, by what they look like, each with what is true of it.

A kind that another test compares as a whole says only that: `kinds` has the overview's, `titles` the headlines'.
What no kind here fits has no oracle.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.oracle.pages import NUMBER, Element, table
from tests.oracle.truth import (
    Run,
    Study,
)

VERDICT = re.compile(
    r"\b(?:faster|slower|equivalent|different|differs?|observed|inconclusive|withheld|wrong|right|not told apart)\b"
)


BLOCKS = {
    "article", "body", "caption", "dd", "details", "div", "dl", "dt", "figcaption", "figure", "footer", "h1", "h2", "h3",
    "h4", "head", "header", "html", "li", "main", "nav", "ol", "p", "pre", "section", "summary", "svg", "table", "tbody",
    "td", "th", "thead", "title", "tr", "ul",
}  # fmt: skip


TRIED = ("figure.panel", "table.overview")  # which test_pages.py compares as a whole


class Spot(NamedTuple):
    """A text of a page."""

    root: Path
    study: Study
    page: str  # `run` for that of a run
    run: Run | None
    place: str  # tags and classes of the elements around, from outside
    figure: str  # the name of the figure or section
    text: str


Truth = Callable[[Spot, "re.Match[str]"], str | Iterable[str]]


class Kind(NamedTuple):
    """Texts of one look, and what is true of them."""

    name: str
    place: str
    pattern: re.Pattern[str]
    truth: Truth


class Column(NamedTuple):
    """Cells of columns of tables with such a caption, and what is true of them."""

    name: str
    caption: re.Pattern[str]
    head: re.Pattern[str]
    truth: Callable[[Cell], str]


class Cell(NamedTuple):
    """A cell, with its row by head."""

    spot: Spot
    caption: str
    head: str
    row: dict[str, str]

    @property
    def first(self) -> str:
        """What the row is about."""
        return next(iter(self.row.values()))


KINDS: list[Kind] = []


COLUMNS: list[Column] = []


def text(pattern: str, place: str = "") -> Callable[[Truth], Truth]:
    """The kind of texts that match, at places that contain this."""

    def put(truth: Truth) -> Truth:
        KINDS.append(Kind(truth.__name__, place, re.compile(pattern, re.DOTALL), truth))
        return truth

    return put


ColumnTruth = Callable[[Cell], str]


def column(caption: str, *heads: str) -> Callable[[ColumnTruth], ColumnTruth]:
    """The kind of cells in columns of tables; patterns."""

    def put(truth: ColumnTruth) -> ColumnTruth:
        for head in heads:
            COLUMNS.append(Column(truth.__name__, re.compile(caption, re.DOTALL), re.compile(head), truth))
        return truth

    return put


def cites(shown: str, *numbers: float | str) -> str:
    """The same text with these numbers."""
    remaining = iter(numbers)
    filled = NUMBER.sub(lambda _: f"{next(remaining, 'no number')}", shown)
    return filled + "".join(f" and {number}" for number in remaining)


def spots(root: Path, study: Study, file: Path, page: Element) -> Iterator[Spot]:
    """Every text outside tables and code, with the place where it stands."""
    name, run = _page_of(study, file, page)
    for place, figure, block_text in _blocks(page, "", ""):
        yield Spot(root, study, name, run, place, figure, block_text)


def _page_of(study: Study, file: Path, page: Element) -> tuple[str, Run | None]:
    if not file.stem.startswith("run-"):
        return file.stem, None
    head = page.first("h1")
    assert head
    run = next(
        run
        for run in study.runs
        if run.id == file.stem[4:] or (study.imported and re.match(rf"{run.label}\b", head.text))
    )
    return "run", run


def _blocks(element: Element, place: str, figure: str) -> Iterator[tuple[str, str, str]]:
    kind = element.attributes.get("class", "").split()
    location = f"{place}>{element.tag}{f'.{kind[0]}' if kind else ''}"
    if any(location.endswith(selector) for selector in TRIED) or element.tag in (
        "pre",
        "thead",
        "nav",
        "script",
        "style",
        "template",
    ):
        return
    if element.tag in ("td", "th") and "tr.reason>" not in location:  # as `cells` has them
        return
    if element.tag == "section":
        heads = [part for part in element.parts if isinstance(part, Element) and part.tag == "h2"]
        figure = heads[0].attributes.get("id", figure).removeprefix("figure-") if heads else figure
    if element.tag == "dl" and kind[:1] == ["facts"]:
        for pair in element.every("div"):
            head, fact = pair.first("dt"), pair.first("dd")
            if head and fact:
                inner = fact.without("details")
                if inner.text:
                    yield f"{location}>dd", figure, f"{head.text}: {inner.text}"
                for details in fact.every("details"):
                    yield from _blocks(details, location, figure)
        return
    pieces: list[str] = []
    for part in element.parts:
        if isinstance(part, str):
            pieces.append(part)
        elif part.tag in BLOCKS:
            yield from _flush(pieces, location, figure)
            yield from _blocks(part, location, figure)
        elif part.tag not in ("script", "style", "template"):
            pieces.append(part.text if part.tag == "br" else part._text())
    yield from _flush(pieces, location, figure)


def _flush(pieces: list[str], location: str, figure: str) -> Iterator[tuple[str, str, str]]:
    block_text = " ".join("".join(pieces).replace("\N{NO-BREAK SPACE}", " ").split())
    pieces.clear()
    if block_text:
        yield location, figure, block_text


def cells(root: Path, study: Study, file: Path, page: Element) -> Iterator[Cell]:
    """Every cell of a table that no other test compares."""
    name, run = _page_of(study, file, page)
    for element in page.every("table"):
        if "overview" in element.attributes.get("class", "").split():
            continue
        parsed_table = table(element.without("sup"))
        heads: list[str] = []
        for head in parsed_table.heads:
            heads.append(f"{head} ({heads.count(head) + 1})" if head in heads else head)
        spot = Spot(root, study, name, run, "table", "", parsed_table.caption)
        for row in parsed_table.rows:
            by_head = dict(zip(heads, row, strict=True))
            yield from (Cell(spot, parsed_table.caption, head, by_head) for head in heads)
