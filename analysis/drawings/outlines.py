"""Turns the text of a drawing into outlines, so that it looks the same where the font is missing.

The outlines are those of Liberation Sans, in which vl-convert lays drawings out: see glyphs.LICENSE.
"""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Tree

FONT = "Liberation Sans"
_UNITS = 2048  # of the outlines, in the font's size
_LABEL = 12  # pixels of an axis's labels, as all charts have them
_SVG = "http://www.w3.org/2000/svg"
_TEXT = frozenset({"text-anchor", "font-family", "font-size", "font-weight", "font-style"})
_BOLD = ("bold", "600", "700", "800", "900")
_SHIFT = {"start": 0.0, "middle": -0.5, "end": -1.0}
Glyphs = dict[str, Any]


@cache
def _glyphs() -> dict[str, Glyphs]:
    """For each weight, the advance and path of each character and the kerning of each pair."""
    glyphs: dict[str, Glyphs] = json.loads(
        Path(__file__).with_name("glyphs.json").read_text(encoding="utf-8")
    )
    return glyphs


def settable(text: str) -> str:
    """The text with the code of each character that the font lacks in its place: `[U+1F600]`.

    No font of the reader's can then change what a drawing says, and nothing is dropped.
    """
    glyphs = _glyphs()["normal"]["glyphs"]
    return "".join(
        character if character in glyphs or character in "\n\t" else f"[U+{ord(character):04X}]"
        for character in text
    )


@cache
def length(label: str) -> float:
    """How long an axis's label is, in pixels; `settable` text."""
    return _line(label, _glyphs()["normal"])[0] * _LABEL / _UNITS


def outlined(svg: str) -> str:
    """The drawing with a path for each line of text, which it keeps as the path's label.

    Args:
        svg: as Vega draws it, in FONT, with `settable` text.
    """
    Tree.register_namespace("", _SVG)
    Tree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    root = Tree.fromstring(svg)  # noqa: S314 - drawn by Vega just now
    for parent in list(root.iter()):
        for place, child in enumerate(parent):
            if child.tag == f"{{{_SVG}}}text":
                parent[place] = _outline_text(child)
    return Tree.tostring(root, encoding="unicode")


def _outline_text(text: Tree.Element) -> Tree.Element:
    """The element's lines as paths, in a group with its colour and place."""
    kept = {name: value for name, value in text.items() if name not in _TEXT}
    group = Tree.Element(f"{{{_SVG}}}g", kept | {"aria-label": "\n".join(text.itertext())})
    size = float(text.get("font-size", "10px").removesuffix("px"))
    weight = "bold" if text.get("font-weight", "normal") in _BOLD else "normal"
    y = 0.0
    for line in list(text) or [text]:
        y += float(line.get("dy", 0))
        width, path = _line(line.text or "", _glyphs()[weight])
        x = _SHIFT[text.get("text-anchor", "start")] * width * size / _UNITS
        scale = f"{size / _UNITS:.6g}"
        place = {"transform": f"translate({x:.6g},{y:.6g}) scale({scale},-{scale})", "d": path}
        Tree.SubElement(group, f"{{{_SVG}}}path", place)
    return group


def _line(text: str, glyphs: Glyphs) -> tuple[float, str]:
    """Width of a line and its path, in the outlines' units, y upwards."""
    text = re.sub(r"\s", " ", text)
    at, path = 0, ""
    kerns = [0, *(glyphs["kerning"].get(a + b, 0) for a, b in pairwise(text))]
    for character, kern in zip(text, kerns, strict=bool(text)):
        advance, outline = glyphs["glyphs"][character]
        at += kern
        path += f"M{at} 0{outline}" if outline else ""
        at += advance
    return at, path
