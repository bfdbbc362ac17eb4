"""Writes figures as files for print and for other programs: SVG, PDF and PNG."""

from analysis.drawings.beside import Drawer, digest, drawer, processes
from analysis.drawings.bundle import script
from analysis.drawings.draw import FORMATS, WIDTHS, Format, drawing, files, write

__all__ = [
    "FORMATS",
    "WIDTHS",
    "Drawer",
    "Format",
    "digest",
    "drawer",
    "drawing",
    "files",
    "processes",
    "script",
    "write",
]
