"""Compares the files of a report with those that its records give, and names each number that differs."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from analysis.audit.finding import Alike, AuditFinding, ComparedReport, differing, rounds_alike, same, split
from analysis.audit.pages import read_page
from analysis.audit.specs import compare_specs, leaves
from analysis.stats import grouped

_COMMAND = re.compile(r"\\newcommand{(\\\w+)}")
_MOST = 50  # findings of one file; one that was written anew would have thousands


def compare_files(printed: Path, recomputed: Path, name: str, alike: Alike) -> ComparedReport:
    """Compare one file of two reports, both of which have it."""
    done = ComparedReport()
    a, b = (folder.joinpath(name).read_bytes() for folder in (printed, recomputed))
    texts = [content.decode(errors="backslashreplace") for content in (a, b)]
    if a == b:
        done.numbers = len(split(texts[0])[1]) if name.endswith((".html", ".csv", ".svg", ".tex")) else 0
    else:
        _KINDS.get(Path(name).suffix, _bytes)(done, name, texts[0], texts[1], alike)
    if len(done.findings) > _MOST:
        more = AuditFinding(name, f"{len(done.findings) - _MOST} more things in this file differ")
        done.findings[_MOST:] = [more]
    return done


def compare_tables(done: ComparedReport, name: str, a: str, b: str) -> None:
    """Compare two CSV texts cell by cell."""
    csv.field_size_limit(max(csv.field_size_limit(), len(a), len(b)))
    one, other = (list(csv.reader(io.StringIO(text))) for text in (a, b))
    header = other[0] if other else []
    for place, (row, expected) in enumerate(zip_longest(one, other)):
        where = f"line {place + 1}"
        if row is None or expected is None:
            done.findings.append(AuditFinding(name, where, _joined(row), _joined(expected)))
            continue
        for column, (value, wanted) in enumerate(zip_longest(row, expected, fillvalue="")):
            done.numbers += len(split(value)[1])
            if not same(value, wanted):
                title = header[column] if column < len(header) else f"column {column + 1}"
                done.findings.append(differing(name, f"{where} ({''.join(row[:1])}), {title}", value, wanted))


def _cells(text: str) -> dict[str, str]:
    """The cells of a CSV text by line and column."""
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    header, *rows = list(csv.reader(io.StringIO(text))) or [[]]
    return {
        f"line {line} ({''.join(row[:2])}), {title}": value
        for line, row in enumerate(rows, start=2)
        for title, value in zip_longest(header, row, fillvalue="")
    }


def _joined(row: list[str] | None) -> str | None:
    return None if row is None else ",".join(row)[:100]


def _table(done: ComparedReport, name: str, a: str, b: str, alike: Alike) -> None:
    if not alike.code:  # a conclusion: the answers of queries are held against the report's own
        _pieces(done, name, _cells(a), _cells(b), exact=False)
        return
    compare_tables(done, name, a, b)
    if not done.findings and not same(a, b):
        done.findings.append(differing(name, "its form", a, b))


def _page(done: ComparedReport, name: str, a: str, b: str, alike: Alike) -> None:
    one, other = read_page(a), read_page(b)
    before = len(done.findings)
    _pieces(done, name, one.pieces, other.pieces, alike.code)
    sources = one.sources | other.sources
    done.findings[before:] = [
        replace(finding, source=sources.get(finding.what)) for finding in done.findings[before:]
    ]
    for chart in sorted(one.specs.keys() | other.specs.keys()):
        compare_specs(done, name, chart, one.specs.get(chart), other.specs.get(chart), alike)
    if not alike.code or done.findings:
        return
    for spec in one.specs.values():  # specifications were compared as values
        a = a.replace(spec, "")
    for spec in other.specs.values():
        b = b.replace(spec, "")
    for line, (x, y) in enumerate(zip_longest(a.splitlines(), b.splitlines(), fillvalue=""), start=1):
        if not same(x, y):
            done.findings.append(differing(name, f"line {line} of its source", x, y))
            return


def _pieces(done: ComparedReport, name: str, a: dict[str, str], b: dict[str, str], exact: bool) -> None:
    # The same code lays pages out alike, so that a text that was changed, such as a heading, moves no others.
    if exact and len(a) == len(b):
        b = dict(zip(a, b.values(), strict=True))
    else:  # a place has the words of its heading, whose numbers can be changed as others can
        own = grouped((place for place in a if place not in b), _words)
        others = grouped((place for place in b if place not in a), _words)
        renamed = {
            place: twin
            for words, places in others.items()
            if len(places) == len(own.get(words, ()))
            for place, twin in zip(places, own[words], strict=True)
        }
        b = {renamed.get(place, place): text for place, text in b.items()}

    for place in dict.fromkeys([*a, *b]):
        printed, wanted = a.get(place), b.get(place)
        (words, numbers), (other_words, expected) = split(printed or ""), split(wanted or "")
        count = len(numbers if printed else expected)
        if printed is not None and wanted is not None and same(printed, wanted):
            done.numbers += count
        elif exact:
            done.numbers += count
            done.findings.append(
                AuditFinding(name, place, printed and printed[:100], wanted and wanted[:100])
                if printed is None or wanted is None
                else differing(name, place, printed, wanted)
            )
        elif rounds_alike(numbers, expected):  # other code may have written the words
            done.numbers += len(numbers)
        elif words == other_words:
            done.numbers += len(numbers)
            done.findings.append(differing(name, place, printed or "", wanted or ""))
        else:
            done.skipped += len(numbers)


def _words(place: str) -> tuple[str, ...]:
    return tuple(split(place)[0])


def _drawing(done: ComparedReport, name: str, a: str, b: str, alike: Alike) -> None:
    if alike.renderer and same(a, b):
        done.numbers += len(split(a)[1])
        return
    if not alike.code:  # other axes have other ticks; the figure's data is compared where its page has it
        done.skipped += len(split(a)[1])
        return
    one, other = read_page(a), read_page(b)
    _pieces(done, name, one.pieces, other.pieces, alike.renderer)
    if alike.renderer and not done.findings:
        done.findings.append(
            AuditFinding(name, "it is drawn differently: positions, lines or colours were changed")
        )


def _bytes(done: ComparedReport, name: str, a: str, b: str, alike: Alike) -> None:
    if not alike.code:
        return
    lines = zip_longest(a.splitlines(True), b.splitlines(True))
    line = next((place for place, (x, y) in enumerate(lines, 1) if x != y), 1)
    done.findings.append(AuditFinding(name, f"line {line} was changed: it is not what this code writes"))


def _latex(done: ComparedReport, name: str, a: str, b: str, alike: Alike) -> None:
    """Line by line; a line that defines a command has its name."""
    one, other = dict[str, str](), dict[str, str]()
    for pieces, text in ((one, a), (other, b)):
        for place, line in enumerate(text.splitlines(), 1):
            command = _COMMAND.match(line)
            pieces[command[1] if command else f"line {place}"] = line
    _pieces(done, name, one, other, alike.code)


def _document(done: ComparedReport, name: str, a: str, b: str, alike: Alike) -> None:
    try:
        one, other = _values(a), _values(b)
    except (ValueError, RecursionError) as error:
        done.findings.append(AuditFinding(name, f"it cannot be read: {error}"))
        return
    _pieces(done, name, one, other, alike.code)
    if alike.code and not done.findings:
        done.findings.append(differing(name, "its form", a, b))


def _values(text: str) -> dict[str, str]:
    """The values of a JSON document by where they stand."""
    document = json.loads(text)
    return {
        path.removeprefix(", "): value if isinstance(value, str) else json.dumps(value)
        for path, value, _ in leaves(document, document, "")
    }


def _image(done: ComparedReport, name: str, a: str, b: str, alike: Alike) -> None:
    del a, b  # whatever differs
    if alike.code and alike.altair and alike.renderer:
        done.findings.append(AuditFinding(name, "it is drawn differently: the records give another picture"))


_KINDS: dict[str, Callable[[ComparedReport, str, str, str, Alike], None]] = {
    ".html": _page,
    ".svg": _drawing,
    ".csv": _table,
    ".json": _document,
    ".tex": _latex,
    ".bib": _latex,
    ".pdf": _image,
    ".png": _image,
}
