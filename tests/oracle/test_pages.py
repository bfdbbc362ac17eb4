"""Pages of small studies say what is true of their raw records, by code that imports nothing of `analysis`."""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from analysis.report import answer
from tests.oracle import kinds
from tests.oracle.conftest import NAMES, Built
from tests.oracle.pages import Element, agrees, table
from tests.oracle.truth import Study

MARK = "flagged: "  # of a bar
PLACES = ("ran", "answer", "warning", "limit")
# Of the code that makes sentences: what is in the texts for papers alone, and what names tasks that others add.
ELSEWHERE = (("ran.py", "expected"), ("ran.py", "of_any"), ("ran.py", "_empty_places"))


def answer_of(page: Element) -> dict[str, list[str]]:
    """What an overview says, by place."""
    block = next(part for part in page.every("section", "answer"))
    limits = next(
        part for part in page.every("section") if part.attributes.get("aria-labelledby") == "limits"
    )
    ran = next(part for part in block.every("p") if not part.attributes.get("class"))
    headline = block.first("p", "headline")
    return {
        "ran": [ran.text],
        "answer": [headline.text] if headline else [],
        "warning": [item.text for items in block.every("ul", "warning") for item in items.every("li")],
        "limit": [item.text for item in limits.every("li")],
    }


def expected(study: Study, place: str) -> list[str]:
    """What is true, by the kinds of that place."""
    return [text for kind in kinds.SENTENCES[place].values() for text in kind(study)]


def _cases() -> Iterable[object]:
    for name in NAMES:
        for place in PLACES:
            yield pytest.param(name, place, id=f"{name}-{place}")


@pytest.mark.parametrize(("name", "place"), list(_cases()))
def test_sentences(built: Built, name: str, place: str) -> None:
    """Each sentence of an overview is of a kind that says so, and none is missing."""
    shown, true = answer_of(built.page(name, "index"))[place], expected(built.studies[name], place)
    if place == "answer":  # one paragraph
        true = [" ".join(true)]
    false = [text for text in shown if not any(agrees(text, sentence) for sentence in true)]
    missing = [text for text in true if not any(agrees(sentence, text) for sentence in shown)]
    assert (false, missing) == ([], []), f"{name}: says falsely {false}; should say {missing}"


def numbered(heads: Iterable[str]) -> list[str]:
    """Heads of columns; the second of one name has its number."""
    names: list[str] = []
    for head in heads:
        names.append(head if head not in names else f"{head} (2)")
    return names


def label_of(shown: str) -> str:
    """The name of a group without what the page adds to it: its number in a sweep, and where it comes from."""
    return re.sub(r"^\d+ (?=.*=)", "", shown).partition(" (imported)")[0]


def overview_rows(page: Element) -> tuple[list[str], dict[str, list[tuple[str, str]]]]:
    """The overview's table: its heads, and by group the text of each cell with the note on it."""
    overview = page.first("table", "overview")
    assert overview
    notes = {}
    for entry in page.every("dl", "notes"):
        for note in entry.every("div"):
            letter, text = (note.first(tag) for tag in ("dt", "dd"))
            assert letter and text
            notes[letter.text] = text.text
    rows: dict[str, list[tuple[str, str]]] = {}
    for body in overview.every("tbody"):
        for row in body.every("tr"):
            name, *cells = [part for part in row.parts if isinstance(part, Element)]
            rows[label_of(name.text)] = [
                (part.without("sup").text, notes.get(sup.text if (sup := part.first("sup")) else "", ""))
                for part in cells
            ]
    return numbered(table(overview).heads[1:]), rows


def table_of(study: Study) -> str:
    """Which kinds of cells its overview has."""
    return {"attention": "backends", "frontier": "frontiers"}.get(study.task, "groups")


@pytest.mark.parametrize("name", NAMES)
def test_table_of_groups(built: Built, name: str) -> None:
    """Each cell of the overview's table, with its note."""
    study, (heads, rows) = built.studies[name], overview_rows(built.page(name, "index"))
    cell_kinds = kinds.CELLS[table_of(study)]
    assert set(heads) <= set(cell_kinds), "columns without an oracle"
    if study.task != "attention":
        assert list(rows) == list(study.groups)
    false = []
    for label, cells in rows.items():
        for head, (text, note) in zip(heads, cells, strict=True):
            true = cell_kinds[head](study, label)
            if not (agrees(text, true[0]) and agrees(note, true[1])):
                false.append((label, head, (text, note), true))
    assert not false


@pytest.mark.parametrize("name", NAMES)
def test_verdicts_as_csv(built: Built, name: str) -> None:
    """The CSV of ratios has the verdicts that the pages have."""
    file = built.out / name / "data" / "findings" / "ratios.csv"
    for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines() if file.exists() else ()):
        word = kinds.verdict(built.studies[name], row["label"])[0]
        assert row["verdict"] == {"faster": "different", "slower": "different"}.get(word, word)


