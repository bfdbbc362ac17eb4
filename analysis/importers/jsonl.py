"""JSONL: one JSON object a line; a mapping names its keys."""

from analysis.importers import Importer
from analysis.importers._table import json_lines

importer = Importer(title="one JSON object per line, keys named by a mapping", read=json_lines)
