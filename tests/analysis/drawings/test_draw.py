"""Drawings for print: the same bytes each time, right in any viewer, and nothing that they say is lost."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Tree

import pytest

from analysis.drawings import draw, outlines
from analysis.drawings.ordered import assemble, ordered

LABELS = ["custom", "Wij efficient", "0123 %", "\N{GRINNING FACE} \u200f\u05e9\u05dc", "a\x07b"]
SPEC: dict[str, Any] = {
    "config": {"background": None, "font": "system-ui"},
    "width": "container",
    "autosize": {"type": "fit-x", "contains": "padding"},
    "data": {"values": [{"label": label, "value": place} for place, label in enumerate(LABELS)]},
    "mark": {"type": "bar", "color": "currentColor"},
    "encoding": {
        "y": {"field": "label", "type": "nominal", "title": "group"},
        "x": {"field": "value", "type": "quantitative", "title": ["Tokens", "per second"]},
    },
}


@pytest.fixture(scope="module")
def drawn() -> str:
    return draw.laid_out(SPEC, 6.9)


def test_text_is_outlines_that_still_say_it(drawn: str) -> None:
    root = Tree.fromstring(outlines.outlined(drawn))
    assert not [element for element in root.iter() if element.tag.endswith("}text")]
    labels = [element.get("aria-label") for element in root.iter()]
    for label in ("custom", "Wij efficient", "0123 %"):
        assert label in labels


def test_a_label_is_as_wide_as_in_the_layout(drawn: str) -> None:
    """Vega places a label that ends at the axis by the width of its font; 'custom' is 38 pixels wide in it."""
    width, path = outlines._line("custom", outlines._glyphs()["normal"])
    assert width == sum((1024, 1139, 1024, 569, 1139, 1706)) == 6601
    assert path.startswith("M0 0m")
    assert draw.laid_out(SPEC, 6.9) == drawn


def test_characters_that_no_font_has_are_named_by_their_code(drawn: str) -> None:
    assert "[U+1F600] [U+200F][U+05E9]" in drawn
    assert "a[U+0007]b" in drawn


@pytest.mark.parametrize("inches", [3.3, 6.9])
def test_a_pdf_has_its_width_in_inches_and_a_png_300_dots_for_each(inches: float) -> None:
    svg = draw.laid_out(SPEC, inches)
    (box,) = re.findall(rb"/MediaBox \[0 0 ([\d.]+) [\d.]+\]", draw.encode(svg, "pdf"))
    assert float(box) == pytest.approx(72 * inches)
    png = draw.encode(svg, "png")
    assert struct.unpack(">I", png[16:20])[0] == pytest.approx(300 * inches, abs=1)
    per_meter = struct.unpack(">I", png[png.index(b"pHYs") + 4 :][:4])[0]
    assert per_meter == pytest.approx(300 / 0.0254, abs=1)


def test_pdfs_of_one_drawing_have_the_same_bytes(drawn: str) -> None:
    """The converter orders fonts by chance, so a bold and a plain one come in either order."""
    import vl_convert

    bold = drawn.replace('font-weight="bold"', "").replace("font-size", 'font-weight="bold" font-size', 1)
    pdfs = {bytes(vl_convert.svg_to_pdf(bold)) for _ in range(12)}
    assert len(pdfs) > 1
    assert len({ordered(pdf) for pdf in pdfs}) == 1
    assert b"Date" not in ordered(pdfs.pop())


def test_the_table_of_a_pdf_leads_to_its_objects(drawn: str) -> None:
    pdf = draw.encode(drawn, "pdf")
    start = int(re.search(rb"startxref\n(\d+)", pdf)[1])
    positions = [int(digits) for digits in re.findall(rb"(\d{10}) 00000 n", pdf[start:])]
    for number, position in enumerate(positions, 1):
        assert pdf[position:].startswith(b"%d 0 obj\n" % number)


@pytest.mark.skipif(not shutil.which("pdffonts"), reason="needs pdffonts: apt install poppler-utils")
def test_a_pdf_embeds_its_font_and_keeps_its_text(drawn: str, tmp_path: Path) -> None:
    path = tmp_path / "figure.pdf"
    path.write_bytes(draw.encode(drawn, "pdf"))
    fonts = subprocess.run(["pdffonts", path], capture_output=True, text=True, check=True)
    rows = [row.split() for row in fonts.stdout.splitlines()[2:]]
    assert rows
    assert all("LiberationSans" in row[0] and row[-5] == "yes" for row in rows)
    text = subprocess.run(["pdftotext", path, "-"], capture_output=True, text=True, check=True)
    assert "Wij efficient" in text.stdout
    assert not fonts.stderr + text.stderr


def test_every_format_is_written_at_both_widths(tmp_path: Path) -> None:
    draw.write(tmp_path, "figure", SPEC, ("pdf", "png"))
    suffixes = ("", "-narrow")
    names = {f"figure{suffix}.{form}" for suffix, form in itertools.product(suffixes, ("pdf", "png"))}
    assert {path.name for path in tmp_path.iterdir()} == {"figure.svg", *names}
    links = [f"figure{suffix}" for suffix, _ in draw.files(("pdf", "png"))]
    assert {*links} == {"figure.svg", *names}


def test_a_drawing_has_no_tooltips_and_no_labels_of_marks() -> None:
    """They are for pages; the browser's figure keeps them."""
    tooltip = {"field": "label", "type": "nominal"}
    layer = {"mark": "bar", "encoding": SPEC["encoding"] | {"tooltip": tooltip}}
    spec = {name: value for name, value in SPEC.items() if name not in ("mark", "encoding")}
    printed = draw._printed(spec | {"layer": [layer]}, 600)
    assert "tooltip" in layer["encoding"]
    assert "tooltip" not in printed["layer"][0]["encoding"]
    svg = draw.laid_out(spec | {"layer": [layer]}, 6.9)
    assert 'aria-roledescription="bar"' not in svg
    assert "custom" in svg


