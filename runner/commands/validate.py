"""Check a study, or several, at each of its scales; errors show FILE:LINE:COL and how to fix them.

Examples:
  runner validate experiments/first.yaml
  runner validate experiments/seeds/003
"""

from __future__ import annotations

from model.record.units import counted
from runner.commands._console import show
from runner.commands._options import StudyPaths, cells_of, study_files
from runner.inputs.document import InvalidFile
from runner.inputs.study import read_study


def command(studies: StudyPaths) -> None:
    problems = []
    for path in study_files(studies):
        try:
            parsed = read_study(path)
        except InvalidFile as error:
            problems += error.problems
            continue
        for scale in parsed.scale_names:
            try:
                show(f"{path}: scale {scale}: {counted(len(cells_of(parsed, scale)), 'run')}")
            except InvalidFile as error:
                problems += error.problems
    if problems:
        raise InvalidFile(problems)
