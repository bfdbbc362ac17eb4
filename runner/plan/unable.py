"""Which runs would end unsupported: by a backend that lacks a kind of call, or by the versions installed."""

from __future__ import annotations

from collections.abc import Sequence

from model import attention
from model.record import backends
from model.record.records import Outcome
from runner.inputs.cells import Cell
from runner.inputs.document import InvalidFile, Problem
from runner.inputs.profile import Profile


def refuse_versions(cells: Sequence[Cell], profile: Profile) -> None:
    """Check settings against the torch and triton of this Python, if the runs use it.

    Raises:
        InvalidFile: some need others; runs that are expected to end unsupported may start.
    """
    if profile.executor != "local" or profile.python is not None:
        return
    if problems := [
        Problem(cell.marks.get(setting, cell.origin), why)
        for cell in cells
        if cell.expected is not Outcome.UNSUPPORTED
        for setting, why in cell.config.lacking().items()
    ]:
        raise InvalidFile(problems)


def unable(cells: Sequence[Cell]) -> list[Problem]:
    """One warning for each such backend, at its place in the study, unless the cells expect it.

    Torch is imported only if some run needs such calls. The runs start nevertheless: a study may want to show
    what a backend lacks.
    """
    return sorted({problem for cell in cells if (problem := _unable(cell))})


def _unable(cell: Cell) -> Problem | None:
    name, case = cell.config.attention, cell.config.attention_case
    asks = case.context > 1 or case.new_tokens > 0
    if not asks or cell.expected is Outcome.UNSUPPORTED or backends.is_foreign(name):
        return None
    lacks = attention.lacking(attention.load(name), case)
    if not lacks:
        return None
    text = f"warning: '{name}' {'; '.join(lacks)}; or state `expect: unsupported`"
    return Problem(cell.marks.get("attention", cell.origin), text)