@pytest.mark.parametrize("name", NAMES)
def test_small_figures(built: Built, name: str) -> None:
    """Each bar of the small figures: its number, and how long it is; lines; or why there are none."""
    study = built.studies[name]
    for panel in built.page(name, "index").every("figure", "panel"):
        (title,) = (part.text for part in panel.every("figcaption"))
        empty, bars = panel.first("p", "empty"), list(panel.every("li"))
        absent = kinds.ABSENT[title](study) if title in kinds.ABSENT else ""
        assert (empty.text if empty else "") == absent, title
        if panel.first("svg"):
            _lines(panel, study)
            continue
        lengths, farthest = dict[float, float](), 0.0
        for bar in bars:
            label, value, stripe = bar.first("span", "name"), bar.first("span", "value"), bar.first("i")
            assert label and value and stripe
            group = label_of(label.text)
            true = kinds.PANELS[title](study, group)
            assert true, f"{title} of {group}"
            marked, number = value.text.startswith(MARK), value.text.removeprefix(MARK)
            assert marked == (group in study.wrong), f"{title} of {group}: {value.text}"
            text = kinds.took(true.middle) if number.endswith(("s", "min", "h")) else f"{true.middle}"
            text += " weak" if title.startswith("Efficiency") else ""
            assert agrees(number, text), f"{title} of {group}: {number}, not {text}"
            lengths[true.middle], ends = _share(stripe, "width"), bar.first("b")
            farthest = max(farthest, _share(stripe, "width"))
            if ends:
                farthest = max(farthest, _share(ends, "left") + _share(ends, "width"))
        assert not bars or farthest == pytest.approx(100, abs=0.02), title
        for true_value, length in lengths.items():
            share = true_value / max(lengths)
            assert length == pytest.approx(share * lengths[max(lengths)], abs=0.02), title


def _share(part: Element, style_property: str) -> float:
    """A percentage of its style."""
    return float(part.attributes["style"].split(f"{style_property}: ")[1].partition("%")[0])


def _lines(panel: Element, study: Study) -> None:
    """The lines of the smoothed loss: what the axes end at, and where each line ends."""
    curves = kinds.smoothed_losses(study)
    values = sorted(value for curve in curves.values() for value in curve.values())
    steps = [step for curve in curves.values() for step in curve]
    low, high = values[0], values[int(0.95 * (len(values) - 1))]  # above it are the first steps
    true = {
        "top": f"{'≥ ' if values[-1] > high else ''}{high}",
        "bottom": f"{low}",
        "first": f"step {min(steps)}",
        "last": f"{max(steps)}",
    }
    for kind, text in true.items():
        span = panel.first("span", kind)
        assert span and agrees(span.text, text), f"{kind}: {span and span.text}, not {text}"
    ends = {
        round(100 - 100 * min(1.0, (curve[max(curve)] - low) / (high - low)), 1) for curve in curves.values()
    }
    drawn = {float(line.attributes["points"].split(",")[-1]) for line in panel.every("polyline")}
    assert all(any(abs(one - other) < 0.11 for other in ends) for one in drawn)
    assert all(any(abs(one - other) < 0.11 for other in drawn) for one in ends)


def test_every_kind_is_tried(built: Built) -> None:
    """No kind is listed that no study shows."""
    untried = [
        name
        for place in kinds.SENTENCES.values()
        for name, kind in place.items()
        if not any(list(kind(study)) for study in built.studies.values())
    ]
    shown: dict[str, set[str]] = {}
    for name, study in built.studies.items():
        shown.setdefault(table_of(study), set()).update(overview_rows(built.page(name, "index"))[0])
    untried += [head for name, columns in kinds.CELLS.items() for head in columns if head not in shown[name]]
    assert not untried


def test_every_sentence_of_the_code_is_said(built: Built) -> None:
    """Each place in the code that makes a sentence of the overview makes one here, which is then compared."""
    silent = []
    for file in sorted(Path(str(answer.__file__)).parent.glob("*.py")):
        for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef) or (file.name, function.name) in ELSEWHERE:
                continue
            for call in ast.walk(function):
                if (
                    isinstance(call, ast.Call)
                    and isinstance(call.func, ast.Name)
                    and call.func.id == "Sentence"
                ):
                    lines = range(call.lineno, (call.end_lineno or call.lineno) + 1)
                    if not any((file.name, line) in built.places for line in lines):
                        silent.append(f"{file.name}:{call.lineno}")
    assert not silent, f"no oracle study has a sentence of {silent}"
