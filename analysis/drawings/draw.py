"""Draws a figure for print and for other programs: the same bytes for the same figure, on any machine.

SVG holds outlines in place of text, so that it looks alike in every viewer; PDF and PNG hold their font.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from analysis.drawings.ordered import ordered
from analysis.drawings.outlines import FONT, length, outlined, settable
from model.measure import hostmemory
from model.record.errors import UserError
from model.record.units import size

Format = Literal["svg", "pdf", "png"]
FORMATS: tuple[Format, ...] = get_args(Format)
WIDTHS = {"": 6.9, "-narrow": 3.3}  # inches, by the end of a file's name: a page's text, one of two columns
_INK = "#1a1a1a"  # in place of the page's text colour
_PIXELS, _POINTS, _DOTS = 96, 72, 300  # an inch, of drawings, of PDF and of PNG
_RESERVED = 65 * 2**30  # bytes that V8 maps in each process and hardly uses; without them it aborts
_CLIP = re.compile(r"""(id="|url\(#)clip(\d+)""")
_SIZE = re.compile(r'width="([\d.]+)" height="([\d.]+)"')


def vega_version() -> str:
    """The Vega-Lite that Altair writes for, or the newest that the bundle has."""
    import altair
    import vl_convert

    wanted = altair.SCHEMA_VERSION.removeprefix("v").rpartition(".")[0]
    bundled: list[str] = vl_convert.get_vegalite_versions()
    return wanted if wanted in bundled else bundled[-1]


@cache
def require_room() -> None:
    """Raise UserError if this process may not map what drawing reserves; call it before the first figure."""
    try:
        mmap.mmap(-1, _RESERVED, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0).close()
    except OSError as error:
        why = hostmemory.address_space() or error.strerror
        advice = "run `ulimit -v unlimited` first, or build the report on another machine"
        raise UserError(f"drawing figures maps {size(_RESERVED)}, but {why}: {advice}") from error


def write(
    folder: Path, name: str, spec: Mapping[str, Any], formats: Iterable[Format], version: str | None = None
) -> None:
    """Write `NAME.svg`, and `NAME.pdf`, `NAME-narrow.pdf` and so on in each of the other formats.

    Args:
        version: of Vega-Lite; None for the one that Altair writes for.
    """
    wanted = [form for form in FORMATS if form in ("svg", *formats)]
    for end, inches in WIDTHS.items():
        forms = wanted if not end else wanted[1:]
        svg = laid_out(spec, inches, version) if forms else ""
        for form in forms:
            (folder / f"{name}{end}.{form}").write_bytes(encode(svg, form))


def files(formats: Iterable[Format]) -> list[tuple[str, str]]:
    """The end of each file's name that `write` gives a figure, and what a link to it is called."""
    links = [(".svg", "SVG")]
    for form in (form for form in FORMATS[1:] if form in formats):
        links += [(f"{end}.{form}", f"{form.upper()}, {inches} in") for end, inches in WIDTHS.items()]
    return links


def drawing(
    spec: Mapping[str, Any], form: Format, inches: float = WIDTHS[""], version: str | None = None
) -> bytes:
    """One figure as a file.

    Args:
        spec: Vega-Lite as wide as the page, in the page's text colour.
        inches: the figure's width, labels included; its text is of 9 points at any width.
        version: of Vega-Lite; None for the one that Altair writes for.
    """
    return encode(laid_out(spec, inches, version), form)


def laid_out(spec: Mapping[str, Any], inches: float, version: str | None = None) -> str:
    """The figure as Vega draws it, black on white, with text in FONT, at 96 pixels an inch."""
    import vl_convert

    require_room()
    text = json.dumps(_printed(dict(spec), inches * _PIXELS)).replace("currentColor", _INK)
    svg: str = vl_convert.vegalite_to_svg(text, vl_version=version or vega_version())
    # Clips are numbered over all figures of the process: from zero in each, equal figures have equal bytes.
    ids = dict.fromkeys(match[2] for match in _CLIP.finditer(svg))
    places = {name: str(place) for place, name in enumerate(ids)}
    return _CLIP.sub(lambda match: f"{match[1]}clip{places[match[2]]}", svg)


def _printed(spec: dict[str, Any], width: float) -> Any:
    """The figure without what only pages use, such as tooltips and ARIA labels, and what only takes time."""
    config = {key: value for key, value in spec.get("config", {}).items() if key != "background"}
    config |= {"font": FONT, "aria": False}
    layers = []
    for layer in spec.get("layer", ()):
        encoding = {name: value for name, value in layer.get("encoding", {}).items() if name != "tooltip"}
        y = encoding.get("y", {})
        limit = (y.get("axis") or {}).get("labelLimit", 0)
        labels = (y.get("scale") or {}).get("domain", [])
        # Vega would measure each label anew, several times, to see that none reaches the limit.
        if limit and labels and all(length(settable(label)) < limit for label in labels):
            encoding["y"] = y | {"axis": y["axis"] | {"labelLimit": 0}}
        layers.append(layer | {"encoding": encoding} if encoding else layer)
    drawn = {"layer": layers} if "layer" in spec else {}
    return _settable(spec | drawn | {"width": width, "background": "white", "config": config})


def _settable(value: Any) -> Any:
    """A specification without characters that the font lacks, wherever they stand."""
    if isinstance(value, str):
        return value if value.isascii() and value.isprintable() else settable(value)
    if isinstance(value, dict):
        return {_settable(key): _settable(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_settable(part) for part in value]
    return value


def encode(svg: str, form: Format) -> bytes:
    """A drawing of `laid_out` as a file; a PDF is a page of its size, with the used part of the font."""
    import vl_convert

    if form == "svg":
        return outlined(svg).encode()
    if form == "png":
        return bytes(vl_convert.svg_to_png(svg, scale=_POINTS / _PIXELS, ppi=_DOTS))
    # The converter takes a pixel for a point.
    first = svg.index(">")  # of the svg element
    size = _SIZE.sub(
        lambda match: 'width="{:.10g}" height="{:.10g}"'.format(
            *(float(pixels) * _POINTS / _PIXELS for pixels in match.groups())
        ),
        svg[:first],
        count=1,
    )
    return ordered(bytes(vl_convert.svg_to_pdf(size + svg[first:])))
