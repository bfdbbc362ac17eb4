"""Each text and cell with a number or a verdict, on every page, is of a kind that has an oracle, and true."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

import pytest

from tests.oracle import listed
from tests.oracle.conftest import NAMES, Built
from tests.oracle.listing import COLUMNS, KINDS, VERDICT, Cell, Spot, cells, spots
from tests.oracle.pages import NUMBER, agrees

for module in iter_modules(listed.__path__):
    import_module(f"{listed.__name__}.{module.name}")  # which lists its kinds

Wrong = tuple[str, str, str, object]  # what is the matter, where, the text, and what is true


class Compared:
    """What no kind fits and what is not true, by study, with the names of the kinds that fit some text."""

    def __init__(self, built: Built) -> None:
        self.tried = set[str]()
        self.wrong = {name: list(self._of(built, name)) for name in NAMES}

    def _of(self, built: Built, name: str) -> Iterator[Wrong]:
        study, texts, cell_texts = built.studies[name], set[str](), set[str]()
        files = sorted((built.out / name).glob("*.html"), key=lambda file: (file.stem == "print", file.stem))
        for file in files:  # the page for print is the last: it repeats what the others say
            page, is_print = built.page(name, file.stem), file.stem == "print"
            for spot in spots(built.root, study, file, page):
                remainder = without(spot.text, texts) if is_print else spot.text
                if marked(spot.text) and marked(remainder):
                    yield from self._text(spot)
                texts.add(spot.text)
            for cell in cells(built.root, study, file, page):
                text = f"{cell.caption}: {cell.first}: {cell.head}: {cell.row[cell.head]}"
                if marked(cell.row[cell.head]) and not (is_print and text in cell_texts):
                    yield from self._cell(cell, cell.row[cell.head])
                cell_texts.add(text)

    def _text(self, spot: Spot) -> Iterator[Wrong]:
        kind_names, truths = list[str](), list[str]()
        for kind in KINDS:
            match = kind.pattern.fullmatch(spot.text) if kind.place in spot.place else None
            if match:
                kind_names.append(kind.name)
                expected = kind.truth(spot, match)
                truths += [expected] if isinstance(expected, str) else expected
                if any(agrees(spot.text, truth) for truth in truths):
                    self.tried.add(kind.name)
                    return
        location = f"{spot.page} at {spot.place} {spot.figure}"
        yield f"not {' or '.join(kind_names)}" if kind_names else "no kind", location, spot.text, truths

    def _cell(self, cell: Cell, shown: str) -> Iterator[Wrong]:
        kind_names, truths = list[str](), list[str]()
        for kind in COLUMNS:
            if kind.caption.fullmatch(cell.caption) and kind.head.fullmatch(cell.head):
                kind_names.append(kind.name)
                truths.append(kind.truth(cell))
                if agrees(shown, truths[-1]):
                    self.tried.add(kind.name)
                    return
        location = f"{cell.spot.page}, {cell.first}, {cell.head} of {cell.caption}"
        yield f"not {' or '.join(kind_names)}" if kind_names else "no kind", location, shown, truths


def marked(shown: str) -> bool:
    """Whether a text has a number or a word of a verdict."""
    return bool(NUMBER.search(shown) or VERDICT.search(shown))


def without(shown: str, texts: set[str]) -> str:
    """What is left of a text without the texts that are part of it."""
    for text in sorted((text for text in texts if text in shown), key=len, reverse=True):
        shown = shown.replace(text, "")
    return shown


@pytest.fixture(scope="session")
def compared(built: Built) -> Compared:
    """All pages of all studies, compared once."""
    return Compared(built)


@pytest.mark.parametrize("name", NAMES)
def test_every_page(compared: Compared, name: str) -> None:
    """Whatever a page says with a number or a verdict is of a listed kind, and as the raw records have it."""
    assert not compared.wrong[name]


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_numbered(built: Built, name: str) -> None:
    """Figures have the numbers 1, 2, 3 and so on over the pages of a report, and on the one for print."""
    numbers: dict[bool, list[int]] = {True: [], False: []}
    for file in (built.out / name).glob("*.html"):
        for title in built.page(name, file.stem).every("h2"):
            if title.text.startswith("Figure "):
                numbers[file.stem == "print"].append(int(title.text.split()[1].rstrip(".")))
    for figure_numbers in numbers.values():
        assert sorted(figure_numbers) == list(range(1, len(figure_numbers) + 1))


def test_every_kind_of_text_is_shown(compared: Compared) -> None:
    """No kind is listed that no page of these studies shows."""
    assert {kind.name for kind in KINDS} | {kind.name for kind in COLUMNS} <= compared.tried
