"""Figures as files for print and for other programs: SVG, PDF and PNG."""

from analysis.drawings.draw import FORMATS, Format, drawing, files, write
from analysis.drawings.version import vega_version

__all__ = ["FORMATS", "Format", "drawing", "files", "vega_version", "write"]
