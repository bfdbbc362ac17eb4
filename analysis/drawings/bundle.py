"""The script that draws the figures of pages: Vega, Vega-Lite and vega-embed in one, which fetches nothing.

Bundling takes longer than the rest of a small report, so it is kept in the user's cache folder.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from analysis.drawings.draw import require_room, vega_version
from model.record.files import user_folder, write_text


@cache
def script() -> str:
    """The script from the user's cache or, where that has none, bundled now."""
    return kept() or bundled(vega_version())


def bundled(vega: str) -> str:
    """Bundle it for this version of Vega-Lite, and keep it for the next report.

    It takes seconds, in which no other thread of Python runs.
    """
    import vl_convert

    require_room()
    bundle: Any = vl_convert.javascript_bundle  # its type wants a snippet, which has a default
    text = str(bundle(vl_version=vega))
    place = _place(vega)
    with suppress(OSError):  # without a cache the next report takes as long
        place.parent.mkdir(parents=True, exist_ok=True)
        write_text(place, text)
    return text


def kept() -> str | None:
    """What an earlier report bundled; None if nothing is there."""
    with suppress(OSError, UnicodeDecodeError):
        return _place(vega_version()).read_text(encoding="utf-8")
    return None


def _place(vega: str) -> Path:
    return user_folder("cache") / f"vega-{version('vl-convert-python')}-{vega}.js"
