"""Which settings of a cell come from a scale or an option instead of the study itself."""

from __future__ import annotations

from collections.abc import Mapping

from model.record.records import Override
from runner.inputs.cells.options import Setting

BY_SET = "`--set`"  # what changed a setting, as records and pages say it


def overridden(
    settings: Mapping[str, Setting], own: Mapping[str, Setting], options: Mapping[str, Setting], scale: str
) -> dict[str, Override]:
    """The study's own value of each setting that has another one in the cell.

    Args:
        settings: of the cell, all layers together.
        own: as they would be without scale and options.
        options: of `--set`; every other change is the scale's.
    """
    changed = {}
    for dotted, (value, _) in settings.items():
        study, _ = own.get(dotted, (None, None))
        if value != study:
            changed[dotted] = Override(own=study, by=BY_SET if dotted in options else f"scale {scale}")
    return changed
