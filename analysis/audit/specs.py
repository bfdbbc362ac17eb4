"""Compares the specifications of a figure in two reports: its rows, and what is drawn of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from analysis.audit.finding import Alike, AuditFinding, ComparedReport, same, split

_DATASET = re.compile(r"data-[0-9a-f]{32}")
_ABSENT = object()  # not null: with null in a figure's specification, its axis may be gone


def compare_specs(
    result: ComparedReport, name: str, chart: str, a: str | None, b: str | None, alike: Alike
) -> None:
    """Compare the specifications that a page and its recomputed twin have of a chart, if any.

    Figures made by other code look different: only their rows are compared, if they have the same form.
    """
    what = f"figure {chart}"
    if a is None or b is None:
        if alike.code:
            result.findings.append(AuditFinding(name, f"{what} {'is missing' if a is None else 'was added'}"))
        else:
            result.skipped += len(split(a or "")[1])
        return
    try:
        one, other = json.loads(_numbered(a)), json.loads(_numbered(b))
    except (ValueError, RecursionError) as error:
        result.findings.append(AuditFinding(name, f"{what}: its specification cannot be read: {error}"))
        return
    if not (alike.code and alike.altair):
        one, other = _data(one), _data(other)
    if not alike.code and _form(one) != _form(other):
        result.skipped += len(split(a)[1])
        return
    for path, x, y in leaves(one, other, what):
        result.numbers += isinstance(x, int | float)
        if not equal(x, y):
            result.findings.append(AuditFinding(name, path, _shown(x), _shown(y)))


def _numbered(spec: str) -> str:
    """A specification whose sets of rows are named by their place: Altair names them after their content."""
    for place, name in enumerate(dict.fromkeys(_DATASET.findall(spec)), start=1):
        spec = spec.replace(name, f"rows {place}")
    return spec


def _data(spec: Any) -> list[Any]:
    """The rows of a specification."""
    return list(spec.get("datasets", {}).values()) if isinstance(spec, dict) else []


def _form(value: Any) -> Any:
    """A value with its numbers left out, also those within its texts."""
    if isinstance(value, dict):
        return {key: _form(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_form(part) for part in value]
    return split(value)[0] if isinstance(value, str) else None


def leaves(a: Any, b: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """The values of two JSON documents by where they stand; `_ABSENT` where only one has something."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in dict.fromkeys([*a, *b]):
            yield from leaves(a.get(key, _ABSENT), b.get(key, _ABSENT), f"{path}, {key}")
    elif isinstance(a, list) and isinstance(b, list):
        for place, (x, y) in enumerate(zip_longest(a, b, fillvalue=_ABSENT)):
            yield from leaves(x, y, f"{path} {place + 1}")
    else:
        yield path, a, b


def equal(a: Any, b: Any) -> bool:
    """Whether two values of JSON documents are the same, apart from the last bits of long numbers."""
    if a is _ABSENT or b is _ABSENT:
        return False
    identical = a == b and isinstance(a, bool) == isinstance(b, bool)
    return identical or same(_text(a), _text(b))


def _shown(value: Any) -> str | None:
    return None if value is _ABSENT else _text(value)[:100]


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