@pytest.mark.parametrize("longest", ["short", "one that is longer than its limit of 80 pixels"])
def test_a_limit_of_labels_holds_and_is_left_out_where_all_of_them_fit(longest: str) -> None:
    labels = ["custom", longest]
    y = {"field": "label", "type": "nominal", "scale": {"domain": labels}, "axis": {"labelLimit": 80}}
    data = {"values": [{"label": label} for label in labels]}
    spec = {
        "layer": [{"mark": "point", "data": data, "encoding": {"y": y}}],
        "config": {"axis": {"labelFontSize": 12}},
    }
    (layer,) = draw._printed(spec, 600)["layer"]
    fits = longest == "short"
    assert layer["encoding"]["y"]["axis"]["labelLimit"] == (0 if fits else 80)
    assert (">short<" if fits else ">one that is") in draw.laid_out(spec, 6.9)
    assert "of 80 pixels" not in draw.laid_out(spec, 6.9)
    assert y["axis"] == {"labelLimit": 80}, "the page's"


def test_a_pdf_whose_objects_are_in_order_stays_as_it_is() -> None:
    """Many lead back to one, which is found once."""
    names = [b"%d" % number for number in range(1, 301)]
    objects = [b"<<\n  /Kids [" + b" ".join(name + b" 0 R" for name in names[1:]) + b"]\n>>"]
    objects += [b"<<\n  /Next 1 0 R\n>>"] * (len(names) - 1)
    pdf = assemble(b"%PDF-1.7\n%x\n", objects)
    assert ordered(pdf) == pdf


def test_a_specification_of_plain_text_is_not_changed() -> None:
    assert draw._settable(json.loads(json.dumps({"a": ["b", 1.5, None]}))) == {"a": ["b", 1.5, None]}
