"""Pages as a reader sees them: texts of elements, and tables as rows of texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?")
_VOID = {"br", "img", "meta", "link", "input", "hr", "col", "polyline"}
_UNSEEN = {"script", "style", "template"}


@dataclass
class Element:
    """An element with what is in it, in order."""

    tag: str
    attributes: dict[str, str]
    parts: list[Element | str] = field(default_factory=list)

    def every(self, tag: str = "", kind: str = "") -> Iterator[Element]:
        """All elements in it of a tag and a class, in the page's order."""
        for part in self.parts:
            if isinstance(part, Element):
                if tag in ("", part.tag) and (not kind or kind in part.attributes.get("class", "").split()):
                    yield part
                yield from part.every(tag, kind)

    def first(self, tag: str = "", kind: str = "") -> Element | None:
        """The first of them."""
        return next(self.every(tag, kind), None)

    def without(self, tag: str) -> Element:
        """The same without the elements of a tag."""
        parts = [part if isinstance(part, str) else part.without(tag) for part in self.parts]
        return Element(
            self.tag, self.attributes, [part for part in parts if isinstance(part, str) or part.tag != tag]
        )

    @property
    def text(self) -> str:
        """What it says, with single spaces."""
        return " ".join(self._text().replace("\N{NO-BREAK SPACE}", " ").split())

    def _text(self) -> str:
        if self.tag in _UNSEEN:
            return ""
        return "".join(part if isinstance(part, str) else part._text() for part in self.parts)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].parts.append(element)
        if tag not in _VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        if any(element.tag == tag for element in self.open):
            while self.open.pop().tag != tag:
                pass

    def handle_data(self, data: str) -> None:
        self.open[-1].parts.append(data)


def read(path: Path) -> Element:
    """The page of a file."""
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader.open[0]


@dataclass
class Table:
    """A table: its caption, the heads of its columns, and its rows."""

    caption: str
    heads: list[str]
    rows: list[list[str]]


def table(element: Element) -> Table:
    """What a table says, each cell in every row that it spans. A row that spans all columns is left out."""
    caption, head = element.first("caption"), element.first("thead")
    rows = []
    for body in element.every("tbody"):
        spanning: dict[int, list[str]] = {}  # by column, the cell's text in the rows that are to come
        for row in body.every("tr"):
            texts: list[str] = []
            for cell in [cell for cell in row.every() if cell.tag in ("td", "th")]:
                while spanning.get(len(texts)):
                    texts.append(spanning[len(texts)].pop())
                spanning[len(texts)] = [cell.text] * (int(cell.attributes.get("rowspan", "1")) - 1)
                texts.append(cell.text)
            while spanning.get(len(texts)):
                texts.append(spanning[len(texts)].pop())
            rows.append(texts)
    heads = [cell.text for cell in head.every("th")] if head else []
    return Table(
        caption.text if caption else "", heads, [row for row in rows if len(row) == len(heads) or not heads]
    )


def tables(page: Element) -> list[Table]:
    """All tables of a page."""
    return [table(element) for element in page.every("table")]


def agrees(shown: str, true: str) -> bool:
    """Whether two texts are the same, where the first has rounded the numbers of the second."""
    if NUMBER.sub("#", shown) != NUMBER.sub("#", true):
        return False
    return all(rounds(*pair) for pair in zip(NUMBER.findall(shown), NUMBER.findall(true), strict=True))


def rounds(shown: str, true: str) -> bool:
    """Whether a printed number is the true one, rounded to its digits."""
    mantissa, _, power = shown.replace(",", "").partition("e")
    tolerance = 0.5 * 10.0 ** (int(power or 0) - len(mantissa.partition(".")[2]))
    return abs(float(shown.replace(",", "")) - float(true.replace(",", ""))) <= tolerance * (1 + 1e-6) + 1e-12
