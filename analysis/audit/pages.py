"""What a page shows, piece by piece, each under the place where a reader finds it: heading, row, column."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

_HEADINGS = ("h1", "h2", "h3")
# Elements whose text is one piece; what is inside one of them and is none itself belongs to its text.
_PIECES = (*_HEADINGS, "title", "p", "li", "td", "th", "dt", "dd", "caption", "summary", "pre", "text")
_PARTS = ("article", "section")
_SPOKEN = ("alt", "aria-label", "title", "content")  # attributes that are read out or shown


@dataclass
class Shown:
    """What a page or drawing shows.

    Attributes:
        pieces: text by place; a place that comes again has a number.
        specs: the text of each figure's specification, by the name of its chart.
        sources: the queries that a piece is made of, by its place, as `data-from` names them.
    """

    pieces: dict[str, str] = field(default_factory=dict)
    specs: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)


def read_page(text: str) -> Shown:
    """Take an HTML page or an SVG drawing apart. Whatever the text is, this does not raise."""
    reader = _PageReader()
    try:
        reader.feed(text)
        reader.close()
    except (
        AssertionError,
        ValueError,
    ) as error:  # the parser's, as for `<![x[` or a character of 5000 digits
        reader.shown.pieces["page"] = f"what follows cannot be read: {error}"
    return reader.shown


class _PageReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.shown = Shown()
        self._from: list[str] = []
        self._open: list[tuple[str, list[str]]] = []  # pieces being read, innermost last
        self._seen: dict[str, int] = {}
        self._heading = self._table = self._term = self._row = self._chart = ""
        self._columns: list[str] = []
        self._cell, self._in_head, self._script = 0, False, False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in _PARTS:
            self._from.append(given.get("data-from") or (self._from[-1] if self._from else ""))
        if tag == "figure":
            self._chart = given.get("data-chart") or ""
        if tag == "script":
            self._script = given.get("type") == "application/json"
        if tag == "table":
            self._table, self._columns, self._row = "", [], ""
        if tag == "thead":
            self._in_head = True
        if tag == "tr":
            self._cell, self._row = 0, ""
        for name in _SPOKEN:
            if value := given.get(name):
                self._add(value, f"{tag} {name}")
        if tag in _PIECES:
            self._open.append((tag, []))

    def handle_endtag(self, tag: str) -> None:
        if tag in _PARTS and self._from:
            self._from.pop()
        if tag == "script":
            self._script = False
        if tag == "thead":
            self._in_head = False
        if tag in _PIECES and any(name == tag for name, _ in self._open):
            while self._close() != tag:  # an element that was not closed ends with the one around it
                pass

    def handle_data(self, data: str) -> None:
        if self._script:
            self.shown.specs[self._chart] = self.shown.specs.get(self._chart, "") + data
        elif self._open:
            self._open[-1][1].append(data)
        elif data.strip():
            self._add(data, "text")

    def close(self) -> None:
        super().close()
        while self._open:
            self._close()

    def _close(self) -> str:
        tag, parts = self._open.pop()
        text = " ".join("".join(parts).split())
        if tag in _HEADINGS:
            self._heading = text
        elif tag == "caption":
            self._table = text.split(".", maxsplit=1)[0].split(":", maxsplit=1)[0]
        elif tag == "dt":
            self._term = text
        elif tag == "th" and self._in_head:
            self._columns.append(text)
        elif tag == "th":
            self._row = text

        name = self._term if tag == "dd" else tag
        if tag in ("td", "th") and not self._in_head:
            column = self._columns[self._cell] if self._cell < len(self._columns) else ""
            name = ", ".join(filter(None, (self._table, self._row, column)))
        if text:
            self._add(text, name)
        if tag in ("td", "th"):
            self._cell += 1
        return tag

    def _add(self, text: str, what: str) -> None:
        place = " / ".join(filter(None, (self._heading, what)))
        self._seen[place] = count = self._seen.get(place, 0) + 1
        place = place if count == 1 else f"{place} ({count})"
        self.shown.pieces[place] = text
        if self._from and self._from[-1]:
            self.shown.sources[place] = self._from[-1]
