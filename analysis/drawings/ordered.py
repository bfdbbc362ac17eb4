"""Puts a PDF's objects in a fixed order: the converter writes them in one that varies by chance."""

from __future__ import annotations

import re

_REFERENCE = re.compile(rb"(\d+) 0 R\b")
_ENTRIES = re.compile(rb"(?:^ +/\S+ \d+ 0 R\n){2,}", re.MULTILINE)  # of a dictionary, each an object


def ordered(pdf: bytes) -> bytes:
    """The same PDF, its objects numbered and written in the order in which the catalog leads to them.

    Args:
        pdf: as svg2pdf writes it: version 1.7, a table of positions, no object streams.
    """
    # Content by number; positions come from the table, since a stream can hold any bytes.
    table = pdf[pdf.rindex(b"xref\n", 0, pdf.rindex(b"trailer")) :]
    starts = sorted(int(digits) for digits in re.findall(rb"(\d{10}) \d{5} n", table))
    ends = [*starts[1:], len(pdf) - len(table)]
    contents = {}
    for start, end in zip(starts, ends, strict=True):
        name, _, content = pdf[start:end].partition(b" 0 obj\n")
        head, stream, rest = content.rstrip(b"\n").partition(b"\nstream\n")
        entries_sorted = _ENTRIES.sub(
            lambda entries: b"".join(sorted(entries[0].splitlines(keepends=True))), head + b"\n"
        )
        contents[name] = entries_sorted.rstrip(b"\n") + stream + rest

    # Their order, from the catalog on.
    root = re.search(rb"/Root (\d+) 0 R", pdf[pdf.rindex(b"trailer") :])
    assert root, "a PDF has a catalog"
    reached, order = {root[1]}, [root[1]]
    for name in order:  # grows while it is read
        references = _REFERENCE.findall(contents[name].partition(b"\nstream\n")[0])
        new = [reference for reference in dict.fromkeys(references) if reference not in reached]
        reached.update(new)
        order += new

    numbers = {name: b"%d 0 R" % place for place, name in enumerate(order, start=1)}
    renumbered = []
    for name in order:
        head, stream, rest = contents[name].partition(b"\nstream\n")
        renumbered.append(_REFERENCE.sub(lambda match: numbers[match[1]], head) + stream + rest)
    header = pdf[: pdf.index(b"\n", pdf.index(b"\n") + 1) + 1]
    return assemble(header, renumbered)


def assemble(header: bytes, objects: list[bytes]) -> bytes:
    """A PDF of these objects, numbered from 1, the catalog first, with the table of their positions."""
    out, positions = bytearray(header), []
    for number, content in enumerate(objects, start=1):
        positions.append(len(out))
        out += b"%d 0 obj\n%s\n\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % position for position in positions)
    size = len(objects) + 1
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n%s" % (size, table)
    out += b"trailer\n<<\n  /Size %d\n  /Root 1 0 R\n>>\nstartxref\n%d\n%%%%EOF\n" % (size, start)
    return bytes(out)
