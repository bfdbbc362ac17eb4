"""Check a study at each of its scales; errors show FILE:LINE:COL and how to fix them."""

from __future__ import annotations

from runner.commands._console import show
from runner.commands._options import StudyPath
from runner.spec.expansion import expand
from runner.spec.problems import InvalidFile
from runner.spec.study import read_study


def command(study: StudyPath) -> None:
    parsed = read_study(study)
    problems = []
    for scale in dict.fromkeys(["full", *parsed.file.scales]):
        try:
            show(f"{study}: scale {scale}: {len(expand(parsed, scale))} runs")
        except InvalidFile as error:
            problems += error.problems
    if problems:
        raise InvalidFile(problems)
