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
    result = ComparedReport()
    contents = [folder.joinpath(name).read_bytes() for folder in (printed, recomputed)]
    texts = [content.decode(errors="backslashreplace") for content in contents]
    if contents[0] == contents[1]:
        result.numbers = len(split(texts[0])[1]) if name.endswith((".html", ".csv", ".svg", ".tex")) else 0
    else:
        _KINDS.get(Path(name).suffix, _bytes)(result, name, texts[0], texts[1], alike)
    if len(result.findings) > _MOST:
        more = AuditFinding(name, f"{len(result.findings) - _MOST} more things in this file differ")
        result.findings[_MOST:] = [more]
    return result


def compare_tables(result: ComparedReport, name: str, printed: str, recomputed: str) -> None:
    """Compare two CSV texts cell by cell."""
    csv.field_size_limit(max(csv.field_size_limit(), len(printed), len(recomputed)))
    rows, expected_rows = (list(csv.reader(io.StringIO(text))) for text in (printed, recomputed))
    header = expected_rows[0] if expected_rows else []
    for line, (row, expected) in enumerate(zip_longest(rows, expected_rows), start=1):
        where = f"line {line}"
        if row is None or expected is None:
            result.findings.append(AuditFinding(name, where, _joined(row), _joined(expected)))
            continue
        for column, (value, right) in enumerate(zip_longest(row, expected, fillvalue="")):
            result.numbers += len(split(value)[1])
            if not same(value, right):
                title = header[column] if column < len(header) else f"column {column + 1}"
                result.findings.append(
                    differing(name, f"{where} ({''.join(row[:1])}), {title}", value, right)
                )


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


def _table(result: ComparedReport, name: str, printed: str, recomputed: str, alike: Alike) -> None:
    if not alike.code:  # a conclusion: the answers of queries are held against the report's own
        _pieces(result, name, _cells(printed), _cells(recomputed), exact=False)
        return
    compare_tables(result, name, printed, recomputed)
    if not result.findings and not same(printed, recomputed):
        result.findings.append(differing(name, "its form", printed, recomputed))


def _page(result: ComparedReport, name: str, printed: str, recomputed: str, alike: Alike) -> None:
    page, right_page = read_page(printed), read_page(recomputed)
    _pieces(result, name, page.pieces, right_page.pieces, alike.code)
    sources = page.sources | right_page.sources
    result.findings = [replace(finding, source=sources.get(finding.what)) for finding in result.findings]
    for chart in sorted(page.specs.keys() | right_page.specs.keys()):
        compare_specs(result, name, chart, page.specs.get(chart), right_page.specs.get(chart), alike)
    if not alike.code or result.findings:
        return
    for spec in page.specs.values():  # specifications were compared as values
        printed = printed.replace(spec, "")
    for spec in right_page.specs.values():
        recomputed = recomputed.replace(spec, "")
    lines = zip_longest(printed.splitlines(), recomputed.splitlines(), fillvalue="")
    for number, (line, right) in enumerate(lines, start=1):
        if not same(line, right):
            result.findings.append(differing(name, f"line {number} of its source", line, right))
            return


def _pieces(
    result: ComparedReport, name: str, printed: dict[str, str], recomputed: dict[str, str], exact: bool
) -> None:
    """Compare texts by the places where they stand.

    Args:
        exact: the same code made both, so that words must be the same as well.
    """
    # The same code lays pages out alike, so that a text that was changed, such as a heading, moves no others.
    if exact and len(printed) == len(recomputed):
        recomputed = dict(zip(printed, recomputed.values(), strict=True))
    else:  # a place has the words of its heading, whose numbers can be changed as others can
        unmatched = grouped((place for place in printed if place not in recomputed), _words)
        right_unmatched = grouped((place for place in recomputed if place not in printed), _words)
        renamed = {
            right_place: place
            for words, right_places in right_unmatched.items()
            if len(right_places) == len(unmatched.get(words, ()))
            for right_place, place in zip(right_places, unmatched[words], strict=True)
        }
        recomputed = {renamed.get(place, place): text for place, text in recomputed.items()}

    for place in dict.fromkeys([*printed, *recomputed]):
        text, right = printed.get(place), recomputed.get(place)
        (words, numbers), (right_words, right_numbers) = split(text or ""), split(right or "")
        count = len(numbers if text else right_numbers)
        if text is not None and right is not None and same(text, right):
            result.numbers += count
        elif exact:
            result.numbers += count
            result.findings.append(
                AuditFinding(name, place, text and text[:100], right and right[:100])
                if text is None or right is None
                else differing(name, place, text, right)
            )
        elif rounds_alike(numbers, right_numbers):  # other code may have written the words
            result.numbers += len(numbers)
        elif words == right_words:
            result.numbers += len(numbers)
            result.findings.append(differing(name, place, text or "", right or ""))
        else:
            result.skipped += len(numbers)


def _words(place: str) -> tuple[str, ...]:
    return tuple(split(place)[0])


def _drawing(result: ComparedReport, name: str, printed: str, recomputed: str, alike: Alike) -> None:
    if alike.renderer and same(printed, recomputed):
        result.numbers += len(split(printed)[1])
        return
    if not alike.code:  # other axes have other ticks; the figure's data is compared where its page has it
        result.skipped += len(split(printed)[1])
        return
    _pieces(result, name, read_page(printed).pieces, read_page(recomputed).pieces, alike.renderer)
    if alike.renderer and not result.findings:
        result.findings.append(
            AuditFinding(name, "it is drawn differently: positions, lines or colours were changed")
        )


def _bytes(result: ComparedReport, name: str, printed: str, recomputed: str, alike: Alike) -> None:
    if not alike.code:
        return
    lines = zip_longest(printed.splitlines(True), recomputed.splitlines(True))
    number = next((number for number, (line, right) in enumerate(lines, 1) if line != right), 1)
    result.findings.append(AuditFinding(name, f"line {number} was changed: it is not what this code writes"))


def _latex(result: ComparedReport, name: str, printed: str, recomputed: str, alike: Alike) -> None:
    _pieces(result, name, _lines(printed), _lines(recomputed), alike.code)


def _lines(text: str) -> dict[str, str]:
    """The lines of a LaTeX file by number; a line that defines a command, by its name."""
    lines = {}
    for number, line in enumerate(text.splitlines(), 1):
        command = _COMMAND.match(line)
        lines[command[1] if command else f"line {number}"] = line
    return lines


def _document(result: ComparedReport, name: str, printed: str, recomputed: str, alike: Alike) -> None:
    try:
        values, right_values = _values(printed), _values(recomputed)
    except (ValueError, RecursionError) as error:
        result.findings.append(AuditFinding(name, f"it cannot be read: {error}"))
        return
    _pieces(result, name, values, right_values, alike.code)
    if alike.code and not result.findings:
        result.findings.append(differing(name, "its form", printed, recomputed))


def _values(text: str) -> dict[str, str]:
    """The values of a JSON document by where they stand."""
    document = json.loads(text)
    return {
        path.removeprefix(", "): value if isinstance(value, str) else json.dumps(value)
        for path, value, _ in leaves(document, document, "")
    }


def _image(result: ComparedReport, name: str, printed: str, recomputed: str, alike: Alike) -> None:
    del printed, recomputed  # whatever differs
    if alike.code and alike.altair and alike.renderer:
        result.findings.append(
            AuditFinding(name, "it is drawn differently: the records give another picture")
        )


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
