"""The cells of a study, as the verbs that read one get them."""

from __future__ import annotations

from collections.abc import Sequence

from runner.commands._console import say
from runner.inputs.cells import Cell
from runner.inputs.checks import doubts
from runner.inputs.expansion import expand
from runner.inputs.study import Study


def cells_of(
    study: Study,
    scale: str,
    sets: Sequence[str] | None = None,
    only: Sequence[str] | None = None,
    repeats: int | None = None,
) -> list[Cell]:
    """Expand a study, and warn about what is probably a mistake.

    Args:
        repeats: of each cell, in place of the study's.

    Raises:
        UserError: as `expand`.
    """
    cells = expand(study, scale, sets or (), only or (), repeats)
    for doubt in doubts(cells):
        say(doubt.shown())
    return cells
