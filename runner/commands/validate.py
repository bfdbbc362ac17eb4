"""Check a study at each of its scales; errors show FILE:LINE:COL and how to fix them.

Examples:
  runner validate experiments/first.yaml
"""

from __future__ import annotations

from model.record.units import counted
from runner.commands._console import show
from runner.commands._options import StudyPath, cells_of
from runner.inputs.document import InvalidFile
from runner.inputs.study import read_study


def command(study: StudyPath) -> None:
    parsed = read_study(study)
    problems = []
    for scale in parsed.scale_names:
        try:
            show(f"{study}: scale {scale}: {counted(len(cells_of(parsed, scale)), 'run')}")
        except InvalidFile as error:
            problems += error.problems
    if problems:
        raise InvalidFile(problems)
