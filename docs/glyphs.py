"""Writes analysis/drawings/glyphs.json from the two fonts of Liberation Sans; needs fonttools.

python docs/glyphs.py LiberationSans-Regular.ttf LiberationSans-Bold.ttf
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from fontTools.pens.basePen import BasePen
from fontTools.ttLib import TTFont

GLYPHS = Path(__file__).parents[1] / "analysis" / "drawings" / "glyphs.json"
# Latin, Greek, punctuation, super- and subscripts, currencies, letterlike, arrows, mathematics, shapes.
RANGES = (
    *((0x20, 0x7E), (0xA0, 0x17F), (0x386, 0x3CE), (0x2010, 0x2015), (0x2018, 0x2027), (0x2030, 0x203A)),
    *((0x2044, 0x2044), (0x2070, 0x2094), (0x20AC, 0x20AC), (0x2100, 0x212B), (0x2190, 0x2195)),
    *((0x2202, 0x2265), (0x25A0, 0x25CF)),
)


class RelativePen(BasePen):
    """Draws an outline as an SVG path of relative commands, which can be set anywhere in a longer path."""

    def __init__(self, glyphs: Any) -> None:
        super().__init__(glyphs)
        self.path, self.at, self.began = "", (0, 0), (0, 0)

    def _to(self, command: str, *points: tuple[float, float]) -> None:
        numbers = [round(b - a) for point in points for a, b in zip(self.at, point, strict=True)]
        self.path += command + "".join(f"{' ' if n >= 0 and i else ''}{n}" for i, n in enumerate(numbers))
        self.at = tuple(map(round, points[-1]))

    def _moveTo(self, point: tuple[float, float]) -> None:
        self._to("m", point)
        self.began = self.at

    def _lineTo(self, point: tuple[float, float]) -> None:
        self._to("l", point)

    def _qCurveToOne(self, control: tuple[float, float], point: tuple[float, float]) -> None:
        self._to("q", control, point)

    def _closePath(self) -> None:
        self.path += "z"
        self.at = self.began


def glyphs_of(font: TTFont) -> dict[str, Any]:
    """Advance and outline by character, and kerning by pair of characters, in 1/2048 of the font's size."""
    names, drawn = font.getBestCmap(), font.getGlyphSet()
    characters = [chr(code) for first, last in RANGES for code in range(first, last + 1) if code in names]
    outlines = {}
    for character in characters:
        pen = RelativePen(drawn)
        drawn[names[ord(character)]].draw(pen)
        outlines[character] = [drawn[names[ord(character)]].width, pen.path]
    pairs = font["kern"].kernTables[0].kernTable
    latin = [character for character in characters if character < "\x7f"]
    kerning = {a + b: pairs.get((names[ord(a)], names[ord(b)])) for a in latin for b in latin}
    return {"glyphs": outlines, "kerning": {pair: value for pair, value in kerning.items() if value}}


if __name__ == "__main__":
    found = {
        weight: glyphs_of(TTFont(path)) for weight, path in zip(("normal", "bold"), sys.argv[1:], strict=True)
    }
    GLYPHS.write_text(json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
